"""Errors about dims, tensors, what is handed over in place of one, and where tensors lie."""

import jax
import jax.numpy as jnp
import numpy as np

import meshdsl as md
from tests.errors.common import LAYOUT, MESH, A, B, C, X, Y, lowered, shape, under

KEY = jax.random.key(0)


def mesh():
    return md.make_mesh(MESH)


def spent(fn):
    """`fn` of each row of `X`, mapped along a dim that `data` splits."""
    return under(["a -> data", "b -> model"], md.over(A, fn))


ERRORS = [
    # Dims.
    (lambda: md.Dim("d model", 4), "Dim … identifier … `d_model` … 'd model'"),
    (lambda: md.Dim("a", 4.5), "size of `a` … whole number … 4.5"),
    (lambda: md.Dim("a", -1), "size of `a` … at least 0 … -1"),
    # Tensors.
    (lambda: md.tensor(np.zeros((4, 7)), (A, B)), "tensor … (4, 7) … [a=4, b=8]"),
    (lambda: md.tensor(np.zeros((4, 4)), (A, A)), "`a` occurs twice … [a=4, a=4] … unique"),
    (lambda: md.tensor(np.zeros(4), ("a",)), "tensor … Dim('batch', 8) … 'a'"),
    (lambda: md.tensor(X, (A, B)), "tensor … a Tensor [a=4, b=8] already; md.rename"),
    (lambda: md.tensor(None, (A,)), "tensor: an array of numbers gets dims, not None"),
    (lambda: md.parameter(np.zeros(4), (A,), ins=(B,)), "parameter: no dim `b` … [a=4]"),
    (lambda: bool(X), "Tensor [a=4, b=8] has no truth value … md.where"),
    (lambda: X.item(), "item: a Tensor [a=4, b=8] has 32 elements … md.slice"),
    # Parameters to begin with.
    (
        lambda: md.normal(KEY, (A, B), ins="aa"),
        "normal, ins: no dim `aa` … [a=4, b=8]; did you mean `a`?",
    ),
    (lambda: md.normal((A, B), KEY), "normal: dims are Dims … of type"),
    (lambda: md.uniform(0, (A, B)), "uniform: the key is one jax.random.key(...), not 0"),
    (
        lambda: md.normal(KEY, (A, B), std=-1.0),
        "normal: a standard deviation is at least 0, not -1.0",
    ),
    (
        lambda: md.normal(KEY, (A, B), dtype="int32"),
        "normal: numbers with fractions are drawn, not int32",
    ),
    # What is no Tensor, and a Tensor without numbers.
    (
        lambda: md.sum(jnp.ones(3)),
        "sum: `x` is a Tensor, not of type ArrayImpl … md.tensor(array, dims)",
    ),
    (
        lambda: md.sum(shape(A, B), B),
        "sum … [a=4, b=8] has no values … ShapeDtypeStruct … jax.eval_shape",
    ),
    # The dims that an op is told.
    (lambda: X.dim("aa"), "no dim `aa` … [a=4, b=8]; did you mean `a`?"),
    (lambda: md.sum(X, "heads"), "sum: no dim `heads` … known: `a`, `b`"),
    (lambda: md.sum(X, 0), "sum … a Dim or by its name, not 0 … [a=4, b=8]"),
    (lambda: md.mean(X, md.Dim("a", 5)), "mean: `a` is 5 here and 4 in [a=4, b=8]"),
    # The parts of devices.
    (lambda: jax.eval_shape(lambda x: x.local_shards(), X), "local_shards … being traced"),
    (
        lambda: md.from_local({}, (A, B), mesh(), {"a": "dta"}),
        "from_local: no axis `dta` … did you mean `data`?",
    ),
    (
        lambda: md.from_local({}, (A, C), mesh(), {C: ("data", "model")}),
        "`c`=3 does not divide over `data`=2 x `model`=4",
    ),
    (
        lambda: md.from_local({jax.devices()[0]: np.zeros(4)}, (A,), mesh(), {A: "data"}),
        "from_local … (4,); [a=4] … (2,)",
    ),
    (
        lambda: md.from_local({jax.devices()[0]: np.zeros(2)}, (A,), mesh(), {A: "data"}),
        "from_local: no part for … 7",
    ),
    (
        lambda: md.from_local(3, (A,), md.make_mesh(MESH), {}),
        "from_local: the shards are pairs … not 3",
    ),
    (
        lambda: md.from_local({0: X}, (A,), md.make_mesh(MESH), {}),
        "from_local: each part comes with its device … not with 0",
    ),
    # Splits and pending sums.
    (
        lambda: lowered(lambda x: md.reshard(x, {"c": "data"}), X),
        "reshard: no dim `c` … [a=4, b=8]",
    ),
    (
        lambda: lowered(lambda x: md.reshard(x, {"a": "dat"}), X),
        "reshard: no axis `dat` … did you mean `data`?",
    ),
    (
        lambda: md.reshard(X, {"a": "data"}, pending="data"),
        "reshard … `data` is named twice … pending",
    ),
    (
        lambda: spent(lambda row: md.reshard(row, {"b": "data"})),
        "reshard: axis `data` splits a=4, which `over` maps along … [b=8] can neither be "
        "split … use `model` … outside of `over`",
    ),
    (
        lambda: spent(lambda row: md.reshard(row, {}, pending=("model", "data"))),
        "reshard: axis `data` splits a=4 … wait for a sum over it; use `model`",
    ),
    (
        lambda: md.reshard(X > 0, {}, pending="data"),
        "reshard: [a=4, b=8] is bool … pending … md.cast",
    ),
    (
        lambda: lowered(lambda y: md.reshard(y, {"c": "model"}), Y),
        'reshard: `c`=3 does not divide over `model`=4 … uneven = "pad"',
    ),
    (lambda: md.reshard(X, {"a": 0}), "reshard: an axis of the mesh is given by its name, not 0"),
    (lambda: md.reshard(X, None), "reshard: `split` is a mapping, not None"),
    (
        lambda: md.shardings(X, LAYOUT, md.make_mesh(MESH), "params"),
        "shardings: level is 'rules' … not 'params'",
    ),
]
