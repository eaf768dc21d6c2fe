"""The model of the benchmarks as plain JAX on one device: what all implementations compute.

A block is RMSNorm, attention with rotary positions and a causal mask, RMSNorm and SwiGLU; each half
is added to the residual stream. The loss is the mean of the squared output. Norms, softmax and loss
run in float32. Operation by operation and in precision it is the same as `layers/`, and attention
is the same kernel, so that only the way of splitting differs.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from .cases import Case
from .kernel import attend

EPSILON = 1e-5  # as in layers/norm.py


def initial(case: Case, seed: int = 0) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Parameters and a batch of inputs, as host arrays."""
    rng = np.random.default_rng(seed)

    def draw(name, shape):
        values = rng.standard_normal(shape, np.float32)
        return 1 + 0.1 * values if name.endswith("norm") else values * case.d_model**-0.5

    parameters = {
        name: draw(name, shape).astype(case.dtype)
        for name, shape in case.parameter_shapes().items()
    }
    return parameters, rng.standard_normal(case.input_shape(), np.float32).astype(case.dtype)


def rms_norm(x, scale, epsilon: float = EPSILON):
    wide = x.astype(jnp.float32)
    power = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
    return (wide * jax.lax.rsqrt(power + epsilon) * scale).astype(x.dtype)


def angles(length: int, head_dim: int, dtype):
    """Cosine and sine of every position's angles: (length, 1, head_dim / 2)."""
    half = head_dim // 2
    frequency = jnp.exp(jnp.arange(half, dtype=jnp.float32) * (-math.log(10000.0) / half))
    turn = (jnp.arange(length, dtype=jnp.float32)[:, None] * frequency)[:, None, :]
    return jnp.cos(turn).astype(dtype), jnp.sin(turn).astype(dtype)


def rotate(x, turn):
    """Rotates (batch, length, heads, head_dim); the halves of head_dim are the pairs."""
    cos, sin = turn
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def block(w: dict, x, turn, note: Callable = lambda name, x: x, attend: Callable = attend):
    """One layer, (batch, length, d_model) to the same.

    Args:
      note: `note(name, x)` is called on every intermediate, and what it returns is used.
      attend: attention of queries, keys and values (batch, length, heads, head_dim).
    """
    w = {name: note(name, value) for name, value in w.items()}
    h = note("normed", rms_norm(x, w["attention_norm"]))
    q, k, v = (note("heads", jnp.einsum("btd,dhk->bthk", h, w[name])) for name in "qkv")
    q, k = note("heads", rotate(q, turn)), note("heads", rotate(k, turn))
    attended = note("heads", attend(q, k, v))
    x = note("residual", x + note("projected", jnp.einsum("bthk,hkd->btd", attended, w["o"])))
    h = note("normed", rms_norm(x, w["mlp_norm"]))
    gate, up = (note("hidden", jnp.einsum("btd,df->btf", h, w[name])) for name in ("gate", "up"))
    hidden = note("hidden", jax.nn.silu(gate) * up)
    return note("residual", x + note("projected", jnp.einsum("btf,fd->btd", hidden, w["down"])))


def loss(parameters, x, note: Callable = lambda name, x: x, attend: Callable = attend):
    turn = angles(x.shape[1], parameters["q"].shape[-1], x.dtype)

    @jax.checkpoint
    def body(x, w):
        return block(w, x, turn, note, attend), None

    y, _ = jax.lax.scan(body, note("residual", x), parameters)
    return jnp.mean(jnp.square(y.astype(jnp.float32)))


def reference(parameters, x):
    """Loss and gradients on one device."""
    return jax.jit(jax.value_and_grad(loss))(parameters, x)
