"""The block stack with every collective written by hand, as an expert would inside `shard_map`.

Three places in a block decide a layout: how a weight is brought in, how the normed activations
enter a pair of products, and how the result leaves it. `check_vma=True` derives the backward pass
from them: a gather becomes a reduce-scatter, and a `pcast` to varying becomes the sum that Megatron
calls f. A parameter that is the same on all devices along an axis is cast before the scan, so that
its gradient is summed once, after the scan.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from .cases import Case
from .kernel import attend
from .model import angles, rms_norm, rotate
from .program import Program, place


@dataclasses.dataclass(frozen=True)
class _Hand:
    """A layout: how parameters and activations are split, and the collectives of a block.

    Attributes:
      specs: of the parameters.
      x: of the residual stream (batch, length, d_model).
      cast: for a parameter, the axes over which it is the same on all devices but its gradient is
        not.
      weight: brings one layer's parameter in; `dim` is the position of its d_model.
      enter: brings in the normed (batch, length, d_model), before a pair of products.
      leave: brings out the result of the products.
    """

    specs: dict[str, P]
    x: P
    cast: dict[str, tuple[str, ...]]
    weight: Callable = lambda w, dim: w
    enter: Callable = lambda h: h
    leave: Callable = lambda y: y


_D_MODEL = {
    "attention_norm": 0,
    "q": 0,
    "k": 0,
    "v": 0,
    "o": 2,
    "mlp_norm": 0,
    "gate": 0,
    "up": 0,
    "down": 1,
}
_RANK = {
    "attention_norm": 1,
    "q": 3,
    "k": 3,
    "v": 3,
    "o": 3,
    "mlp_norm": 1,
    "gate": 2,
    "up": 2,
    "down": 2,
}
_SPLIT = {
    "q": 1,
    "k": 1,
    "v": 1,
    "o": 0,
    "gate": 1,
    "up": 1,
    "down": 0,
}  # heads or d_ff: Megatron's dim


def _specs(*, d_model: str | None = None, inner: str | None = None) -> dict[str, P]:
    """The stacked parameters, with d_model and heads or d_ff split over these axes."""

    def spec(name):
        axes = [None] * _RANK[name]
        axes[_D_MODEL[name]] = d_model
        if name in _SPLIT:
            axes[_SPLIT[name]] = inner
        return P(None, *axes)

    return {name: spec(name) for name in _RANK}


def _gather_weight(w, dim):
    return lax.all_gather(w, "data", axis=dim, tiled=True)


HANDS = {
    "data": _Hand(_specs(), P("data"), cast=dict.fromkeys(_RANK, ("data",))),
    "fsdp": _Hand(_specs(d_model="data"), P("data"), cast={}, weight=_gather_weight),
    "tensor": _Hand(
        _specs(inner="model"),
        P("data"),
        cast=dict.fromkeys(_RANK, ("data",)),
        enter=lambda h: lax.pcast(h, "model", to="varying"),
        leave=lambda y: lax.psum(y, "model"),
    ),
    "fsdp-sequence": _Hand(
        _specs(d_model="data", inner="model"),
        P("data", "model"),
        cast={"attention_norm": ("model",), "mlp_norm": ("model",)},
        weight=_gather_weight,
        enter=lambda h: lax.all_gather(h, "model", axis=1, tiled=True),
        leave=lambda y: lax.psum_scatter(y, "model", scatter_dimension=1, tiled=True),
    ),
}


def _block(hand: _Hand, w, x, turn, platform: str):
    def weight(name):
        return hand.weight(w[name], _D_MODEL[name])

    h = hand.enter(rms_norm(x, weight("attention_norm")))
    q, k, v = (jnp.einsum("btd,dhk->bthk", h, weight(name)) for name in "qkv")
    attended = attend(rotate(q, turn), rotate(k, turn), v, platform, mapped=True)
    x = x + hand.leave(jnp.einsum("bthk,hkd->btd", attended, weight("o")))
    h = hand.enter(rms_norm(x, weight("mlp_norm")))
    gate, up = (jnp.einsum("btd,df->btf", h, weight(name)) for name in ("gate", "up"))
    return x + hand.leave(jnp.einsum("btf,fd->btd", jax.nn.silu(gate) * up, weight("down")))


def _loss(hand: _Hand, case: Case, platform: str, parameters, x):
    turn = angles(case.length, case.head_dim, x.dtype)
    parameters = {
        name: lax.pcast(value, hand.cast[name], to="varying") if name in hand.cast else value
        for name, value in parameters.items()
    }

    @jax.checkpoint
    def body(x, w):
        return _block(hand, w, x, turn, platform), None

    y, _ = lax.scan(body, x, parameters)
    total = jnp.sum(jnp.square(y.astype(jnp.float32))) / float(math.prod(case.input_shape()))
    return lax.psum(total, tuple(axis for axis in hand.x if axis))


def build(case: Case, layout: str, mesh: jax.sharding.Mesh) -> Program:
    """The step for one layout; `mesh` has the axes `data` and `model`."""
    hand = HANDS[layout]

    def make():
        def local(parameters, x):
            loss = functools.partial(_loss, hand, case, mesh.devices.flat[0].platform)
            return jax.value_and_grad(loss)(parameters, x)

        specs = hand.specs, hand.x
        return jax.jit(jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=(P(), hand.specs)))

    return Program(make, place(mesh, hand.specs, hand.x))
