"""A mixture of experts: a feed-forward layer of which each token uses a few parts.

A router gives every token a score for each expert. The token goes through the experts with the
highest scores, and their results are added up with weights that follow from the scores.

    experts = Experts.init(key, d_model, d_ff, md.Dim("experts", 8), top=2)
    experts(x)                      # [batch, length, d_model] -> the same
    y, load = experts.with_load(x)  # and the load of the experts, for a loss that balances it

Without `capacity` no token is dropped. Tokens are sorted by their expert, and each expert
multiplies the tokens that it has (Gale et al., 2022, MegaBlocks). With a `capacity` every expert
has room for a fixed number of tokens of each sequence, and further tokens are left out (Lepikhin et
al., 2020, GShard). Then a layout that splits the experts moves tokens by two all_to_alls.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from flax.struct import PyTreeNode
from jax.ad_checkpoint import checkpoint_name

import meshdsl as md
from meshdsl.layers.linear import Linear
from meshdsl.layers.mlp import SwiGLU
from meshdsl.layers.router import Choice, Router
from meshdsl.ops.checkpoint import HIDDEN, mark


def swiglu(gate, up):
    """`silu(gate) * up`, of arrays: what an expert does between its matrices."""
    return jax.nn.silu(gate) * up


class Load(PyTreeNode):
    """How a layer of experts was used, before any token is dropped.

    All are means over the tokens of a batch, so that means over microbatches are exact.

    Attributes:
      balance: 1 where every expert is chosen equally often in each sequence, and larger where not:
        the loss of the Switch Transformer (Fedus et al., 2021, equation 4), sequence by sequence.
      z: the squared log-normaliser of the router (Zoph et al., 2022, ST-MoE, equation 5).
      share: the share of the choices that each expert has; the dim `routes`.
      dropped: the share of the choices that found no room.
      settling: 0; its gradient moves the offsets of the router, see `Router`. None without offsets.
    """

    balance: md.Tensor
    z: md.Tensor
    share: md.Tensor
    dropped: md.Tensor
    settling: md.Tensor | None


class Experts(PyTreeNode):
    """A feed-forward layer with a gate, of many experts; see `SwiGLU` for one.

        experts = Experts.init(key, d_model, d_ff, md.Dim("experts", 8), top=2)
        experts(x)   # [batch, length, d_model] -> the same

    Attributes:
      router: chooses the experts of each token.
      gate: dims experts, d_model and d_ff.
      up: the same.
      down: dims experts, d_ff and d_model.
      biases: of gate, up and down, each with experts and what comes out; None for none.
      shared: a layer that every token goes through beside its experts; None for none.
      shared_gate: a layer whose sigmoid multiplies the result of `shared`, as in Qwen2-MoE; None
        for no such factor.
      capacity: the room of an expert, as a multiple of the tokens of a sequence that it would have
        if all experts had equally many; 0: no token is dropped.
      along: the dim of the positions of a sequence. Each sequence has its own room, and its tokens
        get room in their order. So a token never changes the result of an earlier one, and no
        layout changes which tokens are dropped. Without this dim, as in decoding, none is dropped.
      activation: a function of the arrays that `gate` and `up` give.
    """

    router: Router
    gate: md.Tensor
    up: md.Tensor
    down: md.Tensor
    biases: tuple[md.Tensor, md.Tensor, md.Tensor] | None = None
    shared: SwiGLU | None = None
    shared_gate: Linear | None = None
    capacity: float = struct.field(pytree_node=False, default=0.0)
    along: str = struct.field(pytree_node=False, default="length")
    activation: Callable[[Any, Any], Any] = struct.field(pytree_node=False, default=swiglu)

    @classmethod
    def init(
        cls,
        key,
        d_model: md.Dim,
        d_ff: md.Dim,
        experts: md.Dim,
        top: int,
        *,
        bias: bool = False,
        out_std: float | None = None,
        shared: int = 0,
        shared_gate: bool = False,
        capacity: float = 0.0,
        along: str = "length",
        activation: Callable[[Any, Any], Any] = swiglu,
        **router,
    ):
        """Weights as those of `SwiGLU` in each expert.

        Args:
          bias: all three matrices have biases, which begin with zeros.
          out_std: the standard deviation of the weights of `down`.
          shared: the d_ff of the layer that all tokens go through; 0 for none.
          shared_gate: whether a factor of each token multiplies the result of that layer.
          router: further arguments of `Router.init`.

        Raises:
          MeshDSLError: as `Router.init`; a negative capacity; a gate of nothing.
        """
        if capacity < 0:
            raise md.MeshDSLError(f"Experts: capacity={capacity} is negative")
        if shared_gate and not shared:
            raise md.MeshDSLError("Experts: shared_gate is of `shared`, which is 0")
        for_router, gate, up, down, for_shared = jax.random.split(key, 5)
        for_gate = jax.random.fold_in(for_shared, 0)
        into = lambda k: md.normal(k, (experts, d_model, d_ff), ins=d_model)
        biases = [md.zeros((experts, d)) for d in (d_ff, d_ff, d_model)]
        of_all = SwiGLU.init(for_shared, d_model, md.Dim(d_ff.name, shared)) if shared else None
        return cls(
            router=Router.init(for_router, d_model, experts.size, top, **router),
            gate=into(gate),
            up=into(up),
            down=md.normal(down, (experts, d_ff, d_model), ins=d_ff, std=out_std),
            biases=(biases[0], biases[1], biases[2]) if bias else None,
            shared=of_all,
            shared_gate=Linear.init(for_gate, d_model, ()) if shared_gate else None,
            capacity=capacity,
            along=along,
            activation=activation,
        )

    def __call__(self, x: md.Tensor) -> md.Tensor:
        """The dims of `x`, which has d_model and any others."""
        return self._through(x, self.router(x))[0]

    def with_load(self, x: md.Tensor) -> tuple[md.Tensor, Load]:
        """The same, and how the experts were used."""
        choice = self.router(x)
        y, kept = self._through(x, choice)
        return y, self._load(choice, kept)

    def _through(self, x: md.Tensor, choice: Choice) -> tuple[md.Tensor, md.Tensor | None]:
        """The result, and whether each choice has found room; None if room has no limit."""
        if self.capacity and self.along in [d.name for d in x.dims]:
            y, kept = self._with_room(x, choice)
        else:
            y, kept = self._without_drops(x, choice), None
        if self.shared is None:
            return y, kept
        of_all = self.shared(x)
        if self.shared_gate is not None:
            of_all = of_all * md.sigmoid(self.shared_gate(x))
        return y + of_all, kept

    def _without_drops(self, x: md.Tensor, choice: Choice) -> md.Tensor:
        experts, _, d_ff = self.gate.dims
        # A layout splits parameters by d_model. Where d_model is last in memory, a gather is copied
        # into another order once more, so the small parts of `down` are transposed before it.
        down = md.transpose(self.down, self.gate.dims)
        weights = [md.cast(t, x.dtype) for t in (self.gate, self.up, down)]
        biases = [md.cast(t, x.dtype) for t in self.biases[:2]] if self.biases else []

        def expert(groups, rows, gate, up, down, *biases):
            hidden = [groups.dot(rows, gate), groups.dot(rows, up)]
            if biases:
                hidden = [h + groups.take(b) for h, b in zip(hidden, biases, strict=True)]
            hidden = self.activation(*(checkpoint_name(h, HIDDEN) for h in hidden))
            hidden = (hidden * groups.weights).astype(rows.dtype)
            return groups.dot(hidden, down, transposed=True)

        mark(HIDDEN)
        y = md.routed(
            expert,
            x,
            choice.experts,
            choice.weights,
            (*weights, *biases),
            experts,
            sums=d_ff,
            weighs=True,
            name="experts",
        )
        return y if self.biases is None else y + md.cast(self._bias_after(choice), y.dtype)

    def _bias_after(self, choice: Choice) -> md.Tensor:
        """The weighted sum of the biases that come last: no part of a sum over d_ff."""
        assert self.biases is not None
        table = md.rename(self.biases[2], self.biases[2].dims[0], "routes")
        routes = table.dims[0]
        chosen = md.one_hot(choice.experts, routes, bool)
        weights = md.where(chosen, md.broadcast(choice.weights, chosen.dims), 0.0)
        return md.dot(md.sum(weights, "top"), table.replace(role=md.zeros(routes, ins=routes).role))

    def _with_room(self, x: md.Tensor, choice: Choice) -> tuple[md.Tensor, md.Tensor]:
        (experts, d_model, d_ff), length = self.gate.dims, x.dim(self.along)
        slot, token, room = self._slots(x, choice, experts, length)
        others = tuple(d for d in x.dims if d not in (length, d_model))
        weights = md.transpose(md.cast(choice.weights, x.dtype), slot.dims)
        x = md.transpose(x, (*others, length, d_model))
        # With the experts in front, the products take and give arrays as they lie.
        slots = experts, *others, room
        sent = md.local(
            partial(dispatched, experts.size),
            x,
            slot,
            token,
            out=(*slots, d_model),
            whole=length,
            name="dispatch",
        )
        # Tokens that have travelled are kept with the products, so that they do not travel again.
        sent = md.checkpoint_name(sent, HIDDEN)
        gate, up = (
            md.einsum(sent, md.cast(w, x.dtype), out=(*slots, d_ff)) for w in (self.gate, self.up)
        )
        if self.biases is not None:
            gate, up = (
                h + md.cast(b, h.dtype) for h, b in zip((gate, up), self.biases, strict=False)
            )
        gate, up = (md.checkpoint_name(h, HIDDEN) for h in (gate, up))
        hidden = md.materialize(md.map(self.activation, gate, up, name="activation"))
        y = md.einsum(hidden, md.cast(self.down, x.dtype), out=(*slots, d_model))
        if self.biases is not None:
            y = y + md.cast(self.biases[2], y.dtype)
        # No rule splits the dim `expert_slots`, so this brings the results back to their tokens.
        back = md.checkpoint_name(md.rename(y, experts, "expert_slots"), HIDDEN)
        # The whole length: then its gradient is gathered, which is smaller than that of the slots.
        whole = back.dims[0], room, length
        y = md.local(combined, back, weights, slot, token, out=x.dims, whole=whole, name="combine")
        return y, slot < experts.size * room.size

    def _slots(self, x: md.Tensor, choice: Choice, experts: md.Dim, length: md.Dim):
        """The slot of each choice.

        Returns:
          For each choice the number of its slot; the number of all slots if the choice is dropped.
          For each slot the number of its choice; the number of all choices if the slot is empty.
          And the dim of the slots of one expert.
        """
        top = choice.experts.dim("top")
        choices = md.Dim("choices", length.size * top.size)
        fair = self.capacity * choices.size / experts.size
        room = md.Dim("capacity", max(1, min(math.ceil(fair), length.size)))
        slots = md.Dim("slots", experts.size * room.size)
        others = tuple(d for d in choice.experts.dims if d not in (length, top))
        ids = md.transpose(choice.experts, (*others, length, top))
        flat = md.reshape(ids, (*others, choices))
        place = md.cumcount(flat, choices, experts)
        slot = md.where(place < room.size, flat * room.size + place, slots.size)
        empty = md.broadcast(md.iota(slots, like=x) * 0 + choices.size, (*others, slots))
        token = md.scatter(empty, slot, md.iota(choices, like=x), slots, how="set")
        return md.reshape(slot, ids.dims), token, room

    def _load(self, choice: Choice, kept: md.Tensor | None) -> Load:
        routes, top = choice.scores.dim("routes"), choice.experts.dim("top")
        along = [d for d in choice.scores.dims if d.name == self.along]
        total = md.sum(choice.scores, routes)
        probability = choice.scores / total if self.router.scores == "sigmoid" else choice.scores
        chosen = md.sum(md.one_hot(choice.experts, routes), top) * (1 / top.size)
        share, probability = (md.mean(t, along) for t in (chosen, probability))
        balance = md.mean(md.sum(share * probability, routes)) * routes.size
        settling = None
        if self.router.offset is not None:
            # In each sequence by itself: a pipeline has only some of the sequences at a time.
            offset = md.cast(self.router.offset, jnp.float32)
            excess = md.stop_gradient(share - 1 / routes.size)
            term = md.mean(md.sum(excess * offset, routes))
            settling = term - md.stop_gradient(term)
        share = md.mean(share, tuple(d for d in share.dims if d != routes))
        z = md.mean(md.square(md.logsumexp(choice.logits, routes)))
        lost = md.sum(share) * 0.0 if kept is None else md.mean(md.cast(~kept, jnp.float32))
        return Load(balance, z, share, lost, settling)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def dispatched(experts: int, x, slot, token):
    """The tokens in the slots of the experts, and zeros in those that are empty.

    Args:
      experts: how many experts there are.
      x: [..., length, d_model].
      slot: the number of the slot of each choice; [..., length, top].
      token: the number of the choice in each slot; [..., slots].

    Returns:
      [experts, ..., room, d_model].
    """
    found = _rows(x, token // slot.shape[-1])
    return _in_front(found.reshape(*token.shape[:-1], experts, -1, x.shape[-1]))


dispatched.defvjp(
    lambda experts, x, slot, token: (dispatched(experts, x, slot, token), slot),
    lambda experts, slot, ct: (jnp.sum(_rows(_flat(ct), slot), axis=-2), None, None),
)


@jax.custom_vjp
def combined(y, weights, slot, token):
    """For each token the weighted sum of the results of its choices, without the dropped ones.

    Args:
      y: [experts, ..., room, d_model].
      weights: [..., length, top].
      slot, token: as for `dispatched`.

    Returns:
      [..., length, d_model].
    """
    return jnp.einsum("...kd,...k->...d", _rows(_flat(y), slot), weights)


def _combined_backward(saved, ct):
    y, weights, slot, token = saved
    of_slots = _rows(weights.reshape(*weights.shape[:-2], -1, 1), token)
    by_y = _rows(ct, token // slot.shape[-1]) * of_slots
    by_weights = jnp.einsum("...kd,...d->...k", _rows(_flat(y), slot), ct)
    apart = by_y.reshape(*by_y.shape[:-2], len(y), -1, by_y.shape[-1])
    return _in_front(apart), by_weights, None, None


combined.defvjp(lambda *operands: (combined(*operands), operands), _combined_backward)


def _in_front(y):
    """`y [..., experts, room, d_model]` as [experts, ..., room, d_model]."""
    return jnp.moveaxis(y, -3, 0)


def _flat(y):
    """`y [experts, ..., room, d_model]` as [..., slots, d_model]."""
    apart = jnp.moveaxis(y, 0, -3)
    return apart.reshape(*apart.shape[:-3], -1, y.shape[-1])


def _rows(x, at):
    """The rows of `x [..., n, d]` at `at [...]`, whose first dims are those of x before n.

    Rows outside of `x` are zeros.
    """
    if x.ndim > 2:
        return jax.vmap(_rows)(x, at)
    found = jnp.take(x, at, axis=0, mode="clip")
    return jnp.where(((at >= 0) & (at < len(x)))[..., None], found, 0)
