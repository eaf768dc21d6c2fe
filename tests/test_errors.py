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
from meshdsl.lowering.spmd import Lowered
from tests.helpers import data, dims, integers, weight

A, B, C, T = dims(a=4, b=8, c=3, t=2)
X, Y, W, IDS = data(A, B), data(B, C), weight(A, B), integers(A, below=4)
SCALAR, KEY = md.tensor(1.0, ()), jax.random.key(0)
MESH = {"data": 2, "model": 4}


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


def leaked():
    """A Tensor that is taken out of its lowering."""
    kept = []
    jax.eval_shape(lambda x: lower(lambda x: kept.append(x) or x, x), X)
    return kept[0]


def mesh():
    return md.make_mesh(MESH)


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
    "einsum of numbers": (lambda: md.einsum(X, 3.0, out=(A,)), ["einsum", "Tensors", "float"]),
    "einsum of nothing": (lambda: md.einsum(out=(A,)), ["einsum", "Tensors"]),
    "einsum, two rests": (lambda: md.einsum(X, Y, out=(..., ...)), ["einsum", "ellipsis"]),
    # Reductions.
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
    "scan over a name": (lambda: md.scan(lambda c, x: (c, x), (), X, dim="a"), ["scan", "`dim` is the Dim", "'a'"]),
    "scan, no such dim": (lambda: md.scan(lambda c, x: (c, x), (), X, dim=C), ["scan", "no dim `c` in [a=4, b=8]"]),
    "scan, an array": (lambda: md.scan(lambda c, x: (c, x), (), jnp.ones(3), dim=A), ["scan", "(3,)", "a=4 in front"]),
    "scan, another carry": (lambda: md.scan(lambda c, x: (md.sum(c), x), X, (), dim=A), ["scan", "[a=4, b=8] of float32", "[] of float32"]),
    "scan, another dtype": (lambda: md.scan(lambda c, x: (c > 0, x), X, (), dim=A), ["scan", "[a=4, b=8] of float32", "of bool"]),
    "scan, another structure": (lambda: md.scan(lambda c, x: ((c, c), x), X, (), dim=A), ["scan", "another structure"]),
    "scan, a result with the dim": (lambda: md.scan(lambda c, x: (c, X), (), X, dim=A), ["scan", "`a` occurs twice"]),
    "cond, many": (lambda: md.cond(X > 0, lambda: X, lambda: X), ["cond", "without dims", "[a=4, b=8]", "md.any"]),
    "cond, no tensor": (lambda: md.cond(True, lambda: X, lambda: X), ["cond", "without dims", "True"]),
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
    "another lowering's argument": (lambda: lower(lambda x: lower(lambda y: y, x), X), ["belongs to another lowering"]),
    "another lowering's operand": (lambda: lower(lambda x, y=leaked(): x + y, X), ["add", "two different lowerings"]),
    "an argument of another shape": (lambda: lower(lambda x: x, md.Tensor(jnp.ones((4, 7)), (A, B))), ["(4, 7)", "[a=4, b=8]"]),
    "a value with dims": (lambda: md.value_and_grad(lambda w: w * 2)(W), ["value_and_grad", "not [a=4, b=8]", "md.mean"]),
    "a value that is no tensor": (lambda: md.value_and_grad(lambda w: 2.0)(W), ["value_and_grad", "not float"]),
    "gradients of arrays": (lambda: md.value_and_grad(lambda w: w)(jnp.ones(3)), ["value_and_grad", "pytree of Tensors", "Array"]),
    "nothing to accumulate": (
        lambda: md.value_and_grad(lambda w, x: md.sum(w), accumulate=T)(W, X), ["value_and_grad", "no argument", "t=2"]),
}  # fmt: skip


@pytest.fixture(scope="module")
def caught(tmp_path_factory):
    file.folder = tmp_path_factory.mktemp("layouts")
    found = {}
    for name, (fn, _) in ERRORS.items():
        try:
            fn()
        except Exception as e:  # noqa: BLE001
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
    places = [package / f"{name}.py" for name in ("dims", "tensor", "layout", "mesh")]
    places += [p for folder in ("ops", "lowering") for p in sorted((package / folder).glob("*.py"))]
    raised = set()
    for path in places:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise) and node.exc is not None:
                raised.add((str(path), node.lineno, node.end_lineno))
    seen = [(f.filename, f.lineno) for e in caught.values() for f in traceback.extract_tb(e.__traceback__)]
    missing = [(p, a) for p, a, b in raised if not any(f == p and a <= line <= b for f, line in seen)]
    assert not missing


def test_an_optional_dim_may_be_missing_and_a_known_one_be_untouched():
    assert model(["a -> data", "heads? -> model"]).split == {A: ("data",)}
    layout = md.Layout(["a -> data", "heads -> model"], mesh=MESH)
    assert Lowered(lambda x: x * 2, layout, md.make_mesh(layout), dims=["heads"])(X).split == {A: ("data",)}
