"""scan: a body run over the elements of a dim, one after another, with a carry."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

from jax import lax

from meshdsl.dims import Dim
from meshdsl.errors import MeshDSLError
from meshdsl.lowering.carried import carried, carrying, uncarried
from meshdsl.ops.bodies import (
    arrays_in,
    dim_of,
    each,
    element,
    first_of,
    fixed,
    matching,
    restacked,
    scope_of,
    scope_within,
    stacked,
    two_results,
    value,
)
from meshdsl.ops.declare import along_a, op
from meshdsl.ops.functions import FUNCTIONS
from meshdsl.ops.microbatches import check_gathers_no_layers, rule_of
from meshdsl.ops.pipeline import pipelined
from meshdsl.ops.reduce import sum
from meshdsl.tensor import Tensor


def _scan_example(scan: Callable, x: Tensor, a: Dim, b: Dim):
    body = lambda total, x: (FUNCTIONS["tanh"](total + x), total * x)
    return scan(body, sum(x, a), x, dim=a)


@op(
    computes="the body, for one element of the dim after another; the dim is whole, unless a rule "
    "of the layout makes it a pipeline",
    example=along_a(_scan_example),
)
def scan(fn: Callable, carry, xs=(), *, dim: Dim | str, reverse: bool = False, unroll: int = 1):
    """Run `fn` over the elements of `dim`, one after another: `carry, y = fn(carry, x)`.

    Args:
      carry: a pytree of Tensors (and arrays); each keeps its dims and dtype from turn to turn. A
        parameter in it is a value from then on.
      xs: a pytree of Tensors that have `dim`, and of arrays whose first dimension is it; `fn` gets
        them without it.
      dim: the dim, or the name that it has in `xs`; it is whole while the scan runs, unless a rule
        of the layout makes the scan a pipeline.
      reverse: begin with the last element.
      unroll: how many elements one turn of the compiled loop takes.

    Returns:
      The last carry, and the results `y` with `dim` in front.

    Raises:
      MeshDSLError: a Tensor in `xs` lacks `dim`, or a carry changes its dims or dtype.
    """
    return scan_as("scan", fn, carry, xs, dim, reverse=reverse, unroll=unroll)


def scan_as(
    name: str,
    fn: Callable,
    carry,
    xs,
    dim: Dim | str,
    *,
    reverse: bool = False,
    unroll: int = 1,
    of_layers: bool = False,
):
    """`scan`, which errors call `name`.

    Args:
      of_layers: whether the scan runs over the layers of a model. Then a rule that splits `dim` is
        meant to make a pipeline of the layers, and has to have microbatches.
    """
    if unroll < 0:
        raise MeshDSLError(
            f"{name}: `unroll` is the number of steps that a turn makes, at least 0, not {unroll}"
        )
    arrays_in(name, "carry", carry)
    arrays_in(name, "input", xs)
    dim = dim_of(name, xs, dim)
    scope = scope_of(name, (carry, xs)) or scope_within(
        name, lambda: fn(carry, first_of(xs, dim, name))
    )
    carry = each(lambda t: value(t, scope), carry)
    if of_layers:
        check_gathers_no_layers(dim, scope)
    if scope is not None and (rule := rule_of(dim, carry, scope)):
        return pipelined(name, fn, carry, xs, dim, scope, rule, reverse=reverse, unroll=unroll)
    op = scope.recorder.begin("scan", (dim,), ((),)) if scope else None
    xs = each(lambda x: stacked(x, dim, op, name), xs)

    def body(carry, x):
        result = fn(carry, each(lambda t: element(t, dim), x))
        after, y = two_results(name, result, scope)
        after = matching(name, each(lambda t: value(t, scope), after), carry)
        return after, each(lambda t: fixed(t, scope), y)

    with scope.recorder.repeated(dim.name, dim.size) if scope else nullcontext():
        carry, ys = lax.scan(
            carrying(body),
            carried(carry),
            carried(xs),
            length=dim.size,
            reverse=reverse,
            unroll=unroll,
        )
    return uncarried(carry), each(lambda t: restacked(t, dim, name), uncarried(ys))
