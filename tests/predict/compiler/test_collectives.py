"""The forms in which compilers write collectives, each seen in the text of a compiled program."""

import pytest

from meshdsl.predict.compiler.collectives import from_hlo
from meshdsl.program import Collective

MESH = {"data": 4, "model": 2}

ADD = """
%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}
"""


def read(body, computations="", mesh=MESH):
    """Reads a program whose entry has `%p`, a `bf16[8,128]` (2048 bytes), and then `body`."""
    entry = (
        "ENTRY %main (p: bf16[8,128]) -> bf16[8,128] {\n"
        "  %p = bf16[8,128]{1,0:T(8,128)(2,1)} parameter(0)\n"
    )
    return from_hlo(f"HloModule test\n{ADD}\n{computations}\n{entry}{body}\n}}\n", mesh)


def axes_of(groups, mesh=MESH):
    found = read(
        f"  ROOT %r = bf16[8,128]{{1,0}} all-reduce(%p), replica_groups={groups}, to_apply=%add",
        mesh=mesh,
    )
    return found[0].axes if found else ()


GROUPS = {
    "{{0,2,4,6},{1,3,5,7}}": ("data",),
    "{{0,1},{2,3},{4,5},{6,7}}": ("model",),
    "{{0,1,2,3,4,5,6,7}}": ("data", "model"),
    "{}": ("data", "model"),
    "{{0},{1},{2},{3},{4},{5},{6},{7}}": (),
    "[4,2]<=[8]": ("model",),
    "[2,4]<=[4,2]T(1,0)": ("data",),
    "[1,8]<=[8]": ("data", "model"),
    "mesh['a'=4,'b'=2] {'a'}": ("data",),
    "mesh['a'=4,'b'=2] {'b'}": ("model",),
    "mesh['a'=4,'b'=2] {'a','b'}": ("data", "model"),
    "mesh['axis_0'=2,'axis_1'=1,'axis_2'=4], device_ids=([4,2]T(1,0)) {'axis_2'}": ("data",),
    "mesh['a'=4,'b'=2] {'a':(2)2}": ("data",),
    "mesh['a'=8] {'a':(4)2}": ("model",),
    "mesh['a'=8] {'a':(1)4}": ("data",),
}


@pytest.mark.parametrize("groups, axes", GROUPS.items(), ids=GROUPS)
def test_groups_become_axes(groups, axes):
    assert axes_of(groups) == axes


def test_groups_of_one_in_a_mesh_with_an_axis_of_one():
    assert axes_of("{{0},{1}}", {"data": 1, "model": 2}) == ()
    assert axes_of("{{0,1}}", {"data": 1, "model": 2}) == ("model",)


def test_combined_all_reduce_is_one_per_operand():
    found = read(
        "  %q = f32[4]{0} constant(0)\n"
        "  ROOT %r = (bf16[8,128]{1,0}, /*index=1*/f32[4]{0}) all-reduce(%p, %q), "
        "replica_groups=[4,2]<=[8], "
        "to_apply=%add"
    )
    assert [(c.operation, c.bytes, c.dtype) for c in found] == [
        ("psum", 2048, "bfloat16"),
        ("psum", 16, "float32"),
    ]


PIECES = {
    "an all_to_all in pieces": (
        "  ROOT %r = (bf16[8,128], bf16[8,128]) all-to-all(%p, %p), replica_groups=[4,2]<=[8]",
        "all_to_all",
    ),
    "a start and its done": (
        "  %s = (bf16[8,128]{1,0}, bf16[16,128]{1,0}) all-gather-start(%p), "
        "replica_groups=[4,2]<=[8], dimensions={0}\n"
        "  ROOT %d = bf16[16,128]{1,0} all-gather-done(%s)",
        "all_gather",
    ),
}


@pytest.mark.parametrize("body, operation", PIECES.values(), ids=PIECES)
def test_what_is_written_in_pieces_is_one(body, operation):
    assert read(body) == [Collective(operation, ("model",), 1, 4096, "bfloat16")]


@pytest.mark.parametrize(
    "start, done", [("async-start", "async-done"), ("call-start", "call-done")]
)
def test_a_collective_on_another_thread_counts_once(start, done):
    called = """
%called (a: bf16[8,128]) -> bf16[4,128] {
  %a = bf16[8,128]{1,0} parameter(0)
  ROOT %rs = bf16[4,128]{1,0} reduce-scatter(%a), replica_groups=[4,2]<=[8], dimensions={0}, to_apply=%add
}"""
    link = "calls" if start == "async-start" else "to_apply"
    found = read(
        f"  %s = ((bf16[8,128], token[]), bf16[4,128]) {start}(%p), "
        f'async_execution_thread="other", {link}=%called\n'
        f"  ROOT %d = bf16[4,128]{{1,0}} {done}(%s)",
        called,
    )
    assert found == [Collective("psum_scatter", ("model",), 1, 2048, "bfloat16")]


