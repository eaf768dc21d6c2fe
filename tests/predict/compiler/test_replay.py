"""Replays of small schedules with known times: a cycle and a byte on the links take 1 us each."""

from types import SimpleNamespace

import pytest

from meshdsl.predict.compiler.replay import replay

US = 1e-6
CHIP = SimpleNamespace(
    flops=1e12, matmul_efficiency=1.0, hbm_bandwidth=1e6, hbm_efficiency=1.0, clock=1e6, kind="tpu"
)
GPU = SimpleNamespace(
    flops=1e9, matmul_efficiency=0.5, hbm_bandwidth=1e6, hbm_efficiency=0.5, clock=0.0, kind="gpu"
)
MESH = {"data": 4, "model": 2}
ALONG_DATA, ALONG_MODEL = (
    "replica_groups={{0,2,4,6},{1,3,5,7}}",
    "replica_groups={{0,1},{2,3},{4,5},{6,7}}",
)


class Links:
    """1 us for each byte."""

    def __init__(self, kind="torus"):
        self.kind = kind

    def seconds(self, operation, axes, bytes):
        return bytes * US

    def between_slices(self, operation, bytes):
        return 3 * bytes * US

    def axes(self, names):
        return SimpleNamespace(levels=(SimpleNamespace(kind=self.kind),))


ADD = """
%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}

%work (w: f32[25]) -> f32[25] {
  %w = f32[25]{0} parameter(0)
  ROOT %wr = f32[25]{0} negate(%w)
}
"""


def cycles(name, operand, count, scope=""):
    return (
        f"  %{name} = f32[25]{{0}} fusion(%{operand}), kind=kLoop, calls=%work, "
        f'metadata={{op_name="{scope}"}}, '
        f'backend_config={{"window_config":{{"estimated_cycles":"{count}"}}}}\n'
    )


def psum(name, operand, groups=ALONG_DATA, kind="all-reduce"):
    """100 us."""
    return f"  %{name} = f32[25]{{0}} {kind}(%{operand}), {groups}, to_apply=%add\n"


def done(name, start, kind="all-reduce"):
    return f"  %{name} = f32[25]{{0}} {kind}-done(%{start})\n"


def run(body, computations="", chip=CHIP, links=None):
    entry = "ENTRY %main (p: f32[25]) -> f32[25] {\n  %p = f32[25]{0} parameter(0)\n"
    text = f"HloModule test, is_scheduled=true\n{ADD}{computations}\n{entry}{body}"
    text += "  ROOT %result = f32[25]{0} bitcast(%p)\n}\n"
    return replay(text, chip, links or Links(), MESH)


def times(found):
    return pytest.approx((found.step, found.compute, found.exposed))


def us(*values):
    return tuple(value * US for value in values)


def test_cycles_are_divided_by_the_clock():
    found = run(cycles("a", "p", 30) + cycles("b", "a", 20))
    assert us(50, 50, 0) == times(found)
    assert found.communication == {} and found.collectives == ()


def test_a_synchronous_collective_stops_computing():
    found = run(cycles("a", "p", 30) + psum("s", "a") + cycles("b", "s", 20))
    assert us(150, 50, 100) == times(found)
    (ran,) = found.collectives
    moved = ran.collective
    assert (ran.name, ran.asynchronous) == ("s", False)
    assert (moved.operation, moved.axes, moved.bytes) == ("psum", ("data",), 100)
    assert found.communication == {("data",): pytest.approx(100 * US)}


def test_a_combined_collective_is_one_with_a_part_for_each_operand():
    both = f"  %s = (f32[25]{{0}}, f32[5]{{0}}) all-reduce(%p, %q), {ALONG_DATA}, to_apply=%add\n"
    (ran,) = run("  %q = f32[5]{0} constant(0)\n" + both).collectives
    assert (ran.collective.bytes, ran.seconds) == (120, pytest.approx(120 * US))
    assert [(part.bytes, part.count) for part in ran.parts] == [(100, 1), (20, 1)]


