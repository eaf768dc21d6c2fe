"""Lemmas of primitives that take or put parts of arrays, at places that are given or computed."""

from __future__ import annotations

from collections.abc import Sequence

from meshdsl.proof.along import Dim, alike, mapped
from meshdsl.proof.elements import together
from meshdsl.proof.forms import lookups, sorted_rows
from meshdsl.proof.forms.largest import of_largest
from meshdsl.proof.forms.padding import unpadded_to
from meshdsl.proof.forms.sums import inwards, is_zero, linear, summed_over, total
from meshdsl.proof.labels import Part, Parts, fresh, size_of
from meshdsl.proof.lemmas import PARTS, Walk, integer_dtypes, lemma
from meshdsl.proof.moves import Axes, given_out
from meshdsl.proof.sends import orders
from meshdsl.proof.sends.edges import placed, put_together
from meshdsl.proof.sends.rings import at_index
from meshdsl.proof.terms import Terms
from meshdsl.proof.values import (
    Value,
    aligned,
    apart,
    arguments_of,
    joined,
    made,
    opened,
    unchanging,
)


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


@lemma("unstack")
def _unstack(walk: Walk, eqn, x: Value) -> list[Value]:
    dim = eqn.params["axis"]
    return [indexed(walk, x, i, dim) for i in range(x.shape[dim])]


def indexed(walk: Walk, x: Value, i: int, dim: int = 0) -> Value:
    """What is at an index of a dim."""
    rest = [parts for d, parts in enumerate(x.dims) if d != dim]
    run = x.dims[dim]
    if len(run) == 1 and run[0].label is not None:
        found = at_index(walk.terms, x, run[0].label, i)
        if found is not None:
            return found.at(rest)
    ranges = [(i, i + 1, 1) if d == dim else (0, n, 1) for d, n in enumerate(x.shape)]
    found = sliced(walk, x, ranges)
    return found.at(parts for d, parts in enumerate(found.dims) if d != dim)


def sliced(walk: Walk, x: Value, ranges: Sequence[tuple[int, int, int]]) -> Value:
    """`x` from a start up to a limit by a stride, for each of its dims."""
    shape = [len(range(*each)) for each in ranges]
    cut = [d for d, n in enumerate(shape) if n != x.shape[d]]
    changes = [d for d in cut if any(part.label is not None for part in x.dims[d])]
    free = [d for d in cut if d not in changes]
    x = x.at((Part(shape[d], None),) if d in free else p for d, p in enumerate(x.dims))
    for d in changes:
        x = unpadded_to(walk.terms, x, d, *ranges[d])
    ranges = [(0, n, 1) if n == x.shape[d] else ranges[d] for d, n in enumerate(shape)]
    changes = [d for d in changes if x.shape[d] != shape[d]]
    if not changes:
        return x
    params = tuple(tuple(ranges[d]) for d in changes)
    if x.term.op == "rank" and len(changes) == 1 and params[0][::2] == (0, 1):
        found = sorted_rows.first_ranks(walk.terms, x, changes[0], params[0][1])
        if found is not None:
            return found
    if len(changes) == 1 and params[0][2] == 1:
        start, limit, _ = params[0]
        found = orders.row_of_order(x, changes[0], start, limit - start)
        found = found or _one_of_several(walk.terms, x, changes[0], *params[0][:2])
        if found is not None:
            return found
    return alike(walk, "slice", (params,), [x], changes, shape)


@lemma("pad")
def _pad(walk: Walk, eqn, x: Value, value: Value) -> list[Value]:
    config = eqn.params["padding_config"]
    shape = eqn.outvars[0].aval.shape
    touched = [d for d, each in enumerate(config) if tuple(each) != (0, 0, 0)]
    if not touched:
        return [x]
    if is_zero(x) and is_zero(value):
        return [x.at(unchanging(shape))]
    for d in touched:
        x = _padded(walk, x, value, d, *map(int, config[d]))
    return [x]


