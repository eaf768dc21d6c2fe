"""The table of chips, and a user's own file over it."""

import pytest

from meshdsl.errors import MeshDSLError
from meshdsl.machine import chips

CURVE = '{ bytes = [1, 100], value = [10, 20], unit = "us", source = "measured" }'
FIGURE = '{ value = 1, unit = "%s", source = "unverified" }'


def own(tmp_path, text):
    path = tmp_path / "own.toml"
    path.write_text(text)
    return path


def gpu(**changes):
    """The lines of a complete chip of one's own; a change to None leaves a line out."""
    units = {
        "TFLOP/s": "flops",
        "GiB": "hbm",
        "GHz": "clock",
        "us": "link_latency scale_out_latency",
        "GB/s": "hbm_bandwidth link_bandwidth scale_out_bandwidth",
        "1": "tile matmul_efficiency hbm_efficiency link_efficiency",
    }
    lines = dict(kind='"gpu"', device_kind='"Mine"', node="4", waits="[]", source='"mine"')
    lines |= {key: FIGURE % unit for unit, keys in units.items() for key in keys.split()}
    lines = {key: value for key, value in (lines | changes).items() if value is not None}
    return "\n".join(["[mine]", *(f"{key} = {value}" for key, value in lines.items())])


def test_known_chips():
    assert " ".join(chips()) == "v4 v5e v5p v6e tpu7x a100 h100 h200 b200 cpu"


@pytest.mark.parametrize(
    "name, flops, bandwidth",
    [("v5p", 459e12, 2765e9), ("h200", 989e12, 4800e9), ("tpu7x", 2307e12 / 2, 7380e9 / 2)],
)
def test_figures_are_of_one_device(name, flops, bandwidth):
    chip = chips()[name]
    assert (chip.flops, chip.hbm_bandwidth) == (flops, bandwidth)


def test_memory_is_what_a_program_may_use():
    assert chips()["tpu7x"].hbm == int(94.75 * 2**30)
    assert chips()["v4"].hbm == int(30.75 * 2**30)


def test_all_but_virtual_devices_have_figures_with_sources():
    for name, chip in chips().items():
        figures = "flops hbm hbm_bandwidth link_bandwidth link_latency scale_out_bandwidth"
        wanted = figures.split() if chip.timed else []
        assert chip.timed == (name != "cpu") == bool(chip.hbm)
        assert all(chip.sources[key] for key in wanted)


def test_a_figure_of_a_known_chip_can_be_replaced(tmp_path):
    path = own(
        tmp_path, '[v5p]\nlink_bandwidth = { value = 100, unit = "GB/s", source = "measured" }'
    )
    new, old = chips(path)["v5p"], chips()["v5p"]
    assert new.link_bandwidth == 100e9 and new.sources["link_bandwidth"] == "measured"
    assert (new.flops, new.clock) == (old.flops, old.clock)


def test_a_chip_can_be_added(tmp_path):
    chip = chips(own(tmp_path, gpu(scale_out_bandwidth=FIGURE % "Gbit/s")))["mine"]
    found = (chip.flops, chip.hbm, chip.link_latency, chip.scale_out_bandwidth, chip.node)
    assert found == (1e12, 2**30, 1e-6, 1e9 / 8, 4)
    assert chip.vector_rate == 0 and chips()["tpu7x"].flops == 2307e12 / 2  # of one of two devices


