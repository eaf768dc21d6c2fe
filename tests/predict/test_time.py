"""Times of small graphs: a byte of memory, a byte on the links and a FLOP take 1 us each."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

from meshdsl.lowering.kernels import Product
from meshdsl.machine import FUSED_EFFICIENCY, Chip, chips
from meshdsl.machine.overlap import Overlap
from meshdsl.predict.compiler import instruction_time
from meshdsl.predict.compiler.hlo_text import Module
from meshdsl.predict.kernels.kernels import Buffer, Dot, Graph, Kernel, Loop, Move
from meshdsl.predict.time.kernel_order import without_products
from meshdsl.predict.time.kernel_time import kernel_seconds, padded_flops
from meshdsl.predict.time.step_time import collective_timing, seconds_by_tag, step_time
from meshdsl.program.collective import Collective
from meshdsl.program.name_stacks import Stated, flops_scope

US = 1e-6


class FakeChip(SimpleNamespace):
    """A chip of the figures that a test gives it."""

    slowdown = Chip.slowdown


CHIP = FakeChip(
    kind="gpu",
    flops=1e6,
    matmul_efficiency=1.0,
    hbm_bandwidth=1e6,
    hbm_efficiency=1.0,
    vector_rate=0.0,
    tile=1,
    float32_slowdown=1.58,
    int8_speedup=1.0,
    kernel_latency=1e-6,
    step_latency=0.0,
    operand_bandwidth=0.0,
    fresh_bandwidth=0.0,
    bare_rate=5e5,
    reorder_rate=5e5,
    array_rate=0.0,
    product_latency=0.0,
    result_rate=0.0,
    operand_rate=0.0,
    prologue_rate=0.0,
    epilogue_rate=0.0,
    fetched=0.0,
    kept=0.0,
    residuals={},
)


# How collectives run over axes of some forms.
RUNS = {
    "one dim": Overlap(waits=("all_to_all",)),
    "two dims": Overlap(waits=("all_gather", "psum_scatter", "psum", "all_to_all")),
    "three dims": Overlap(rings=("all_gather", "psum_scatter")),
    "whole slice of three dims": Overlap(sums=("all_gather", "psum_scatter")),
}


class Links:
    """1 us for each byte, over axes of a form."""

    def __init__(self, form="one dim"):
        chip = FakeChip(**vars(CHIP), overlap_over=RUNS.get, small_sum=2**16)
        self.target = SimpleNamespace(chip=chip)
        self.on = SimpleNamespace(levels=(SimpleNamespace(kind="torus"),), form=form)

    def seconds(self, operation, axes, bytes):
        return (2 if operation == "psum" else 1) * bytes * US

    def axes(self, axes):
        return self.on


def buffer(size=1):
    return Buffer((size,), "bool", size)


def moved(*sizes):
    """So many bytes of arrays of int8."""
    return [Move(buffer(size), size) for size in sizes]


def work(count, reads=(), writes=(), tag="md.f.1"):
    """`count` us."""
    return Kernel(
        "add", f"jit(f)/shard_map/{tag}/add", list(reads), list(writes), moves=moved(count)
    )


def move(count, reads, writes, axis="data", operation="all_gather"):
    return Kernel(
        operation,
        f"jit(f)/shard_map/md.f.2/{operation}",
        [reads],
        [writes],
        collective=Collective(operation, (axis,), 1, count, "bool"),
    )


def run(kernels, links=None):
    target = SimpleNamespace(chip=CHIP)
    return step_time(Graph(kernels, [], []), target, links or Links(), 25.0, 50.0)


def times(view):
    return pytest.approx((view.step, view.compute, view.communication, view.exposed, view.serial))


def us(*values):
    return tuple(value * US for value in values)


def test_a_collective_hides_behind_what_does_not_need_it():
    x, y = buffer(), buffer()
    view = run([move(100, x, y), work(60), work(20, [y])])
    assert us(120, 80, 100, 40, 180) == times(view)
    assert view.mfu == pytest.approx(25 / (120 * US * 1e6))


def test_it_starts_when_its_operand_is_made():
    x, y = buffer(), buffer()
    assert us(150, 50, 100, 100, 150) == times(
        run([work(30, [], [x]), move(100, x, y), work(20, [y])])
    )


def test_later_work_runs_while_one_waits():
    x, y = buffer(), buffer()
    view = run([work(10, [], [x]), move(100, x, y), work(20, [y]), work(70)])
    assert us(130, 100, 100, 30, 200) == times(view)


def test_what_leads_to_a_collective_goes_first():
    x, y = buffer(), buffer()
    view = run([work(70), work(10, [], [x]), move(100, x, y), work(20, [y])])
    assert us(130, 100, 100, 30, 200) == times(view)


@pytest.mark.parametrize("axis", ["data", "model"])
def test_two_collectives_take_turns_whatever_their_axes(axis):
    x, y, z = buffer(), buffer(), buffer()
    view = run([move(100, x, y), move(100, x, z, axis), work(0, [y, z])])
    assert view.step == pytest.approx(200 * US)


def test_of_two_collectives_the_one_that_ends_the_longer_chain_of_them_is_started_last():
    x, y, z, w = (buffer() for _ in range(4))
    kernels = [move(30, x, y), move(20, y, w), work(45, [], [z]), move(60, z, buffer())]
    assert us(135, 45, 110, 90, 155) == times(run(kernels))


def test_a_loop_is_its_first_turn_and_then_its_second_as_often_as_it_turns():
    x, y = buffer(), buffer()
    body = [move(100, x, y), work(60, tag="md.f.7"), work(10, [y])]
    view = run([Kernel("scan", "jit(f)/shard_map/while", [x], [], loop=Loop(5, body))])
    assert us(550, 350, 500, 200, 850) == times(view)
    assert [(s.stream, s.repeats) for s in view.spans] == [
        ("data", 5),
        ("compute", 5),
        ("compute", 5),
        ("loops", 1),
    ]
    assert seconds_by_tag(view)["md.f.7", "forward"] == pytest.approx(300 * US)


def test_a_turn_waits_for_all_that_it_started():
    x, y = buffer(), buffer()
    body = [work(10, [], [x]), move(100, x, y, operation="psum_scatter")]
    view = run([Kernel("scan", "jit(f)/shard_map/while", [], [], loop=Loop(3, body))])
    assert us(330, 30, 300, 300, 330) == times(view)


def test_the_step_waits_for_all_that_it_started():
    x, y = buffer(), buffer()
    view = run([work(10, [], [x]), move(100, x, y, operation="psum_scatter"), work(30)])
    assert us(110, 40, 100, 70, 140) == times(view)


def test_a_product_that_nothing_waits_for_is_left_for_the_time_of_a_collective():
    x, y, z = buffer(), buffer(), buffer()
    kernels = [work(10, [], [x]), work(80, [x], [z], "md.f.7"), move(100, x, y), work(5, [y])]
    assert us(115, 95, 100, 20, 195) == times(run(kernels))


def test_one_collective_is_under_way_at_a_time_and_none_while_a_loop_has_its_own():
    x, y, z = buffer(), buffer(), buffer()
    loop = Kernel("scan", "jit(f)/shard_map/while", loop=Loop(1, [move(50, x, z, "model")]))
    view = run([move(100, x, y), loop, work(20, [y])])
    assert us(170, 20, 150, 150, 170) == times(view)


def test_the_longest_branch_counts():
    branches = ((work(10),), (work(90),))
    assert run([Kernel("cond", "jit(f)/shard_map/cond", branches=branches)]).step == pytest.approx(
        90 * US
    )


def test_an_optimizers_kernels_are_its_phase():
    assert run([Kernel("add", "jit(f)/add", moves=moved(5))]).spans[0].phase == "optimizer"


@pytest.mark.parametrize(
    "operation, form, expected",
    [
        ("all_gather", "one dim", (10, True, 0)),
        ("psum_scatter", "one dim", (10, True, 0)),
        ("psum", "one dim", (20, True, 0)),
        ("all_to_all", "one dim", (10, False, 0)),
        ("all_gather", "two dims", (10, False, 0)),
        ("psum", "two dims", (20, False, 0)),
        ("pmax", "two dims", (10, False, 0)),
        ("ppermute", "two dims", (10, True, 0)),
        ("all_gather", "three dims", (10, True, 0)),
        ("all_gather", "whole slice of three dims", (20, True, 10)),
        ("psum_scatter", "whole slice of three dims", (20, True, 0)),
        ("psum", "whole slice of three dims", (20, True, 0)),
    ],
)
def test_how_a_collective_runs_depends_on_the_form_of_its_axes(operation, form, expected):
    large = 2**17
    how = collective_timing(Collective(operation, ("data",), 1, 10 * large, "bool"), Links(form))
    seconds, asynchronous, filled = expected
    assert how.seconds == pytest.approx(seconds * large * US)
    assert (how.asynchronous, how.zero_filled) == (asynchronous, filled * large)


@pytest.mark.parametrize(
    "operation, form, asynchronous",
    [
        ("psum", "one dim", False),
        ("psum_scatter", "whole slice of three dims", False),  # run as a sum
        ("psum_scatter", "one dim", True),
        ("all_gather", "one dim", True),
    ],
)
def test_the_device_waits_for_small_sums(operation, form, asynchronous):
    small = Collective(operation, ("data",), 1, 2**16 - 1, "bool")
    assert collective_timing(small, Links(form)).asynchronous is asynchronous


def test_a_synchronous_collective_stops_computing():
    x, y = buffer(), buffer()
    assert us(180, 80, 100, 100, 180) == times(
        run([move(100, x, y), work(60), work(20, [y])], Links("two dims"))
    )


def test_a_gather_that_runs_as_a_sum_is_filled_first():
    x, y = buffer(), buffer(100)
    view = run([move(100, x, y), work(20, [y])], Links("whole slice of three dims"))
    assert us(420, 220, 200, 200, 420) == times(view)


def chip(**figures):
    return FakeChip(**{**vars(CHIP), **figures})


def dot(batch, m, k, n, dtype="bfloat16"):
    return Dot(batch, m, k, n, 2 * batch * m * k * n, dtype)


@pytest.mark.parametrize(
    "product, padded",
    [
        (dot(1, 256, 256, 256), 2 * 256**3),
        (dot(3, 8, 100, 256), 3 * 2 * 8 * 128 * 256),
        (dot(1, 256, 128, 5), 2 * 8 * 128 * 256),  # the operand of 256 is held, the 5 rows are fed
        (dot(1, 1, 1, 1), 2 * 8 * 128 * 128),
    ],
)
def test_dims_are_padded_to_the_matrix_unit(product, padded):
    assert padded_flops(product, 128) == pytest.approx(padded)


def array(*shape, write=False):
    size = 2 * math.prod(shape)
    return Move(Buffer(shape, "bfloat16", size), size, write)


def test_a_short_contraction_takes_as_long_as_its_result():
    machine = chips()["v5p"]

    def cycles(k):
        moves = [array(8192, k), array(k, 4096), array(8192, 4096, write=True)]
        kernel = Kernel("dot_general", "", dots=[dot(1, 8192, k, 4096)], moves=moves)
        return kernel_seconds(kernel, machine) * 1.75e9

    # What the TPU compiler says for v5p, in cycles.
    compiled = {128: 179_556, 256: 183_616, 512: 197_012, 1024: 280_296, 4096: 1_078_890}
    for k, expected in compiled.items():
        assert cycles(k) == pytest.approx(expected, rel=0.2)


def tpu(**figures):
    return chip(kind="tpu", **figures)


@pytest.mark.parametrize(
    "figures, moves, more",
    [
        (dict(product_latency=3e-6), [], 3),
        (dict(result_rate=1e6), [], 0),  # hidden behind the matrix unit
        (dict(result_rate=1e3), [], 256 * 512 * 1000 - 2 * 256 * 128 * 512),
        (dict(epilogue_rate=1e6), [(256, 512), (256, 512)], 256 * 512),
        (dict(prologue_rate=1e6), [(256, 128), (256, 128)], 256 * 128),
        (dict(epilogue_rate=1e6), [(256, 128), (128, 512), (256, 512)], 0),
    ],
)
def test_what_a_product_of_a_tpu_takes_besides(figures, moves, more):
    """In us; the chip does 1 FLOP in 1 us, and its memory is fast."""
    kernel = Kernel("dot_general", "", dots=[dot(1, 256, 128, 512)])
    kernel.moves = [array(*shape) for shape in moves]
    machine = tpu(hbm_bandwidth=1e18, **figures)
    assert kernel_seconds(kernel, machine) == pytest.approx(
        1e-6 * (2 * 256 * 128 * 512 + more), rel=1e-6
    )


def test_a_head_of_64_leaves_half_of_the_lanes_empty():
    narrow = Kernel("dot_general", "", dots=[replace(dot(1, 256, 128, 512), lanes=2.0)])
    whole = Kernel("dot_general", "", dots=[dot(1, 256, 128, 512)])
    assert kernel_seconds(narrow, tpu()) == pytest.approx(2 * kernel_seconds(whole, tpu()))
    assert kernel_seconds(narrow, chip()) == kernel_seconds(whole, chip())


def test_half_of_the_arrays_of_a_size_are_in_fast_memory():
    machine = tpu(fetched=1024.0 * 256, kept=1024.0 * 512)
    seconds = lambda move: kernel_seconds(Kernel("add", "", moves=[move]), machine)
    read, written = array(1024, 128), array(1024, 128, write=True)
    assert seconds(read) == pytest.approx(1e-6 * 1024 * 256 / 2)
    assert seconds(written) == pytest.approx(1e-6 * 1024 * 256 / 5)
    stack = Buffer((4, 1024, 128), "bfloat16", 4 * 1024 * 256)
    slice = Move(Buffer((1024, 128), "bfloat16", 1024 * 256, within=stack), 1024 * 256)
    assert seconds(slice) == pytest.approx(1e-6 * 1024 * 256)  # always in memory


def test_the_bytes_of_a_tpus_array_are_those_of_its_tiles():
    seconds = lambda move: kernel_seconds(Kernel("add", "", moves=[move]), tpu())
    assert seconds(array(1024, 60)) == pytest.approx(1e-6 * 1024 * 128 * 2)
    argument = array(1024, 60)
    argument.buffer.name = "params.w"  # libtpu puts the longer dim into lanes
    assert seconds(argument) == pytest.approx(1e-6 * 1024 * 64 * 2)


@pytest.mark.parametrize("times", [1.58, 2.0])
def test_products_of_float32_take_as_much_longer_as_the_chip_says(times):
    one, other = (
        kernel_seconds(
            Kernel("dot_general", "", dots=[dot(1, 256, 256, 256, dtype)]),
            chip(float32_slowdown=times),
        )
        for dtype in ("float32", "bfloat16")
    )
    assert one == pytest.approx(times * other)


def test_what_a_product_is_fused_with_comes_on_top():
    own = 8 * (4 + 4 + 4)
    alone = Kernel("dot_general", "", dots=[Dot(1, 4, 4, 4, 128, "int8")], moves=moved(48))
    fused = Kernel("dot_general", "", dots=[Dot(1, 4, 4, 4, 128, "int8")], moves=moved(48, own))
    assert kernel_seconds(alone, chip()) == pytest.approx(
        1e-6 * 256
    )  # of which the matrix unit, its rows padded to 8
    assert kernel_seconds(fused, chip()) == pytest.approx(1e-6 * (256 + own))


@pytest.mark.parametrize("kind, added", [("tpu", 2 * 2 * 100), ("gpu", 0)])
def test_a_convolution_over_few_rows_passes_over_its_arrays_twice_more_on_a_tpu(kind, added):
    one = dot(1, 256, 256, 256)
    few = Kernel("conv_general_dilated", "", dots=[replace(one, rearranged=100)])
    enough = Kernel("conv_general_dilated", "", dots=[one])
    more = kernel_seconds(few, chip(kind=kind)) - kernel_seconds(enough, chip(kind=kind))
    assert more == pytest.approx(1e-6 * added)


def test_a_kernel_takes_a_microsecond_at_least():
    fast = chip(flops=1e15, hbm_bandwidth=1e12)
    assert kernel_seconds(Kernel("add", "", moves=moved(5000)), fast) == 1e-6
    assert kernel_seconds(Kernel("add", "", moves=moved(8)), fast) < 1e-9  # scalars


def test_a_single_operation_takes_a_time_for_each_element_alone():
    kernel = Kernel("convert_element_type", "", moves=moved(3000, 3000), bare=True)
    assert kernel_seconds(kernel, chip(bare_rate=1e6)) == pytest.approx(3000e-6)


@pytest.mark.parametrize(
    "primitive, fetched, taken",
    [
        ("reorder", 0, 4096),
        ("reorder", 1e9, 2048),  # what is in fast memory takes half the time
        ("reorder_rows", 0, 2.5 * 4096),
        ("take_slice", 0, 16384 + 2048),  # a slice is taken into fast memory first
    ],
)
def test_another_order_takes_a_time_for_each_element(primitive, fetched, taken):
    kernel = Kernel(primitive, "", moves=[array(32, 128), array(32, 128, write=True)])
    figures = chip(reorder_rate=1e6, fetched=fetched, kept=fetched)
    assert kernel_seconds(kernel, figures) == pytest.approx(1e-6 * taken)


def test_a_gather_counts_what_it_takes():
    table, rows = Buffer((1000, 10), "int8", 10_000), Buffer((5, 10), "int8", 50)
    kernel = Kernel("gather", "", [table], [rows], moves=[Move(table, 50), Move(rows, 50)])
    assert kernel_seconds(kernel, chip(vector_rate=1e6)) == pytest.approx(1e-6 * (100 + 50))


def test_collectives_without_a_product_beside_them_are_found():
    gathers = [Kernel("all_gather", "", writes=[Buffer((8,), "float32", 32)]) for _ in range(2)]
    for gather in gathers:
        gather.collective = Collective("all_gather", ("data",), 1, 32, "float32")
    beside, uses = Kernel("dot_general", "", dots=[Dot(1, 8, 8, 8, 1024, "float32")]), []
    for gather in gathers:
        uses.append(Kernel("add", "", reads=gather.writes))
    order = [gathers[0], beside, uses[0], gathers[1], uses[1]]
    assert without_products(order, lambda kernel: 1.0) == {gathers[1]}


KERNEL = """HloModule m, is_scheduled=true

ENTRY %main (x: bf16[8,8]) -> bf16[8,8] {
  %x = bf16[8,8]{1,0} parameter(0)
  ROOT %k = bf16[8,8]{1,0} custom-call(%x), custom_call_target="tpu_custom_call",
    metadata={op_name="a/SCOPE/b"}
}
"""


def test_products_of_groups_take_as_long_in_a_schedule_as_estimated():
    """At the rate of the chip for them, and with rows that are multiplied for two groups."""
    known = chips()["v5p"]
    flops = 2 * 8 * 4096**2 * 14336
    stated = Product(8, 4096, 4096, 14336, flops, "bfloat16", grouped=flops * 71 // 64)
    expected = stated.grouped / (known.flops * known.grouped_efficiency)
    assert known.grouped_efficiency > FUSED_EFFICIENCY
    kernel = Kernel("local_kernel", "", dots=[Dot(*stated)])
    assert kernel_seconds(kernel, known) == pytest.approx(expected)
    scope = flops_scope(Stated(stated.grouped, grouped=True))
    module = Module(KERNEL.replace(",\n   ", ",").replace("SCOPE", scope))
    replayed = instruction_time.seconds(module, module.instructions["k"], known)
    assert replayed == pytest.approx(expected)
