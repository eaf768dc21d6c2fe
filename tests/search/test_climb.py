"""What a search finds, beside what trying everything finds, and beside what it found before."""

from itertools import permutations

import jax
import pytest

import meshdsl as md
from meshdsl.layout_search.constraints import Constraints
from meshdsl.layout_search.judge import Judge
from meshdsl.layout_search.outcome import find
from meshdsl.layout_search.plan import Plan, layout_of, plan_of, rule_of
from tests.helpers import only
from tests.search import golden
from tests.search.workloads import ROWS, STEP, WEIGHTS, workload

DIMS = ("batch", "d", "f")
V5E = "v5e:2x4"


def lists(level: str, most: int):
    """All ordered lists of at most so many dims over the axis `data`."""
    for count in range(most + 1):
        for dims in permutations(DIMS, count):
            yield tuple(rule_of(level, dim, "data") for dim in dims)


def test_a_search_finds_what_trying_everything_finds():
    every = Judge(workload(V5E), 2**34)
    for rules in lists("rules", 2):
        for at_rest in lists("parameters", 1):
            every(Plan((("data", 8),), rules + at_rest))
    found = find(workload(V5E), Constraints(axes=1), seconds=None, evaluations=24)
    best = min(judged.step for judged in every.judged.values())
    assert len(every.judged) > 30 and found.best.step <= 1.02 * best
    assert found.explained < len(every.judged)


def test_what_a_search_says_of_its_result_is_what_explain_says():
    found = md.search(STEP, WEIGHTS, ROWS, target=V5E, seconds=None, evaluations=8)
    again = md.explain(STEP, WEIGHTS, ROWS, layout=found.layout, target=V5E)
    assert again.time is not None and again.time.step == found.best.step
    assert again.memory.peak == found.best.peak and again.axes == found.best.axes
    steps = [judged.step for judged in found.frontier]
    peaks = [judged.peak for judged in found.frontier]
    assert steps == sorted(steps, reverse=True) and peaks == sorted(peaks)
    assert found.frontier[-1].step == found.best.step
    assert found.shipped is not None and found.shipped.step > found.best.step
    worth = {one.line: one for one in found.differences}
    taken, left = worth["f -> data"], worth["batch -> data"]
    assert taken.added and taken.why == "without it `data` splits nothing"
    assert not left.added and left.seconds is not None and left.seconds > 0  # it would be slower
    assert found.layout.mesh == {"data": 8}  # two axes that do the same are one


def test_no_rule_of_the_result_changes_nothing():
    found = find(workload(V5E), Constraints(), seconds=None, evaluations=8)
    best = plan_of(found.best.candidate.layout, dict(found.best.candidate.layout.mesh))
    judge = Judge(workload(V5E), found.budget)
    for rule in best.rules:
        judged = judge(best.with_rules(x for x in best.rules if x != rule))
        assert judged is None or judged.step > found.best.step


def test_a_search_finds_the_same_each_time():
    one, other = (find(workload(V5E), Constraints(), seconds=None, evaluations=6) for _ in range(2))
    assert one.best == other.best and one.frontier == other.frontier


def test_rows_of_experts_are_exchanged_where_that_is_faster():
    tokens, top, d, f, experts = (
        md.Dim(name, size)
        for name, size in {"batch": 2**16, "top": 1, "d": 2048, "f": 1024, "experts": 64}.items()
    )

    def loss(weights, x, ids):
        run = lambda groups, rows, up, down: groups.dot(jax.nn.relu(groups.dot(rows, up)), down)
        share = md.ones((tokens, top), dtype=x.dtype)
        return md.mean(md.square(md.routed(run, x, ids, share, tuple(weights), experts="experts")))

    shape = lambda dims, dtype="float32": jax.ShapeDtypeStruct([n.size for n in dims], dtype)
    weights = [
        md.parameter(shape(dims), dims, ins=dims[1]) for dims in [(experts, d, f), (experts, f, d)]
    ]
    x, ids = (
        md.tensor(shape(dims, dtype), dims)
        for dims, dtype in [((tokens, d), "float32"), ((tokens, top), "int32")]
    )
    keep = md.Layout(["batch -> expert"], mesh={"expert": 8})
    found = md.search(
        md.value_and_grad(loss),
        weights,
        x,
        ids,
        target=V5E,
        keep=keep,
        never=["d -> *", "f -> *"],
        seconds=None,
        evaluations=12,
    )
    moves = {rule.dim: rule.move for rule in found.layout.parsed}
    assert moves["experts"] == "exchange" and found.layout.mesh == {"expert": 8}


def test_what_must_be_kept_is_kept_and_what_must_not_be_is_not():
    keep = md.Layout(["batch -> data"], mesh={"data": 4})
    found = find(
        workload(V5E), Constraints(keep=keep, never=("f -> *",)), seconds=None, evaluations=6
    )
    for judged in (found.best, *found.frontier):
        layout = judged.candidate.layout
        assert layout.mesh["data"] == 4
        assert any((r.dim, r.axis) == ("batch", "data") for r in layout.parsed)
        assert not any(r.dim == "f" for r in layout.parsed)


def test_dims_that_do_not_divide_are_said():
    odd = [md.Dim("rows", 7), md.Dim("ins", 9)]
    x = md.tensor(jax.ShapeDtypeStruct((7, 9), "float32"), odd)
    with pytest.raises(md.MeshDSLError, match=r"its dims are `rows`=7, `ins`=9"):
        md.search(lambda x: md.sum(x), x, target=V5E, seconds=None, evaluations=2)


def test_plans_and_layouts_are_the_same():
    for name in ("fsdp-sequence", "context-ring", "pipeline-fsdp", "zero1", "hybrid-fsdp"):
        layout = md.Layout.load(name)
        sizes = dict.fromkeys(layout.mesh, 2)
        plan = plan_of(layout, sizes)
        again = layout_of(plan)
        assert plan_of(again, sizes) == plan
        told = lambda rules: [
            (r.level, r.dim, r.axis, r.pads, r.move, r.order, r.microbatches, r.rounds)
            for r in rules
        ]
        assert told(again.parsed) == told(layout.parsed) and again.gather == layout.gather


# -- what searches found before -------------------------------------------------------------------


@pytest.mark.parametrize("case", only([], golden.CASES, slow=["gpt2-1.5b-on-32-h100"]))
def test_a_search_finds_what_it_found_before(case):
    assert golden.text_of(case) == (golden.FOLDER / f"{case}.txt").read_text()
