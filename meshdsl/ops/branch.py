"""cond and switch: one of several functions, chosen by a Tensor without dims."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax

from meshdsl import dims as dim_algebra
from meshdsl.errors import MeshDSLError, quote
from meshdsl.lowering import collectives
from meshdsl.lowering.carried import carried, carrying, uncarried
from meshdsl.ops.bodies import (
    agreed,
    arrays_in,
    each,
    kind,
    lying_as,
    scope_of,
    scope_within,
    shown,
    value,
)
from meshdsl.ops.declare import Case, Draw, Example, op
from meshdsl.ops.functions import FUNCTIONS
from meshdsl.program.name_stacks import shares_scope
from meshdsl.tensor import Tensor, is_tensor


def _chosen(call: Callable) -> Example:
    """`call(op, x, i)`, where `i` is 0 or 1."""

    def example(fn: Callable, draw: Draw) -> Case:
        operands = draw.tensor(*draw.dims("a", "b")), draw.integers(below=2)
        return Case(lambda x, i: call(fn, x, i), operands)

    return example


@op(
    computes="one of two functions",
    example=_chosen(lambda cond, x, i: cond(i > 0, FUNCTIONS["sin"], FUNCTIONS["cos"], x)),
)
def cond(
    predicate: Tensor,
    if_true: Callable,
    if_false: Callable,
    *operands,
    weights: tuple[int, int] | None = None,
):
    """`if_true(*operands)` where the predicate is true, else `if_false(*operands)`.

    Only the function that is chosen runs.

    Args:
      predicate: a Tensor without dims.
      weights: in which proportion both functions are chosen, where it is known. Figures of a step,
        as those of `explain`, are counted with it; results do not depend on it.

    Raises:
      MeshDSLError: the predicate has dims, or the branches return different structures, dims or
        dtypes.
    """
    if predicate.dims:
        got = dim_algebra.show(predicate.dims)
        raise MeshDSLError(
            f"cond: the predicate is a Tensor without dims, not {got}; use md.any, md.all, or "
            "md.where per element"
        )
    if weights is None:
        return _choose("cond", predicate, (if_true, if_false), operands)
    if min(weights) < 0 or not sum(weights):
        raise MeshDSLError(
            f"cond: `weights` is {weights}; expected two numbers of at least 0, not both 0"
        )
    with jax.named_scope(shares_scope(weights)):
        return _choose("cond", predicate, (if_true, if_false), operands)


@op(
    computes="one of several functions",
    example=_chosen(lambda switch, x, i: switch(i, [FUNCTIONS["sin"], FUNCTIONS["cos"]], x)),
)
def switch(index: Tensor, branches: Sequence[Callable], *operands):
    """`branches[index](*operands)`. Only the function that is chosen runs.

    Args:
      index: a Tensor of whole numbers without dims. One below zero takes the first branch, one that
        is too large the last.

    Raises:
      MeshDSLError: the index has dims or is no whole number, there is no branch, or the branches
        return different structures, dims or dtypes.
    """
    if index.dims or not jnp.issubdtype(index.dtype, jnp.integer):
        raise MeshDSLError(
            f"switch: the index is a Tensor of whole numbers without dims, not {shown(index)}"
        )
    if not branches or not all(map(callable, branches)):
        got = ", ".join(quote(branch) for branch in branches if not callable(branch))
        raise MeshDSLError(
            f"switch: there is {f'a branch {got}' if got else 'no branch to choose'}; give one "
            "function or more"
        )
    return _choose("switch", index, tuple(branches), operands)


def _choose(name: str, choice: Tensor, branches: tuple[Callable, ...], operands):
    arrays_in(name, "operand", operands)
    scope = scope_of(name, (choice, operands))
    scope = scope or scope_within(name, lambda: [branch(*operands) for branch in branches])
    first: list = []

    def alike(fn):
        def run(operands):
            result = arrays_in(name, "result of a branch", fn(*operands), scope)
            leaves, tree = jax.tree.flatten(
                each(lambda t: value(t, scope), result), is_leaf=is_tensor
            )
            if not first:
                first.extend([tree, leaves])
            if tree != first[0] or [kind(x) for x in leaves] != [kind(x) for x in first[1]]:
                one, other = (", ".join(map(shown, x)) or "nothing" for x in (first[1], leaves))
                raise MeshDSLError(f"{name}: the branches return {one} and {other}")
            leaves = [
                lying_as(x, y.dims) if is_tensor(x) else x
                for x, y in zip(leaves, first[1], strict=True)
            ]
            return jax.tree.unflatten(tree, leaves)

        return run

    chosen = agreed(choice).array
    chosen = (chosen if name == "switch" else chosen == 0).astype(jnp.int32)
    branches = tuple(alike(branch) for branch in branches)
    if scope is not None and not scope.spent.isdisjoint(collectives.varying(chosen)):
        return _of_all(jnp.clip(chosen, 0, len(branches) - 1), branches, operands)
    return uncarried(lax.switch(chosen, [carrying(b) for b in branches], carried(operands)))


def _of_all(chosen, branches, operands):
    """Inside `over`, where elements choose differently, all branches run.

    What was not chosen has no part in the gradient.

    It is what `vmap` makes of a switch too, but there a branch gets operands of other types than
    it was traced for.
    """
    results = []
    for i, branch in enumerate(branches):
        kept = lambda a, i=i: jnp.where(chosen == i, a, lax.stop_gradient(a))
        results.append(branch(uncarried(jax.tree.map(kept, carried(operands)))))

    def picked(first, *others):
        for i, other in enumerate(others, 1):
            first = jnp.where(chosen == i, other, first)
        return first

    return uncarried(jax.tree.map(picked, *map(carried, results)))
