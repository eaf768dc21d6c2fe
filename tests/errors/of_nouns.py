"""What is wrong with dims, tensors, layouts and meshes, and what the error says."""

import jax
import numpy as np

import meshdsl as md
from meshdsl.mesh import abstract_mesh, arrange, check_slices
from tests.errors.common import KEY, MESH, A, B, C, X, Y, file, lower, mesh, model, spent
from tests.helpers import data

ERRORS = {
    # Dims and tensors.
    "a name that is not a word": (
        lambda: md.Dim("d model", 4),
        ["Dim", "identifier", "`d_model`", "'d model'"],
    ),
    "a name that is not text": (lambda: md.Dim(4, 4), ["Dim", "identifier", "not 4"]),
    "a size that is no number": (lambda: md.Dim("a", 4.5), ["size of `a`", "whole number", "4.5"]),
    "a negative size": (lambda: md.Dim("a", -1), ["size of `a`", "at least 0", "-1"]),
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
    "a parameter that contracts another": (
        lambda: md.parameter(np.zeros(4), (A,), ins=(B,)),
        ["parameter", "no dim `b`", "[a=4]"],
    ),
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
    "a tensor of a tensor": (
        lambda: md.tensor(X, (A, B)),
        ["tensor", "a Tensor [a=4, b=8] already", "md.rename"],
    ),
    "an array that lost a dim": (
        lambda: md.sum(jax.tree.map(lambda v: v[0], X), "a"),
        [
            "sum",
            "[a=4, b=8] needs an array of shape (4, 8)",
            "holds an array of shape (8,)",
            "jax.tree.map",
            "md.tensor(array, dims)",
        ],
    ),
    "no such dim": (lambda: X.dim("aa"), ["no dim `aa`", "[a=4, b=8]", "did you mean `a`?"]),
    "nothing like it": (lambda: md.sum(X, "heads"), ["sum", "no dim `heads`", "known: `a`, `b`"]),
    "a number for a dim": (
        lambda: md.sum(X, 0),
        ["sum", "a Dim or by its name", "not 0", "[a=4, b=8]"],
    ),
    "an array for a dim": (
        lambda: md.cumsum(X, np.ones(2)),
        ["cumsum", "of type ndarray", "[a=4, b=8]"],
    ),
    "another size": (
        lambda: md.mean(X, md.Dim("a", 5)),
        ["mean", "`a` is 5 here and 4 in [a=4, b=8]"],
    ),
    "a truth value": (lambda: bool(X), ["Tensor [a=4, b=8] has no truth value", "md.where"]),
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
    # Layouts.
    "uneven, misspelt": (
        lambda: file('[layout]\nuneven = "padd"'),
        ["layout dp.toml", "uneven is 'error' or 'pad'", "not 'padd'", "did you mean `pad`?"],
    ),
    "uneven of a rule": (
        lambda: md.Layout([{"rule": "a -> data", "uneven": True}], name="layout dp.toml"),
        ["layout dp.toml, rule 1", "'error' or 'pad'", "not True"],
    ),
    "a table for a rule with another key": (
        lambda: md.Layout([{"rul": "a -> data"}], name="layout dp.toml"),
        ["layout dp.toml, rule 1", "unknown key `rul`", "did you mean `rule`?"],
    ),
    "reshard a dim that is not there": (
        lambda: lower(lambda x: md.reshard(x, {"c": "data"}), X),
        ["reshard", "no dim `c`", "[a=4, b=8]"],
    ),
    "reshard over an axis that is not there": (
        lambda: lower(lambda x: md.reshard(x, {"a": "dat"}), X),
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
        lambda: lower(lambda y: md.reshard(y, {"c": "model"}), Y),
        ["reshard", "`c`=3 does not divide over `model`=4", 'uneven = "pad"'],
    ),
    "an unknown table": (
        lambda: file("[layuot]\nrules = []"),
        ["layout dp.toml", "unknown key `layuot`", "did you mean `layout`?"],
    ),
    "an unknown key": (
        lambda: file("[layout]\nrule = []"),
        ["layout dp.toml", "`layout.rule`", "did you mean `rules`?"],
    ),
    "no table": (lambda: file("layout = 3"), ["layout dp.toml", "`layout` is a table", "not 3"]),
    "a mesh that is no table": (
        lambda: file("mesh = 3"),
        ["layout dp.toml, mesh", '{"data": 4}', "not 3"],
    ),
    "not TOML": (lambda: file("[layout\nrules"), ["dp.toml", "not valid TOML", "line 1"]),
    "no such file": (
        lambda: md.Layout.load("nowhere.toml"),
        ["layout nowhere.toml", "cannot be read", "No such file"],
    ),
    "a size that is a word": (
        lambda: file('[mesh]\ndata = "all"'),
        ["mesh", "axis `data`", '"rest"', "'all'"],
    ),
    "two rests": (
        lambda: file('[mesh]\ndata = "rest"\nmodel = "rest"'),
        ["only one axis can be", "data", "model"],
    ),
    "an axis within slices and across them": (
        lambda: file("[mesh]\ndata = 2\n[mesh.dcn]\ndata = 2"),
        ["dp.toml, mesh.dcn", "axis `data` is in [mesh] too"],
    ),
    "axes across slices that do not come first": (
        lambda: md.Layout(mesh={"data": 2, "replica": 2}, dcn=["replica"]),
        [
            "mesh.dcn",
            "axes across slices, [replica], stand first in the mesh, which is [data, replica]",
        ],
    ),
    "axes across slices that do not match them": (
        lambda: check_slices(
            md.Layout(mesh={"replica": 3, "data": 2}, dcn=["replica"]),
            {"replica": 3, "data": 2},
            2,
            "slices",
        ),
        ["mesh.dcn", "replica=3 is of 3 slices, and there are 2 slices; use 2"],
    ),
    "gradients summed in a whole number": (
        lambda: md.value_and_grad(lambda x: x, reduce="int32"),
        ["value_and_grad: reduce", "'int32'"],
    ),
    "strict that is a word": (
        lambda: file('[layout]\nstrict = "yes"'),
        ["strict is true or false", "'yes'"],
    ),
    "rules that are no list": (
        lambda: file('[layout]\nrules = "a -> data"'),
        ["dp.toml, rules", "list of strings", "a -> data"],
    ),
    "rules that are a number": (
        lambda: file("[layout]\noptimizer = 3"),
        ["dp.toml, optimizer", "list of strings", "not 3"],
    ),
    "a malformed rule": (
        lambda: file('[layout]\nrules = ["a -> b", "a => b"]'),
        ["dp.toml, rule 2", "'a => b'", "dim, ... -> axis, ..."],
    ),
    "a malformed parameter rule": (
        lambda: file('[layout]\nparameters = ["-> b"]'),
        ["parameters rule 1", "'-> b'"],
    ),
    "an axis named twice": (
        lambda: md.Layout(["a -> data, data"]),
        ["rule 1", "`data` is named twice", "'a -> data, data'"],
    ),
    "an axis that the mesh lacks": (
        lambda: md.Layout(["a -> modl"], mesh=MESH),
        ["rule 1", "no axis `modl`", "did you mean `model`?"],
    ),
    "an axis that another mesh lacks": (
        lambda: md.lower(len, md.Layout(["a -> model"]), md.make_mesh({"data": 8})),
        ["rule 1", "no axis `model`", "known: `data`"],
    ),
    "a dim that nothing has": (
        lambda: model(["a -> data", "heds -> model"], lambda x: x * 2),
        ["layout dp.toml, rule 2", "no dim `heds`", "known: `a`, `b`"],
    ),
    "a dim that nothing has, nearly": (
        lambda: model(["bath -> data"], lambda x: md.rename(x, "a", "batch")),
        ["rule 1", "no dim `bath`", "did you mean `batch`?"],
    ),
    "indivisible": (
        lambda: model(["a -> data", "c -> model"], lambda x: x, Y, optimizer=["b -> data"]),
        [
            "layout dp.toml, rule 2",
            "c -> model",
            "`c`=3 does not divide over `model`=4",
            "a `model` of 1 or 3",
            'or uneven = "pad"',
        ],
    ),
    "indivisible over two axes": (
        lambda: model(["b -> data", "a -> data, model"], lambda x: x, data(A)),
        ["rule 2", "`a`=4 does not divide over `data`=2 x `model`=4"],
    ),
    "strict": (
        lambda: model(["a -> data", "b -> data"], strict=True),
        [
            "rule 2",
            "`b` and `a` both want axis `data`",
            "[a, b]",
            "strict = true",
            "rule 1: a -> data",
        ],
    ),
    # Meshes.
    "a mesh of another size": (
        lambda: md.make_mesh(MESH, jax.devices()[:4]),
        ["data=2, model=4", "needs 8 devices", "4 are given", "rest"],
    ),
    "a call on a mesh without devices": (
        lambda: md.lower(md.square, md.Layout(mesh=MESH), abstract_mesh(MESH))(
            md.tensor(np.zeros(4), (A,))
        ),
        ["square", "without devices", "make_mesh"],
    ),
    "a mesh that JAX cannot arrange": (
        lambda: arrange({"data": 8}, jax.devices()[:6]),
        ["mesh data=8", "no place for it on these 6 devices"],
    ),
    "a mesh that is too large": (
        lambda: md.make_mesh({"data": 16}),
        ["mesh data=16 needs 16 devices and 8 are given"],
    ),
    "no axes": (lambda: md.make_mesh({}, jax.devices()), ["of one device", "8 are given", "use 1"]),
    "a rest that does not fit": (
        lambda: md.make_mesh(md.Layout(mesh={"data": "rest", "model": 3})),
        ["layout", "data=rest, model=3", "3 does not divide 8"],
    ),
    "a mesh of nothing": (
        lambda: md.make_mesh({"data": 0}),
        ["mesh", "axis `data`", "at least 1", "not 0"],
    ),
}
