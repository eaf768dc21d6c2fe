"""Constraints are refused only where no layout obeys, by trying all on a small machine."""

import itertools
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshdsl as md
from meshdsl.errors import MeshDSLError
from meshdsl.layout import LEVELS
from meshdsl.layout_search.check import check, obstacles
from meshdsl.layout_search.constraints import Constraints
from meshdsl.layout_search.obeys import broken, never
from meshdsl.layout_search.workload import Workload
from meshdsl.machine import find_target

GPUS = find_target("h100:8x2")  # 16 devices, of which 8 are in a node
DIMS = {"batch": (16,), "heads": (4,), "d_ff": (6,)}
NOTHING: Any = None
WORKLOAD = Workload("a model", GPUS, NOTHING, NOTHING)
AXES = ("data", "model", "context")
RULES = [f"{dim} -> {axis}" for dim in DIMS for axis in AXES]
NEVER = ["* -> *", "batch -> *", "heads -> *", "* -> data", "* -> model", *RULES[::2]]


def meshes(names, most):
    """Every mesh of 16 devices with at most so many axes, all larger than 1."""
    for count in range(1, most + 1):
        for sizes in itertools.product((2, 4, 8, 16), repeat=count):
            if math.prod(sizes) == 16:
                for axes in itertools.permutations(names, count):
                    yield dict(zip(axes, sizes, strict=True))


def layouts(c):
    """Every mesh with the rules that are kept, and below them what splits something else."""
    named = {*c.sizes, *(rule.axis for rule in c.kept), *c.within_host}
    free = [f"free{i}" for i in range(min(c.axes, 3))]
    for sizes in meshes([*named, *free], min(c.axes, 4)):
        lists = {level: [*getattr(c.keep, level, ())] for level in LEVELS}
        ruled = {rule.axis for rule in c.kept}
        for axis in sizes:
            rule = next((d for d in DIMS if not never(c.never, "rules", d, axis)), None)
            rest = next((d for d in DIMS if not never(c.never, "parameters", d, axis)), None)
            if axis not in ruled and rule:
                lists["rules"].append(f"{rule} -> {axis}")
            elif axis not in ruled and rest:
                lists["parameters"].append(f"{rest} -> {axis}")
        mesh = sizes | {rule.axis: 1 for rule in c.kept if rule.axis not in sizes}
        across = tuple(c.across) if set(c.across) <= set(sizes) else ()
        mesh = {axis: mesh[axis] for axis in across} | mesh
        yield md.Layout(**lists, mesh=mesh, dcn=across)


def usable(c, layout):
    """Whether each axis splits something, and what is kept divides."""
    sizes = layout.mesh
    kept = [rule for rule in c.kept if rule.level == "rules"]
    divides = all(DIMS[rule.dim][0] % sizes[rule.axis] == 0 for rule in kept)
    across = math.prod(sizes[axis] for axis in layout.dcn)
    used = {rule.axis for rule in layout.parsed}
    return divides and 2 % across == 0 and all(n == 1 or a in used for a, n in sizes.items())


def tried(c):
    """Whether any layout obeys."""
    return any(usable(c, layout) and not broken(c, GPUS, layout) for layout in layouts(c))


@st.composite
def constraints(draw):
    some = lambda known, most: draw(st.lists(st.sampled_from(known), max_size=most, unique=True))
    sizes = {axis: draw(st.sampled_from([1, 2, 4, 8, 3])) for axis in some(AXES, 2)}
    across = {"replica": draw(st.sampled_from([2, 4]))} if draw(st.booleans()) else {}
    rules, parameters = some(RULES, 3), some(RULES, 1)
    return Constraints(
        keep=md.Layout(rules, parameters) if rules or parameters else None,
        never=tuple(some(NEVER, 2)),
        mesh=sizes,
        axes=draw(st.integers(1, 4)),
        within_host=tuple(some(AXES, 1)),
        dcn=across,
    )


@settings(max_examples=90, deadline=None)
@given(c=constraints())
def test_constraints_are_refused_only_where_no_layout_obeys(c):
    if found := list(obstacles(c, GPUS, DIMS)):
        assert not tried(c), found
        with pytest.raises(MeshDSLError) as caught:
            check(c, WORKLOAD, DIMS)
        assert f"no layout obeys {found[0][0]} on h100:8x2" in str(caught.value)
    else:
        check(c, WORKLOAD, DIMS)


def test_a_pattern_may_speak_of_what_another_model_has():
    for pattern in ("heads -> mine", "height -> rows", "experts -> expert", "vocab -> *"):
        check(Constraints(never=(pattern,), mesh={"mine": 2}), WORKLOAD, DIMS)
