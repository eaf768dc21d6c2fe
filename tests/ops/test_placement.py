"""reshard and replicate bring every state of an axis into every other.

They do so by the collectives that docs/placements.md names.
"""

from pathlib import Path

import pytest

import meshdsl as md
from meshdsl.ops.placement import replicate, reshard
from meshdsl.program import summary
from tests.helpers import assert_same, data, dims, layout

A, B = dims(a=8, b=8)
X = data(A, B)
MESH = {"p": 2, "q": 4}

# What one axis costs on its way from a state to another. `a` and `b`: it splits that dim, `-`:
# nothing, `+`: a sum over it is pending.
ONE_AXIS = {
    ("a", "-"): {"all_gather": 1},
    ("b", "-"): {"all_gather": 1},
    ("-", "a"): {},
    ("-", "b"): {},
    ("a", "b"): {"all_to_all": 1},
    ("b", "a"): {"all_to_all": 1},
    ("+", "-"): {"psum": 1},
    ("+", "a"): {"psum_scatter": 1},
    ("+", "b"): {"psum_scatter": 1},
    ("-", "+"): {},
    ("a", "+"): {},
    ("b", "+"): {},
}


def state(text: str):
    """The arguments of reshard where axes, in order, are in states: "pa q+" has `p` split `a`."""
    split = {d: [x for x, s in text.split() if s == d.name] for d in (A, B)}
    return {d: over for d, over in split.items() if over}, [x for x, s in text.split() if s == "+"]


def moved(*states):
    def run(x):
        for split, pending in states:
            x = reshard(x, split, pending=pending)
            assert x.placement is None or (
                {d: list(axes) for d, axes in x.split.items()} == split
                and set(x.pending) == set(pending)
            )
        return x

    return run


def forward(fn, *args, **how):
    """How often each collective runs, by operation."""
    program = md.lower(fn, layout(*how.pop("rules", ()), mesh=MESH)).program(*args)
    counts: dict[str, int] = {}
    for (operation, _), (count, _) in summary(program.collectives).items():
        counts[operation] = counts.get(operation, 0) + count
    return counts


def test_the_docs_say_what_one_axis_costs():
    words = {"a": "splits a dim", "b": "splits a dim", "-": "copies", "+": "pending"}
    rows = [
        line.split(" | ")
        for line in (Path(__file__).parents[2] / "docs/placements.md").read_text().splitlines()
        if line.startswith("| ")
    ]
    documented = {(row[0].strip("| "), row[1]): row[2] for row in rows if len(row) == 4}
    for (before, after), expected in ONE_AXIS.items():
        start, end = words[before], words[after]
        move = documented[start, "splits another dim" if before != after and start == end else end]
        assert move.split(" ")[0] == next(iter(expected), "free"), (before, after)


# Axes with their states before and after, and what that costs.
SEVERAL_AXES = {
    "both axes change their dim at once": ("pa qa", "pb qb", {"all_to_all": 1}),
    "both are gathered at once": ("pa qa", "p- q-", {"all_gather": 1}),
    "two dims are gathered": ("pa qb", "p- q-", {"all_gather": 2}),
    "the axes of a dim change places": ("pa qa", "qa pa", {"ppermute": 1}),
    "two dims swap their axes": ("pa qb", "pb qa", {"all_to_all": 2, "ppermute": 1}),
    "one axis for another": ("pa q-", "p- qa", {"ppermute": 1, "all_gather": 1}),
    "the outer one leaves": ("pa qa", "p- qa", {"ppermute": 1, "all_gather": 1}),
    "a sum into another axis' dim": ("pa q+", "pa qa", {"psum_scatter": 1}),
    "two sums into one dim": ("p+ q+", "pa qa", {"psum_scatter": 1}),
    "two sums at once": ("p+ q+", "p- q-", {"psum": 1}),
    "one is summed and one scattered": ("p+ q+", "p- qa", {"psum_scatter": 1, "psum": 1}),
    "a sum waits while another is scattered": ("p+ q+", "p+ qb", {"psum_scatter": 1}),
}


MOVES = {name: (state(a), state(b), moves) for name, (a, b, moves) in SEVERAL_AXES.items()}
MOVES |= {f"{a} {b}": (state(f"q{a}"), state(f"q{b}"), ONE_AXIS[a, b]) for a, b in ONE_AXIS}


@pytest.mark.parametrize("name", MOVES)
def test_axes_move_by_as_few_collectives_as_can_be(name):
    before, after, expected = MOVES[name]
    closing = forward(moved(after), X)  # what it takes to leave from the state at the end
    total = {op: closing.get(op, 0) + expected.get(op, 0) for op in {**closing, **expected}}
    assert forward(moved(before, after), X) == total


def test_what_moves_stays_the_same():
    every = lambda x: [moved(before, after)(x) for before, after, _ in MOVES.values()]
    assert_same(every, X, layout=layout(mesh=MESH))


def test_a_replica_is_cut_again_for_free_and_ops_keep_to_the_law():
    run = lambda x: md.tanh(replicate(md.tanh(x)))
    assert forward(run, X, rules=["a -> q"]) == {"all_gather": 1}
    assert_same(run, X, layout=layout("a -> q", mesh=MESH))


def test_a_dim_that_does_not_divide_is_padded_where_the_layout_lets_it():
    run = lambda x: reshard(x, {"c": ["p", "q"]}) * 2
    x = data(*dims(c=5, a=8))
    rules = layout("a -> q", {"rule": "c -> p", "uneven": "pad"}, mesh=MESH)
    assert_same(run, x, layout=rules)


SQUARE = {"x": 2, "y": 2}
# How a tensor is split and over what it waits, its dims, the rule, and what moves.
UNNESTED = {
    "rows of a part that are no part of the new one": (
        ({"h": "y"}, "x"), dims(h=2, o=3), "h -> x", ["place", "slice"]
    ),
    "rows of six": (({"h": "x"}, "y"), dims(h=6), "h -> y", ["place", "slice"]),
    "the outer axis waits": (
        ({"h": "y"}, "x"), dims(h=9, o=3), "h -> x, y", ["all_gather", "place", "slice"]
    ),
    "the inner axis waits": (
        ({"h": "x"}, "y"), dims(h=9, o=3), "h -> x, y", ["all_gather", "slice", "mask"]
    ),
    "one waits, and another dim takes the other": (
        ({"o": "x"}, "y"), dims(h=9, o=4), "h -> y, x", ["all_gather", "place", "slice"]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNNESTED)
def test_a_sum_is_made_pending_of_parts_that_do_not_lie_within_each_other(name):
    (split, pending), sizes, rule, moves = UNNESTED[name]
    run = lambda x: reshard(md.sin(x), split, pending=pending)
    program, _ = assert_same(run, data(*sizes), layout=layout(rule, mesh=SQUARE, uneven="pad"))
    assert [m.operation for op in program.ops if op.name == "reshard" for m in op.moves] == moves


def test_outside_of_a_lowering_nothing_moves():
    assert reshard(X, {A: "p"}) is X and replicate(X) is X
