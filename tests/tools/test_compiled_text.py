"""What `meshdsl compile` prints, and what its page shows."""

import json
from dataclasses import replace

from meshdsl.predict.compiler.match import AbsentCollective, CompiledCollective
from meshdsl.predict.compiler.report import ChipMemory, CompiledReport
from meshdsl.predict.explanation import Explanation, MemoryView, Span, TensorView, TimeView
from meshdsl.proof.verified import Verified
from meshdsl.tools.compiled_text import describe, proof_text

OP = ("md.f.3", "einsum[batch_data, d_model]", "mlp.py:31")
GATHER = CompiledCollective(
    *("all_gather", ("data",), 64, 16_777_216, "bfloat16", "forward", *OP),
    *("", False, 60, 0.012, 0.0004),
)
HOW = "an all-reduce of the whole instead of all_gather"
CHANGED = replace(GATHER, operation="psum", count=2, how=HOW, phase="backward")
SURPRISE = CompiledCollective(
    *("all_to_all", ("data", "model"), 3, 4096, "float32", "backward"),
    *("", "", "", "", True, 0, 0.001, 0.001),
)
TIME = TimeView(
    0.8, 0.3, 1.0, 1.1, 0.2, 1e12, 1.1e12, 2e12, (Span("compute", "fusion", 0.0, 0.8, "forward"),)
)
LARGE = TensorView("einsum[d_ff]", "activation", (), (8, 4), "float32", 2**30, "mlp.py:31")
MEMORY = ChipMemory(9 * 2**30, 16 * 2**30, 2**30, 2**30, 2**30, 8 * 2**30, 0, 8 * 2**30, (LARGE,))
REPORT = CompiledReport(
    title="tiny, batch 8 of length 128",
    layout="layout fsdp.toml",
    target="v5e:4x4",
    axes={"data": 16},
    fits=True,
    verdict="fits: needs 9.00 GiB of 16.00 GiB per device, 7.00 GiB free",
    memory=MEMORY,
    options={"xla_a": "true", "xla_b": "1"},
    given=("xla_b",),
    compile_seconds=12.3,
    units=1024,
    unit="token",
    collectives=(SURPRISE, CHANGED, GATHER),
    absent=(AbsentCollective("psum", ("data",), 1, 4, "forward", "settle[]", "loss.py:9", "left"),),
    time=TIME,
)


def test_the_verdict_and_the_surprises_come_first():
    lines = describe(REPORT).splitlines()
    assert lines[2] == "fits: needs 9.00 GiB of 16.00 GiB per device, 7.00 GiB free"
    assert (
        lines[3]
        == "replayed step 1 s, MFU 50.0% (causal attention counted in full: 55.0%), 1,024 tokens/s"
    )
    assert lines[5] == "SURPRISES: 1 kinds of collectives that no record explains"
    assert " ".join(lines[7].split()) == "backward all_to_all(data, model) 3 x 4.0 KiB 0 1 ms 1 ms"


def test_whether_what_runs_is_what_is_proved():
    proved = Verified("tiny", ("loss", "w"), assumed=("the kernel `splash` computes what ...",))
    quiet = replace(REPORT, collectives=(GATHER,))
    first = "proved: all 2 results equal those of one device, up to the order of sums"
    assert proof_text(quiet, proved).splitlines() == [
        first,
        "  taken: the kernel `splash` computes what ...",
        "  compiled: no collectives but those of the program that is proved",
    ]
    last = "  but the compiled program has collectives that no record explains, see above"
    assert proof_text(REPORT, proved).splitlines()[-1] == last
    doubt = Verified("tiny", ("loss",), ("loss",), "there is no lemma for `f`")
    assert proof_text(quiet, doubt).splitlines() == [
        "not proved: its result",
        "  there is no lemma for `f`",
    ]


def test_everything_else_is_said():
    text = describe(REPORT)
    for line in (
        "collectives that the compiler changed: 2",
        "collectives that run as recorded: 64",
        "recorded and not in the compiled program: 1",
        "1 s, of which 200 ms (20.0%) waits for collectives",
        "einsum[d_ff]  float32[8,4]  1.00 GiB  mlp.py:31",
        "  xla_a=true\n  xla_b=1  (given)",
    ):
        assert line in text, line
    assert text.splitlines() == [line.rstrip() for line in text.splitlines()]


def test_rows_that_read_the_same_are_one():
    text = describe(replace(REPORT, collectives=(GATHER, replace(GATHER, tag="md.f.4"))))
    assert text.count("mlp.py:31") == 2  # one of a collective, one of an array
    assert (
        "128 x" in text
        and "no surprises: a record explains every collective of the compiled program" in text
    )


def test_a_program_that_does_not_fit_says_what_is_largest():
    nothing = {"collectives": (), "time": None, "absent": ()}
    memory, verdict = replace(MEMORY, peak=None, code=None), "does NOT fit: needs 40 GiB"
    text = describe(replace(REPORT, fits=False, verdict=verdict, memory=memory, **nothing))
    assert text.splitlines()[2] == verdict
    assert "einsum[d_ff]" in text and "surprises" not in text


def test_machines_get_everything():
    data = json.loads(json.dumps(REPORT.to_dict()))
    assert (data["mfu"], data["exposed_share"]) == (0.5, 0.2)
    assert data["surprises"][0]["operation"] == "all_to_all"
    assert data["memory"]["needed"] == 9 * 2**30
    assert data["options"] == {"xla_a": "true", "xla_b": "1"}


def test_the_page_shows_the_compiler_s_memory_and_time():
    nothing = MemoryView((), 1, 2, ())
    estimate = Explanation("tiny", "fsdp", "v5e:4x4", (), (), nothing, None, 1024, ("a note",))
    shown = REPORT.explained(estimate)
    assert (shown.memory.peak, shown.memory.arguments) == (8 * 2**30, 2**30)
    assert shown.memory.largest == MEMORY.largest
    assert shown.time == TIME and shown.title == "tiny, batch 8 of length 128, compiled"
    assert shown.notes[1] == (
        "surprise: 3 x all_to_all(data, model) of 4.0 KiB in float32, backward, of no recorded op"
    )