@pytest.mark.parametrize(
    "text, message",
    [
        (
            '[v5p]\nlink_bandwith = "x"',
            "unknown key `link_bandwith`; did you mean `link_bandwidth`?",
        ),
        ("flops = 3", "`flops` stands outside a chip's table; begin one with `[name]`"),
        (
            "[v5p]\nflops = 459",
            '`flops` is a figure, { value = ..., unit = "TFLOP/s", source = "..." }, not 459',
        ),
        (
            '[v5p]\nflops = { value = 459, unit = "TFLOP/s" }',
            "`flops` is a figure, { value = ..., unit",
        ),
        (f"[v5p]\nflops = {FIGURE % 'GB/s'}", "the unit of `flops` is TFLOP/s, not 'GB/s'"),
        (f"[v5p]\nhbm = {FIGURE % 'GB/s'}", "the unit of `hbm` is GB or GiB, not 'GB/s'"),
        (
            '[v5p]\nflops = { value = -1, unit = "TFLOP/s", source = "x" }',
            "the value of `flops` is a number above 0, not -1",
        ),
        (
            '[v5p]\nflops = { value = 1, unit = "TFLOP/s", source = "" }',
            "the source of `flops` is a text",
        ),
        ("[v5p]\ncube = true", "`cube` is a whole number of at least 1, not True"),
        ("[v5p]\ndims = 4", "`dims` is 1, 2 or 3, not 4"),
        ("[v5p]\ndevice_kind = 5", "`device_kind` is a text, not 5"),
        ('[mine]\nkind = "npu"', "`kind` is `tpu`, `gpu` or `cpu`, not 'npu'"),
        (gpu(clock=None, node=None, waits=None), "`node`, `waits`, `clock` missing"),
        (
            gpu(waits='["psums"]'),
            "`waits` has 'psums', which is no collective; did you mean `psum`?",
        ),
        (gpu(waits="3"), "`waits` is a list of collectives, not 3"),
        ('[v5p]\nwaits = ["psum"]', "chip `v5p`: unknown key `waits`"),
        (
            '[v5p.overlap]\n"two dim" = {}',
            "`overlap` has 'two dim', which is no form of axes; did you mean `two dims`?",
        ),
        (
            '[v5p.overlap]\n"one dim" = { wait = [] }',
            "`overlap.one dim` is a table of `waits`, `rings`, `sums`, not 'wait'",
        ),
        (
            '[v5p.overlap]\n"one dim" = { sums = ["gather"] }',
            "`overlap.one dim.sums` has 'gather', which is no collective",
        ),
        (
            '[v5p.overlap]\n"one dim" = { waits = "psum" }',
            "`overlap.one dim.waits` is a list of collectives, not 'psum'",
        ),
        (gpu(options="{ xla_a = 1 }"), '`options.xla_a` is a text such as "True", not 1'),
        (gpu(cube="4"), "unknown key `cube`"),
        ("[h100]\nresiduals = 0.2", "`residuals` is a table, not 0.2"),
        (
            "[h100.residuals]\nproducts = 0.2",
            "`residuals` has 'products', which is no kind of work; did you mean `product`?",
        ),
        (
            "[h100.residuals]\nproduct = 0.1\npass = 0.1\nstep = 0.1",
            "`residuals` has no 'fused', 'collective'",
        ),
        ("[h100.residuals]\nproduct = -1", "`residuals.product` is a number of at least 0, not -1"),
        ("[v5p", "hardware table"),
        (f"[v5p.collectives.sum]\n8 = {CURVE}", "`collectives` has 'sum', which is no collective"),
        ("[v5p]\ncollectives = 3", "`collectives` is a table, not 3"),
        ("[v5p.collectives]\npsum = 3", "`collectives.psum` is a table, not 3"),
        (f"[v5p.collectives.psum]\na = {CURVE}", "a group is named by its devices in a node"),
        ("[v5p.collectives.psum]\n8 = 3", "`collectives.psum.8` is { bytes = [...], value ="),
        (
            f"[v5p.collectives.psum]\n8 = {CURVE.replace('[1, 100]', '[100, 1]')}",
            "`collectives.psum.8`: `bytes` ascends",
        ),
        (
            f"[v5p.collectives.psum]\n8 = {CURVE.replace('[1, 100]', '[1]')}",
            "`bytes` and `value` are of 1 and 2 numbers",
        ),
        (
            f"[v5p.collectives.psum]\n8 = {CURVE.replace('[10, 20]', '[0, 20]')}",
            "`value` is a list of numbers above 0",
        ),
        (
            f"[v5p.collectives.psum]\n8 = {CURVE.replace('us', 'ms')}",
            "the unit is us, not 'ms'",
        ),
        (
            f"[cpu]\nflops = {FIGURE % 'TFLOP/s'}",
            "`hbm`, `hbm_bandwidth` missing",
        ),
    ],
)
def test_errors_name_the_file_the_chip_and_what_is_legal(tmp_path, text, message):
    with pytest.raises(MeshDSLError) as e:
        chips(own(tmp_path, text))
    assert message in str(e.value) and "own.toml" in str(e.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(MeshDSLError, match="none.toml: cannot be read: No such file"):
        chips(tmp_path / "none.toml")


def test_times_of_collectives_are_read(tmp_path):
    text = f"[h100.collectives.psum]\n8 = {CURVE}\n4x2 = {CURVE}"
    curve = chips(own(tmp_path, text))["h100"].collectives["psum"]["4x2"]
    assert [round(1e6 * curve.seconds(n), 3) for n in (0, 1, 10, 100, 200)] == [
        *(10, 10, 10.909, 20, 30.101)
    ]