@pytest.mark.parametrize("meanwhile, step, exposed", [(150, 170, 0), (60, 120, 40)])
def test_an_asynchronous_collective_is_waited_for_where_it_is_used(meanwhile, step, exposed):
    body = psum("s", "p", kind="all-reduce-start") + cycles("a", "p", meanwhile) + done("d", "s")
    found = run(body + cycles("b", "d", 20))
    assert us(step, meanwhile + 20, exposed) == times(found)
    (ran,) = found.collectives
    assert ran.asynchronous and ran.exposed == pytest.approx(exposed * US)


def test_links_of_one_axis_work_one_after_another_and_those_of_two_axes_at_the_same_time():
    one = "".join(psum(name, "p", kind="all-reduce-start") for name in "st")
    one += done("d", "s") + done("e", "t")
    two = one.replace(ALONG_DATA, ALONG_MODEL, 1)
    assert us(200, 0, 200) == times(run(one))
    assert us(100, 0, 100) == times(run(two))
    assert us(200, 0, 200) == times(run(two, links=Links("switch")))


def test_shifts_in_both_directions_of_a_ring_work_at_the_same_time():
    pairs = [
        [(d * 2 + m, (d + way) % 4 * 2 + m) for d in range(4) for m in range(2)]
        for way in (1, -1, 1)
    ]
    texts = ["{" + ",".join(f"{{{a},{b}}}" for a, b in some) + "}" for some in pairs]

    def shift(name, text):
        types = "(f32[25]{0}, f32[25]{0}, u32[], u32[])"
        return f"  %{name} = {types} collective-permute-start(%p), source_target_pairs={text}\n"

    both = shift("s", texts[0]) + shift("t", texts[1])
    both += "".join(done(*names, "collective-permute") for names in ("ds", "et"))
    same = both.replace(texts[1], texts[2])
    assert run(both).step == pytest.approx(100 * US)
    assert run(same).step == pytest.approx(200 * US)


def test_a_synchronous_collective_shares_the_links_with_what_is_under_way():
    found = run(psum("s", "p", kind="all-reduce-start") + psum("t", "p") + done("d", "s"))
    assert us(200, 0, 200) == times(found)
    assert [ran.exposed for ran in found.collectives] == pytest.approx([100 * US, 100 * US])


@pytest.mark.parametrize("start, link", [("async", "calls"), ("call", "to_apply")])
def test_a_collective_on_another_core_is_asynchronous(start, link):
    called = GATHERED.replace("%gathered", "%called")
    body = (
        f"  %s = ((f32[25], token[]), f32[25]) {start}-start(%p), "
        f'async_execution_thread="sparsecore", {link}=%called\n'
    )
    found = run(body + cycles("a", "p", 70) + f"  %d = f32[25]{{0}} {start}-done(%s)\n", called)
    assert us(100, 70, 30) == times(found)


def chain(name, target):
    last = (
        f'custom-call(%{name}.ag), custom_call_target="{target}"'
        if target
        else f"tuple(%{name}.ag)"
    )
    return f"""
%{name} (a: f32[25]) -> f32[25] {{
  %{name}.a = f32[25]{{0}} parameter(0)
  %{name}.ag = f32[25]{{0}} all-reduce(%{name}.a), {ALONG_DATA}, to_apply=%add, frontend_attributes={{chain_id="7"}}
  ROOT %{name}.r = f32[25]{{0}} {last}
}}
"""


def test_a_collective_spread_over_fusions_runs_from_the_first_to_the_last():
    targets = {"begin": "AsyncCollectiveStart", "middle": "", "finish": "AsyncCollectiveDone"}
    parts = "".join(chain(*one) for one in targets.items())
    fusions = [
        cycles(f"f{i}", "p", count).replace("calls=%work", f"calls=%{name}")
        for i, (name, count) in enumerate([("begin", 5), ("middle", 60), ("finish", 10)])
    ]
    found = run("".join(fusions), parts)
    assert us(115, 75, 40) == times(found)
    assert found.collectives[0].collective.count == 1


