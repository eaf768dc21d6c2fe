"""The trace of a few steps."""

import gzip
import json

import jax
import pytest

from meshdsl import MeshDSLError
from meshdsl.train.config import Log
from meshdsl.train.watch import check

from .runs import measured, run, watch


def steps_in(path):
    """The steps that the trace in a run's folder names; None without a trace."""
    found = list((path / "profile").rglob("perfetto_trace.json.gz"))
    if not found:
        return None
    (trace,) = found
    assert list(trace.parent.glob("*.xplane.pb"))  # what TensorBoard reads
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    return sorted(
        int(event["args"]["step_num"]) for event in events if event.get("name") == "train"
    )


@pytest.mark.parametrize(
    ("first", "last", "profile", "traced"),
    [(1, 5, "2:3", [2, 3]), (3, 4, "2:4", [3, 4]), (5, 6, "2:4", None)],
    ids=["all of them", "the rest, after a resume", "none, of a run that is past them"],
)
def test_the_trace_has_the_steps_that_were_asked_for(tmp_path, first, last, profile, traced):
    run(tmp_path, first, last, log=Log(profile=profile))
    assert steps_in(tmp_path) == traced


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("10", "expected the first and the last step of the trace, as 10:15"),
        ("a:b", "expected the first and the last step of the trace, as 10:15"),
        ("0:2", "counted from 1, the first not after the last"),
        ("5:4", "counted from 1, the first not after the last"),
        ("5:9", "the run has 8 steps"),
    ],
)
def test_what_is_no_range_of_steps_is_an_error(text, says):
    with pytest.raises(MeshDSLError) as error:
        check(Log(profile=text), steps=8)
    assert str(error.value).startswith(f"log.profile={text}: ") and says in str(error.value)


def test_what_is_done_between_two_steps_is_not_traced(tmp_path):
    with watch(tmp_path, log=Log(profile="2:2")) as seen:
        for step in (1, 2, 3):
            with seen.spent("input"):
                pass
            seen.step(step, measured(step))
            with jax.profiler.TraceAnnotation(f"after {step}"):
                seen.settle()
    (trace,) = (tmp_path / "profile").rglob("perfetto_trace.json.gz")
    assert b"after" not in gzip.decompress(trace.read_bytes())
