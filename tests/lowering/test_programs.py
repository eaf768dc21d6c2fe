"""Random programs under random layouts: a lowering never changes results or gradients."""

import jax
from hypothesis import given, settings
from hypothesis import strategies as st

import meshdsl as md
from meshdsl.dims import union, without
from tests.helpers import assert_by_law, assert_equal, assert_same, data, dims, weight

EVEN, UNEVEN = 16, 11
MESHES = ({"p": 2, "q": 2, "r": 2}, {"p": 2, "q": 4}, {"q": 4, "p": 2}, {"p": 8}, {"p": 1, "q": 4})
KEY = jax.random.key(7)


def four(size):
    return dims(a=size, b=size, c=size, d=size)


def one(x, pick):
    """A dim of `x`."""
    return x.dims[pick % len(x.dims)]


def absent(x, pick):
    others = without(four(x.dims[0].size), x.dims)
    return others[pick % len(others)]


def paired(x, y, fn):
    """`fn` of both, broadcast to each other, where that is not too large."""
    every = union("test", [x.dims, y.dims])
    return fn(md.broadcast(x, every), md.broadcast(y, every)) if len(every) < 4 else x


def product(x, y, pick):
    every = union("test", [x.dims, y.dims])
    kept = tuple(d for i, d in enumerate(every) if pick >> i & 1)[:3]
    return md.einsum(x, y, out=kept) * 0.1


def shuffled(x, dim):
    merged = md.reshape(
        x, f"{' '.join(d.name for d in x.dims)} -> ({' '.join(d.name for d in x.dims)})"
    )
    return md.reshape(md.sin(merged), (*without(x.dims, (dim,)), dim))


def halves(x, dim):
    first, second = md.split(x, dim, [md.Dim("v", 5), md.Dim("w", dim.size - 5)])
    return md.concat([second, md.rename(first, "v", "w") * 2.0], "w", out=dim)


def best(x, dim):
    """The seven largest, and zeros."""
    values, _ = md.top_k(x, dim, md.Dim("v", 7))
    return md.pad(values, "v", after=dim.size - 7, out=dim)


def added(x, y, dim):
    """Elements of `y` at other places, added to `x`."""
    x, y = paired(x, y, lambda x, y: x), paired(x, y, lambda x, y: y)
    if set(x.dims) != set(y.dims) or dim not in x.dims:
        return x
    return md.scatter(
        x, md.iota(md.Dim("v", dim.size)) * 3 % (dim.size + 2), md.rename(y, dim, "v"), dim
    )


def looped(x, dim):
    step = lambda carry, x: (md.tanh(carry + x), carry * 0.5)
    last, all_of_them = md.scan(step, md.sum(x, dim) * 0.1, x, dim=dim)
    return all_of_them + last


