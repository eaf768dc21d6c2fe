"""Constraints: read from texts, and obeyed or not."""

import pytest

import meshdsl as md
from meshdsl.layout_search.constraints import Constraints, parse_keep
from meshdsl.layout_search.obeys import broken, host_devices, lies_within_host
from meshdsl.machine import find_target

V5P = find_target("v5p:4x4x4")
FSDP_SEQUENCE = md.Layout(
    ["batch -> data", "heads?, d_ff -> model", "length -> model"],
    ["d_model -> data"],
    mesh={"data": 16, "model": 4},
)
HYBRID = md.Layout(
    ["batch -> replica, data"],
    ["d_model -> data"],
    mesh={"replica": 2, "data": 32},
    dcn=["replica"],
)


def kept(*texts):
    return Constraints(keep=parse_keep(texts)[0])


def breaks(c, layout=FSDP_SEQUENCE, target=V5P, **settings):
    return broken(c, target, layout, settings)


OBEYED = [
    Constraints(),
    kept("batch -> data"),
    kept("heads -> model"),  # of a line with others
    kept("heads -> model", "d_ff -> model", "length -> model"),
    kept("parameters: d_model -> data"),
    Constraints(mesh={"model": 4}),
    Constraints(mesh={"context": 1}),  # an axis of one device that is not there
    Constraints(axes=2),
    Constraints(never=("vocab -> *", "d_model -> model", "rules: d_model -> *")),
    Constraints(within_host=("context",)),  # an axis that is not there
]
PADDED = kept('{ rule = "d_ff -> model", uneven = "pad" }')
ZIGZAG = kept('{ rule = "length -> model", order = "zigzag" }')
EIGHT = Constraints(keep=md.Layout(["heads -> model"], mesh={"model": 8}))
BROKEN = [  # with what the constraint that is broken is called
    (kept("batch -> model"), 'keep "batch -> model"'),
    (kept("d_model -> data"), 'keep "d_model -> data"'),  # it is in another list
    (kept("length -> model"), 'keep "length -> model"'),  # another rule takes the axis first
    (kept("length -> model", "d_ff -> model"), 'keep "length -> model"'),  # the order is another
    (PADDED, 'keep "d_ff -> model"'),
    (ZIGZAG, 'keep "length -> model"'),
    (kept("batch -> data", 'gather = "step"'), "keep gather = step"),
    (Constraints(mesh={"model": 8}), "mesh model=8"),
    (Constraints(mesh={"model": 1}), "mesh model=1"),
    (EIGHT, "keep mesh model=8"),
    (Constraints(axes=1), "axes 1"),
    (Constraints(never=("length -> *",)), 'never "length -> *"'),
    (Constraints(never=("* -> model",)), 'never "* -> model"'),
    (Constraints(never=("parameters: * -> *",)), 'never "parameters: * -> *"'),
    (Constraints(within_host=("model",)), "within-host model"),
    (Constraints(dcn={"data": 16}), "dcn data=16"),
]


@pytest.mark.parametrize(("constraint", "words"), [*((c, "") for c in OBEYED), *BROKEN])
def test_what_a_layout_obeys(constraint, words):
    assert breaks(constraint) == words


def test_an_axis_that_no_rule_has_is_of_no_use():
    idle = md.Layout(["batch -> data"], mesh={"data": 16, "model": 4})
    assert breaks(Constraints(), idle) == "a rule for each axis, as for `model`"
    whole = md.Layout(["batch -> data"], mesh={"data": 64, "model": 1})
    assert breaks(Constraints(), whole) == ""


def test_axes_across_slices_are_those_that_are_asked_for():
    slices = find_target("v5e:4x8", slices=2)
    assert breaks(Constraints(dcn={"replica": 2}), HYBRID, slices) == ""
    assert breaks(Constraints(dcn={"data": 32}), HYBRID, slices) == "dcn data=32"


def test_settings_are_those_to_choose_from():
    c = Constraints(remat=("full",), microbatches=(2, 4))
    assert breaks(c, **{"model.remat": "full", "microbatches": "2"}) == ""
    assert breaks(c, **{"model.remat": "none", "microbatches": "2"}) == "remat full"
    assert breaks(c, **{"model.remat": "full"}) == "microbatches 2,4"


def test_an_axis_that_is_kept_is_larger_than_one_unless_its_size_says_so():
    layout = md.Layout(["batch -> data", "d_ff -> model"], mesh={"data": 64, "model": 1})
    assert breaks(kept("d_ff -> model"), layout) == 'keep "d_ff -> model"'
    assert breaks(Constraints(keep=kept("d_ff -> model").keep, mesh={"model": 1}), layout) == ""


def test_a_shipped_layout_is_kept_with_its_sizes_unless_others_are_given():
    keep, within, across = parse_keep(["fsdp-sequence", "parameters: d_ff -> model"])
    assert within == {"model": 2} and across == {} and keep is not None
    latent = {"rule": "latent?, query_latent? -> data", "uneven": "pad"}
    assert keep.parameters == ["d_model -> data", latent, "d_ff -> model"]
    assert keep.rules[2] == {"rule": "vocab? -> model", "uneven": "pad"}


def test_an_axis_lies_within_a_host_by_the_place_of_its_devices():
    gpus = find_target("h100:8x4")
    assert host_devices(V5P) == 4 and host_devices(gpus) == 8
    assert lies_within_host(gpus, (("data", 4), ("model", 8)), "model")
    assert not lies_within_host(gpus, (("model", 8), ("data", 4)), "model")
    assert lies_within_host(V5P, (("data", 32), ("model", 2)), "model")
    # JAX lays an axis of 4 along a whole dim of the torus, which goes across hosts.
    assert not lies_within_host(V5P, (("data", 16), ("model", 4)), "model")
    assert lies_within_host(find_target("cpu:8"), (("data", 8),), "data")