def test_a_collective_spread_over_fusions_counts_where_it_starts():
    def part(name, root):
        return f"""
%{name} (a: bf16[8,128]) -> bf16[16,128] {{
  %{name}.a = bf16[8,128]{{1,0}} parameter(0)
  %{name}.ag = bf16[16,128] all-gather(%{name}.a), replica_groups=[4,2]<=[8], frontend_attributes={{chain_id="1"}}
  ROOT %{name}.r = bf16[16,128] {root}
}}"""

    parts = [
        part("begin", 'custom-call(%begin.ag), custom_call_target="AsyncCollectiveStart"'),
        part("middle", "tuple(%middle.ag)"),
        part("finish", 'custom-call(%finish.ag), custom_call_target="AsyncCollectiveDone"'),
    ]
    found = read(
        "  %f = bf16[16,128] fusion(%p), kind=kCustom, calls=%begin\n"
        "  %g = bf16[16,128] fusion(%p), kind=kCustom, calls=%middle\n"
        "  ROOT %h = bf16[16,128] fusion(%p), kind=kCustom, calls=%finish",
        "".join(parts),
    )
    assert found == [Collective("all_gather", ("model",), 1, 4096, "bfloat16")]


def test_all_reduce_fused_with_a_slice_is_psum_scatter():
    fused = """
%all-reduce-scatter.1 (a: bf16[8,128]) -> bf16[4,128] {
  %a = bf16[8,128]{1,0} parameter(0)
  %zero = s32[] constant(0)
  %ar = bf16[8,128]{1,0} all-reduce(%a), replica_groups=[4,2]<=[8], to_apply=%add
  ROOT %ds = bf16[4,128]{1,0} dynamic-slice(%ar, %zero, %zero), dynamic_slice_sizes={4,128}
}"""
    found = read(
        "  ROOT %f = bf16[4,128]{1,0} fusion(%p), kind=kCustom, calls=%all-reduce-scatter.1", fused
    )
    assert found == [Collective("psum_scatter", ("model",), 1, 2048, "bfloat16")]


LOOP = """
%body (t: (s32[], bf16[8,128])) -> (s32[], bf16[8,128]) {
  %t = (s32[], bf16[8,128]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %v = bf16[8,128]{1,0} get-tuple-element(%t), index=1
  %step = s32[] constant(STEP)
  %next = s32[] add(%i, %step)
  %cp = bf16[8,128]{1,0} collective-permute(%v), source_target_pairs={{0,2},{2,4}}, metadata={op_name="jit(f)/while"}
  ROOT %o = (s32[], bf16[8,128]{1,0}) tuple(%next, %cp)
}

%condition (t2: (s32[], bf16[8,128])) -> pred[] {
  %t2 = (s32[], bf16[8,128]{1,0}) parameter(0)
  %i2 = s32[] get-tuple-element(%t2), index=0
  %limit = s32[] constant(8)
  ROOT %lt = pred[] compare(%i2, %limit), direction=LT
}"""
NOTED = ', backend_config={"known_trip_count":{"n":"5"}}'


@pytest.mark.parametrize(
    "first, step, note, count",
    [(0, 1, "", 8), (2, 1, "", 6), (0, 2, "", 4), (0, 3, "", 3), (0, 1, NOTED, 5)],
)
def test_trip_count_is_noted_or_read_off_the_condition(first, step, note, count):
    """A loop that the compiler unrolled turns less often."""
    found = read(
        f"  %first = s32[] constant({first})\n  %copied = s32[] copy(%first)\n"
        "  %init = (s32[], bf16[8,128]{1,0}) tuple(%copied, %p)\n"
        f"  ROOT %w = (s32[], bf16[8,128]{{1,0}}) while(%init), condition=%condition, body=%body{note}",
        LOOP.replace("STEP", str(step)),
    )
    assert found == [Collective("ppermute", ("data",), count, 2048, "bfloat16", "jit(f)/while")]


@pytest.mark.parametrize(
    ("opcode", "groups", "whole"),
    [
        ("all-gather", "{{0,1},{2,3},{4,5},{6,7}}", True),
        ("all-gather", "{{6,7},{0,1},{2,3},{4,5}}", True),  # the order of groups says nothing
        ("all-gather", "{{1,0},{2,3},{4,5},{6,7}}", False),  # two devices exchanged
        ("all-gather", "{{0,3},{2,1},{4,5},{6,7}}", False),
        ("all-gather", "[4,2]<=[8]", True),
        ("all-gather", "{{0,2,4,6},{1,3,5,7}}", True),
        ("all-gather", "{{0,4,2,6},{1,3,5,7}}", False),
        ("all-gather", "{{0,2},{4,6},{1,3},{5,7}}", False),  # half of an axis
        ("all-gather", "{{0,2,4,6,1,3,5,7}}", True),  # both axes, the second one major
        ("all-reduce", "{{1,0},{3,2},{4,5},{7,6}}", True),  # a sum has no order
        ("all-reduce", "{{0,3},{2,1},{4,5},{6,7}}", False),
    ],
)
def test_groups_are_all_devices_along_the_axes_in_their_order(opcode, groups, whole):
    more = ", to_apply=%add" if opcode == "all-reduce" else ", dimensions={0}"
    text = "\n".join(
        [
            "HloModule m",
            "%add (a: f32[], b: f32[]) -> f32[] {",
            "  %a = f32[] parameter(0)",
            "  %b = f32[] parameter(1)",
            "  ROOT %c = f32[] add(%a, %b)",
            "}",
            "ENTRY %main (p: f32[8]) -> f32[8] {",
            "  %p = f32[8]{0} parameter(0)",
            f"  ROOT %r = f32[8]{{0}} {opcode}(%p), replica_groups={groups}{more}",
            "}",
        ]
    )
    (found,) = from_hlo(text, {"data": 4, "model": 2})
    assert found.whole == whole
