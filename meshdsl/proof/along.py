"""Lemmas of primitives for which the order of elements along some dims matters.

Along all other dims, and along axes, they do the same with each element.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import jax.numpy as jnp
import numpy as np

from meshdsl.proof import lookups
from meshdsl.proof.elements import converted, together
from meshdsl.proof.lemmas import Walk, lemma
from meshdsl.proof.moves import Axes, given_out
from meshdsl.proof.sums import elementwise, extreme, inwards, is_zero, linear, summed_over, total
from meshdsl.proof.terms import NotProved, Terms
from meshdsl.proof.values import (
    Part,
    Parts,
    Value,
    aligned,
    arguments_of,
    fresh,
    joined,
    made,
    opened,
    own_dims,
    size_of,
    unchanging,
)

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
    params = (*((key, str(value)) for key, value in says), *_integers(eqn))
    along = [range(len(value.dims)) for value in values]
    shapes = [tuple(var.aval.shape) for var in eqn.outvars]
    return [
        mapped(walk, name, (*params, i, shape), values, along, [], shape)
        for i, shape in enumerate(shapes)
    ]


def _integers(eqn) -> tuple[str, ...]:
    """The dtypes of the operands that are integers: their order and range depend on it."""
    dtypes = [str(atom.aval.dtype) for atom in eqn.invars]
    return tuple(dtype if "int" in dtype else "" for dtype in dtypes)


@lemma("reduce_sum")
def _reduce_sum(walk: Walk, eqn, x: Value) -> list[Value]:
    gone = eqn.params["axes"]
    dims = [parts for d, parts in enumerate(x.dims) if d not in gone]
    return [summed_over(walk.terms, x, [p for d in gone for p in x.dims[d]], dims)]


@lemma("reduce_max", "reduce_min", "reduce_and", "reduce_or")
def _reduce(walk: Walk, eqn, x: Value) -> list[Value]:
    gone = eqn.params["axes"]
    dims = [parts for d, parts in enumerate(x.dims) if d not in gone]
    labels = [p.label for d in gone for p in x.dims[d] if p.label is not None]
    if 0 in x.shape:
        raise NotProved("there is no lemma for the largest element of none")
    op = eqn.primitive.name.removeprefix("reduce_")
    return [extreme(walk.terms, op, _integers(eqn), x, labels, dims)]


@lemma("dot_general")
def _dot_general(walk: Walk, eqn, x: Value, y: Value) -> list[Value]:
    """A sum of products."""
    contracted, batch = eqn.params["dimension_numbers"]
    x, y = _widened(walk, eqn, x, y)
    pairs = [*zip(*batch, strict=True), *zip(*contracted, strict=True)]
    x, y = aligned([x, y], pairs)
    both = [joined([x.dims[i], y.dims[j]]) for i, j in pairs]
    free = [
        [parts for d, parts in enumerate(v.dims) if d not in (*contracted[i], *batch[i])]
        for i, v in enumerate((x, y))
    ]
    count = len(batch[0])
    dims = [*both[:count], *free[0], *free[1]]
    product = elementwise(walk.terms, "mul", (), [x, y], [*dims, *both[count:]])
    return [summed_over(walk.terms, product, [p for parts in both[count:] for p in parts], dims)]


def _widened(walk: Walk, eqn, *values: Value) -> list[Value]:
    """The factors of a product, in the dtype of the result where integers are added up in it."""
    new = np.dtype(eqn.outvars[0].aval.dtype)
    if not jnp.issubdtype(new, jnp.integer):
        return list(values)
    old = [np.dtype(atom.aval.dtype) for atom in eqn.invars]
    return [converted(walk, x, dtype, new) for x, dtype in zip(values, old, strict=True)]


@lemma("conv_general_dilated")
def _convolution(walk: Walk, eqn, x: Value, w: Value) -> list[Value]:
    """A sum over features of what each of them makes, along the dims of space."""
    p = eqn.params
    left, right, result = p["dimension_numbers"]
    if p["feature_group_count"] > 1 or p["batch_group_count"] > 1:
        return anything(walk, eqn, x, w)
    says = ("window_strides", "padding", "lhs_dilation", "rhs_dilation")
    x, w = aligned(_widened(walk, eqn, x, w), [[left[1], right[1]]])
    features = joined([x.dims[left[1]], w.dims[right[1]]])
    shape = eqn.outvars[0].aval.shape
    space = [Part(shape[d], fresh()) for d in result[2:]]
    of = dict(zip(result, [x.dims[left[0]], w.dims[right[0]], *((p,) for p in space)], strict=True))
    dims = [of[d] for d in range(len(shape))]
    along = [[x.dims[d] for d in left[2:]], [w.dims[d] for d in right[2:]]]
    params = tuple(p[name] for name in says)
    new = [(part,) for part in space if part.size != 1]
    each = made(walk.terms, "convolution", params, [x, w], dims, along=along, new=new)
    return [summed_over(walk.terms, each, features, dims)]


@inwards("convolution")
def _of_convolution(terms: Terms, value: Value, labels, sizes) -> Value | None:
    """A sum goes into the only operand that changes along it."""
    args, along = opened(value)
    for i, arg in enumerate(args):
        other = args[1 - i].labels
        ready = {label for label in labels if label in arg.labels and label not in other}
        if ready:
            new = own_dims(value, args)
            args[i] = total(terms, arg, ready, sizes)
            params = value.term.params[:-2]
            found = made(terms, "convolution", params, args, value.dims, along=along, new=new)
            return total(terms, found, set(labels) - ready, sizes)
    return None


@lemma("sort")
def _sort(walk: Walk, eqn, *values: Value) -> list[Value]:
    p, shape = eqn.params, values[0].shape
    params = p["is_stable"], p["num_keys"], *_integers(eqn)
    count = range(len(values))
    return [alike(walk, "sort", (*params, i), values, [p["dimension"]], shape) for i in count]


@lemma("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
def _cumulative(walk: Walk, eqn, x: Value) -> list[Value]:
    p = eqn.params
    params = p["reverse"], *_integers(eqn)
    return [alike(walk, eqn.primitive.name, params, [x], [p["axis"]], x.shape)]


@lemma("rev")
def _rev(walk: Walk, eqn, x: Value) -> list[Value]:
    changes = lambda d: any(part.label is not None for part in x.dims[d])
    touched = [d for d in eqn.params["dimensions"] if changes(d)]
    return [alike(walk, "rev", (), [x], touched, x.shape) if touched else x]


@lemma("argmax", "argmin")
def _argmax(walk: Walk, eqn, x: Value) -> list[Value]:
    (at,) = eqn.params["axes"]
    kept = [d for d in range(len(x.dims)) if d != at]
    links, dims = [[d] for d in kept], [(0, d) for d in kept]
    return [mapped(walk, eqn.primitive.name, _integers(eqn), [x], [[at]], links, dims)]


@lemma("slice")
def _slice(walk: Walk, eqn, x: Value) -> list[Value]:
    p = eqn.params
    strides = p["strides"] or [1] * len(x.dims)
    return [
        sliced(walk, x, list(zip(p["start_indices"], p["limit_indices"], strides, strict=True)))
    ]


@lemma("split")
def _split(walk: Walk, eqn, x: Value) -> list[Value]:
    found, start, dim = [], 0, eqn.params["axis"]
    for size in eqn.params["sizes"]:
        ranges = [(0, n, 1) for n in x.shape]
        ranges[dim] = (start, start + size, 1)
        found.append(sliced(walk, x, ranges))
        start += size
    return found


def sliced(walk: Walk, x: Value, ranges: Sequence[tuple[int, int, int]]) -> Value:
    """`x` from a start up to a limit by a stride, for each of its dims."""
    shape = [len(range(*each)) for each in ranges]
    cut = [d for d, n in enumerate(shape) if n != x.shape[d]]
    changes = [d for d in cut if any(part.label is not None for part in x.dims[d])]
    free = [d for d in cut if d not in changes]
    x = x.at((Part(shape[d], None),) if d in free else p for d, p in enumerate(x.dims))
    if not changes:
        return x
    params = tuple(tuple(ranges[d]) for d in changes)
    if len(changes) == 1:
        found = _one_of_several(x, changes[0], *params[0])
        if found is not None:
            return found
    return alike(walk, "slice", (params,), [x], changes, shape)


@lemma("concatenate")
def _concatenate(walk: Walk, eqn, *values: Value) -> list[Value]:
    return [_put_together(walk, values, eqn.params["dimension"])]


@lemma("stack")
def _stack(walk: Walk, eqn, *values: Value) -> list[Value]:
    dim = eqn.params["axis"]
    return [_put_together(walk, [x.at([*x.dims[:dim], (), *x.dims[dim:]]) for x in values], dim)]


def _put_together(walk: Walk, values: Sequence[Value], dim: int) -> Value:
    values = [value for value in values if value.shape[dim]] or values[:1]
    if len(values) == 1:
        return values[0]
    shape = [*values[0].shape]
    shape[dim] = sum(value.shape[dim] for value in values)
    return alike(walk, "concatenate", (), values, [dim], shape)


def _one_of_several(x: Value, dim: int, start: int, limit: int, stride: int) -> Value | None:
    """One of the values that were put together along a dim, if the range is that of one."""
    if x.term.op != "concatenate" or stride != 1 or x.dims[dim] != x.parts[-1]:
        return None
    begin = 0
    args, along = opened(x)
    for (run,), arg in zip(along, args, strict=True):
        if (begin, begin + size_of(run)) == (start, limit):
            return arg.at(run if d == dim else parts for d, parts in enumerate(x.dims))
        begin += size_of(run)
    return None


@inwards("concatenate")
def _of_concatenate(terms: Terms, value: Value, labels, sizes) -> Value | None:
    """A sum goes into each of what is put together, but for one along that dim."""
    if labels & {part.label for part in value.parts[-1]}:
        return None
    args, along = opened(value)
    args = [total(terms, arg, labels, sizes) for arg in args]
    return made(terms, "concatenate", (), args, value.dims, along=along, new=[value.parts[-1]])


@inwards("rev", "slice", "cumsum")
def _of_linear(terms: Terms, value: Value, labels, sizes) -> Value | None:
    """A sum goes into what is linear, but for one along the dims that it runs along."""
    (arg,), along = opened(value)
    ready = {label for label in labels if label in arg.labels}
    if not ready:
        return None
    new, op, params = own_dims(value, [arg]), value.term.op, value.term.params[:-2]
    arg = total(terms, arg, ready, sizes)
    found = made(terms, op, params, [arg], value.dims, along=along, new=new)
    return total(terms, found, set(labels) - ready, sizes)


@lemma("pad")
def _pad(walk: Walk, eqn, x: Value, value: Value) -> list[Value]:
    config = eqn.params["padding_config"]
    shape = eqn.outvars[0].aval.shape
    touched = [d for d, each in enumerate(config) if tuple(each) != (0, 0, 0)]
    if not touched:
        return [x]
    if is_zero(x) and is_zero(value):
        return [x.at(unchanging(shape))]
    ranks = range(len(shape))
    links = [[d, None] for d in ranks if d not in touched]
    dims: list[Dim] = [shape[d] if d in touched else (0, d) for d in ranks]
    params = tuple(tuple(config[d]) for d in touched)
    return [mapped(walk, "pad", (params,), [x, value], [touched, []], links, dims)]


def _mode(eqn) -> str:
    return "clip" if "CLIP" in str(eqn.params["mode"]) else str(eqn.params["mode"])


@lemma("gather")
def _gather(walk: Walk, eqn, x: Value, at: Value) -> list[Value]:
    numbers, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    batch = dict(
        zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
    )
    found = range(len(at.dims) - 1)
    whole = lambda d: sizes[d] == x.shape[d] and d not in numbers.start_index_map
    collapsed = numbers.collapsed_slice_dims
    window = [d for d in range(len(x.dims)) if d not in collapsed and d not in batch]
    along = [d for d in range(len(x.dims)) if d not in batch and (d in collapsed or not whole(d))]
    links: list[list[int | None]] = [[None, d] for d in found if d not in batch.values()]
    links += [[d, None] for d in window if whole(d)] + [[d, i] for d, i in batch.items()]
    of_window = dict(zip(numbers.offset_dims, window, strict=True))
    rest = iter(found)
    dims: list[Dim] = []
    for out in range(len(eqn.outvars[0].aval.shape)):
        d = of_window.get(out)
        dims.append((1, next(rest)) if d is None else (0, d) if whole(d) else sizes[d])
    params = (
        _mode(eqn),
        tuple(along.index(d) if d in along else None for d in numbers.start_index_map),
        tuple(sizes[d] for d in window if not whole(d)),
        tuple(along.index(d) for d in collapsed),
        *_integers(eqn)[1:],
        *(() if _mode(eqn) == "clip" else (str(eqn.params["fill_value"]),)),
    )
    return [mapped(walk, "gather", params, [x, at], [along, [len(at.dims) - 1]], links, dims)]


@lemma("scatter-add")
def _scatter_add(walk: Walk, eqn, x: Value, at: Value, updates: Value) -> list[Value]:
    """What is scattered, summed over the indices, is added to `x`."""
    numbers = eqn.params["dimension_numbers"]
    pairs = zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True)
    batch = dict(pairs)
    inserted, ranks = numbers.inserted_window_dims, range(len(x.dims))
    window = [d for d in ranks if d not in inserted and d not in batch]
    places = numbers.scatter_dims_to_operand_dims
    of_window = dict(zip(window, numbers.update_window_dims, strict=True))
    whole = lambda d: updates.shape[of_window[d]] == x.shape[d] and d not in places
    along = [d for d in ranks if d not in batch and (d in inserted or not whole(d))]
    scattered = [d for d in range(len(updates.dims)) if d not in numbers.update_window_dims]
    links = list(enumerate(scattered))
    at, updates = aligned([at, updates], links)
    both = [joined([at.dims[i], updates.dims[u]]) for i, u in links]
    of = lambda d: both[batch[d]] if d in batch else updates.dims[of_window[d]]
    dims: list[Parts | None] = [None if d in along else of(d) for d in ranks]
    mode, partial = _mode(eqn), [d for d in window if not whole(d)]
    found = None
    if mode == "clip" and along == list(places) == list(inserted) and len(along) == 1:
        found = lookups.spread(walk.terms, at.at(at.dims[:-1]), updates, x.shape[along[0]], dims)
    if found is None:
        sizes = tuple(x.shape[d] for d in along)
        new = [Part(n, fresh()) for n in sizes]
        of_new = dict(zip(along, new, strict=True))
        out = [(of_new[d],) if parts is None else parts for d, parts in enumerate(dims)]
        params = (
            mode,
            tuple(along.index(d) if d in along else None for d in places),
            sizes,
            tuple(along.index(d) for d in partial),
            *_integers(eqn)[1:2],
        )
        inside = [[at.dims[-1]], [updates.dims[of_window[d]] for d in partial]]
        made_dims = [(part,) for part in new if part.size != 1]
        values = [at, updates]
        found = made(walk.terms, "put", params, values, out, along=inside, new=made_dims)
    gone = [p for i, parts in enumerate(both) if i not in batch.values() for p in parts]
    scattered_sum = summed_over(walk.terms, found, gone, found.dims)
    values, out = together([x, scattered_sum])
    return [linear(walk.terms, [(1, value) for value in values], out)]


@lemma("dynamic_slice")
def _dynamic_slice(walk: Walk, eqn, x: Value, *starts: Value) -> list[Value]:
    sizes, touched = eqn.params["slice_sizes"], []
    for d, (size, start) in enumerate(zip(sizes, starts, strict=True)):
        if size == x.shape[d]:
            continue
        axes = _own_part(start, x.shape[d], size)
        if axes and not any(label in x.labels for label, _ in axes):
            x = given_out(x, d, axes)
        else:
            touched.append(d)
    if not touched:
        return [x]
    ranks = range(len(sizes))
    links = [[d, *[None] * len(touched)] for d in ranks if d not in touched]
    dims: list[Dim] = [sizes[d] if d in touched else (0, d) for d in ranks]
    along = [touched, *[[]] * len(touched)]
    values = [x, *(starts[d] for d in touched)]
    params = (tuple(sizes[d] for d in touched), *_integers(eqn)[1:])
    return [mapped(walk, "dynamic_slice", params, values, along, links, dims)]


def _own_part(start: Value, whole: int, size: int) -> Axes:
    """The axes, or rounds, along which each takes its part from `start` on; () if they do not."""
    term, factor = start.term, 1
    if term.op == "sum" and len(term.args) == 1:
        factor = term.params[0][0]
        (start,) = arguments_of(start)
        term = start.term
    if term.op != "iota" or factor != size or term.shape[0] * size != whole:
        return ()
    return [(p.label, p.size) for p in start.parts[0] if p.label is not None]


@lemma("dynamic_update_slice")
def _dynamic_update_slice(walk: Walk, eqn, x: Value, new: Value, *starts: Value) -> list[Value]:
    ranks = range(len(x.dims))
    touched = [d for d in ranks if new.shape[d] != x.shape[d]]
    if not touched:
        return [new]
    links = [[d, d, *[None] * len(touched)] for d in ranks if d not in touched]
    dims: list[Dim] = [x.shape[d] if d in touched else (0, d) for d in ranks]
    along = [touched, touched, *[[]] * len(touched)]
    values = [x, new, *(starts[d] for d in touched)]
    params = _integers(eqn)[2:]
    return [mapped(walk, "dynamic_update_slice", params, values, along, links, dims)]