def _padded(walk: Walk, x: Value, value: Value, dim: int, low: int, high: int, between: int):
    """`x` with `value` around the elements of a dim and between them; less than 0 cuts some off."""
    ranks = range(len(x.dims))
    if x.shape[dim] == 0:
        size = max(low + high, 0)
        return value.at(unchanging(size if d == dim else n for d, n in enumerate(x.shape)))
    if between == 0 and (low < 0 or high < 0):
        start, limit = max(0, -low), x.shape[dim] - max(0, -high)
        ranges = [(start, limit, 1) if d == dim else (0, n, 1) for d, n in enumerate(x.shape)]
        x, low, high = sliced(walk, x, ranges), max(low, 0), max(high, 0)
    if low == high == between == 0:
        return x
    links = [[d, None] for d in ranks if d != dim]
    size = low + high + x.shape[dim] + between * max(x.shape[dim] - 1, 0)
    dims: list[Dim] = [size if d == dim else (0, d) for d in ranks]
    params = ((low, high, between),)
    return mapped(walk, "pad", (params,), [x, value], [[dim], []], links, dims)


@lemma("concatenate")
def _concatenate(walk: Walk, eqn, *values: Value) -> list[Value]:
    dim = eqn.params["dimension"]
    if walk.sends == PARTS:
        counts = eqn.outvars[0].aval.dtype == "int32"
        found = orders.put_together(walk.terms, values, dim, counts=counts)
        if found is not None:
            return [found]
    return [_put_together(walk, values, dim)]


@lemma("stack")
def _stack(walk: Walk, eqn, *values: Value) -> list[Value]:
    dim = eqn.params["axis"]
    return [_put_together(walk, [x.at([*x.dims[:dim], (), *x.dims[dim:]]) for x in values], dim)]


def _put_together(walk: Walk, values: Sequence[Value], dim: int) -> Value:
    values = [value for value in values if value.shape[dim]] or values[:1]
    if len(values) == 1:
        return values[0]
    links = [[d] * len(values) for d in range(len(values[0].dims)) if d != dim]
    found = put_together(walk.terms, aligned(values, links), dim)
    if found is not None:
        return found
    shape = [*values[0].shape]
    shape[dim] = sum(value.shape[dim] for value in values)
    return alike(walk, "concatenate", (), values, [dim], shape)


def _one_of_several(terms: Terms, x: Value, dim: int, start: int, limit: int) -> Value | None:
    """One of the values that were put together along a dim, if the range is that of one."""
    found = _of_range(terms, x, x.dims[dim], start, limit)
    if found is None:
        return None
    value, run = found
    return value.at(run if d == dim else parts for d, parts in enumerate(x.dims))


def _of_range(terms: Terms, x: Value, run: Parts, start: int, limit: int):
    """What of several values, or of a sum of such, is at a range of a dim; and the parts there."""
    one = limit - start == 1
    if x.labels.keys().isdisjoint(part.label for part in run):
        return (x, ()) if one else None
    args, along = opened(x)
    if x.term.op == "sum" and one:
        found = [_of_range(terms, arg, run, start, limit) for arg in args]
        if None in found:
            return None
        values = [value for value, _ in found]
        return linear(terms, zip(x.term.params[0], values, strict=True), x.dims), ()
    if x.parts[-1] != run:
        return None
    if x.term.op == "concatenate":
        begin = 0
        for (part,), arg in zip(along, args, strict=True):
            if (begin, begin + size_of(part)) == (start, limit):
                return arg, part
            begin += size_of(part)
    elif x.term.op == "pad" and len(along[0]) == 1 and x.term.params[0][0][2] == 0:
        (part,), before = along[0], x.term.params[0][0][0]
        end = before + size_of(part)
        if (start, limit) == (before, end):
            return args[0], part
        if one and not before <= start < end:
            return args[1], ()
    return None


