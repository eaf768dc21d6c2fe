"""Products that contract dims: `dot_general`."""

from __future__ import annotations

from meshdsl.dims import Dims
from meshdsl.ops import einsum
from meshdsl.plain_jax.constraints import free_positions
from meshdsl.plain_jax.evaluate import Evaluation, rule
from meshdsl.plain_jax.positions import as_positions, as_tensor, fits, full
from meshdsl.plain_jax.program import Equation, Value
from meshdsl.tensor import Tensor


@rule("dot_general")
def product(_: Evaluation, e: Equation, xs: list) -> list:
    """An einsum whose operands have the names of the result, and others where they contract."""
    (left, right), (left_batch, right_batch) = e.params["dimension_numbers"]
    (v, w), out = e.ins, e.outs[0]
    v_free, w_free = free_positions(e)
    batch, free = len(left_batch), len(v_free)
    shared = _contracted(v, w, left, right, out)
    x = _operand(xs[0], v, (*left_batch, *v_free, *left), (*out.dims[: batch + free], *shared))
    beside = out.dims[batch + free :]
    y = _operand(xs[1], w, (*right_batch, *w_free, *right), (*out.dims[:batch], *beside, *shared))
    summed = tuple(d for dims in shared for d in dims)
    absent = tuple(d for d in summed if d not in x.dims and d not in y.dims)
    x = full(x, v, absent)
    dims = tuple(d for d in out.flat if d in x.dims or d in y.dims)
    how = {"precision": e.params["precision"]}
    made = einsum.einsum(
        x, y, out=dims, preferred_element_type=e.params["preferred_element_type"], **how
    )
    return [made]


def _operand(x, v: Value, at: tuple[int, ...], want: tuple[Dims, ...]) -> Tensor:
    return as_positions(as_tensor(x, v), v, dict(zip(at, want, strict=True)))


def _contracted(v: Value, w: Value, left, right, out: Value) -> list[Dims]:
    """Names for the contracted dims that nothing else in the product has."""
    taken, found = {d.name for d in out.flat}, []
    for i, j in zip(left, right, strict=True):
        a, b = v.dims[i], w.dims[j]
        dims = []
        for k, d in enumerate(a):
            candidates = [d.name, f"{d.name}__contracted"]
            if fits([a], [b]):
                candidates.insert(1, b[k].name)
            name = next(n for n in _numbered(candidates) if n not in taken)
            taken.add(name)
            dims.append(d.alias(name))
        found.append(tuple(dims))
    return found


def _numbered(candidates: list[str]):
    yield from candidates
    number = 2
    while True:
        yield f"{candidates[-1]}_{number}"
        number += 1
