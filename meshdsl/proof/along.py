"""Lemmas of primitives for which the order of elements along some dims matters.

Along all other dims, and along axes, they do the same with each element.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from meshdsl.proof.forms.rounds import at_variables
from meshdsl.proof.labels import Part, Parts, fresh
from meshdsl.proof.lemmas import Walk, integer_dtypes, lemma
from meshdsl.proof.terms import NotProved
from meshdsl.proof.values import Value, aligned, joined, made

Dim = int | tuple[int, int]  # of a result: the size of a new dim, or an operand and its dim


def mapped(
    walk: Walk,
    op: str,
    params: tuple[Hashable, ...],
    values: Sequence[Value],
    along: Sequence[Sequence[int]],
    links: Sequence[Sequence[int | None]],
    dims: Sequence[Dim],
) -> Value:
    """An operation along some dims of its operands, and of each element along all others.

    Args:
      along: for each operand, the dims along which the order of elements matters.
      links: for each set of other dims that belong together, that of each operand or None.
      dims: of the result.
    """
    values = aligned(values, links)
    linked: dict[tuple[int, int], Parts] = {}
    for link in links:
        members = [(i, d) for i, d in enumerate(link) if d is not None]
        linked.update(dict.fromkeys(members, joined(values[i].dims[d] for i, d in members)))
    new: list[Part] = []
    out: list[Parts] = []
    for dim in dims:
        if isinstance(dim, tuple):
            out.append(linked.get(dim, values[dim[0]].dims[dim[1]]))
        else:
            new.append(Part(dim, fresh()))
            out.append((new[-1],))
    inside = [[values[i].dims[d] for d in each] for i, each in enumerate(along)]
    made_dims = [(part,) for part in new if part.size != 1]
    return made(walk.terms, op, params, values, out, along=inside, new=made_dims)


def alike(walk: Walk, op: str, params, values, touched: Sequence[int], shape) -> Value:
    """As `mapped`, of operands of one rank, along the same dims of each.

    Args:
      shape: of the result, which has the dims of the operands.
    """
    ranks = range(len(values[0].dims))
    links = [[d] * len(values) for d in ranks if d not in touched]
    dims: list[Dim] = [shape[d] if d in touched else (0, d) for d in ranks]
    return mapped(walk, op, params, values, [touched] * len(values), links, dims)


def anything(walk: Walk, eqn, *values: Value) -> list[Value]:
    """The lemma of any other primitive: devices that have the same compute the same.

    Raises:
      NotProved: it has effects, or names an axis, so that it is a collective.
    """
    name = eqn.primitive.name
    if eqn.effects:
        raise NotProved(f"there is no lemma for `{name}`, which has effects")
    each = [v if isinstance(v, (tuple, list, set, frozenset)) else [v] for v in eqn.params.values()]
    if any(isinstance(v, str) and v in walk.sizes for values_ in each for v in values_):
        raise NotProved(f"there is no lemma for `{name}`")
    says = [(k, v) for k, v in sorted(eqn.params.items()) if "sharding" not in k and k != "mesh"]
    params = (*((key, str(value)) for key, value in says), *integer_dtypes(eqn))
    along = [range(len(value.dims)) for value in values]
    shapes = [tuple(var.aval.shape) for var in eqn.outvars]
    return [
        mapped(walk, name, (*params, i, shape), values, along, [], shape)
        for i, shape in enumerate(shapes)
    ]


@lemma("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
def _cumulative(walk: Walk, eqn, x: Value) -> list[Value]:
    p = eqn.params
    params = p["reverse"], *integer_dtypes(eqn)
    return [alike(walk, eqn.primitive.name, params, [x], [p["axis"]], x.shape)]


@lemma("rev")
def _rev(walk: Walk, eqn, x: Value) -> list[Value]:
    changes = lambda d: any(part.label is not None for part in x.dims[d])
    touched = [d for d in eqn.params["dimensions"] if changes(d)]
    return [alike(walk, "rev", (), [x], touched, x.shape) if touched else x]


@lemma("argmax", "argmin", "reduce_prod", "reduce_xor")
def _reduced(walk: Walk, eqn, x: Value) -> list[Value]:
    gone = eqn.params["axes"]
    kept = [d for d in range(len(x.dims)) if d not in gone]
    links, dims = [[d] for d in kept], [(0, d) for d in kept]
    return [mapped(walk, eqn.primitive.name, integer_dtypes(eqn), [x], [gone], links, dims)]


@lemma("top_k")
def _top_k(walk: Walk, eqn, x: Value) -> list[Value]:
    x = at_variables(walk.terms, x)
    params, at = (eqn.params["k"], *integer_dtypes(eqn)), eqn.params["axis"]
    shape = eqn.outvars[0].aval.shape
    return [alike(walk, "top_k", (*params, i), [x], [at], shape) for i in range(2)]


@lemma("reduce_window_sum", "reduce_window_max", "reduce_window_min")
def _windows(walk: Walk, eqn, x: Value) -> list[Value]:
    p = eqn.params
    names = "window_dimensions", "window_strides", "padding", "base_dilation", "window_dilation"
    each = list(zip(*(p[name] for name in names), strict=True))
    touched = [d for d, how in enumerate(each) if how != (1, 1, (0, 0), 1, 1)]
    params = tuple(each[d] for d in touched), *integer_dtypes(eqn)
    return [alike(walk, eqn.primitive.name, params, [x], touched, eqn.outvars[0].aval.shape)]


# Of matrices, and of vectors beside them, which are the last dims. Those before are a batch.
_MATRICES = (
    *("cholesky", "eig", "eigh", "geqrf", "householder_product", "lu", "qr", "svd"),
    "triangular_solve",
)


@lemma("fft", *_MATRICES)
def _matrices(walk: Walk, eqn, *values: Value) -> list[Value]:
    name, p = eqn.primitive.name, eqn.params
    lead = len(values[0].dims) - (len(p["fft_lengths"]) if name == "fft" else 2)
    params = tuple((key, str(value)) for key, value in sorted(p.items()))
    along = [range(lead, len(value.dims)) for value in values]
    links = [[d] * len(values) for d in range(lead)]
    found = []
    for i, var in enumerate(eqn.outvars):
        dims: list[Dim] = [*((0, d) for d in range(lead)), *var.aval.shape[lead:]]
        found.append(mapped(walk, name, (*params, i), values, along, links, dims))
    return found
