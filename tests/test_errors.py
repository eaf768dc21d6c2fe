"""Every error: its text says what was asked, the dims with their sizes, the rule at fault and what would be legal."""

import ast
import inspect
import traceback
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshdsl as md
from meshdsl.lowering.lower import Lowered
from meshdsl.mesh import abstract_mesh, arrange, check_slices
from tests import wrong_arguments, wrong_programs
from tests.helpers import data, dims, integers, weight

A, B, C, T = dims(a=4, b=8, c=3, t=2)
X, Y, W, IDS = data(A, B), data(B, C), weight(A, B), integers(A, below=4)
SCALAR, KEY = md.tensor(1.0, ()), jax.random.key(0)
EMPTY, COMPLEX = data(md.Dim("n", 0), B), md.cast(X, jnp.complex64)
MESH = {"data": 2, "model": 4}
P, V = dims(p=3, v=2)
IMAGE, KERNEL = data(A, B, C), weight(P, C, V)


def model(rules, fn=lambda x: x * 2, *args, mesh=MESH, **how):
    """A layout for a lowered function, run."""
    layout = md.Layout(rules, mesh=mesh, name="layout dp.toml", **how)
    return md.lower(fn, layout)(*(args or (X,)))


def file(text):
    """A layout file, read."""
    path = Path(file.folder) / "dp.toml"
    path.write_text(text)
    return md.Layout.load(path)


def lower(fn, *args):
    return md.lower(fn, md.Layout(mesh=MESH))(*args)


def spent(fn):
    """`fn` of each row of `X`, mapped along a dim that `data` splits."""
    return model(["a -> data", "b -> model"], md.over(A, fn))


def leaked():
    """A Tensor that is taken out of its lowering."""
    kept = []
    jax.eval_shape(lambda x: lower(lambda x: kept.append(x) or x, x), X)
    return kept[0]


def mesh():
    return md.make_mesh(MESH)


def conv(over=None, x=IMAGE, k=KERNEL, fn=md.conv, **how):
    return fn(x, k, {"b": "p"} if over is None else over, **{"out": (..., V), **how})


def pool(window=None, fn=md.max_pool, **how):
    return fn(IMAGE, window or {"b": 3}, **how)


