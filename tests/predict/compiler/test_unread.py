"""A compiler's text in a form that was never seen: the report names it, and has the rest."""

import json
import os
import random
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from meshdsl.machine import find_target
from meshdsl.predict.compiler.collectives import from_hlo
from meshdsl.predict.compiler.compile import compile_for
from meshdsl.predict.explanation import Explanation, MemoryView
from meshdsl.program.collective import Collective
from meshdsl.tools.compiled_text import describe

# A step as libtpu 0.0.50.1 writes it, with every form of collective, copy, loop and branch.
TEXT = (Path(__file__).parent / "step.hlo").read_text()
AXES = {"data": 4, "model": 2}
TARGETS = ("v5p:2x2x2", "cpu:8")
GATHER = Collective("all_gather", ("data",), 4, 262144, "bfloat16", "jvp(md.step.3)/all_gather")
PROGRAM = SimpleNamespace(
    collectives=[GATHER], axis_sizes=AXES, ops=[], op_of=lambda c: None, op_tagged=lambda tag: None
)
EXPLANATION = Explanation("tiny", "fsdp", "v5p:2x2x2", (), (), MemoryView((), 1, 2, ()), None, 1024)
SIZES = ("argument", "output", "alias", "temp", "generated_code")
STATS = SimpleNamespace(**{f"{what}_size_in_bytes": 2**20 for what in SIZES})


def report_of(text, target="v5p:2x2x2"):
    """The report on a program that the compiler wrote so."""
    executable = SimpleNamespace(as_text=lambda: text, memory_analysis=lambda: STATS)
    lowered = SimpleNamespace(compile=lambda compiler_options: executable)
    how = {"options": {}, "model_flops": (1e9, 1e9)}
    return compile_for(lowered, PROGRAM, find_target(target), EXPLANATION, **how)[0]


def shown(report):
    """What is printed; it can be written as JSON and as a page too."""
    json.dumps(report.to_dict())
    report.explained(EXPLANATION)
    return describe(report)


def unread(report):
    return {one.kind: one.count for one in report.unread}


def test_everything_in_the_text_is_understood():
    for target in TARGETS:
        report = report_of(TEXT, target)
        assert report.unread == () and "not understood" not in shown(report)


LINES = [line for line in TEXT.splitlines() if line.startswith("  ")]


@pytest.mark.parametrize("line", [3, 40, len(LINES) - 4])
def test_a_line_that_is_no_instruction_is_counted(line):
    report = report_of(TEXT.replace(LINES[line], "  %q <- gizmo(%a)", 1))
    assert unread(report)["gizmo"] == 1
    text = shown(report)
    assert "not understood (" in text and "gizmo x 1" in text and "%q <- gizmo(%a)" in text


# What is changed in the text -> the kinds that are counted.
STRANGE = {
    "an opcode": (" tanh(", " frobnicate(", {"frobnicate": 1}),
    "a collective of another kind": (" all-to-all(", " all-to-some(", {"all-to-some": 1}),
    "groups of devices": ("groups={{0,1},", "groups=ring<{0,1},", {"all-gather": 1}),
    "a mesh of devices": ("'model'=2] {'data'}, use", "'model'=2]<'data'>, use", {"all-reduce": 1}),
    "groups of devices that are not there": ("{4,5},{6,7}}", "{4,5},{6,9}}", {"all-gather": 1}),
    "a type": ("f32[64,512]{1,0:T(8,128)} tanh", "f32<64x512> tanh", {"tanh": 1}),
    "elements": ("f32[64,512]{1,0:T(8,128)} tanh", "q32[64,512] tanh", {"tanh": 1}),
    "cycles": ('"estimated_cycles":"51234"', '"estimated_cycles":{"v":51234}', {"fusion": 1}),
    "a copy of nothing": ("copy-start(%get-tuple-element.4", "copy-start(", {"copy-start": 1}),
    "a start that nothing hands operands": ("update(%call-start.2, ", "update(", {"call-start": 1}),
    "a start of something": ("slice-start(", "teleport-start(", {"teleport-start": 1}),
    "operands": ("exponential(%copy-done.1)", "exponential(%copy-done.9)", {"exponential": 1}),
    "the body of a loop": ("body=%body", "body=%nobody", {"while": 1}),
    "the condition of a loop": ("direction=LT", "order=LESS", {"length of a while": 1}),
    "the length of a loop": ("body=%body", 'body=%body, known_trip_count={"four"}', {"while": 1}),
    "the branches of a conditional": ("{%left, %right}", "{%left, %wrong}", {"conditional": 1}),
    "a reducer": ("add(%x, %y)", "xor(%x, %y)", {"all-reduce": 3}),
    "the computation of a fusion": ("calls=%taken", "calls=%token", {"fusion": 1}),
    "a computation": ("%left (param.12: f32[64,512])", "%left [param.12]", {"computation": 1}),
    "a computation that calls itself": ("calls=%product", "calls=%body", {"fusion": 1}),
    "the entry": ("ENTRY %main", "%main", {"entry": 1}),
}


