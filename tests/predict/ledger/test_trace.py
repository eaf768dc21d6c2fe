"""Traces of devices: which events count, for which call, and how long each instruction took.

The planes of accelerators are made up, by what JAX's profiler documents of them; those of CPUs are
read in earnest in `tests/tools/test_ledger.py`.
"""

from types import SimpleNamespace

import pytest

from meshdsl import MeshDSLError
from meshdsl.predict.compiler.hlo_text import Module
from meshdsl.predict.ledger.owners import Owner, Owners
from meshdsl.predict.ledger.self_time import measured
from meshdsl.predict.ledger.trace import calls_in, read_calls

TEXT = """HloModule jit_step, is_scheduled=true

%body (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %p = (s32[], f32[8]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[8]{0} get-tuple-element(%p), index=1
  %slice = f32[8]{0} fusion(%x), kind=kLoop, calls=%c, metadata={op_name="shard_map/while/slice"}
  %dot = f32[8]{0} fusion(%slice), kind=kLoop, calls=%c, metadata={op_name="shard_map/md.f.1/dot"}
  ROOT %t = (s32[], f32[8]) tuple(%i, %dot)
}

%cond (q: (s32[], f32[8])) -> pred[] {
  %q = (s32[], f32[8]) parameter(0)
  ROOT %less = pred[] constant(true)
}

%c (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  ROOT %neg = f32[8]{0} negate(%a)
}

ENTRY %main (arg: f32[8]) -> f32[16] {
  %arg = f32[8]{0} parameter(0)
  %zero = s32[] constant(0)
  %copy = f32[8]{0} copy(%arg)
  %begin = (s32[], f32[8]) tuple(%zero, %copy)
  %loop = (s32[], f32[8]) while(%begin), condition=%cond, body=%body
  %y = f32[8]{0} get-tuple-element(%loop), index=1
  %ag = (f32[8], f32[16]) all-gather-start(%y), replica_groups={{0,1}}, dimensions={0}
  %mul = f32[8]{0} fusion(%y), kind=kLoop, calls=%c, metadata={op_name="shard_map/user/mul"}
  ROOT %end = f32[16]{0} all-gather-done(%ag), metadata={op_name="shard_map/md.f.2/all_gather"}
}
"""
MODULE = Module(TEXT)


def event(name, start, end, **stats):
    """An event of a trace; its times are in nanoseconds."""
    return SimpleNamespace(name=name, start_ns=start, duration_ns=end - start, stats=stats.items())


def plane(name, **lines):
    return SimpleNamespace(
        name=name,
        lines=[SimpleNamespace(name=n.replace("_", " "), events=es) for n, es in lines.items()],
    )


def of_one_call(start, run, device):
    """What the trace of a CPU has of one call, in which the loop turns twice."""
    stats = {"hlo_module": "jit_step", "run_id": run, "device_ordinal": device}
    times = {"copy": (0, 10), "loop": (10, 60), "slice": (12, 20), "dot": (20, 30)}
    events = list(times.items())
    events += [("slice", (35, 43)), ("dot", (43, 57)), ("ag", (60, 61)), ("end", (61, 90))]
    return [event(n, start + a, start + b, hlo_op=n, **stats) for n, (a, b) in events]


def test_a_loop_has_what_its_body_leaves_and_a_gather_one_time():
    threads = {f"thread_{d}": of_one_call(100 * r, r, d) for d in (0, 1) for r in (1,)}
    other = event("copy", 0, 500, hlo_op="copy", hlo_module="jit_other", run_id=9, device_ordinal=0)
    host = plane("/host:CPU", python=[event("end: copy", 0, 1), other], **threads)
    (call,) = calls_in("test", [plane("/host:metadata"), host], MODULE)
    one = measured(call, MODULE)
    assert sorted(call) == ["0", "1"] and one.seconds == pytest.approx(90e-9)
    took = {name: (t.own, t.running, t.count) for name, t in one.took["0"].items()}
    assert took == {
        "copy": (10, 10, 1),
        "loop": (10, 50, 1),
        "slice": (16, 16, 2),
        "dot": (24, 24, 2),
        "ag": (30, 30, 1),
    }
    assert sum(t.own for t in one.took["0"].values()) == 90