ERRORS = {
    # Dims and tensors.
    "a name that is not a word": (lambda: md.Dim("d model", 4), ["Dim", "identifier", "`d_model`", "'d model'"]),
    "a name that is not text": (lambda: md.Dim(4, 4), ["Dim", "identifier", "not 4"]),
    "a size that is no number": (lambda: md.Dim("a", 4.5), ["size of `a`", "whole number", "4.5"]),
    "a negative size": (lambda: md.Dim("a", -1), ["size of `a`", "at least 0", "-1"]),
    "the wrong shape": (lambda: md.tensor(np.zeros((4, 7)), (A, B)), ["tensor", "(4, 7)", "[a=4, b=8]"]),
    "a dim twice": (lambda: md.tensor(np.zeros((4, 4)), (A, A)), ["`a` occurs twice", "[a=4, a=4]", "unique"]),
    "names for dims": (lambda: md.tensor(np.zeros(4), ("a",)), ["tensor", "Dim('batch', 8)", "'a'"]),
    "a number for dims": (lambda: md.tensor(np.zeros(4), 4), ["tensor", "not 4"]),
    "a parameter that contracts another": (lambda: md.parameter(np.zeros(4), (A,), ins=(B,)), ["parameter", "no dim `b`", "[a=4]"]),
    "a tensor of a tensor": (
        lambda: md.tensor(X, (A, B)), ["tensor", "a Tensor [a=4, b=8] already", "md.rename"]),
    "an array that lost a dim": (
        lambda: md.sum(jax.tree.map(lambda v: v[0], X), "a"),
        ["sum", "[a=4, b=8] needs an array of shape (4, 8)", "holds an array of shape (8,)",
         "jax.tree.map", "md.tensor(array, dims)"]),
    "no such dim": (lambda: X.dim("aa"), ["no dim `aa`", "[a=4, b=8]", "did you mean `a`?"]),
    "nothing like it": (lambda: md.sum(X, "heads"), ["sum", "no dim `heads`", "known: `a`, `b`"]),
    "a number for a dim": (lambda: md.sum(X, 0), ["sum", "a Dim or by its name", "not 0", "[a=4, b=8]"]),
    "an array for a dim": (lambda: md.cumsum(X, np.ones(2)), ["cumsum", "of type ndarray", "[a=4, b=8]"]),
    "another size": (lambda: md.mean(X, md.Dim("a", 5)), ["mean", "`a` is 5 here and 4 in [a=4, b=8]"]),
    "a truth value": (lambda: bool(X), ["Tensor [a=4, b=8] has no truth value", "md.where"]),
    "shards of a traced tensor": (lambda: jax.eval_shape(lambda x: x.local_shards(), X), ["local_shards", "being traced"]),
    "from_local, a dim": (lambda: md.from_local({}, (A, B), mesh(), {"bb": "data"}), ["from_local", "no dim `bb`", "did you mean `b`?"]),
    "from_local, an axis": (lambda: md.from_local({}, (A, B), mesh(), {"a": "dta"}), ["from_local", "no axis `dta`", "did you mean `data`?"]),
    "from_local, indivisible": (
        lambda: md.from_local({}, (A, C), mesh(), {C: ("data", "model")}), ["`c`=3 does not divide over `data`=2 x `model`=4"]),
    "from_local, the wrong part": (
        lambda: md.from_local({jax.devices()[0]: np.zeros(4)}, (A,), mesh(), {A: "data"}), ["from_local", "(4,)", "[a=4]", "(2,)"]),
    "from_local, missing": (
        lambda: md.from_local({jax.devices()[0]: np.zeros(2)}, (A,), mesh(), {A: "data"}), ["from_local", "no part for", "7"]),
    # Layouts.
    "uneven, misspelt": (lambda: file('[layout]\nuneven = "padd"'), ["layout dp.toml", "uneven is 'error' or 'pad'", "not 'padd'", "did you mean `pad`?"]),
    "uneven of a rule": (
        lambda: md.Layout([{"rule": "a -> data", "uneven": True}], name="layout dp.toml"), ["layout dp.toml, rule 1", "'error' or 'pad'", "not True"]),
    "a table for a rule with another key": (
        lambda: md.Layout([{"rul": "a -> data"}], name="layout dp.toml"), ["layout dp.toml, rule 1", "unknown key `rul`", "did you mean `rule`?"]),
    "reshard a dim that is not there": (lambda: lower(lambda x: md.reshard(x, {"c": "data"}), X), ["reshard", "no dim `c`", "[a=4, b=8]"]),
    "reshard over an axis that is not there": (lambda: lower(lambda x: md.reshard(x, {"a": "dat"}), X), ["reshard", "no axis `dat`", "did you mean `data`?"]),
    "reshard over an axis twice": (lambda: md.reshard(X, {"a": "data"}, pending="data"), ["reshard", "`data` is named twice", "pending"]),
    "reshard to an axis that is spent": (
        lambda: spent(lambda row: md.reshard(row, {"b": "data"})),
        ["reshard: axis `data` splits a=4, which `over` maps along", "[b=8] can neither be split",
         "use `model`", "outside of `over`"],
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
        lambda: lower(lambda y: md.reshard(y, {"c": "model"}), Y), ["reshard", "`c`=3 does not divide over `model`=4", 'uneven = "pad"']),
    "an unknown table": (lambda: file("[layuot]\nrules = []"), ["layout dp.toml", "unknown key `layuot`", "did you mean `layout`?"]),
    "an unknown key": (lambda: file("[layout]\nrule = []"), ["layout dp.toml", "`layout.rule`", "did you mean `rules`?"]),
    "no table": (lambda: file("layout = 3"), ["layout dp.toml", "`layout` is a table", "not 3"]),
    "a mesh that is no table": (lambda: file("mesh = 3"), ["layout dp.toml, mesh", '{"data": 4}', "not 3"]),
    "not TOML": (lambda: file("[layout\nrules"), ["dp.toml", "not valid TOML", "line 1"]),
    "no such file": (lambda: md.Layout.load("nowhere.toml"), ["layout nowhere.toml", "cannot be read", "No such file"]),
    "a size that is a word": (lambda: file('[mesh]\ndata = "all"'), ["mesh", "axis `data`", '"rest"', "'all'"]),
    "two rests": (lambda: file('[mesh]\ndata = "rest"\nmodel = "rest"'), ["only one axis can be", "data", "model"]),
    "an axis within slices and across them": (
        lambda: file("[mesh]\ndata = 2\n[mesh.dcn]\ndata = 2"),
        ["dp.toml, mesh.dcn", "axis `data` is in [mesh] too"],
    ),
    "axes across slices that do not come first": (
        lambda: md.Layout(mesh={"data": 2, "replica": 2}, dcn=["replica"]),
        ["mesh.dcn", "axes across slices, [replica], stand first in the mesh, which is [data, replica]"],
    ),
    "axes across slices that do not match them": (
        lambda: check_slices(md.Layout(mesh={"replica": 3, "data": 2}, dcn=["replica"]), {"replica": 3, "data": 2}, 2, "slices"),
        ["mesh.dcn", "replica=3 is of 3 slices, and there are 2 slices; use 2"],
    ),
    "gradients summed in a whole number": (lambda: md.value_and_grad(lambda x: x, reduce="int32"), ["value_and_grad: reduce", "'int32'"]),
    "strict that is a word": (lambda: file('[layout]\nstrict = "yes"'), ["strict is true or false", "'yes'"]),
    "rules that are no list": (lambda: file('[layout]\nrules = "a -> data"'), ["dp.toml, rules", "list of strings", "a -> data"]),
    "rules that are a number": (lambda: file("[layout]\noptimizer = 3"), ["dp.toml, optimizer", "list of strings", "not 3"]),
    "a malformed rule": (lambda: file('[layout]\nrules = ["a -> b", "a => b"]'), ["dp.toml, rule 2", "'a => b'", "dim, ... -> axis, ..."]),
    "a malformed parameter rule": (lambda: file('[layout]\nparameters = ["-> b"]'), ["parameters rule 1", "'-> b'"]),
    "an axis named twice": (lambda: md.Layout(["a -> data, data"]), ["rule 1", "`data` is named twice", "'a -> data, data'"]),
    "an axis that the mesh lacks": (lambda: md.Layout(["a -> modl"], mesh=MESH), ["rule 1", "no axis `modl`", "did you mean `model`?"]),
    "an axis that another mesh lacks": (
        lambda: md.lower(len, md.Layout(["a -> model"]), md.make_mesh({"data": 8})), ["rule 1", "no axis `model`", "known: `data`"]),
    "a dim that nothing has": (
        lambda: model(["a -> data", "heds -> model"], lambda x: x * 2), ["layout dp.toml, rule 2", "no dim `heds`", "known: `a`, `b`"]),
    "a dim that nothing has, nearly": (
        lambda: model(["bath -> data"], lambda x: md.rename(x, "a", "batch")), ["rule 1", "no dim `bath`", "did you mean `batch`?"]),
    "indivisible": (
        lambda: model(["a -> data", "c -> model"], lambda x: x, Y, optimizer=["b -> data"]),
        ["layout dp.toml, rule 2", "c -> model", "`c`=3 does not divide over `model`=4", "a `model` of 1 or 3", 'or uneven = "pad"']),
    "indivisible over two axes": (
        lambda: model(["b -> data", "a -> data, model"], lambda x: x, data(A)),
        ["rule 2", "`a`=4 does not divide over `data`=2 x `model`=4"]),
    "strict": (
        lambda: model(["a -> data", "b -> data"], strict=True),
        ["rule 2", "`b` and `a` both want axis `data`", "[a, b]", "strict = true", "rule 1: a -> data"]),
    # Meshes.
    "a mesh of another size": (lambda: md.make_mesh(MESH, jax.devices()[:4]), ["data=2, model=4", "needs 8 devices", "4 are given", "rest"]),
    "a call on a mesh without devices": (
        lambda: md.lower(md.square, md.Layout(mesh=MESH), abstract_mesh(MESH))(md.tensor(np.zeros(4), (A,))), ["square", "without devices", "make_mesh"]),
    "a mesh that JAX cannot arrange": (lambda: arrange({"data": 8}, jax.devices()[:6]), ["mesh data=8", "no place for it on these 6 devices"]),
    "a mesh that is too large": (lambda: md.make_mesh({"data": 16}), ["mesh data=16 needs 16 devices and 8 are given"]),
    "no axes": (lambda: md.make_mesh({}, jax.devices()), ["of one device", "8 are given", "use 1"]),
    "a rest that does not fit": (
        lambda: md.make_mesh(md.Layout(mesh={"data": "rest", "model": 3})), ["layout", "data=rest, model=3", "3 does not divide 8"]),
    "a mesh of nothing": (lambda: md.make_mesh({"data": 0}), ["mesh", "axis `data`", "at least 1", "not 0"]),
    # Component-wise ops.
    "unequal sizes": (
        lambda: X + data(md.Dim("b", 7)), ["add", "`b` is 8 in operand 0 [a=4, b=8] and 7 in operand 1 [b=7]"]),
    "an outer product": (lambda: X * Y, ["multiply", "[a=4, b=8] and [b=8, c=3]", "lacks `c`", "broadcast", "einsum"]),
    "an array": (lambda: X + jnp.ones((4, 8)), ["add", "shape (4, 8)", "md.tensor"]),
    "a word": (lambda: X + "y", ["add", "Tensors and numbers", "str"]),
    "no tensor": (lambda: md.maximum(1, 2), ["maximum", "at least one operand"]),
    "not component-wise": (lambda: md.map(jnp.sum, X), ["sum", "shape ()", "[a=4, b=8]", "(4, 8)"]),
    # einsum.
    "einsum, unequal sizes": (
        lambda: md.einsum(X, data(C, md.Dim("b", 4)), out=(A, C)), ["einsum", "`b` is 8 in operand 0 [a=4, b=8] and 4 in operand 1 [c=3, b=4]"]),
    "einsum, a dim of nothing": (lambda: md.einsum(X, Y, out=(A, T)), ["einsum", "out has t=2", "none of [a=4, b=8], [b=8, c=3]", "known"]),
    "einsum, a dim twice": (lambda: md.einsum(X, out=(A, A)), ["einsum", "`a` occurs twice"]),
    "einsum of numbers": (
        lambda: md.einsum(X, 3.0, out=(A,)),
        ["einsum", "each of `tensors` is a Tensor, not 3.0", "[a=4, b=8]"]),
    "einsum of nothing": (lambda: md.einsum(out=(A,)), ["einsum", "Tensors"]),
    "einsum, a rest that may be of attention": (
        lambda: md.einsum(data(A, B, C), data(A, B, T), out=(..., B, C, T)),
        ["einsum", "[a=4, b=8, c=3], [a=4, b=8, t=2] share [a=4]", "`out` does not name",
         "Write contract=a, less what is to be kept", "`...` stands for all other dims",
         "one by one, without `...`"]),
    "einsum, a rest of several": (
        lambda: md.einsum(IMAGE, data(A, B, T), out=(..., T)),
        ["share [a=4, b=8]", "contract=(a, b), less"]),
    "einsum, contract and out": (
        lambda: md.einsum(X, Y, out=(A, B), contract=(B, C)),
        ["einsum", "[b=8] cannot be in `out` and in `contract`"]),
    "einsum, neither contract nor out": (
        lambda: md.einsum(X, Y, out=(A,), contract=B),
        ["[c=3] of [a=4, b=8], [b=8, c=3] is neither in `out` nor in `contract`", "write `...`"]),
    "einsum, contract a dim of nothing": (
        lambda: md.einsum(X, Y, out=(...,), contract="bb"),
        ["einsum, contract", "no dim `bb` in [a=4, b=8, c=3]", "did you mean `b`?"]),
    "einsum, two rests": (lambda: md.einsum(X, Y, out=(..., ...)), ["einsum", "ellipsis"]),
    # Reductions.
    "the largest of nothing": (
        lambda: md.max(EMPTY, "n"), ["max", "[n=0] of [n=0, b=8]", "no element", "a size of 1 or more"]),
    "the largest of complex numbers": (
        lambda: md.argmax(COMPLEX, A), ["argmax", "[a=4, b=8] is complex64", "md.real", "md.abs"]),
    "a function of complex numbers": (
        lambda: md.floor(COMPLEX), ["floor", "not defined for [a=4, b=8] of complex64", "md.real"]),
    "a function of bools": (
        lambda: (X > 0) - (X > 1), ["subtract", "[a=4, b=8] of bool and [a=4, b=8] of bool", "md.cast"]),
    "argmax over two dims": (lambda: md.argmax(X, (A, B)), ["argmax", "one dim", "tuple", "[a=4, b=8]"]),
    "argmin of all": (lambda: md.argmin(X, None), ["argmin", "one dim", "None"]),
    # Names and shapes.
    "rename, another size": (lambda: md.rename(X, A, C), ["rename", "a=4", "c=3"]),
    "rename, no name": (lambda: md.rename(X, "a", None), ["rename", "a=4", "None"]),
    "rename, taken": (lambda: md.rename(X, "a", "b"), ["rename", "`b` occurs twice", "[b=4, b=8]"]),
    "transpose, missing": (lambda: md.transpose(X, (B,)), ["transpose", "[b=8] lacks [a=4] of [a=4, b=8]"]),
    "broadcast, missing": (lambda: md.broadcast(X, (A, C)), ["broadcast", "[a=4, c=3] lacks [b=8] of [a=4, b=8]"]),
    "reshape, another size": (lambda: md.reshape(X, (A, C)), ["reshape", "[b=8] has 8 elements", "[c=3] has 3", "[a=4, b=8]"]),
    "reshape, malformed": (lambda: md.reshape(X, "a b"), ["reshape", "'a b'", '"a (b c) -> (a b) c"']),
    "reshape, unbalanced": (lambda: md.reshape(X, "a (b -> a b"), ["reshape", "'a (b -> a b'", "form"]),
    "reshape, an ellipsis": (lambda: md.reshape(X, "... b -> b ..."), ["reshape", "'... b -> b ...'", "names every dim"]),
    "reshape, other names": (lambda: md.reshape(X, "a b -> a c"), ["reshape", "'a b -> a c'", "['a', 'b']", "['a', 'c']"]),
    "reshape, a name twice": (lambda: md.reshape(X, "a a -> a a"), ["reshape", "'a a -> a a'", 'duplicate dimension "a"']),
    "reshape, too few names": (lambda: md.reshape(X, "a -> a"), ["reshape", "1 items", "[a=4, b=8]"]),
    "reshape, open sizes": (lambda: md.reshape(X, "a (u v) -> a u v"), ["reshape", "sizes of u, v open", "all but one"]),
    "reshape, indivisible": (lambda: md.reshape(X, "a (u v) -> a u v", u=3), ["reshape", "b=8 cannot be split into [u=3, v=2]"]),
    "reshape, a size of nothing": (lambda: md.reshape(X, "a (u v) -> a u v", u=2, w=4), ["reshape", "no `w`", "known", "`u`"]),
    "reshape, another size for a dim": (lambda: md.reshape(X, "a b -> b a", a=5), ["reshape", "`a` is 5 here and 4 in [a=4, b=8]"]),
    "reshape, merged into another size": (
        lambda: md.reshape(X, "a b -> (a b)", a_b=md.Dim("z", 5)), ["reshape", "[a=4, b=8] cannot be merged into z=5"]),
    # Picking and placing.
    "take, fractions": (lambda: md.take(X, md.cast(IDS, jnp.float32), B), ["take", "[a=4]", "float32", "whole numbers"]),
    "take, the same dim": (lambda: md.take(X, IDS, A), ["take", "[a=4]", "a=4 that they index", "rename"]),
    "one_hot, the same dim": (lambda: md.one_hot(IDS, md.Dim("a", 9)), ["one_hot", "[a=4] has a dim `a` already"]),
    "one_hot, fractions": (lambda: md.one_hot(X, C), ["one_hot", "[a=4, b=8]", "float32", "whole numbers"]),
    "slice, too far": (lambda: md.slice(X, B, 6, 4), ["slice", "6 to 10", "b=8 of [a=4, b=8]"]),
    "split, unequal": (lambda: md.split(X, B, 3), ["split", "b=8", "3 equal parts"]),
    "split, too little": (lambda: md.split(X, B, [3, 4]), ["split", "[b=3, b=4] do not add up to b=8"]),
    "concat of nothing": (lambda: md.concat([], B), ["concat", "one Tensor or more"]),
    "concat, the sum": (lambda: md.concat([X, X], B), ["concat", "[b=8, b=8] do not add up to b=8", "16"]),
    "concat, other dims": (lambda: md.concat([X, Y], "b"), ["concat", "[a=4, b=8]", "[b=8, c=3]", "more than `b`"]),
    "pad, negative": (lambda: md.pad(X, B, -1), ["pad", "-1", "b=8", "slice"]),
    # Control.
    "scan over a name": (
        lambda: md.scan(lambda c, x: (c, x), (), X, dim="a"),
        ["scan", "`dim` is a Dim such as Dim('batch', 8), not 'a'", "[a=4, b=8]"]),
    "scan, no such dim": (lambda: md.scan(lambda c, x: (c, x), (), X, dim=C), ["scan", "no dim `c` in [a=4, b=8]"]),
    "scan, an array": (lambda: md.scan(lambda c, x: (c, x), (), jnp.ones(3), dim=A), ["scan", "(3,)", "a=4 in front"]),
    "scan, another carry": (lambda: md.scan(lambda c, x: (md.sum(c), x), X, (), dim=A), ["scan", "[a=4, b=8] of float32", "[] of float32"]),
    "scan, another dtype": (lambda: md.scan(lambda c, x: (c > 0, x), X, (), dim=A), ["scan", "[a=4, b=8] of float32", "of bool"]),
    "scan, another structure": (lambda: md.scan(lambda c, x: ((c, c), x), X, (), dim=A), ["scan", "another structure"]),
    "scan, a result with the dim": (lambda: md.scan(lambda c, x: (c, X), (), X, dim=A), ["scan", "`a` occurs twice"]),
    "cond, many": (lambda: md.cond(X > 0, lambda: X, lambda: X), ["cond", "without dims", "[a=4, b=8]", "md.any"]),
    "cond, no tensor": (
        lambda: md.cond(True, lambda: X, lambda: X), ["cond", "`predicate` is a Tensor, not True"]),
    "cond, other dims": (
        lambda: md.cond(SCALAR > 0, lambda x: x, lambda x: md.sum(x, A), X), ["cond", "[a=4, b=8] of float32 and [b=8] of float32"]),
    "checkpoint, no such policy": (lambda: md.checkpoint(len, "gather"), ["checkpoint", "'gather'", "did you mean `gathers`?"]),
    "local, another shape": (lambda: md.local(lambda x: x.T, X, out=(A, B)), ["(8, 4)", "[a=4, b=8]", "(4, 8)"]),
    "local, no such dim": (lambda: md.local(len, X, out=(A,), whole="c"), ["local", "no dim `c` in [a=4, b=8]"]),
    # Random.
    "a key that is a number": (lambda: md.random.uniform(3, (A,)), ["random", "jax.random.key", "3"]),
    "many keys": (lambda: md.random.uniform(jax.random.split(KEY), (A,)), ["random", "one jax.random.key", "(2,)"]),
    "another kind of key": (lambda: md.random.bits(jax.random.key(0, impl="rbg"), (A,)), ["random", "rbg", "threefry2x32"]),
    "dropout of everything": (lambda: md.dropout(X, 1, KEY), ["dropout", "less than 1", "not 1"]),
    # Lowering and gradients.
    "no trace yet": (lambda: md.lower(lambda x: x, md.Layout()).record, ["not traced yet", "program(*args)"]),
    "another lowering's argument": (
        lambda: lower(lambda x: lower(lambda y: y, x), X),
        ["belongs to another lowering", "from outside"]),
    "another lowering's operand": (lambda: lower(lambda x, y=leaked(): x + y, X), ["add", "two different lowerings"]),
    "an argument of another shape": (lambda: lower(lambda x: x, md.Tensor(jnp.ones((4, 7)), (A, B))), ["(4, 7)", "[a=4, b=8]"]),
    "a value with dims": (lambda: md.value_and_grad(lambda w: w * 2)(W), ["value_and_grad", "not [a=4, b=8]", "md.mean"]),
    "a value that is no tensor": (
        lambda: md.value_and_grad(lambda w: 2.0)(W),
        ["value_and_grad", "a Tensor without dims, not 2.0"]),
    "gradients of arrays": (lambda: md.value_and_grad(lambda w: w)(jnp.ones(3)), ["value_and_grad", "pytree of Tensors", "Array"]),
    "a gradient of whole numbers": (
        lambda: md.value_and_grad(lambda x: md.count_nonzero(x))(X),
        ["value_and_grad", "a real floating-point number, not int32", "md.cast"]),
    "no microbatch": (
        lambda: md.value_and_grad(lambda w, x: md.sum(w * x), accumulate=EMPTY.dim("n"))(W, EMPTY),
        ["value_and_grad", "n=0 has no microbatch", "a size of 1 or more"]),
    "nothing to accumulate": (
        lambda: md.value_and_grad(lambda w, x: md.sum(w), accumulate=T)(W, X), ["value_and_grad", "no argument", "t=2"]),
    # Cutting and joining.
    "pad, another size": (lambda: md.pad(X, B, 1, 2, out=md.Dim("v", 12)), ["pad", "1, b=8 and 2 together are 11 elements, not v=12"]),
    "concat, another result": (lambda: md.concat([X, X], "b", out=md.Dim("v", 12)), ["concat", "[b=8, b=8] do not add up to v=12", "16"]),
    "stack of nothing": (lambda: md.stack([], "v"), ["stack", "one Tensor or more"]),
    "stack, another number": (lambda: md.stack([X, X], md.Dim("v", 3)), ["stack", "v=3 for 2 tensors"]),
    "stack, other dims": (lambda: md.stack([X, md.sum(X, A)], "v"), ["stack", "[a=4, b=8] and [b=8] differ"]),
    # Order, scatter and triangles.
    "top_k, too many": (lambda: md.top_k(X, A, 5), ["top_k", "5 elements along a=4 of [a=4, b=8]", "which has 4"]),
    "top_k, a name that is taken": (lambda: md.top_k(X, A, md.Dim("b", 2)), ["top_k", "`b` occurs twice", "[b=2, b=8]"]),
    "nth_largest, too far": (lambda: md.nth_largest(X, A, 5), ["nth_largest", "no element number 5 along a=4 of [a=4, b=8]", "1 to 4"]),
    "nth_smallest, none": (lambda: md.nth_smallest(X, "a", 0), ["nth_smallest", "no element number 0 along a=4", "count from 1"]),
    "sort, no such dim": (lambda: md.sort(X, "c"), ["sort", "no dim `c` in [a=4, b=8]"]),
    "searchsorted, a side": (lambda: md.searchsorted(X, IDS, B, side="middle"), ["searchsorted", "'left' or 'right'", "'middle'"]),
    "searchsorted, the same dim": (lambda: md.searchsorted(X, IDS, A), ["searchsorted", "[a=4]", "a=4 that is searched", "rename"]),
    "scatter, another how": (lambda: md.scatter(Y, IDS, X, C, how="mx"), ["scatter", "'add', 'max', 'min', 'set'", "'mx'", "did you mean `max`?"]),
    "scatter, fractions": (lambda: md.scatter(Y, X, X, C), ["scatter", "[a=4, b=8] are float32", "whole numbers"]),
    "scatter, the same dim": (lambda: md.scatter(X, IDS, X, A), ["scatter", "[a=4]", "a=4 that they index", "rename"]),
    "scatter, another dim in the updates": (
        lambda: md.scatter(Y, IDS, data(T), C), ["scatter", "the updates have [t=2]", "among [b=8, a=4]"]),
    "scatter, another size": (
        lambda: md.scatter(Y, integers(md.Dim("b", 7), below=3), X, C), ["scatter", "`b` is 8 in operand 0", "7 in operand 1 [b=7]"]),
    "segment_sum, ids without the dim": (lambda: md.segment_sum(X, IDS, B, C), ["segment_sum", "no dim `b` in [a=4]"]),
    "segment_sum, the same dim": (lambda: md.segment_sum(X, IDS, A, A), ["segment_sum", "[a=4]", "a=4 that they index", "rename"]),
    "bincount, fractions": (lambda: md.bincount(X, C), ["bincount", "[a=4, b=8] are float32", "whole numbers"]),
    "diagonal of one dim": (lambda: md.diagonal(X, A, "a", C), ["diagonal", "two dims of [a=4, b=8]", "not a=4 twice"]),
    "diagonal, another size": (lambda: md.diagonal(X, A, B, C), ["diagonal", "c=3 instead of [a=4, b=8]", "it has 4 elements"]),
    "tril of one dim": (lambda: md.tril(X, B, B), ["tril", "two dims of [a=4, b=8]", "not b=8 twice"]),
    "eye of one dim": (lambda: md.eye(A, A), ["eye", "`a` occurs twice"]),
    # Convolution and pooling.
    "conv of an array": (
        lambda: md.conv(jnp.ones((4, 8)), KERNEL, {"b": "p"}, out=(V,)),
        ["conv", "`x` is a Tensor, not of type ArrayImpl", "md.tensor"]),
    "conv, no spatial dim there": (lambda: conv({"height": "p"}), ["conv, over", "no dim `height` in [a=4, b=8, c=3]"]),
    "conv, no kernel dim there": (lambda: conv({"b": "q"}), ["conv, kernel", "no dim `q` in [p=3, c=3, v=2]"]),
    "conv, one kernel dim for two": (lambda: conv({"a": "p", "b": "p"}), ["conv, kernel", "`p` occurs twice"]),
    "conv, a dim of both": (lambda: conv({"c": "p"}), ["conv", "c=3 of [a=4, b=8, c=3]", "p=3 of [p=3, c=3, v=2]", "one operand each"]),
    "conv over nothing": (lambda: conv({}), ["conv", "no spatial dim in [a=4, b=8, c=3]", "einsum"]),
    "conv over a list": (lambda: conv(["b"]), ["conv", "`over` is a mapping, not of type list"]),
    "conv, other channels": (lambda: conv(k=weight(P, md.Dim("c", 5), V)), ["conv", "`c` is 3 in operand 0", "5 in operand 1"]),
    "conv, a dim of nothing": (lambda: conv(out=(..., T)), ["conv", "out has t=2", "[a=4, b=8, c=3, v=2]"]),
    "conv, a window in the result": (lambda: conv(out=(..., P, V)), ["conv", "out has p=3", "[a=4, b=8, c=3, v=2]"]),
    "conv, another size": (lambda: conv(out=(A, md.Dim("b", 7), V), stride=2), ["conv", "out has b=7", "[a=4, b=4, c=3, v=2]"]),
    "conv, a lost dim": (lambda: conv(out=(A, V), stride=2), ["conv", "out lacks [b=4]", "sum"]),
    "conv, no stride": (lambda: conv(stride=0), ["conv", "stride along b=8", "at least 1", "not 0"]),
    "conv, half a dilation": (lambda: conv(dilation={"b": 1.5}), ["conv", "dilation along b=8", "whole number", "1.5"]),
    "conv, a stride for no dim": (lambda: conv(stride={"h": 2}), ["conv, stride", "no dim `h` in [b=8]"]),
    "conv, no such padding": (lambda: conv(padding="SAM"), ["conv", "no padding 'SAM' for b=8", "did you mean `SAME`?"]),
    "conv, negative padding": (lambda: conv(padding=(1, -1)), ["conv", "padding of b=8", "(1, -1)", "slice"]),
    "conv, three paddings": (lambda: conv(padding={"b": (1, 2, 3)}), ["conv", "padding of b=8", "(1, 2, 3)"]),
    "conv, a large window": (lambda: conv(dilation=5, padding=1), ["conv", "3 taps, 5 apart", "larger than b=8 with 1 and 1"]),
    "conv, into another size": (lambda: conv(stride=2, into={"b": md.Dim("w", 5)}), ["conv", "of b=8 come 4 elements, not w=5"]),
    "conv, into a name that is taken": (lambda: conv(into={"b": "a"}), ["conv", "b=8 cannot become `a`", "[a=4, b=8, c=3, p=3, v=2]"]),
    "conv_transpose, into another size": (
        lambda: conv(fn=md.conv_transpose, stride=3, into={"b": md.Dim("b", 25)}), ["conv_transpose", "of b=8 come 22 to 24 elements, not b=25"]),
    "conv_transpose, nothing left": (lambda: conv(fn=md.conv_transpose, padding=9), ["conv_transpose", "nothing is left of b=8", "window of 3", "padding 9"]),
    "pool, no such dim": (lambda: pool({"h": 2}), ["max_pool, window", "no dim `h` in [a=4, b=8, c=3]"]),
    "pool, a window of nothing": (lambda: pool({"b": 0}), ["max_pool", "window along b=8", "at least 1", "not 0"]),
    "pool, a large window": (lambda: pool({"b": 9}, fn=md.mean_pool), ["mean_pool", "a window of 9 is larger than b=8 with 0 and 0"]),
    "pool of padding alone": (lambda: pool(padding=3), ["max_pool", "3 and 3 around b=8", "a window of 3", "only padding"]),
    # Control flow and calculus.
    "scan, another kind of carry": (lambda: md.scan(lambda c, x: (X, x), jnp.ones(3), (), dim=A), ["scan", "array of shape (3,)", "[a=4, b=8] of float32"]),
    "while_loop, many": (lambda: md.while_loop(lambda c: c > 0, lambda c: c, X), ["while_loop", "bool without dims", "[a=4, b=8] of bool", "md.any"]),
    "while_loop, another carry": (
        lambda: md.while_loop(lambda c: md.any(c > 0), md.sum, X), ["while_loop", "[a=4, b=8] of float32", "[] of float32"]),
    "while_loop, its gradient": (
        lambda: md.value_and_grad(lambda w: md.sum(md.while_loop(lambda c: md.sum(c) < 0, lambda c: c, w)))(W), ["while_loop", "no gradient", "md.scan", "md.jvp"]),
    "map_over an array": (lambda: md.map_over(len, jnp.ones(4), dim=A), ["map_over", "Tensors that have a=4", "Array", "close over"]),
    "map_over, no batch": (lambda: md.map_over(md.sin, X, dim=A, batch=0), ["map_over", "at least 1", "not 0"]),
    "map_over, no such dim": (lambda: md.map_over(md.sin, X, dim=C, batch=2), ["map_over", "no dim `c` in [a=4, b=8]"]),
    "switch, fractions": (lambda: md.switch(SCALAR, [md.sin], X), ["switch", "whole numbers without dims", "[] of float32"]),
    "switch, a number": (
        lambda: md.switch(1, [md.sin], X), ["switch", "`index` is a Tensor, not 1"]),
    "switch, no branch": (lambda: md.switch(md.tensor(1, ()), [], X), ["switch", "no branch"]),
    "switch, other dims": (
        lambda: md.switch(md.tensor(1, ()), [md.sin, md.cos, md.sum], X), ["switch", "[a=4, b=8] of float32 and [] of float32"]),
    "over a name": (lambda: md.over("a", md.sin), ["over", "`dim` is a Dim", "not 'a'"]),
    "over, no such dim": (lambda: md.over(C, md.sin)(X), ["over", "no argument has c=3", "[a=4, b=8]"]),
    "over, another size": (lambda: md.over(md.Dim("a", 5), md.sin)(X), ["over", "`a` is 5 here and 4 in [a=4, b=8]"]),
    "over, an array": (lambda: md.over(A, lambda x: x.array)(X), ["over", "returns Tensors", "md.tensor"]),
    "over, a result with the dim": (lambda: md.over(A, lambda x: X)(X), ["over", "`a` occurs twice"]),
    "checkpoint, a name twice": (lambda: md.checkpoint(len, save="y", offload="y"), ["checkpoint", "`y`", "name it once"]),
    "checkpoint, a name of nothing": (
        lambda: md.checkpoint(lambda x: md.checkpoint_name(x, "hidden"), save="hiden")(X), ["checkpoint", "no save point `hiden`", "did you mean `hidden`?"]),
    "checkpoint, no names": (lambda: md.checkpoint(md.sin, offload="hidden")(X), ["checkpoint", "`hidden`", "marks none", "checkpoint_name"]),
    "checkpoint_name of an array": (
        lambda: md.checkpoint_name(jnp.ones(3), "y"),
        ["checkpoint_name", "`x` is a Tensor", "md.tensor"]),
    "jvp by integers": (lambda: md.jvp(md.sin, (IDS,), (IDS,)), ["jvp", "a primal is a floating-point Tensor", "[a=4] of int32", "close over"]),
    "jvp, another structure": (lambda: md.jvp(md.sin, (X,), (X, X)), ["jvp", "different structures"]),
    "jvp, another tangent": (lambda: md.jvp(md.sin, (X,), (Y,)), ["jvp: a tangent [b=8, c=3]", "its primal [a=4, b=8]"]),
    "vjp, another structure": (lambda: md.vjp(md.sin, X)[1]((X, X)), ["vjp", "another structure than the result"]),
    "vjp, another cotangent": (lambda: md.vjp(md.sin, X)[1](SCALAR), ["vjp: a cotangent [] of float32", "its result [a=4, b=8]"]),
    "hvp of many": (lambda: md.hvp(md.sin, (X,), (X,)), ["hvp", "without dims", "[a=4, b=8]", "md.mean"]),
    "custom_gradient without one": (lambda: md.custom_gradient(md.sin)(X), ["custom_gradient", "(result, backward)", "Tensor"]),
    "custom_gradient of an array": (lambda: md.custom_gradient(lambda x: (x.array, len))(X), ["custom_gradient", "pytree of Tensors"]),
    "custom_gradient, too few cotangents": (
        lambda: md.value_and_grad(lambda w: md.sum(md.custom_gradient(lambda x, w: (x * w, lambda ct: ct))(X, w)))(W), ["custom_gradient", "each of 2 arguments"]),
    "custom_gradient, another structure": (
        lambda: md.value_and_grad(lambda w: md.sum(md.custom_gradient(lambda t: (t["w"], lambda ct: {"v": ct}))({"w": w})))(W),
        ["custom_gradient", "another structure than its argument"]),
    "custom_gradient, another cotangent": (
        lambda: md.value_and_grad(lambda w: md.sum(md.custom_gradient(lambda w: (w, md.sum))(w)))(W),
        ["custom_gradient", "[a=4, b=8] of float32", "[] of float32", "or None"]),
    # Random.
    "truncated_normal of nothing": (lambda: md.random.truncated_normal(KEY, (A,), 2.0, 1.0), ["truncated_normal", "2.0 is not below 1.0"]),
    "randint of nothing": (lambda: md.random.randint(KEY, (A,), 3, 3), ["randint", "from 3 to 3"]),
    "randint of fractions": (lambda: md.random.randint(KEY, (A,), 0.5, 3), ["randint", "whole number", "0.5"]),
    "categorical, cold": (lambda: md.random.categorical(KEY, X, B, temperature=-1.0), ["categorical", "temperature", "at least 0", "-1.0"]),
    "categorical, top_k": (lambda: md.random.categorical(KEY, X, B, top_k=9), ["categorical", "top_k", "b=8", "not 9"]),
    "categorical, top_p": (lambda: md.random.categorical(KEY, X, B, top_p=0.0), ["categorical", "top_p", "above 0", "not 0.0"]),
    "permutation of a name": (
        lambda: md.random.permutation(KEY, "a"), ["permutation", "`dim` is a Dim", "not 'a'"]),
    "permute, no such dim": (lambda: md.random.permute(KEY, X, C), ["permute", "no dim `c` in [a=4, b=8]"]),
}  # fmt: skip
ERRORS |= wrong_arguments.WRONG | wrong_programs.WRONG


