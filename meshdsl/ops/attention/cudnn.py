"""Attention by cuDNN, through `jax.nn.dot_product_attention`, with a derivative of our own.

The public function of JAX gives the log-sum-exp of each row only rounded to the dtype of the
output. But the pullback of `jax.vjp` is a pytree of all arrays that the backward pass reads: the
query, the key, the value, the output and the exact log-sum-exp. The last two are read from that
pytree here, so that `md.checkpoint` can keep them. When the backward pass runs, they are put into
the pullback of a second forward pass. That pass then computes nothing that is used, and compilers
leave it out.

Where the queries are split, causal attention is two calls: one with the keys before this part of
the queries, all of which are seen, and one with the keys at the positions of the part itself. The
two outputs are merged by their log-sum-exps. Each backward call gets the merged output and
log-sum-exp, and finds from them its own terms of the gradients (Liu et al., 2023, "Ring
attention").

Arrays are in cuDNN's order: batch, positions, heads, features.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import ad_checkpoint, lax

from meshdsl.errors import MeshDSLError
from meshdsl.lowering import collectives
from meshdsl.ops.arrays import as_one
from meshdsl.ops.attention.kernels import Place, products_of, visible_share
from meshdsl.ops.attention.operands import HIDDEN, SAVED, Options, Sides
from meshdsl.ops.attention.parts import Static


def attend(static: Static, place: Place, query, key, value, sides: Sides) -> jax.Array:
    """The output. Arrays are in the order of `operands.py`; positions count from 0."""
    options = static.options
    leading, shared = query.shape[:-2], query.shape[: options.shared]
    batch, heads = math.prod(shared[:-1]), math.prod(shared[-1:])
    group = math.prod(leading[options.shared :])

    def by_position(x, heads):
        return jnp.swapaxes(x.reshape(batch, heads, *x.shape[-2:]), 1, 2)

    part = place.part()[0] if options.causal and place.part is not None else None
    parts = place.parts if options.causal else 1
    call = _Cudnn(options, parts, place.counted, place.lowered)
    operands = by_position(query, heads * group), by_position(key, heads), by_position(value, heads)
    output: Any = _cudnn(call, *collectives.vary_together((*operands, part)))
    return jnp.swapaxes(output, 1, 2).reshape(*leading, *output.shape[1:2], *output.shape[3:])


class _Cudnn(NamedTuple):
    """What is known of a call while tracing.

    Attributes:
      parts: how many parts the queries have, if attention is causal; else 1.
      counted, lowered: as in `Place`.
    """

    options: Options
    parts: int
    counted: bool
    lowered: bool

    def run(self, fn: Callable, share: float, *args, backward: bool):
        """`fn(*args)`, in a lowering as one operation that states its products.

        Args:
          fn: a function of query, key, value and other arrays.
          share: the share of the scores that count.
          backward: whether `fn` computes the gradients.
        """
        query, key, value = (
            jax.ShapeDtypeStruct((batch, heads, positions, features), x.dtype)
            for x in args[:3]
            for batch, positions, heads, features in (x.shape,)
        )
        products = products_of(query, key, value, share)[backward]
        return as_one(self.lowered, fn, *args, products=products)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _cudnn(call, q, k, v, part):
    return _output(call, q, k, v, part)[0]


def _cudnn_forward(call, q, k, v, part):
    result = _output(call, q, k, v, part)
    output, normaliser = (ad_checkpoint.checkpoint_name(x, SAVED) for x in result)
    return output, (q, k, v, part, output, normaliser)


def _cudnn_backward(call, saved, cotangent):
    q, k, v, part, output, normaliser = saved
    return *_slopes(call, q, k, v, part, output, normaliser, cotangent), None


_cudnn.defvjp(_cudnn_forward, _cudnn_backward)


def _output(call: _Cudnn, q, k, v, part):
    """The output, and the log-sum-exp of each row (batch, heads, queries)."""
    if part is None:
        share = visible_share(call.options, q.shape[1], k.shape[1], call.counted)
        return call.run(partial(_called, call.options), share, q, k, v, backward=False)
    before, own = _before_and_own(call)
    start = part * q.shape[1]
    forward = partial(call.run, backward=False)
    first, of_first = forward(partial(_called, before), _before(call), q, k, v, start)
    second, of_second = forward(partial(_called, own), 0.5, q, *_of_part(start, q, k, v))
    of_first = jnp.where(start > 0, of_first, HIDDEN)
    normaliser = jnp.logaddexp(of_first, of_second)

    def weighed(output, of_output):
        weight = jnp.exp(of_output - normaliser)
        return output.astype(weight.dtype) * jnp.swapaxes(weight, 1, 2)[..., None]

    merged = weighed(first, of_first) + weighed(second, of_second)
    return merged.astype(first.dtype), normaliser


def _slopes(call: _Cudnn, q, k, v, part, *results_and_cotangent):
    """The gradients of q, k and v, from the output, its log-sum-exp and its cotangent."""
    if part is None:
        share = visible_share(call.options, q.shape[1], k.shape[1], call.counted)
        slopes = partial(_pulled, call.options)
        return call.run(slopes, share, q, k, v, None, *results_and_cotangent, backward=True)
    before, own = _before_and_own(call)
    start = part * q.shape[1]
    backward = partial(call.run, backward=True)
    first = backward(
        partial(_pulled, before), _before(call), q, k, v, start, *results_and_cotangent
    )
    ours = _of_part(start, q, k, v)
    second = backward(partial(_pulled, own), 0.5, q, *ours, None, *results_and_cotangent)
    seen = (jnp.arange(k.shape[1]) < start)[:, None, None]

    def added(all_keys, own_keys):
        kept = jnp.where(seen, all_keys, 0)
        # The gradients of the part's own keys are written where `kept` is 0.
        return lax.dynamic_update_slice_in_dim(kept, own_keys, start, axis=1)

    by_query = jnp.where(start > 0, first[0], 0) + second[0]
    return by_query, *map(added, first[1:], second[1:])


def _before_and_own(call: _Cudnn) -> tuple[Options, Options]:
    return call.options._replace(causal=False), call.options


def _before(call: _Cudnn) -> float:
    """The share of all keys that lie before a part of the queries, on average over the parts."""
    return (call.parts - 1) / (2 * call.parts)


def _of_part(start, q, k, v) -> tuple[jax.Array, jax.Array]:
    """The keys and values at the positions of this part of the queries."""
    k, v = (lax.dynamic_slice_in_dim(x, start, q.shape[1], axis=1) for x in (k, v))
    return k, v


def _called(options: Options, q, k, v, length=None):
    """Output and log-sum-exp of one call of cuDNN, for the first `length` keys or for all."""
    found = _pullback(options, q, k, v, length)
    return found.output, found.leaves[found.normaliser]


def _pulled(options: Options, q, k, v, length, output, normaliser, cotangent):
    """The gradients of one call of cuDNN, from this output and this log-sum-exp."""
    found = _pullback(options, q, k, v, length)
    leaves = list(found.leaves)
    leaves[found.normaliser], leaves[found.kept] = normaliser, output
    return jax.tree.unflatten(found.tree, leaves)(cotangent)


class _Pullback(NamedTuple):
    """The pullback of a call, taken apart.

    Attributes:
      output: the output of the call.
      leaves, tree: the leaves and the structure of the pullback.
      normaliser, kept: the positions of the log-sum-exp and of the output among the leaves.
    """

    output: jax.Array
    leaves: list
    tree: Any
    normaliser: int
    kept: int


def _pullback(options: Options, q, k, v, length) -> _Pullback:
    batch, rows, heads, _ = q.shape
    if length is not None:
        # The first part has no keys before it. cuDNN gets one, and the caller drops its result.
        length = jnp.full(batch, jnp.maximum(length, 1), jnp.int32)

    def attended(q, k, v):
        return jax.nn.dot_product_attention(
            q,
            k,
            v,
            scale=options.scale,
            is_causal=options.causal,
            key_value_seq_lengths=length,
            local_window_size=None if options.window is None else (options.window - 1, 0),
            implementation="cudnn",
        )

    try:
        output, pullback = jax.vjp(attended, q, k, v)
    except RuntimeError as error:
        if jax.default_backend() == "gpu" or isinstance(error, NotImplementedError):
            raise
        output, pullback = _shapes_alone(q, k, v)
    leaves, tree = jax.tree.flatten(pullback)
    others = [i for i, x in enumerate(leaves) if not any(x is given for given in (q, k, v))]

    def the_one(shape, dtype) -> int:
        found = [i for i in others if leaves[i].shape == shape and leaves[i].dtype == dtype]
        if len(found) == 1:
            return found[0]
        raise MeshDSLError(
            f"attention: in this version of JAX ({jax.__version__}) cuDNN's backward pass does not "
            'read one output and one log-sum-exp; ask for implementation="blocks"'
        )

    normaliser = the_one((batch, heads, rows), jnp.float32)
    return _Pullback(output, leaves, tree, normaliser, the_one(output.shape, output.dtype))


def _shapes_alone(q, k, v):
    """A stand-in for a call where CUDA's libraries are missing, so that JAX cannot trace the call.

    A machine without these libraries only estimates the program, and never compiles it.
    """
    normaliser = jnp.zeros((q.shape[0], q.shape[2], q.shape[1]), jnp.float32)
    output = jnp.zeros_like(q)

    def pull(q, k, v, output, normaliser, _):
        return q, k, v

    return output, jax.tree_util.Partial(pull, q, k, v, output, normaliser)
