"""Errors of the constraints of a search."""

from dataclasses import replace
from typing import Any

from meshdsl.layout_search.check import check, nothing_fits
from meshdsl.layout_search.constraints import Constraints, parse_keep
from meshdsl.layout_search.workload import Workload
from meshdsl.machine import find_target
from tests.search.sample import SHIPPED

NOTHING: Any = None
REMATS = {"model.remat": ("full", "attention", "none")}
DIMS = {
    "batch": (64,),
    "length": (8192,),
    "d_model": (4096,),
    "heads": (32,),
    "kv_heads": (8,),
    "d_ff": (14336,),
    "vocab": (128256,),
}


def refused(target="v5p:4x4x4", slices=1, rows=64, choices=REMATS, keep=(), **given):
    """The error of constraints, of which those that are kept are texts."""
    machine = find_target(target, slices=slices)
    workload = Workload("a model", machine, NOTHING, NOTHING, rows, choices)
    check(Constraints(keep=parse_keep(keep)[0], **given), workload, DIMS)


def too_large(gib, **given):
    """The error of a search of which the least that was found needs so much memory."""
    least = replace(SHIPPED, peak=int(0.9 * gib * 2**30))
    raise nothing_fits(Constraints(**given), find_target("v5p:4x4x4"), least)


ERRORS = [
    (
        lambda: refused(keep=["bach -> data"]),
        'search: keep "bach -> data": no dim `bach` in this model; did you mean `batch`?',
    ),
    (
        lambda: refused(never=("vocab -> modle",)),
        'search: never "vocab -> modle": no layout has an axis `modle` here, and neither '
        "--mesh nor a rule that is kept names it; did you mean `model`?",
    ),
    (
        lambda: refused(never=("vocab",)),
        "search: never 'vocab' is not of the form \"dim -> axis\", in which each may be `*`",
    ),
    (
        lambda: refused(remat=("ful",)),
        "search: remat ful: there is no such value of `model.remat`; did you mean `full`?",
    ),
    (
        lambda: refused(choices={}, remat=("full",)),
        "search: remat full: this model has no setting `remat`",
    ),
    (
        lambda: refused(rows=0, microbatches=(2,)),
        "search: microbatches 2: this function has no setting `microbatches`",
    ),
    (
        lambda: refused(microbatches=(1, 3)),
        "search: microbatches 3: a batch of 64 does not divide into so many",
    ),
    (
        lambda: refused(
            keep=["batch -> data", "vocab -> model"], never=("vocab -> *",), mesh={"data": 4}
        ),
        'search: no layout obeys keep "vocab -> model" on v5p:4x4x4, 64 devices: never '
        '"vocab -> *" rules it out',
    ),
    (
        lambda: refused(mesh={"model": 6}, keep=["batch -> data"]),
        "search: no layout obeys mesh model=6 on v5p:4x4x4, 64 devices: 6 does not divide 64",
    ),
    (
        lambda: refused(mesh={"model": 16, "data": 8, "context": 1}),
        "obeys mesh data=8 on … 128 does not divide 64",
    ),
    (
        lambda: refused(keep=["batch -> data", "d_ff -> model", "length -> context"], axes=2),
        "obeys axes 2 on … `context`, `data`, `model` are 3 axes larger than 1",
    ),
    (
        lambda: refused(keep=["kv_heads -> model", "batch -> data"], mesh={"model": 16}),
        'search: no layout obeys keep "kv_heads -> model" on v5p:4x4x4, 64 devices: '
        '`kv_heads`=8 does not divide over `model`=16, and nothing says uneven = "pad"',
    ),
    (
        lambda: refused(dcn={"replica": 2}),
        "search: no layout obeys dcn replica=2 … there is 1 slice, and 2 are asked for",
    ),
    (lambda: refused("h100:8x4", dcn={"replica": 8}), "there are 4 nodes, and 8 are asked for"),
    (
        lambda: refused("h100:8x4", within_host=("model",), mesh={"model": 16}),
        "obeys within-host model on h100:8x4, 32 devices: a node has 8 devices, and an axis "
        "within one may have a size of 1, 2, 4 or 8, not 16",
    ),
    (
        lambda: refused(within_host=("model",), mesh={"model": 8}),
        "a host has 4 devices, and an axis within one may have a size of 1 or 2, not 8",
    ),
    (
        lambda: refused("h100:8x4", within_host=("a", "b"), mesh={"a": 4, "b": 4}),
        "obeys within-host b on … a node has 8 devices, which 16 does not divide",
    ),
    (
        lambda: refused(never=("* -> model",), mesh={"model": 4}),
        "obeys mesh model=4 on … no rule is left that splits anything over `model`",
    ),
    (
        lambda: refused(never=("* -> *",)),
        'obeys never "* -> *" on … a factor of 64 of the devices is left, and',
    ),
    (
        lambda: refused(keep=["batch -> data"], mesh={"model": 64}),
        'obeys keep "batch -> data" on … no devices are left for `data`',
    ),
    (
        lambda: too_large(20, memory=10 * 2**30),
        "search: no layout obeys max-memory 10.00 GiB on v5p:4x4x4, 64 devices: the least "
        "that was found is 20.00 GiB, fsdp; model.remat=full",
    ),
    (
        lambda: too_large(1024),
        "search: no layout does on v5p:4x4x4, 64 devices: the least that was found is 1.00 "
        "TiB, fsdp; model.remat=full, of 95.74 GiB; it takes more devices, or a smaller "
        "model or batch",
    ),
    (
        lambda: too_large(1024, mesh={"model": 2}),
        "it takes more devices, or a smaller model or batch, or fewer constraints",
    ),
    (
        lambda: parse_keep(["fsdpp"]),
        "--keep 'fsdpp': layout fsdpp: no such file, and no shipped layout of that name; did "
        'you mean `fsdp`?; a rule is written "fsdpp -> AXIS"',
    ),
    (
        lambda: parse_keep(['{ rule = "vocab -> model", uneven = }']),
        "--keep '{ rule = \"vocab -> model\", uneven = }': not as in a layout file: ",
    ),
    (
        lambda: parse_keep(['gathers = "step"']),
        "--keep 'gathers = \"step\"': unknown key `layout.gathers`; did you mean `gather`?",
    ),
]