def loop(body, turns, name="w", operand="p"):
    computation = f"""
%{name}.body (t: (s32[], f32[25])) -> (s32[], f32[25]) {{
  %{name}.t = (s32[], f32[25]{{0}}) parameter(0)
  %{name}.i = s32[] get-tuple-element(%{name}.t), index=0
  %{name}.v = f32[25]{{0}} get-tuple-element(%{name}.t), index=1
{body}  ROOT %{name}.o = (s32[], f32[25]{{0}}) tuple(%{name}.i, %{name}.v)
}}

%{name}.condition (t2: (s32[], f32[25])) -> pred[] {{
  %{name}.t2 = (s32[], f32[25]{{0}}) parameter(0)
  ROOT %{name}.lt = pred[] constant(true)
}}
"""
    call = (
        f"  %{name} = (s32[], f32[25]{{0}}) while(%{operand}), "
        f"condition=%{name}.condition, body=%{name}.body, "
        f'backend_config={{"known_trip_count":{{"n":"{turns}"}}}}\n'
    )
    return computation, call


def test_a_loop_runs_its_body_so_many_times():
    body = (
        psum("s", "w.v", kind="all-reduce-start")
        + cycles("a", "w.v", 60, "jit(f)/shard_map/md.f.3/add")
        + done("d", "s")
    )
    computation, call = loop(body, 10)
    found = run(call, computation)
    assert us(1000, 600, 400) == times(found)
    (ran,) = found.collectives
    assert (ran.collective.count, ran.seconds) == (10, pytest.approx(1000 * US))
    assert [(s.stream, s.name, s.tag, s.repeats) for s in found.spans] == [
        ("data", "s", "", 10),
        ("compute", "a", "md.f.3", 10),
        ("loops", "w", "", 1),
    ]
    assert found.spans[-1].end == pytest.approx(1000 * US)


def test_loops_in_loops():
    inner, call_inner = loop(psum("s", "u.v"), 3, "u", "w.v")
    outer, call_outer = loop(cycles("a", "w.v", 7) + call_inner, 5)
    found = run(call_outer, inner + outer)
    assert us(5 * 307, 35, 1500) == times(found)
    assert found.collectives[0].collective.count == 15


def test_what_one_turn_starts_and_the_next_uses():
    """The second turn stands for all that follow: it waits for what the one before it started."""
    body = done("d", "w.v") + cycles("a", "d", 60) + psum("s", "a", kind="all-reduce-start")
    computation, _ = loop(body, 4)
    computation = computation.replace("tuple(%w.i, %w.v)", "tuple(%w.i, %s)")
    _, call = loop(body, 4)
    found = run(call, computation)
    assert us(60 + 3 * 160, 240, 300) == times(found)


GATHERED = """
%gathered (g: f32[25]) -> f32[25] {
  %g = f32[25]{0} parameter(0)
  ROOT %ga = f32[25]{0} all-reduce(%g), replica_groups={{0,2,4,6},{1,3,5,7}}, to_apply=%add
}

%taken (t: f32[25]) -> f32[25] {
  %t = f32[25]{0} parameter(0)
  ROOT %ta = f32[25]{0} negate(%t)
}
"""


def on_another_core(name, called):
    """A start without operands, as libtpu 0.0.50 writes it."""
    return (
        f"  %{name} = ((), (), (s32[1]{{0:T(128)S(2)}})) call-start(), "
        f'async_execution_thread="sparsecore", to_apply=%{called}\n'
    )


def handed(name, start, operand):
    return f"  %{name} = ((f32[25]{{0}}), f32[25]{{0}}) call-update(%{start}, %{operand})\n"


def test_a_start_without_operands_runs_from_the_update_that_hands_them_over():
    body = on_another_core("s", "gathered") + cycles("a", "p", 30) + handed("u", "s", "a")
    body += cycles("b", "p", 60) + done("d", "u", "call")
    found = run(body, GATHERED)
    assert us(130, 90, 40) == times(found)
    (ran,) = found.collectives
    assert (ran.name, ran.asynchronous, ran.collective.axes) == ("s", True, ("data",))


def test_what_another_core_computes_runs_meanwhile():
    body = on_another_core("s", "taken") + handed("u", "s", "p") + cycles("a", "p", 60)
    found = run(body + done("d", "u", "call"), GATHERED)
    assert us(200, 60, 0) == times(found)
    assert found.copies == pytest.approx(140 * US) and found.collectives == ()