@pytest.mark.parametrize("before, after, kinds", STRANGE.values(), ids=STRANGE)
def test_what_is_not_understood_is_named(before, after, kinds):
    assert before in TEXT
    report = report_of(TEXT.replace(before, after))
    found = unread(report)
    assert {kind: found.get(kind) for kind in kinds} == kinds, found
    assert "the compiler's text has " in shown(report)
    if "entry" not in kinds:
        assert 0 < report.time.step <= report_of(TEXT).time.step


def test_each_kind_has_an_example_and_the_most_frequent_comes_first():
    report = report_of(TEXT.replace(" negate(", " frob(").replace(" tanh(", " nicate("))
    assert [(one.kind, one.count) for one in report.unread] == [("frob", 2), ("nicate", 1)]
    assert report.unread[0].example.startswith("%negate.1 = f32[8,512]{1,0:T(8,128)S(1)} frob(")
    assert shown(report).splitlines()[5] == (
        "the compiler's text has 3 instructions that are not understood (frob x 2, nicate x 1): "
        "what is said of time, collectives and arrays is without them"
    )


def test_a_program_without_text_is_said_so():
    for text in ("", None):
        report = report_of(text)
        assert report.time is None and "the compiler gives no text" in shown(report)


def test_from_hlo_warns_of_what_it_leaves_out():
    text = re.sub(r"(all-to-all.*)replica_groups=\S+", r"\1replica_groups=?", TEXT)
    with pytest.warns(UserWarning, match=r"1 instruction .* not understood \(all-to-all x 1\)"):
        found = from_hlo(text, AXES)
    assert "all_to_all" not in {c.operation for c in found} and len(found) == 7


TOKENS = re.compile(r"[\w.\-]+|\S")
JUNK = ("", "frobnicate", "9" * 30, "-1", "0", "%nothing", "ROOT", "()", *"(){}[]=,")


def garbled(text, draw):
    """`text` with some of its lines deleted, doubled, cut off or with another word in them."""
    lines = text.splitlines()
    words = TOKENS.findall(text)
    for _ in range(draw.randint(1, 8)):
        at, what = draw.randrange(len(lines)), draw.randrange(8)
        if what == 0 and len(lines) > 1:
            del lines[at]
        elif what == 1:
            lines.insert(draw.randrange(len(lines)), lines[at])
        elif what == 2:
            lines[at] = lines[at][: draw.randrange(len(lines[at]) + 1)]
        elif what == 3 and draw.random() < 0.1:
            lines = lines[: at + 1]
        elif tokens := list(TOKENS.finditer(lines[at])):
            token = draw.choice(tokens)
            other = draw.choice(JUNK) if what < 6 else draw.choice(words)
            lines[at] = lines[at][: token.start()] + other + lines[at][token.end() :]
    return "\n".join(lines)


MANY = 5000 if os.environ.get("HYPOTHESIS_PROFILE") == "nightly" else 150


def test_no_garbled_text_ends_in_an_exception():
    counted = 0
    for seed in range(MANY):
        text = garbled(TEXT, random.Random(seed))
        report = report_of(text, TARGETS[seed % len(TARGETS)])
        assert ("not understood (" in shown(report)) == bool(report.unread), seed
        counted += bool(report.unread)
    assert counted > MANY / 2