@pytest.fixture(scope="module")
def caught(tmp_path_factory):
    file.folder = tmp_path_factory.mktemp("layouts")
    found = {}
    for name, (fn, _) in ERRORS.items():
        try:
            fn()
        except Exception as e:
            found[name] = e
    return found


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_says_what_was_asked_and_what_is_legal(name, caught):
    error = caught.get(name)
    assert isinstance(error, md.MeshDSLError), f"{type(error).__name__}: {error}"
    text = str(error)
    missing = [part for part in ERRORS[name][1] if part not in text]
    assert not missing, f"{missing} not in: {text}"
    assert "\n" not in text and "Array(" not in text and "array([" not in text


def test_every_error_of_the_language_is_in_the_table(caught):
    package = Path(inspect.getfile(md)).parent
    modules = ("checked", "dims", "errors", "layout", "mesh", "tensor")
    places = [package / f"{name}.py" for name in modules]
    places += [p for folder in ("ops", "lowering") for p in sorted((package / folder).glob("*.py"))]
    raised = set()
    for path in places:
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Raise)
                and node.exc is not None
                and "AssertionError" not in ast.unparse(node.exc)
            ):
                raised.add((str(path), node.lineno, node.end_lineno))
    errors = [error for e in caught.values() for error in (e, e.__context__) if error is not None]
    seen = [(f.filename, f.lineno) for e in errors for f in traceback.extract_tb(e.__traceback__)]
    missing = [
        (p, a) for p, a, b in raised if not any(f == p and a <= line <= b for f, line in seen)
    ]
    assert not missing, "; ".join(f"{p}:{a}" for p, a in missing)


def test_an_optional_dim_may_be_missing_and_a_known_one_be_untouched():
    assert model(["a -> data", "heads? -> model"]).split == {A: ("data",)}
    layout = md.Layout(["a -> data", "heads -> model"], mesh=MESH)
    assert Lowered(lambda x: x * 2, layout, md.make_mesh(layout), dims=["heads"])(X).split == {
        A: ("data",)
    }