COPIES = {
    "into the chip's own memory": (
        "  %c = (f32[25]{0:S(1)}, f32[25]{0}, u32[]) copy-start(%p)\n",
        "copy",
        100,
    ),
    "within HBM": ("  %c = (f32[25]{0}, f32[25]{0}, u32[]) copy-start(%p)\n", "copy", 200),
    "of a slice": (
        "  %c = ((f32[25]{0}), f32[20]{0:S(1)}, s32[]) slice-start(%p), slice={[0:20]}\n",
        "slice",
        80,
    ),
}


@pytest.mark.parametrize("start, kind, took", COPIES.values(), ids=COPIES)
def test_copies_between_memories_run_meanwhile(start, kind, took):
    found = run(start + cycles("a", "p", 60) + f"  %d = f32[25]{{0:S(1)}} {kind}-done(%c)\n")
    assert us(took, 60, 0) == times(found)
    assert found.copies == pytest.approx((took - 60) * US)


def test_the_longest_branch_is_taken():
    branches = "".join(
        (
            f"\n%{name} (a: f32[25]) -> f32[25] {{\n  %{name}.a = f32[25]{{0}} parameter(0)\n"
            f"{cycles(f'{name}.f', f'{name}.a', n)}  ROOT %{name}.r = f32[25]{{0}} "
            f"bitcast(%{name}.a)\n}}\n"
        )
        for name, n in (("short", 10), ("long", 90))
    )
    body = (
        "  %k = s32[] constant(0)\n  %c = f32[25]{0} conditional(%k, %p, %p), "
        "branch_computations={%short, %long}\n"
    )
    assert run(body, branches).step == pytest.approx(90 * US)


def test_without_cycles_a_product_takes_its_flops_and_the_rest_its_bytes():
    gemm = (
        "  %a = f32[1000,1000]{1,0} constant(0)\n"
        "  %g = (f32[1000,1000]{1,0}, s8[4]{0}) custom-call(%a, %a), "
        'custom_call_target="__cublas$gemm", '
        'backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}}\n'
    )
    fast = SimpleNamespace(**{**vars(GPU), "hbm_bandwidth": 1e15})
    assert run(gemm, chip=fast).compute == pytest.approx(2e9 / 0.5e9)
    assert run("  %n = f32[25]{0} negate(%p)\n", chip=GPU).compute == pytest.approx(200 / 0.5e6)


def test_a_slice_of_an_array_is_not_the_array():
    fused = """
%pick (a: f32[1000], i: s32[]) -> f32[10] {
  %pick.a = f32[1000]{0} parameter(0)
  %pick.i = s32[] parameter(1)
  ROOT %pick.r = f32[10]{0} dynamic-slice(%pick.a, %pick.i), dynamic_slice_sizes={10}
}
"""
    body = (
        "  %a = f32[1000]{0} constant(0)\n  %i = s32[] constant(0)\n"
        "  %f = f32[10]{0} fusion(%a, %i), kind=kLoop, calls=%pick\n"
    )
    assert run(body, fused, GPU).compute == pytest.approx((40 + 40 + 4) / 0.5e6)


@pytest.mark.parametrize("meanwhile, waits", [(400, 0), (100, 200)])
def test_what_hosts_exchange_between_slices_is_waited_for_where_it_is_received(meanwhile, waits):
    """100 bytes: 300 us. It runs beside a collective within the slice."""
    how = (
        'is_host_transfer=true, frontend_attributes={_xla_host_transfer_rendezvous="ppermute.1_0",'
        "_xla_megascale_target={{100000->200000},{100001->200001}},"
        '_xla_megascale_transfer_type="ONE_TO_ONE"}\n'
    )
    array = "f32[25]{0}, u32[], token[]"
    found = run(
        cycles("a", "p", 50)
        + "  %t = token[] after-all()\n"
        + f"  %s = ({array}) send(%a, %t), channel_id=4, {how}"
        + f"  %r = ({array}) recv(%t), channel_id=3, {how}"
        + cycles("b", "p", meanwhile)
        + "  %sd = token[] send-done(%s), channel_id=4, is_host_transfer=true\n"
        + "  %rd = (f32[25]{0}, token[]) recv-done(%r), channel_id=3, is_host_transfer=true\n"
        + "  %g = f32[25]{0} get-tuple-element(%rd), index=0\n"
        + cycles("c", "g", 10)
    )
    assert us(50 + meanwhile + waits + 10, meanwhile + 60, waits) == times(found)
    assert not found.collectives and not found.copies
