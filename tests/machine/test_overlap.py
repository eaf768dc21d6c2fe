"""How compilers run collectives: the table of a chip, and the command that writes it."""

import pytest

from benchmarks.overlap import Found, chosen, dims_at_once, replaced, table_of, toml_of
from benchmarks.overlap_cases import SETS, options_of
from meshdsl.machine import Network, chips, find_target
from meshdsl.machine.overlap import FORMS, Overlap
from meshdsl.parsing import parse_toml
from tests.machine.processes import told_by_libtpu

# Where axes lie, and their form.
LIE = """
v5p:4x4x4  data=16 model=4           model             one dim
v5p:4x4x4  data=16 model=4           data              two dims
v5p:4x4x4  data=16 model=4           data,model        whole slice by several axes
v5p:4x4x4  data=64 model=1           data,model        whole slice of rings
v5p:4x4x4  data=64                   data              whole slice of rings
v5p:2x2x4  data=16                   data              whole slice of three dims
v5p:4x4x4  data=32 model=2           model             part of a dim
v5p:4x4x4  data=32 model=2           data              part of a block
v6e:4x8    data=32                   data              whole slice of two dims
v6e:4x4    data=16                   data              whole slice of two equal dims
v6e:16x16  data=64 model=4           data              part of a block
v5e:2x2    data=2 model=2            data              no block
tpu7x:2x2x2 data=8 model=2           model             devices of a chip
tpu7x:2x2x2 data=8 model=2           data              three dims
tpu7x:2x2x2 data=16                  data              whole slice of three dims
h100:8     data=8                    data
"""


@pytest.mark.parametrize("line", LIE.strip().splitlines())
def test_the_form_of_axes(line):
    text, *words = line.split()
    sizes = {name: int(size) for name, _, size in (w.partition("=") for w in words if "=" in w)}
    axes, *form = (word for word in words if "=" not in word)
    network = Network(find_target(text), sizes)
    assert network.axes(tuple(axes.split(","))).form == " ".join(form)


def test_over_several_slices_the_form_is_that_in_a_slice():
    network = Network(find_target("v6e:4x8", slices=2), {"replica": 2, "data": 32})
    assert network.axes(("data",)).form == network.axes(("replica", "data")).form
    assert (network.axes(("data",)).form, network.axes(("replica",)).form) == (
        "whole slice of two dims",
        "",
    )


def test_what_holds_in_half_of_the_cases_stands_in_the_table():
    found = [
        Found("two dims", "psum_scatter", "psum_scatter", beside=True, ring=True),
        Found("two dims", "psum_scatter", "psum_scatter", beside=True, ring=False),
        Found("two dims", "all_gather", "psum", beside=False, ring=True),
        Found("two dims", "psum", "psum", beside=False, ring=True),
        *[Found("two dims", "psum", "psum", beside=True, ring=False)] * 2,
        Found("one dim", "psum", "psum", beside=True, ring=False),
    ]
    gather = ("all_gather",)
    assert table_of(found) == {
        "two dims": Overlap(waits=gather, rings=("psum_scatter",), sums=gather)
    }


@pytest.mark.parametrize(
    "attributes, dims",
    [
        ('{"phase_rings":[{"ring_type":"A"},{"ring_type":"A"}]},{"phase_rings":[]}', 2),
        ("StrategyND{colors:4 phases:2 cores:{8 4}", 2),
        ('"emitter":"1DAllGatherNonMajorDim"', 1),
        ("dimensions={0}", 0),
    ],
)
def test_over_how_many_dims_it_goes(attributes, dims):
    assert dims_at_once(attributes) == dims


def test_within_a_hundredth_the_present_options_stay():
    seconds = {"": (2.0, 0.5), "exchange": (0.0, 1.005), "exchange offload": (0.0, 1.0)}
    assert chosen(seconds, {}) == "exchange"
    assert chosen(seconds, options_of("offload")) == "exchange offload"
    assert chosen(seconds | {"nd": (0.0, 0.9)}, options_of("offload")) == "nd"


def test_the_command_replaces_the_sections_of_one_chip():
    old = (
        "# What\n\n[v5p]\nkind = 1\n\n[v5p.options]\n# why\na = 1\n\n[v5p.overlap]\n\n"
        "[v6e]\nkind = 2\n"
    )
    table = {"two dims": Overlap(waits=("psum",), rings=("all_gather", "psum"))}
    text = replaced(old, "v5p", toml_of("v5p", "exchange", "exchange nd", table, "libtpu 1"))
    found = parse_toml(text)
    assert found["v6e"] == {"kind": 2} and text.startswith("# What\n\n[v5p]\nkind = 1\n\n")
    assert found["v5p"] == {
        "kind": 1,
        "options": options_of("exchange"),
        "options_of_parts": options_of("nd"),
        "overlap": {"two dims": {"waits": ["psum"], "rings": ["all_gather", "psum"]}},
    }
    again = replaced(text, "v6e", toml_of("v6e", "", "", {}, "libtpu 1"))
    assert parse_toml(again)["v6e"] == {"kind": 2, "overlap": {}}


@pytest.mark.parametrize("name", SETS)
def test_the_table_has_the_options_of_a_set(name):
    chip = chips()[name]
    sets = [options_of(names) for names in SETS[name]]
    assert chip.options in sets and {**chip.options, **chip.options_of_parts} in sets
    assert set(chip.overlap) <= set(FORMS)


@pytest.mark.slow
def test_the_compiler_runs_collectives_beside_products_where_options_let_it():
    sets = ["", "exchange offload 2d 3d gathers"]
    asked = {"chip": "v5p", "shape": "2x2x1", "sets": sets}
    none, some = told_by_libtpu("tests.machine.overlap_case", asked).values()
    assert none == {
        "all_gather": "waits",
        "psum_scatter": "waits",
        "psum": "waits",
        "all_to_all": "waits",
        "ppermute": "beside",
    }
    assert some == dict.fromkeys(none, "beside") | {"psum_scatter": "beside, one ring"}
