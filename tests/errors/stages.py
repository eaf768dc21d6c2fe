"""Errors of transfers between meshes, and of stages on different meshes."""

from unittest.mock import patch

import jax
import numpy as np

import meshdsl as md
from meshdsl.mesh import abstract_mesh
from tests.errors.common import EMPTY, LAYOUT, A, B, X, lowered, shape

FIRST = md.Layout(["a -> data"], mesh={"data": 2}, name="layout first.toml")
LAST = md.Layout(["b -> model"], mesh={"model": 2}, name="layout last.toml")
MEASURE = {"w": md.parameter(np.ones(8, np.float32), (B,))}


def meshes():
    return md.make_mesh(FIRST, jax.devices()[:2]), md.make_mesh(LAST, jax.devices()[2:4])


def stages(loss=lambda w, x, _: md.sum(x * w["w"]), **how):
    first, last = meshes()
    encode = md.lower(lambda w, x: x * w["w"], FIRST, first, dims=["b"])
    return md.Stages([encode, md.lower(loss, LAST, last)], **how)


def value_and_grad(microbatches, params=(MEASURE, MEASURE), **how):
    return stages(**how).value_and_grad(params, microbatches)


def elsewhere():
    with patch("jax.process_index", return_value=1):
        md.transfer(X, LAST, meshes()[1])


ERRORS = [
    # Transfers.
    (
        lambda: md.transfer(X, FIRST, {"data": 2}),
        "transfer: `mesh` is a mesh, not of type dict … md.make_mesh(layout) … [a=4, b=8]",
    ),
    (
        lambda: md.transfer(X, md.Layout(["a -> dat"]), meshes()[0]),
        "rule 1: no axis `dat` in the mesh; did you mean `data`?",
    ),
    (
        lambda: md.transfer(md.zeros((md.Dim("a", 5), B)), FIRST, meshes()[0]),
        "first.toml, rule 1: a -> data: `a`=5 does not divide over `data`=2; use a `data` of",
    ),
    (
        lambda: lowered(lambda x: md.transfer({"x": x}, FIRST, meshes()[0])),
        "transfer: `tree['x']` is being traced … outside of lowerings … md.Stages",
    ),
    (
        lambda: md.transfer({"x": "words"}, FIRST, meshes()[0]),
        "transfer: `tree['x']` is 'words'; Tensors of data",
    ),
    (
        lambda: md.transfer(shape(A, B), FIRST, meshes()[0]),
        "`tree` is a Tensor [a=4, b=8] of type ShapeDtypeStruct",
    ),
    (
        lambda: md.transfer(X, FIRST, meshes()[0], transfers=[]),
        "transfer: `transfers` is a record, md.Transfers(), not of type list",
    ),
    (elsewhere, "transfer: the mesh has devices of another process … of one process"),
    # Stages.
    (
        lambda: md.Stages([md.sin, md.cos]),
        "Stages: a stage is what md.lower returns, not of type function",
    ),
    (
        lambda: md.Stages([md.lower(md.sin, LAYOUT, abstract_mesh(LAYOUT.mesh))]),
        "Stages: `sin` is lowered for a mesh without devices … md.make_mesh",
    ),
    (lambda: md.Stages([md.lower(md.sin, LAYOUT)]), "Stages: two stages or more, not 1"),
    (lambda: md.Stages([]), "Stages: the argument is a list … an empty one"),
    (
        lambda: stages(transfers={}),
        "Stages: `transfers` is a record, md.Transfers(), not of type dict",
    ),
    (lambda: value_and_grad([(X,)]), "Stages: microbatch 0 has 1 entries for 2 stages"),
    (
        lambda: value_and_grad([(X, None), (EMPTY, None)]),
        "Stages: microbatch 1 has other dims than microbatch 0 … of one size",
    ),
    (
        lambda: value_and_grad([(X, None)], (md.transfer(MEASURE, LAST, meshes()[1]),) * 2),
        "Stages: parameters of stage 0 lie on other devices than its mesh … md.transfer(",
    ),
    (
        lambda: value_and_grad([(X, None)], loss=lambda w, x, _: md.sum(x * w["w"], B)),
        "Stages: the last stage returns the loss … without dims … [a",
    ),
]