def test_waiting_is_what_is_longer_than_on_the_fastest_device():
    late = of_one_call(100, 1, 1)
    late[-1].duration_ns = 9  # the last one to come does not wait
    host = plane("/host:CPU", a=of_one_call(100, 1, 0), b=late)
    one = measured(calls_in("test", [host], MODULE)[0], MODULE)
    assert one.took["0"]["ag"].waiting == 0  # of a start and a done the done waits
    assert (one.took["0"]["ag"].running, one.took["1"]["ag"].running) == (30, 10)


def test_a_tpu_has_a_line_for_its_core_and_one_for_what_runs_meanwhile():
    def ops(start):
        return [
            event("%copy = f32[8]{0} copy(%arg)", start, start + 10),
            event("%ag = (f32[8], f32[16]) all-gather-start(%y)", start + 11, start + 12),
            event("%mul = f32[8]{0} fusion(%y), kind=kLoop", start + 20, start + 40),
            event("%end = f32[16]{0} all-gather-done(%ag)", start + 40, start + 45),
        ]

    moved = [event("%ag = (f32[8], f32[16]) all-gather-start(%y)", s + 12, s + 44) for s in (0, 99)]
    chip = plane(
        "/device:TPU:0",
        Steps=[event("copy", 0, 999)],
        XLA_Ops=[event("%mul = f32[8]{0} fusion(%y)", -50, -40), *ops(0), *ops(99)],
        Async_XLA_Ops=moved,
    )
    calls = calls_in("test", [chip], MODULE)
    assert [len(call["TPU:0"]) for call in calls] == [5, 5]
    took = measured(calls[0], MODULE).took["TPU:0"]
    assert (took["mul"].own, took["ag"].own) == (20, 9 + 5), "computing hides the gather"
    assert took["ag"].count == 1


def test_a_gpu_has_a_line_for_each_stream():
    said = {"hlo_module": "jit_step"}

    def ops(start):
        turn = [
            event(n, start + a, start + a + 4, hlo_op="graph", **said)
            for n, a in (("slice", 5), ("dot", 10))
        ]
        return [event("memcpy128", start, start + 5, hlo_op="copy", **said), *turn]

    others = [event("memset", 9, 10), event("copy", 14, 19, hlo_op="copy", hlo_module="jit_other")]
    sent = [
        event("ncclDevKernel_AllGather", s + 8, s + 18, hlo_op="graph", **said) for s in (0, 30)
    ]
    gpu = plane(
        "/device:GPU:1",
        **{"Stream_#13(Memcpy,Compute)": [*ops(0), *others, *ops(30)], "Stream_#20(Compute)": sent},
        Steps=[event("copy", 0, 99, hlo_op="copy", **said)],
    )
    first, second = calls_in("test", [gpu], MODULE)
    for call in (first, second):
        took = measured(call, MODULE).took["GPU:1"]
        assert {name: (t.own, t.count) for name, t in took.items()} == {
            "copy": (5, 1),
            "slice": (4, 1),
            "dot": (4, 1),
            "ag": (5, 1),
        }
        assert took["ag"].running == 10


def test_what_carries_no_tag_belongs_to_the_op_that_it_serves():
    owners = Owners(MODULE, updates=False)
    assert owners.of("dot") == Owner("op", "md.f.1", "forward")
    slice_, copy = owners.of("slice"), owners.of("copy")
    assert (slice_.kind, slice_.tag) == ("loop", "md.f.1")
    assert (copy.kind, copy.tag, copy.words) == ("compiler", "md.f.1", "copy"), "into the loop"
    assert (owners.of("mul").kind, owners.of("mul").tag) == ("unknown", "")
    assert Owners(MODULE, updates=True).of("mul").kind == "optimizer"


def test_a_trace_without_the_program_is_an_error(tmp_path):
    with pytest.raises(MeshDSLError, match="^ledger: JAX's profiler has written no trace into"):
        read_calls("ledger", tmp_path, MODULE)
    says = "^ledger: the trace is empty: it has no whole call of the program `jit_step`"
    with pytest.raises(MeshDSLError, match=says):
        calls_in("ledger", [plane("/host:CPU", a=[event("copy", 0, 1)])], MODULE)
