"""Random placements by hand, in random programs: values and gradients stay those of one device.

`reshard` takes any split and any pending sums, of dims that divide and of dims that do not, of
sizes 0 and 1 too, in a program's body and inside of `over`, `map_over` and `cond`. What
`value_and_grad` returns besides leaves as what it is.
"""

import jax.numpy as jnp
from hypothesis import given, settings
from hypothesis import strategies as st

import meshdsl as md
from meshdsl.dims import without
from tests.helpers import assert_same, data, in_a_row, weight

MESHES = (
    {"p": 2, "q": 2},
    {"p": 3, "q": 2},
    {"q": 2, "p": 4},
    {"p": 2, "q": 2, "r": 2},
    {"p": 1, "q": 3},
)
NAMES = ["a", "b", "c"]
SIZES = st.one_of(st.integers(1, 9), st.integers(0, 2))
HOW = dict(tolerance=2e-5, floor=1.0)
few = settings(max_examples=4 if settings.default.max_examples < 100 else 300)
LENGTHS = st.tuples(*[st.integers(1, 7)] * 3)


@st.composite
def layouts(draw, mesh):
    """Rules for some of the dims, several for one now and then, parameters and gradients too."""
    pairs = st.tuples(st.sampled_from(NAMES), st.sampled_from(sorted(mesh)))
    lists = [draw(st.lists(pairs, max_size=n, unique=True)) for n in (4, 1, 1)]
    rules, parameters, gradients = [[f"{dim}? -> {axis}" for dim, axis in pairs] for pairs in lists]
    optimizer = [f"{name}? -> {axis}" for name in NAMES for axis in mesh]  # so all may be padded
    gather = draw(st.sampled_from(["layer", "step"]))
    return md.Layout(rules, parameters, optimizer, mesh, gradients, gather, uneven="pad")


def placements(mesh):
    """For each axis, in some order, the dim that it splits; `-` for none, `+` for a pending sum."""
    states = st.fixed_dictionaries({axis: st.sampled_from([*NAMES, "-", "+"]) for axis in mesh})
    return st.tuples(states, st.permutations(sorted(mesh)))


def placed(x, placement):
    """`x` so placed, as far as the axes are not spent and the dims are its own."""
    states, order = placement
    scope = x.placement and x.placement.scope
    free = [axis for axis in order if not scope or axis not in scope.layout.spent]
    names = [d.name for d in x.dims]
    split = {name: [a for a in free if states[a] == name] for name in names}
    summed = x.dtype != bool and [a for a in free if states[a] == "+"]
    return md.reshard(x, {name: axes for name, axes in split.items() if axes}, pending=summed or ())


BETWEEN = {
    "nothing": lambda x: x,
    "linear": lambda x: -x * 0.5,
    "sin": md.sin,
    "order": lambda x: md.transpose(x, x.dims[::-1]),
    "mean": lambda x: x - md.sum(x, x.dims[0]) * 0.1 if x.dims else x,
}


def of_mesh(*strategies):
    """A layout on one of the meshes, and what each of `strategies` draws for that mesh."""
    both = lambda mesh: st.tuples(layouts(mesh), *[draw(mesh) for draw in strategies])
    return st.sampled_from(MESHES).flatmap(both)


def chain(mesh):
    """Placements and what is done between them."""
    ops = st.sampled_from(sorted(BETWEEN))
    return st.lists(st.tuples(placements(mesh), ops), min_size=2, max_size=4)


@few
@given(of_mesh(chain, chain), st.tuples(SIZES, SIZES, SIZES))
def test_every_placement_becomes_every_other(drawn, sizes):
    rules, first, second = drawn
    a, b, c = (md.Dim(name, size) for name, size in zip(NAMES, sizes, strict=True))

    def chained(x, moves):
        for placement, op in moves:
            x = BETWEEN[op](placed(x, placement))
        return x

    def run(x, w, n):
        waiting = [placed(t, first[0][0]) for t in (x, x * 0.5)]  # for the same sums
        whole, truth = placed(n, first[-1][0]), placed(n > 2, second[-1][0])
        return chained(x, first), chained(w, second), whole, truth, waiting[0] + waiting[1]

    args = data(a, b, c), weight(c, a), md.cast(data(b, a, high=9.0), jnp.int32)
    program, _ = assert_same(run, *args, layout=rules, dims=NAMES, **HOW)
    assert not [found for found in program.collectives if not in_a_row(program, found)]