@inwards("concatenate")
def _of_concatenate(terms: Terms, value: Value, labels, sizes) -> Value | None:
    """A sum goes into each of what is put together, but for one along that dim."""
    if labels & {part.label for part in value.parts[-1]}:
        return None
    args, along = opened(value)
    args = [total(terms, arg, labels, sizes) for arg in args]
    return made(terms, "concatenate", (), args, value.dims, along=along, new=[value.parts[-1]])


def _mode(eqn) -> str:
    return "clip" if "CLIP" in str(eqn.params["mode"]) else str(eqn.params["mode"])


@lemma("gather")
def _gather(walk: Walk, eqn, x: Value, at: Value) -> list[Value]:
    return [_ordered_rows(walk, eqn, x, at) or _gathered(walk, eqn, x, at)]


def _ordered_rows(walk: Walk, eqn, x: Value, at: Value) -> Value | None:
    """Rows by their numbers, if these are all numbers, or the order of either is that of a sort."""
    numbers, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    rank = len(at.dims) - 1
    plain = numbers.collapsed_slice_dims == numbers.start_index_map == (0,)
    if not plain or numbers.operand_batching_dims or tuple(sizes[1:]) != x.shape[1:]:
        return None
    if numbers.offset_dims != tuple(range(rank, rank + len(sizes) - 1)):
        return None
    found = lookups.all_rows(apart(x), at.at(at.dims[:-1]))
    if found is not None:
        return found

    def other(at: Value) -> Value | None:
        if at.term.op != "const":
            one_dim = len(at.dims) == rank
            return _gathered(walk, eqn, x, at.at([*at.dims, ()])) if one_dim else None
        number = min(max(at.term.params[1], 0), x.shape[0] - 1)
        row = indexed(walk, x, number) if _mode(eqn) == "clip" else None
        return row and row.at([*unchanging(at.shape), *row.dims])

    return sorted_rows.rows_at(walk.terms, x, at.at(at.dims[:-1]), other)


def _gathered(walk: Walk, eqn, x: Value, at: Value) -> Value:
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
        *integer_dtypes(eqn)[1:],
        *(() if _mode(eqn) == "clip" else (str(eqn.params["fill_value"]),)),
    )
    each = mapped(walk, "gather", params, [x, at], [along, [len(at.dims) - 1]], links, dims)
    return of_largest(walk.terms, each) or each


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
    if len(links) == 1 and not batch:  # a sum over all of them has no order
        rows = sorted_rows.without_order([at, updates], both[0])
        if rows is not None:
            at, updates = rows
            both = [joined([at.dims[0], updates.dims[scattered[0]]])]
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
            *integer_dtypes(eqn)[1:2],
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
        elif walk.sends == PARTS and (piece := orders.of_place(x, d, start, size)) is not None:
            x = piece
        else:
            touched.append(d)
    if not touched:
        return [x]
    ranks = range(len(sizes))
    links = [[d, *[None] * len(touched)] for d in ranks if d not in touched]
    dims: list[Dim] = [sizes[d] if d in touched else (0, d) for d in ranks]
    along = [touched, *[[]] * len(touched)]
    values = [x, *(starts[d] for d in touched)]
    params = (tuple(sizes[d] for d in touched), *integer_dtypes(eqn)[1:])
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
    if is_zero(x) and len(touched) == 1:
        found = placed(walk.terms, new, touched[0], starts[touched[0]], x.shape[touched[0]])
        if found is not None:
            return [found]
    links = [[d, d, *[None] * len(touched)] for d in ranks if d not in touched]
    dims: list[Dim] = [x.shape[d] if d in touched else (0, d) for d in ranks]
    along = [touched, touched, *[[]] * len(touched)]
    values = [x, new, *(starts[d] for d in touched)]
    params = integer_dtypes(eqn)[2:]
    return [mapped(walk, "dynamic_update_slice", params, values, along, links, dims)]
