"""Values: what a local array means, as a term and the places of the term's elements.

Each dim of a term is a product of *parts*, major first. A part belongs to the devices along a mesh
axis, each of which has one index of it, or to a dim of the local array. A `batch` of 32 that is
split over an axis `data` of 4 has the parts `data` of 4 and a local one of 8:

    Value(term,  parts=((Part(4, "data"), Part(8, 17)),),  dims=((Part(8, 17),),))

That is all that a split is. An operation on local arrays is the same operation on whole ones, in
which the axes are dims like any other, so no lemma needs to say how an op behaves under a split.
Moves of data, reshapes, transposes and broadcasts change where elements are, and make no term.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from meshdsl.proof.labels import (
    Label,
    Major,
    Minor,
    Part,
    Parts,
    Sent,
    axis_of,
    fresh,
    labelled,
    nameless,
    renewed,
    size_of,
)
from meshdsl.proof.terms import NotProved, Term, Terms


@dataclass(frozen=True, slots=True)
class Value:
    """What a local array means.

    Attributes:
      term: the whole.
      parts: of each dim of the term. No label is there twice.
      dims: the parts of each dim of the local array.
    """

    term: Term
    parts: tuple[Parts, ...]
    dims: tuple[Parts, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the local array."""
        return tuple(map(size_of, self.dims))

    @property
    def labels(self) -> dict[Label, int]:
        """The labels of all parts of the term, with their sizes."""
        return labelled(part for dim in self.parts for part in dim)

    @property
    def axes(self) -> list[str]:
        """The axes along which devices differ."""
        return list(dict.fromkeys(axis for label in self.labels if (axis := axis_of(label))))

    def at(self, dims: Iterable[Parts]) -> Value:
        """The same term in a local array of other dims; what the term lacks has no label there."""
        labels = self.labels
        return Value(self.term, self.parts, tuple(_tidy(dim, labels) for dim in dims))

    def same_as(self, other: Value) -> bool:
        """Whether both are the same array, element by element, on each device in each round."""
        return self.term is other.term and self.places == other.places

    @property
    def places(self) -> tuple[tuple, frozenset]:
        """Where the elements of the term are.

        Returns:
          For each dim of the local array its runs: of how many indices, and of what in the term;
          and the parts of axes and of rounds, each with what it is in the term. What it is are the
          dim of the term, and how far apart neighbours are in it.
        """
        where: dict[Label | None, tuple[int, int]] = {None: (-1, 0)}
        for number, parts in enumerate(self.parts):
            step = 1
            for part in reversed(parts):
                where[part.label] = number, step
                step *= part.size
        found = []
        for dim in self.dims:
            runs: list[tuple[int, tuple[int, int]]] = []
            for part in dim:
                number, step = where[part.label]
                if runs and runs[-1][1] == (number, step * part.size):
                    runs[-1] = runs[-1][0] * part.size, (number, step)
                else:
                    runs.append((part.size, (number, step)))
            found.append(tuple(runs))
        local = labelled(part for dim in self.dims for part in dim)
        beside = lambda label: where.get(label.minor) if isinstance(label, Major) else None
        others = {
            (nameless(label), size, where[label], beside(label))
            for label, size in self.labels.items()
            if label not in local
        }
        return tuple(found), frozenset(others)


def alike(a: Value, b: Value) -> bool:
    """Whether both are the same elements of the same term, wherever they are in local arrays."""
    return a.term is b.term and a.parts == b.parts


def _tidy(dim: Parts, labels: Collection[Label]) -> Parts:
    """A local dim without parts of size 1; neighbours along which nothing changes are one part."""
    found: list[Part] = []
    for size, label in dim:
        label = label if label in labels else None
        if size == 1:
            continue
        if label is None and found and found[-1].label is None:
            found[-1] = Part(found[-1].size * size, None)
        else:
            found.append(Part(size, label))
    return tuple(found)


def unchanging(shape: Iterable[int]) -> tuple[Parts, ...]:
    """Local dims of these sizes, along which nothing changes."""
    return tuple((Part(n, None),) if n != 1 else () for n in shape)


def whole(term: Term) -> Value:
    """A term in one piece, in an array of its dims."""
    parts = tuple((Part(size, fresh()),) for size in term.shape)
    return Value(term, parts, parts)


def relabelled(value: Value, names: Mapping[Label, Label]) -> Value:
    """`value` with other labels for some of its parts.

    Raises:
      NotProved: a part that lies in another order would be taken for one that does not.
    """
    if not names:
        return value
    majors = {}
    for old, new in names.items():
        if isinstance(old, Minor):
            if not isinstance(new, Minor):
                raise NotProved("what lies in another order is taken for what does not")
            majors[Major(old)] = Major(new)
    names = {**names, **majors}
    one = lambda p: p if p.label is None else Part(p.size, names.get(p.label, p.label))
    each = lambda dims: tuple(tuple(map(one, dim)) for dim in dims)
    return Value(value.term, each(value.parts), each(value.dims))