def leaf(mesh):
    """A step of a program: something that places its tensor, or an op."""
    return st.one_of(
        st.tuples(st.just("place"), placements(mesh)),
        st.tuples(st.just("parameter"), placements(mesh)),
        st.tuples(st.sampled_from(sorted(BETWEEN)), st.none()),
    )


def nested(mesh):
    """Steps, some of which run others along a dim, or one of two others."""
    inner = st.lists(leaf(mesh), min_size=1, max_size=3)
    picked, batches = st.integers(0, 2), st.sampled_from([None, 1, 2, 3, 5])
    kinds = st.sampled_from(["over", "map_over", "scan"])
    mapped = st.tuples(kinds, st.tuples(picked, batches, inner))
    chosen = st.tuples(st.just("cond"), st.tuples(st.booleans(), inner, inner))
    deeper = st.lists(st.one_of(leaf(mesh), mapped, chosen), min_size=1, max_size=3)
    twice = st.tuples(st.sampled_from(["over", "map_over"]), st.tuples(picked, batches, deeper))
    return st.lists(st.one_of(leaf(mesh), twice, mapped, chosen), min_size=1, max_size=4)


def mixed(x, w):
    """Of the dims of `x`, whatever dims `w` has."""
    others = without(w.dims, x.dims)
    return x * (md.sum(w, others) if others else w) * 0.5


def taken(x, w, steps):
    """`x` after all steps, in which `w` is closed over."""
    for kind, how in steps:
        x = STEPS[kind](x, w, how)
    return x


def along(x, w, how, run):
    pick, batch, steps = how
    if not x.dims:
        return x
    dim = x.dims[pick % len(x.dims)]
    shared = [w] if dim in w.dims else []  # one element of the parameter too, where it has the dim
    fn = lambda x, *own: taken(x, own[0] if own else w, steps)
    return run(fn, dim, batch, x, *shared)


def mapped_over(fn, dim, batch, *xs):
    return md.map_over(fn, *xs, dim=dim, batch=batch)


def scanned(fn, dim, batch, *xs):
    return md.scan(lambda _, xs: ((), fn(*xs)), (), xs, dim=dim)[1]


def chosen(x, w, by_parameter, *branches):
    branches = [lambda x, steps=steps: taken(x, w, steps) for steps in branches]
    return md.cond(md.sum(w if by_parameter else x) > 0, *branches, x)


STEPS = {
    **{name: lambda x, w, how, fn=fn: fn(x) for name, fn in BETWEEN.items()},
    "place": lambda x, w, how: placed(x, how),
    "parameter": lambda x, w, how: mixed(x, placed(w, how)),
    "over": lambda x, w, how: along(x, w, how, lambda fn, dim, batch, *xs: md.over(dim, fn)(*xs)),
    "map_over": lambda x, w, how: along(x, w, how, mapped_over),
    "scan": lambda x, w, how: along(x, w, how, scanned),
    "cond": lambda x, w, how: chosen(x, w, *how),
}


@few
@given(of_mesh(nested, nested), LENGTHS, st.permutations(range(3)), st.integers(0, 3))
def test_placements_in_mapped_functions_loops_and_branches(drawn, sizes, order, some):
    rules, first, second = drawn
    every = [md.Dim(name, size) for name, size in zip(NAMES, sizes, strict=True)]

    def run(x, w):
        return taken(x, w, first), taken(w, w, second)

    w = weight(*[every[i] for i in order][:some])
    assert_same(run, data(*every), w, layout=rules, dims=NAMES, **HOW)


@few
@given(of_mesh(nested, nested), LENGTHS, st.sampled_from([None, jnp.bfloat16]))
def test_aux_results_leave_as_what_they_are(drawn, sizes, reduce):
    rules, first, second = drawn
    a, b, c = (md.Dim(name, size) for name, size in zip(NAMES, sizes, strict=True))

    def run(x, w, v):
        def loss(ws):
            w, v = ws
            alone, both = taken(w * 2.0, v, first), taken(x, w, second)
            aux = {"parameters": ws, "alone": alone, "both": both, "one number": md.sum(v)}
            return md.mean(md.square(both)), aux

        return md.value_and_grad(loss, has_aux=True, reduce=reduce)((w, v))[0]

    args = data(a, b, c), weight(b, a), weight(c, b)
    assert_same(run, *args, layout=rules, gradients=False, dims=NAMES, **HOW)
