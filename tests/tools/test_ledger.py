"""`md.ledger`: measured time, attributed to ops, rules and lines; the unforeseen comes first."""

import re
from functools import cache
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

import meshdsl as md
from meshdsl.predict.explain import explain
from meshdsl.predict.ledger import trace
from meshdsl.predict.ledger.ledger import from_trace
from meshdsl.tools.ledger import Ledger
from tests.helpers import data, dims

BATCH, D, FF = dims(batch=16, d_model=32, d_ff=64)
LAYOUT = md.Layout(["batch -> data", "d_ff -> model"], mesh={"data": 4, "model": 2})


def loss(weights, x):
    hidden = md.tanh(md.einsum(x, weights["up"], out=(BATCH, FF)))
    return md.mean(md.square(md.einsum(hidden, weights["down"], out=(BATCH, D))))


def case(**how):
    step = md.lower(md.value_and_grad(loss), LAYOUT, **how)
    return step, {"up": data(D, FF), "down": data(FF, D)}, data(BATCH, D)


@cache
def measured() -> Ledger:
    return md.ledger(*case(), steps=2, target="v5p:2x2x2", title="tiny")


def test_time_of_a_tiny_step_is_attributed_to_its_lines():
    found = measured()
    assert found.attributed >= 0.95 and found.attributed_computing >= 0.95
    assert (found.calls, len(found.devices), found.title) == (2, 8, "tiny")
    # Two calls: the median is the mean, so all adds up.
    assert sum(e.seconds for e in found.entries) == pytest.approx(sum(found.busy) / 8)
    whole = [busy + idle for busy, idle in zip(found.busy, found.idle, strict=True)]
    assert whole == pytest.approx([found.seconds] * 8) and min(found.busy) > 0
    lines = [total.name for total in found.by_line()]
    assert all(name.startswith(f"{__name__.rpartition('.')[2]}.py:") for name in lines), lines
    rules = {total.name for total in found.by_rule()}
    assert rules == {"layout, rule 1: batch -> data", "layout, rule 2: d_ff -> model"}


def test_measured_time_stands_beside_the_estimate():
    found = measured()
    (psum,) = [e for e in found.entries if e.what == "psum(model)"]
    assert psum.op == "settle[batch_data, d_model]" and psum.phase == "forward"
    assert psum.estimate and psum.ratio == pytest.approx(psum.running / psum.estimate)
    products = [e for e in found.entries if e.op.startswith("einsum") and e.what == "compute"]
    assert {e.phase for e in products} >= {"forward", "backward"}
    assert all(e.estimate for e in products)
    text = str(found)
    assert "by the figures of v5p:2x2x2" in text and "far from the estimate" in text
    assert text.index("not foreseen") < text.index("by op") < text.index("by rule")
    assert found.to_dict()["entries"][0]["ratio"] == found.entries[0].ratio


def test_devices_without_figures_have_measured_times_alone(monkeypatch):
    step, weights, x = case(donate_argnums=0)
    found = md.ledger(step, weights, x, steps=1)
    assert found.estimate is None and not any(e.estimate for e in found.entries)
    assert "estimated" not in found.text
    assert not weights["up"].array.is_deleted(), "what is donated is copied"


def test_one_device_has_the_phases_of_several():
    step = md.lower(md.value_and_grad(loss), md.Layout(["batch -> data"], mesh={"data": 1}))
    found = md.ledger(step, {"up": data(D, FF), "down": data(FF, D)}, data(BATCH, D), steps=1)
    products = [e.phase for e in found.entries if e.op.startswith("einsum") and e.what == "compute"]
    assert {"forward", "backward"} == set(products)


def test_what_the_record_did_not_foresee_comes_first(tmp_path):
    step, weights, x = case()
    compiled = step.lower(*step.shapes(weights, x)).compile()
    args = jax.tree.map(
        lambda a, s: jax.device_put(a, s.sharding), (weights, x), step.shapes(weights, x)
    )
    with trace.tracing("test", tmp_path):
        jax.block_until_ready(compiled(*args))
    program = step.program(weights, x)
    program.__dict__["collectives"] = [c for c in program.collectives if c.axes != ("model",)]
    found = Ledger.of(from_trace("test", tmp_path, compiled.as_text(), program, explain(program)))
    first = found.unforeseen[0]
    assert first.kind == "surprise" and first.text.startswith("1 x psum(model), forward")
    surprise = "not foreseen\n  collectives that no op of the record asked for"
    assert surprise in found.text
    assert found.text.index("psum(model)") < found.text.index("by op")
    (entry,) = [e for e in found.entries if e.surprise]
    assert not entry.attributed and found.attributed < 1


def test_the_page_says_what_the_text_says():
    page = measured().page()
    assert 'data-view="ledger"' in page and "psum(model)" in page
    assert measured()._repr_html_().startswith("<iframe")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda f, w, x: (loss, w, x),
            "`loss` is not lowered; what is measured is md.lower(loss, layout)",
        ),
        (
            lambda f, w, x: (f.on(jax.sharding.AbstractMesh((4, 2), ("data", "model"))), w, x),
            "lowered for a mesh without devices, so it cannot be run",
        ),
        (
            lambda f, w, x: (f, jax.eval_shape(lambda: w), x),
            "`value_and_gradients` is a shape without data; `ledger` runs the function",
        ),
    ],
)
def test_what_cannot_be_measured_is_an_error(change, says):
    with pytest.raises(md.MeshDSLError, match=re.escape(says)):
        md.ledger(*change(*case()))


def test_steps_a_target_and_a_profiler_are_needed(monkeypatch, tmp_path):
    f, w, x = case()
    with pytest.raises(md.MeshDSLError, match="`steps` is a whole number of at least 1, not 0"):
        md.ledger(f, w, x, steps=0)
    with pytest.raises(md.MeshDSLError, match="v5p:4x4x4 has 64"):
        md.ledger(f, w, x, target="v5p:4x4x4")
    with trace.tracing("test", tmp_path):
        jnp.ones(3).block_until_ready()
        with pytest.raises(md.MeshDSLError, match="^ledger: JAX takes no trace: .*Only one"):
            md.ledger(f, w, x)
    without = {n: getattr(jax.profiler, n) for n in ("start_trace", "stop_trace", "ProfileOptions")}
    monkeypatch.setattr(jax, "profiler", SimpleNamespace(**without))
    with pytest.raises(md.MeshDSLError, match=r"has no jax.profiler.ProfileData, with which"):
        md.ledger(f, w, x)


@pytest.mark.slow
def test_the_page_of_a_ledger_begins_with_what_nobody_asked_for(said):
    text = said("ledger")
    parts = ["Not foreseen", "no op of the record asked for (12)", "Far from the estimate (1)"]
    parts += ["estimated 1 s for v5p:4x4x4", "By op", "By rule", "By line of the model"]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert "attributed78.0%100.0% of what is no collective" in text