def apart(value: Value) -> Value:
    """`value` with labels of its own for all that is in the local array."""
    local = labelled(part for dim in value.dims for part in dim)
    return relabelled(value, {label: renewed(label) for label in local})


def cut(value: Value, dim: int, sizes: Sequence[int]) -> tuple[Value, list[Parts]]:
    """`value` with the parts of a local dim cut so that runs of them have these sizes.

    Returns:
      The value, and the runs, major first.

    Raises:
      NotProved: a part would have to be cut where no whole number of its indices is.
    """
    pieces: dict[Label, Parts] = {}
    runs: list[Parts] = []
    left = list(reversed(value.dims[dim]))
    for size in sizes:
        run: list[Part] = []
        while size > 1:
            part = left.pop()
            if part.size > size and part.size % size == 0 and not isinstance(part.label, Minor):
                labels = (None, None) if part.label is None else (fresh(), fresh())
                head, tail = Part(size, labels[0]), Part(part.size // size, labels[1])
                if part.label is not None:
                    pieces[part.label] = (head, tail)
                left.append(tail)
                part = head
            if size % part.size:
                raise NotProved(f"{part.size} indices in a row are cut into {size}")
            run.append(part)
            size //= part.size
        runs.append(tuple(run))

    def of(part: Part) -> Parts:
        found = pieces.get(part.label) if part.label is not None else None
        return (part,) if found is None else tuple(p for piece in found for p in of(piece))

    each = lambda dims: tuple(tuple(p for part in parts for p in of(part)) for parts in dims)
    dims = list(each(value.dims))
    return Value(value.term, each(value.parts), tuple(dims)), runs


def aligned(values: Sequence[Value], links: Sequence[Sequence[int | None]]) -> list[Value]:
    """`values` in which the same parts of dims that belong together have the same labels.

    Args:
      links: for each set of dims that belong together, the dim of each value, or None.

    Raises:
      NotProved: such dims consist of parts that do not fit each other.
    """
    values = [*values[:1], *map(apart, values[1:])]
    for link in links:
        members = [(i, d) for i, d in enumerate(link) if d is not None and values[i].dims[d]]
        if any(values[i].shape[d] == 0 for i, d in members):
            raise NotProved("there is no lemma for arrays without elements here")
        ends = {1}
        for i, d in members:
            size = 1
            for part in reversed(values[i].dims[d]):
                size *= part.size
                ends.add(size)
        steps = []
        for high, low in itertools.pairwise(sorted(ends, reverse=True)):
            if high % low:
                raise NotProved("dims that belong together consist of parts that do not fit")
            steps.append(high // low)
        runs: dict[int, list[Parts]] = {}
        for i, d in members:
            if values[i].shape[d] != prod(steps):
                raise NotProved("dims that belong together have different sizes")
            values[i], runs[i] = cut(values[i], d, steps)
        shared = [
            _shared(run[0].label for run in each) for each in zip(*runs.values(), strict=True)
        ]
        for i, of in runs.items():
            pairs = [(run[0].label, label) for run, label in zip(of, shared, strict=True)]
            values[i] = relabelled(values[i], {a: b for a, b in pairs if a is not None})
    return values


def _shared(labels: Iterable[Label | None]) -> Label:
    """A label for parts that belong together.

    Raises:
      NotProved: they lie in different orders.
    """
    found = [label for label in labels if label is not None]
    if len({label[:2] if isinstance(label, Minor) else None for label in found}) > 1:
        raise NotProved("rows in one order meet rows in another one")
    return renewed(found[0] if found else None)


def joined(dims: Iterable[Parts]) -> Parts:
    """One dim of those that belong together, of aligned values: what any of them has."""
    ends: dict[int, Part] = {}
    size = 1
    for dim in dims:
        end = 1
        for part in reversed(dim):
            end *= part.size
            if part.label is not None:
                ends[end] = part
        size = max(size, end)
    found, done = [], 1
    for end, part in sorted(ends.items()):
        found += [Part(end // part.size // done, None), part]
        done = end
    return tuple(p for p in reversed([*found, Part(size // done, None)]) if p.size > 1)


def opened(value: Value) -> tuple[list[Value], list[list[Parts]]]:
    """The arguments of the term of `value`, in the same local array.

    Indices that the result does not have get new labels.

    Returns:
      The arguments; and for each the dims along which the order of elements matters.
    """
    term = value.term
    if not term.args:
        return [], []
    sizes: tuple[int, ...] = term.params[-1]
    lost = {-i - 1: (Part(size, fresh()),) for i, size in enumerate(sizes)}
    if term.op == "ordered":
        lost = {-1: _parts_in_order(value.parts[-1], term.params[0]) or lost[-1]}
    parts = lambda index: value.parts[index] if index >= 0 else lost[index]
    each = lambda view: tuple(p for index in view for p in parts(index))
    args = [
        Value(arg, tuple(map(each, view)), ()).at(value.dims)
        for arg, view in zip(term.args, term.views, strict=True)
        if view is not None
    ]
    ordered: tuple = term.params[-2]
    run = lambda dim: tuple(
        p for i, n in dim for p in ((Part(n, None),) if i is None else parts(i))
    )
    return args, [[run(dim) for dim in dims] for dims in ordered]


def _parts_in_order(own: Parts, table: tuple[tuple[int, ...], ...]) -> Parts | None:
    """The parts that what is `ordered` has in its argument; see `forms.orders`."""
    if [p.size for p in own] != [len(table), len(table[0])] or not isinstance(own[1].label, int):
        return None
    label, count = own[0].label, own[0].size
    if not axis_of(label) or isinstance(label, Major):
        return None
    places = label.table if isinstance(label, Sent) else range(count)
    if len(places) != count:
        return None
    minor = Minor(axis_of(label), tuple(table[place] for place in places), own[1].label)
    return Part(own[0].size, Major(minor)), Part(own[1].size, minor)


def arguments_of(value: Value) -> list[Value]:
    """The arguments of the term of `value`; see `opened`."""
    return opened(value)[0]


def lacking(argument: Value, value: Value) -> Parts:
    """The parts of an argument that the value of the operation does not have."""
    labels = value.labels
    return tuple(p for parts in argument.parts for p in parts if p.label not in labels)


def own_dims(value: Value, args: Sequence[Value]) -> list[Parts]:
    """The dims of a term that none of its arguments has."""
    have = {label for arg in args for label in arg.labels}
    return [parts for parts in value.parts if not labelled(parts).keys() & have]


def made(
    terms: Terms,
    op: str,
    params: tuple[Hashable, ...],
    values: Sequence[Value],
    dims: Iterable[Parts],
    *,
    over: Collection[Label] = (),
    along: Sequence[Sequence[Parts]] = (),
    new: Sequence[Parts] = (),
    beside: tuple[Term, ...] = (),
    uses: Iterable[Hashable] = (),
    binds: Iterable[Hashable] = (),
) -> Value:
    """The value of an operation on values in which the same parts have the same labels.

    Neighbouring parts that are together in every value that has them are one index, so a term does
    not say how its dims are split.

    Args:
      dims: of the local result.
      over: labels of parts that the result does not have, such as those that are summed.
      along: for each value, the local dims along which the order of elements matters. The result
        does not have them either.
      new: dims of the result that no value has.
      beside: terms that say what variables of loops are.
      uses, binds: see `Terms.term`.
    """
    inside = {p.label for each in along for dim in each for p in dim}
    if any(isinstance(label, (Major, Minor)) for label in (*over, *inside)):
        raise NotProved("the order of elements matters where they lie in another one")
    runs = {
        (a.label, b.label) for each in along for dim in each for a, b in itertools.pairwise(dim)
    }
    follows = [
        {(a.label, b.label) for parts in v.parts for a, b in itertools.pairwise(parts)}
        for v in values
    ]
    sizes: dict[Label, int] = {}
    for value in values:
        sizes |= value.labels
    have = [value.labels for value in values]

    def joins(a: Label, b: Label) -> bool:
        if (a in over, a in inside) != (b in over, b in inside):
            return False
        if a in inside and (a, b) not in runs:
            return False
        pairs = zip(have, follows, strict=True)
        return all((a, b) in after or not (a in labels or b in labels) for labels, after in pairs)

    groups: list[list[Label]] = []
    for label in sizes:
        if groups and joins(groups[-1][-1], label):
            groups[-1].append(label)
        else:
            groups.append([label])
    index: dict[Label | None, int] = {}
    kept: list[Parts] = []
    lost: list[int] = []
    for group in groups:
        parts = tuple(Part(sizes[label], label) for label in group)
        if group[0] in over or group[0] in inside:
            lost.append(size_of(parts))
            index.update(dict.fromkeys(group, -len(lost)))
        else:
            index.update(dict.fromkeys(group, len(kept)))
            kept.append(parts)
    kept.extend(new)
    view = lambda parts: tuple(dict.fromkeys(index[p.label] for p in parts))

    def order(dim: Parts) -> tuple:
        each = [(None, p.size) if p.label is None else (index[p.label], 0) for p in dim]
        pairs = itertools.pairwise([None, *each])
        return tuple(b for a, b in pairs if a != b or (b is not None and b[0] is None))

    term = terms.term(
        op,
        (*params, tuple(tuple(map(order, each)) for each in along), tuple(lost)),
        (*(v.term for v in values), *beside),
        (*(tuple(map(view, v.parts)) for v in values), *[None] * len(beside)),
        tuple(map(size_of, kept)),
        uses=uses,
        binds=binds,
    )
    return Value(term, tuple(kept), ()).at(dims)