OPS = {
    "tanh": lambda x, y, n: md.tanh(x),
    "half": lambda x, y, n: -x * 0.5,
    "add": lambda x, y, n: paired(x, y, lambda x, y: x + y),
    "multiply": lambda x, y, n: paired(x, y, lambda x, y: x * y),
    "einsum": product,
    "sum": lambda x, y, n: md.sum(x, one(x, n)) * 0.1,
    "mean": lambda x, y, n: md.mean(x, one(x, n)),
    "max": lambda x, y, n: md.max(x, one(x, n)),
    "logsumexp": lambda x, y, n: md.logsumexp(x, one(x, n)) * 0.1,
    "softmax": lambda x, y, n: md.softmax(x * 3.0, one(x, n)) * 10.0,
    "cumsum": lambda x, y, n: md.cumsum(x, one(x, n), reverse=n % 2 == 0) * 0.1,
    "cummax": lambda x, y, n: md.cummax(x, one(x, n)),
    "rename": lambda x, y, n: md.rename(x, one(x, n), absent(x, n)),
    "transpose": lambda x, y, n: md.transpose(x, x.dims[::-1]),
    "shuffled": lambda x, y, n: shuffled(x, one(x, n)),
    "halves": lambda x, y, n: halves(x, one(x, n)),
    "window": lambda x, y, n: md.slice(md.pad(x, one(x, n), 5, 7, out="v"), "v", n % 8, one(x, n)),
    "roll": lambda x, y, n: md.roll(x, one(x, n), n - 5) + md.flip(x, one(x, n)),
    "shift": lambda x, y, n: md.shift(x, one(x, n), n - 5),
    "sort": lambda x, y, n: md.sort(x, one(x, n)),
    "top_k": lambda x, y, n: best(x, one(x, n)),
    "scatter": lambda x, y, n: added(x, y, one(x, n)),
    "segments": lambda x, y, n: md.segment_sum(x, md.iota(one(x, n)) // 2, one(x, n), absent(x, n)),
    "tril": lambda x, y, n: md.tril(x, x.dims[0], x.dims[-1]) if len(x.dims) > 1 else x,
    "take": lambda x, y, n: md.take(x, md.iota(absent(x, n)) * 3 % 7, one(x, n)),
    "pool": lambda x, y, n: md.mean_pool(x, {one(x, n): 3}, padding="SAME", stride=1),
    "over": lambda x, y, n: md.over(one(x, n), lambda x: md.tanh(x) * md.sum(x))(x) * 0.1,
    "dropout": lambda x, y, n: md.dropout(x, 0.3, jax.random.fold_in(KEY, n)),
    "scan": lambda x, y, n: looped(x, one(x, n)),
    "checkpoint": lambda x, y, n: md.checkpoint(lambda x: product(md.tanh(x), y, n))(x),
}


def program(steps):
    def run(x, y, w):
        made = [x, y, w]
        for name, first, second, n in steps:
            x, y = made[-1 - first % len(made)], made[-1 - second % len(made)]
            if x.dims:
                made.append(OPS[name](x, y, n))
        return made[-1], made[-2]

    run.__name__ = "program"
    return run


def steps_of(names):
    """Lists of steps of a program, each with an op of these names."""
    step = st.tuples(
        st.sampled_from(sorted(names)), st.integers(0, 2), st.integers(0, 3), st.integers(0, 15)
    )
    return st.lists(step, min_size=5, max_size=15)


STEPS = steps_of(OPS)
ZIGZAG = st.sets(st.sampled_from("abcdv"), max_size=2)  # dims that are split in this order
RULE = st.tuples(st.sampled_from("abcdv"), st.sampled_from(range(3)))
RULES = st.lists(RULE, max_size=5)


def lines(mesh, rules, zigzag=()):
    return [
        {
            "rule": f"{dim}? -> {list(mesh)[axis % len(mesh)]}",
            "order": "zigzag" if dim in zigzag else "natural",
        }
        for dim, axis in rules
    ]


FEW = st.lists(RULE, max_size=2)
# What a scan carries is a value, of parameters too.
STEPS_OF_PARAMETERS = steps_of(OPS.keys() - {"scan"})
MESH, MANY = st.sampled_from(MESHES), settings.default.max_examples


@settings(max_examples=MANY * 2 // 5)
@given(MESH, STEPS, RULES, FEW, FEW, ZIGZAG, st.sampled_from([EVEN, UNEVEN]))
def test_random_programs_are_the_same_lowered(
    mesh, steps, rules, parameters, optimizer, zigzag, size
):
    others = lines(mesh, parameters), lines(mesh, optimizer)
    layout = md.Layout(lines(mesh, rules, zigzag), *others, mesh, uneven="pad")
    a, b, c, _ = four(size)
    args = data(a, b, seed=1), data(b, c, seed=2), weight(c, a, seed=3)
    assert_same(program(steps), *args, layout=layout, tolerance=2e-5, floor=1.0)


@settings(max_examples=MANY // 5)
@given(MESH, STEPS_OF_PARAMETERS, FEW, FEW, FEW, FEW, st.sampled_from(md.layout.GATHER))
def test_what_parameters_alone_make_lies_as_a_parameter_beside_its_gradient(
    mesh, steps, rules, parameters, gradients, optimizer, gather
):
    """Returned with the gradient or by itself: no rule for gradients or an optimizer splits it."""
    levels = [lines(mesh, each) for each in (rules, parameters, optimizer)]
    layout = md.Layout(*levels, mesh, lines(mesh, gradients), gather, uneven="pad")
    a, b, c, _ = four(EVEN)
    weights = weight(a, b, seed=1), weight(b, c, seed=2), weight(c, a, seed=3)

    def loss(weights):
        made = program(steps)(*weights)
        return sum([md.mean(md.square(x)) for x in made], start=md.sum(weights[0])), made

    def run(*weights):
        (_, made), grads = md.value_and_grad(loss, has_aux=True)(weights)
        return (made, program(steps)(*weights)), grads

    placed = md.make_mesh(layout)
    made, grads = found = md.lower(run, layout, placed, dims="abcdv")(*weights)
    assert_equal(found, jax.jit(run)(*weights), tolerance=2e-5, floor=1.0)
    assert_by_law(made, layout, placed, "parameters")
    assert_by_law(grads, layout, placed, "optimizer")
