"""while_loop, and map_over: a function of every element of a dim, one after another."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import linear_call

from meshdsl.dims import Dim
from meshdsl.errors import MeshDSLError, quote, whole_number
from meshdsl.lowering import collectives, resharding
from meshdsl.lowering.carried import carried, uncarried
from meshdsl.ops.bodies import (
    agreed,
    arrays_in,
    dim_of,
    each,
    leaves_of,
    matching,
    restacked,
    scope_of,
    scope_within,
    shown,
    stacked,
    value,
)
from meshdsl.ops.declare import along_a, of_x, op
from meshdsl.ops.functions import FUNCTIONS
from meshdsl.ops.over import over
from meshdsl.ops.scan import scan_as
from meshdsl.ops.softmax import softmax
from meshdsl.program.recorder import Move
from meshdsl.tensor import Tensor, is_tensor


def _while_loop_example(while_loop: Callable, x: Tensor):
    body = lambda carry: (carry[0] + 1, FUNCTIONS["sin"](carry[1]))
    start = (Tensor(jnp.zeros((), jnp.int32), ()), x)
    return while_loop(lambda carry: carry[0] < 3, body, start)[1]


@op(
    computes="the body, as often as all others; no gradient, but `jvp`",
    mesh_tensorflow="WhileLoopOperation; no gradient, lists of tensors only",
    example=of_x(_while_loop_example),
    gradients=False,
)
def while_loop(cond: Callable, body: Callable, init):
    """`carry = body(carry)` for as long as `cond(carry)` is true.

    It has derivatives in forward mode (`jvp`) only: the backward pass would have to remember a
    number of turns that nobody knows beforehand. `scan` has both.

    Args:
      cond: gives a Tensor of bool without dims, which is equal on all devices, so that they all
        stop at the same turn.
      init: the carry to start from: a pytree of Tensors (and arrays); each keeps its dims and dtype
        from turn to turn.

    Returns:
      The last carry.

    Raises:
      MeshDSLError: the condition is no Tensor of bool without dims, a carry changes its dims or
        dtype, or a gradient is asked for.
    """
    scope = scope_of("while_loop", init) or scope_within(
        "while_loop", lambda: (cond(init), body(init))
    )
    init = each(lambda t: value(t, scope), arrays_in("while_loop", "carry", init))

    def goes_on(carry):
        found = cond(uncarried(carry))
        if not is_tensor(found) or found.dims or found.dtype != bool:
            got = shown(found) if is_tensor(found) else quote(found)
            raise MeshDSLError(
                f"while_loop: the condition is a Tensor of bool without dims, not {got}; use "
                "md.any or md.all"
            )
        return agreed(found).array

    def step(carry):
        carry = uncarried(carry)
        result = arrays_in("while_loop", "carry that comes back", body(carry), scope)
        after = matching("while_loop", each(lambda t: value(t, scope), result), carry)
        return carried(after)

    init = carried(init)
    if scope is None or not scope.spent:
        return uncarried(jax.tree.map(_no_gradient, lax.while_loop(goes_on, step, init)))
    going = _any_going(scope)
    start = (init, *going(goes_on(init)))
    waiting = lambda c: _step_or_wait(c, step, goes_on, going)
    after, *_ = lax.while_loop(lambda c: c[2], waiting, start)
    return uncarried(jax.tree.map(_no_gradient, after))


def _any_going(scope):
    """Inside `over`: whether this element goes on, and whether any element on any device does.

    Elements that are done wait for those, so that the collectives of a turn meet.
    """
    axes = scope.in_mesh_order(scope.spent)
    op = scope.recorder.begin("while_loop", (), ())
    op.moves.append(Move("pmax", axes, 4, "elements on other devices may go on"))

    def going(mine):
        mine = collectives.vary(mine, axes)
        with jax.named_scope(op.tag):
            return mine, collectives.pmax(mine.astype(jnp.int32), axes) > 0

    return going


def _step_or_wait(carry, step: Callable, goes_on: Callable, going: Callable):
    before, mine, _ = carry
    after = jax.tree.map(lambda new, old: jnp.where(mine, new, old), step(before), before)
    return after, *going(goes_on(after) & mine)


def _no_gradient(array):
    """`array`, through which a derivative can go forwards and not back."""
    if not hasattr(array, "dtype"):  # a number that JAX gives back as such
        array = jnp.asarray(array)
    return (
        linear_call(lambda _, x: x, _refuse, (), array)
        if jnp.issubdtype(array.dtype, jnp.inexact)
        else array
    )


def _refuse(_, cotangent):
    raise MeshDSLError(
        "while_loop: has no gradient, as nobody knows how many turns to remember; use md.scan, "
        "md.jvp or md.stop_gradient"
    )


@op(
    computes="the body, for one element of the dim after another; the dim is whole",
    example=along_a(
        lambda map_over, x, a, b, batch: map_over(lambda x: softmax(x, b), x, dim=a, batch=batch),
        lambda draw, a: (draw.pick(None, draw.integer(1, max(1, a.size))),),
    ),
)
def map_over(fn: Callable, *xs, dim: Dim | str, batch: int | None = None):
    """`fn` of every element of `dim`, one after another.

    That takes the memory of one element, where `over` takes that of all.

    Args:
      fn: takes Tensors without `dim`, one tree for each of `xs`, and returns a pytree of Tensors.
      xs: pytrees of Tensors that have `dim`.
      dim: one of their dims, or its name; it is whole while this runs, whatever the layout says.
      batch: elements that are taken together, by `over`.

    Returns:
      What `fn` returns, with `dim` in front.

    Raises:
      MeshDSLError: a leaf of `xs` is no Tensor, or lacks `dim`; or a batch is no whole number of at
        least 1.
    """
    if others := sorted({type(x).__name__ for x in leaves_of(xs) if not is_tensor(x)}):
        raise MeshDSLError(
            f"map_over: maps over Tensors that have {dim}, not {', '.join(others)}; close over "
            "what is shared"
        )
    dim = dim_of("map_over", xs, dim)
    if batch is None:
        return scan_as("map_over", lambda _, x: ((), fn(*x)), (), xs, dim)[1]
    whole_number("map_over: a batch", batch, 1)
    scope = scope_of("map_over", xs)
    op = scope.recorder.begin("map_over", (dim,), ((),)) if scope else None
    xs = each(lambda x: stacked(x, dim, op, "map_over"), xs)
    turns, left = divmod(dim.size, batch)
    turn, part, rest = (
        Dim(f"{dim.name}_turn", turns),
        Dim(f"{dim.name}_part", batch),
        Dim(f"{dim.name}_part", left),
    )
    result = []
    if turns:
        cut = each(lambda x: _cut(x, 0, (turn, part)), xs)
        result.append(scan_as("map_over", lambda _, x: ((), over(part, fn)(*x)), (), cut, turn)[1])
    if left or not turns:
        result.append(over(rest, fn)(*each(lambda x: _cut(x, turns * batch, (rest,)), xs)))
    return each(
        lambda *ts: restacked(_joined(ts, (turn, part, rest), op), dim, "map_over"), *result
    )


def _cut(x: Tensor, start: int, into: tuple[Dim, ...]) -> Tensor:
    """Elements from `start` on of the first dim of `x`, which is whole, as the dims `into`."""
    sizes = [d.size for d in into]
    array = lax.slice_in_dim(x.array, start, start + math.prod(sizes)).reshape(
        *sizes, *x.array.shape[1:]
    )
    placement = x.placement and x.placement._replace(
        axes=(*((),) * len(into), *x.placement.axes[1:])
    )
    return Tensor(array, (*into, *x.dims[1:]), x.role, placement)


def _joined(parts: tuple[Tensor, ...], gone: tuple[Dim, ...], op) -> Tensor:
    """The parts one after another in front, under the names of one element.

    The law may have split the dims in front, `gone` afterwards: of a parameter, any that divides.
    """
    arrays = []
    for t in parts:
        new = sum(d in gone for d in t.dims)
        if t.placement is not None and any(t.placement.axes[:new]):
            t = resharding.whole_along(t, t.dims[:new], op)
        arrays.append(lax.collapse(t.array, 0, new))
    placement = t.placement and t.placement._replace(axes=t.placement.axes[new:])
    return Tensor(jnp.concatenate(arrays), t.dims[new:], t.role, placement)
