"""Errors about dims, tensors, what is handed over in place of one, and where tensors lie."""

import jax
import jax.numpy as jnp
import numpy as np

import meshdsl as md
from tests.errors.common import LAYOUT, MESH, A, B, C, X, Y, lowered, shape, traced, under

KEY = jax.random.key(0)


def mesh():
    return md.make_mesh(MESH)


def spent(fn):
    """`fn` of each row of `X`, mapped along a dim that `data` splits."""
    return under(["a -> data", "b -> model"], md.over(A, fn))


ERRORS = {
    # Dims.
    "a name that is not a word": (
        lambda: md.Dim("d model", 4),
        ["Dim", "identifier", "`d_model`", "'d model'"],
    ),
    "a name that is not text": (lambda: md.Dim(4, 4), ["Dim", "identifier", "not 4"]),
    "a size that is no number": (lambda: md.Dim("a", 4.5), ["size of `a`", "whole number", "4.5"]),
    "a negative size": (lambda: md.Dim("a", -1), ["size of `a`", "at least 0", "-1"]),
    "Dim, True": (
        lambda: md.Dim("a", True),
        ["Dim: the size of `a` is a whole number", "not True"],
    ),
    "Dim, traced": (
        lambda: traced(lambda i: md.Dim("a", i)),
        ["Dim: the size of `a`", "not a value that is being traced"],
    ),
    # Tensors.
    "the wrong shape": (
        lambda: md.tensor(np.zeros((4, 7)), (A, B)),
        ["tensor", "(4, 7)", "[a=4, b=8]"],
    ),
    "a dim twice": (
        lambda: md.tensor(np.zeros((4, 4)), (A, A)),
        ["`a` occurs twice", "[a=4, a=4]", "unique"],
    ),
    "names for dims": (
        lambda: md.tensor(np.zeros(4), ("a",)),
        ["tensor", "Dim('batch', 8)", "'a'"],
    ),
    "a number for dims": (lambda: md.tensor(np.zeros(4), 4), ["tensor", "not 4"]),
    "a Tensor of a Tensor": (
        lambda: md.tensor(X, (A, B)),
        ["tensor", "a Tensor [a=4, b=8] already", "md.rename"],
    ),
    "tensor of nothing": (
        lambda: md.tensor(None, (A,)),
        ["tensor: an array of numbers gets dims, not None"],
    ),
    "a parameter that contracts another": (
        lambda: md.parameter(np.zeros(4), (A,), ins=(B,)),
        ["parameter", "no dim `b`", "[a=4]"],
    ),
    "a truth value": (lambda: bool(X), ["Tensor [a=4, b=8] has no truth value", "md.where"]),
    "item of many": (lambda: X.item(), ["item: a Tensor [a=4, b=8] has 32 elements", "md.slice"]),
    # Parameters to begin with.
    "a draw that contracts what it lacks": (
        lambda: md.normal(KEY, (A, B), ins="aa"),
        ["normal, ins", "no dim `aa`", "[a=4, b=8]", "did you mean `a`?"],
    ),
    "zeros that contract what they lack": (
        lambda: md.zeros((A, B), ins=Y.dims[1]),
        ["zeros, ins", "no dim `c`", "[a=4, b=8]"],
    ),
    "a draw with dims for a key": (
        lambda: md.normal((A, B), KEY),
        ["normal", "dims are Dims", "of type"],
    ),
    "a draw with a number for a key": (
        lambda: md.uniform(0, (A, B)),
        ["uniform", "the key is one jax.random.key(...), not 0"],
    ),
    "a draw with several keys": (
        lambda: md.truncated_normal(jax.random.split(KEY, 3), (A, B)),
        ["truncated_normal", "the key is one", "not an array of key<fry> (3,)"],
    ),
    "a draw of a negative deviation": (
        lambda: md.normal(KEY, (A, B), std=-1.0),
        ["normal", "a standard deviation is at least 0, not -1.0"],
    ),
    "a draw of whole numbers": (
        lambda: md.normal(KEY, (A, B), dtype="int32"),
        ["normal", "numbers with fractions are drawn, not int32"],
    ),
    # What is no Tensor, and a Tensor without numbers.
    "sum of an array": (
        lambda: md.sum(jnp.ones(3)),
        ["sum: `x` is a Tensor, not of type ArrayImpl", "md.tensor(array, dims)"],
    ),
    "sum of a list": (lambda: md.sum([X]), ["sum: `x` is a Tensor, not of type list"]),
    "a shape alone": (
        lambda: md.sum(shape(A, B), B),
        ["sum", "[a=4, b=8] has no values", "ShapeDtypeStruct", "jax.eval_shape"],
    ),
    "an array that lost a dim": (
        lambda: md.sum(jax.tree.map(lambda v: v[0], X), "a"),
        [
            "sum",
            "[a=4, b=8] needs an array of shape (4, 8)",
            "holds an array of shape (8,)",
            "jax.tree.map",
            "md.over",
            "md.tensor(array, dims)",
        ],
    ),
    # The dims that an op is told.
    "a dim that it lacks": (
        lambda: X.dim("aa"),
        ["no dim `aa`", "[a=4, b=8]", "did you mean `a`?"],
    ),
    "no such dim, nor one like it": (
        lambda: md.sum(X, "heads"),
        ["sum", "no dim `heads`", "known: `a`, `b`"],
    ),
    "a number for a dim": (
        lambda: md.sum(X, 0),
        ["sum", "a Dim or by its name", "not 0", "[a=4, b=8]"],
    ),
    "an array for a dim": (
        lambda: md.cumsum(X, np.ones(2)),
        ["cumsum", "of type ndarray", "[a=4, b=8]"],
    ),
    "a dim of another size": (
        lambda: md.mean(X, md.Dim("a", 5)),
        ["mean", "`a` is 5 here and 4 in [a=4, b=8]"],
    ),
    # The parts of devices.
    "shards of a traced tensor": (
        lambda: jax.eval_shape(lambda x: x.local_shards(), X),
        ["local_shards", "being traced"],
    ),
    "from_local, a dim": (
        lambda: md.from_local({}, (A, B), mesh(), {"bb": "data"}),
        ["from_local", "no dim `bb`", "did you mean `b`?"],
    ),
    "from_local, an axis": (
        lambda: md.from_local({}, (A, B), mesh(), {"a": "dta"}),
        ["from_local", "no axis `dta`", "did you mean `data`?"],
    ),
    "from_local, indivisible": (
        lambda: md.from_local({}, (A, C), mesh(), {C: ("data", "model")}),
        ["`c`=3 does not divide over `data`=2 x `model`=4"],
    ),
    "from_local, the wrong part": (
        lambda: md.from_local({jax.devices()[0]: np.zeros(4)}, (A,), mesh(), {A: "data"}),
        ["from_local", "(4,)", "[a=4]", "(2,)"],
    ),
    "from_local, missing": (
        lambda: md.from_local({jax.devices()[0]: np.zeros(2)}, (A,), mesh(), {A: "data"}),
        ["from_local", "no part for", "7"],
    ),
    "from_local of a number": (
        lambda: md.from_local(3, (A,), md.make_mesh(MESH), {}),
        ["from_local: the shards are pairs", "not 3"],
    ),
    "from_local without devices": (
        lambda: md.from_local({0: X}, (A,), md.make_mesh(MESH), {}),
        ["from_local: each part comes with its device", "not with 0"],
    ),
    # Splits and pending sums.
    "reshard a dim that is not there": (
        lambda: lowered(lambda x: md.reshard(x, {"c": "data"}), X),
        ["reshard", "no dim `c`", "[a=4, b=8]"],
    ),
    "reshard over an axis that is not there": (
        lambda: lowered(lambda x: md.reshard(x, {"a": "dat"}), X),
        ["reshard", "no axis `dat`", "did you mean `data`?"],
    ),
    "reshard over an axis twice": (
        lambda: md.reshard(X, {"a": "data"}, pending="data"),
        ["reshard", "`data` is named twice", "pending"],
    ),
    "reshard to an axis that is spent": (
        lambda: spent(lambda row: md.reshard(row, {"b": "data"})),
        [
            "reshard: axis `data` splits a=4, which `over` maps along",
            "[b=8] can neither be split",
            "use `model`",
            "outside of `over`",
        ],
    ),
    "reshard with a sum over an axis that is spent": (
        lambda: spent(lambda row: md.reshard(row, {}, pending=("model", "data"))),
        ["reshard: axis `data` splits a=4", "wait for a sum over it", "use `model`"],
    ),
    "reshard where every axis is spent": (
        lambda: spent(lambda row: md.over(B, lambda x: md.reshard(x, {}, pending="model"))(row)),
        ["reshard: axis `model` splits b=8, which `over` maps along", "no other axis is free"],
    ),
    "reshard with a sum of truths": (
        lambda: md.reshard(X > 0, {}, pending="data"),
        ["reshard: [a=4, b=8] is bool", "pending", "md.cast"],
    ),
    "reshard unevenly": (
        lambda: lowered(lambda y: md.reshard(y, {"c": "model"}), Y),
        ["reshard", "`c`=3 does not divide over `model`=4", 'uneven = "pad"'],
    ),
    "reshard over a number": (
        lambda: md.reshard(X, {"a": 0}),
        ["reshard: an axis of the mesh is given by its name, not 0"],
    ),
    "reshard over nothing": (
        lambda: md.reshard(X, None),
        ["reshard: `split` is a mapping, not None"],
    ),
    "shardings, a level": (
        lambda: md.shardings(X, LAYOUT, md.make_mesh(MESH), "params"),
        ["shardings: level is 'value'", "not 'params'"],
    ),
}
