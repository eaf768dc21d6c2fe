"""Errors about layouts and meshes: their files, their rules, and sizes that do not fit."""

import jax

import meshdsl as md
from meshdsl.mesh import arrange, check_slices
from tests.errors.common import MESH, A, Y, file, under
from tests.helpers import data

ERRORS = {
    # Files.
    "not TOML": (lambda: file("[layout\nrules"), ["dp.toml", "not valid TOML", "line 1"]),
    "no such file": (
        lambda: md.Layout.load("nowhere.toml"),
        ["layout nowhere.toml", "cannot be read", "No such file"],
    ),
    "load a number": (
        lambda: md.Layout.load(3),
        ["layout: a file, or the name of a shipped layout such as 'fsdp', not 3"],
    ),
    "load what is not shipped": (
        lambda: md.Layout.load("fspd"),
        ["layout fspd: no such file", "did you mean `fsdp`?"],
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
    "a layout that is called by a number": (
        lambda: md.Layout(name=3),
        ["layout: its name", "not 3"],
    ),
    # Rules.
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
    "a rule that names a dim twice": (
        lambda: md.Layout(["a, a -> x"]),
        ["rule 1: dim `a` is named twice in 'a, a -> x'"],
    ),
    "a rule that names a dim twice, once optional": (
        lambda: md.Layout(["a, b, a? -> x"]),
        ["dim `a` is named twice in 'a, b, a? -> x'"],
    ),
    "a table for a rule with another key": (
        lambda: md.Layout([{"rul": "a -> data"}], name="layout dp.toml"),
        ["layout dp.toml, rule 1", "unknown key `rul`", "did you mean `rule`?"],
    ),
    "gather, misspelt": (
        lambda: md.Layout(["a -> data"], gather="steps"),
        ["layout: gather is 'layer' or 'step', not 'steps'; did you mean `step`?"],
    ),
    "sum, misspelt": (
        lambda: file('[layout]\nsum = "layers"'),
        ["layout dp.toml", "sum is 'step' or 'layer', not 'layers'; did you mean `layer`?"],
    ),
    "gradients that are no list": (
        lambda: md.Layout(["a -> data"], gradients="b -> data"),
        ["layout, gradients: a list of strings such as"],
    ),
    "a malformed gradients rule": (
        lambda: md.Layout(["a -> data"], gradients=["b"]),
        ["layout, gradients rule 1: 'b' is not of the form"],
    ),
    "uneven, misspelt": (
        lambda: file('[layout]\nuneven = "padd"'),
        ["layout dp.toml", "uneven is 'error' or 'pad'", "not 'padd'", "did you mean `pad`?"],
    ),
    "uneven of a rule": (
        lambda: md.Layout([{"rule": "a -> data", "uneven": True}], name="layout dp.toml"),
        ["layout dp.toml, rule 1", "'error' or 'pad'", "not True"],
    ),
    "a ring of parameters": (
        lambda: md.Layout(parameters=[{"rule": "a -> data", "move": "ring"}]),
        ['parameters rule 1: move = "ring" is of the list `rules`', "`parameters` splits"],
    ),
    "strict that is a word": (
        lambda: file('[layout]\nstrict = "yes"'),
        ["strict is true or false", "'yes'"],
    ),
    # Rules that do not fit the mesh, or what is lowered.
    "an axis that the mesh lacks": (
        lambda: md.Layout(["a -> modl"], mesh=MESH),
        ["rule 1", "no axis `modl`", "did you mean `model`?"],
    ),
    "an axis of a gradients rule that the mesh lacks": (
        lambda: md.Layout(["a -> data"], gradients=["b -> dat"], mesh=MESH),
        ["layout, gradients rule 1: no axis `dat` in the mesh; did you mean `data`?"],
    ),
    "a dim of a gradients rule that nothing has": (
        lambda: md.Layout(gradients=["d_f -> data"]).check_dims(["d_ff"]),
        ["layout, gradients rule 1: no dim `d_f`"],
    ),
    "an axis that another mesh lacks": (
        lambda: md.lower(len, md.Layout(["a -> model"]), md.make_mesh({"data": 8})),
        ["rule 1", "no axis `model`", "known: `data`"],
    ),
    "a dim that nothing has": (
        lambda: under(["a -> data", "heds -> model"], lambda x: x * 2),
        ["layout dp.toml, rule 2", "no dim `heds`", "known: `a`, `b`"],
    ),
    "a dim that nothing has, nearly": (
        lambda: under(["bath -> data"], lambda x: md.rename(x, "a", "batch")),
        ["rule 1", "no dim `bath`", "did you mean `batch`?"],
    ),
    "a size that does not divide": (
        lambda: under(["a -> data", "c -> model"], lambda x: x, Y, optimizer=["b -> data"]),
        [
            "layout dp.toml, rule 2",
            "c -> model",
            "`c`=3 does not divide over `model`=4",
            "a `model` of 1 or 3",
            'or uneven = "pad"',
        ],
    ),
    "a size that does not divide over two axes": (
        lambda: under(["b -> data", "a -> data, model"], lambda x: x, data(A)),
        ["rule 2", "`a`=4 does not divide over `data`=2 x `model`=4"],
    ),
    "an order, misspelt": (
        lambda: md.Layout([{"rule": "a -> data", "order": "zigzga"}]),
        ["layout, rule 1: order is 'natural' or 'zigzag', not 'zigzga'; did you mean `zigzag`?"],
    ),
    "an order of what is at rest": (
        lambda: md.Layout(parameters=[{"rule": "a -> data", "order": "zigzag"}]),
        ['parameters rule 1: order = "zigzag" is of the list `rules`', "natural order"],
    ),
    "two orders of one dim": (
        lambda: md.Layout([{"rule": "a -> data", "order": "zigzag"}, "b, a -> model"]),
        [
            "layout, rule 2: b, a -> model: `a` is in natural order over `model` here",
            "in zigzag order over `data` in layout, rule 1: a -> data",
            "all rules of a dim have one order",
        ],
    ),
    "a size that does not divide into blocks": (
        lambda: under([{"rule": "a -> model", "order": "zigzag"}]),
        [
            "layout dp.toml, rule 1: a -> model: `a`=4 does not divide into 8 blocks",
            '2 for each part over `model`=4, which order = "zigzag" takes',
            "use a `model` of 1 or 2",
            'uneven = "pad"',
        ],
    ),
    "a size that does not divide into blocks over two axes": (
        lambda: under([{"rule": "b -> data, model", "order": "zigzag"}]),
        [
            "`b`=8 does not divide into 16 blocks, 2 for each part over `data`=2 x `model`=4",
            "use axes whose product, times 2, divides it",
        ],
    ),
    "a placement by hand that does not divide into blocks": (
        lambda: under(
            [{"rule": "a -> data", "order": "zigzag"}], lambda x: md.reshard(x, {"a": "model"})
        ),
        ["reshard: `a`=4 does not divide over `model`=4 in zigzag order, into 8 blocks"],
    ),
    "two dims that want one axis, strict": (
        lambda: under(["a -> data", "b -> data"], strict=True),
        [
            "rule 2",
            "`b` and `a` both want axis `data`",
            "[a, b]",
            "strict = true",
            "rule 1: a -> data",
        ],
    ),
    # Meshes.
    "a mesh that is no table": (
        lambda: file("mesh = 3"),
        ["layout dp.toml, mesh", '{"data": 4}', "not 3"],
    ),
    "a size that is a word": (
        lambda: file('[mesh]\ndata = "all"'),
        ["mesh", "axis `data`", '"rest"', "'all'"],
    ),
    "two rests": (
        lambda: file('[mesh]\ndata = "rest"\nmodel = "rest"'),
        ["only one axis can be", "data", "model"],
    ),
    "an axis that is called by a number": (
        lambda: md.Layout(mesh={1: 2}),
        ["an axis has a name such as 'data', not 1"],
    ),
    "make_mesh of a number": (
        lambda: md.make_mesh(3),
        ["make_mesh: `layout` is a Layout or a mapping, not 3"],
    ),
    "a mesh of another size": (
        lambda: md.make_mesh(MESH, jax.devices()[:4]),
        ["data=2, model=4", "needs 8 devices", "4 are given", "rest"],
    ),
    "a mesh that is too large": (
        lambda: md.make_mesh({"data": 16}),
        ["mesh data=16 needs 16 devices and 8 are given"],
    ),
    "no axes": (lambda: md.make_mesh({}, jax.devices()), ["of one device", "8 are given", "use 1"]),
    "a mesh of nothing": (
        lambda: md.make_mesh({"data": 0}),
        ["mesh", "axis `data`", "at least 1", "not 0"],
    ),
    "a mesh that JAX cannot arrange": (
        lambda: arrange({"data": 8}, jax.devices()[:6]),
        ["mesh data=8", "no place for it on these 6 devices"],
    ),
    "a rest that does not fit": (
        lambda: md.make_mesh(md.Layout(mesh={"data": "rest", "model": 3})),
        ["layout", "data=rest, model=3", "3 does not divide 8"],
    ),
    # Axes across slices.
    "an axis within slices and across them": (
        lambda: file("[mesh]\ndata = 2\n[mesh.dcn]\ndata = 2"),
        ["dp.toml, mesh.dcn", "axis `data` is in [mesh] too; an axis goes across slices or lies"],
    ),
    "an axis across no slices": (
        lambda: md.Layout.from_dict({"mesh": {"data": 2, "dcn": {"replica": 0}}}),
        ["the size of axis `replica` is a whole number of at least 1"],
    ),
    "two rests, one across slices": (
        lambda: md.Layout.from_dict({"mesh": {"data": "rest", "dcn": {"replica": "rest"}}}),
        ['only one axis can be "rest"'],
    ),
    "axes across slices that are one word": (
        lambda: md.Layout(mesh=MESH, dcn="data"),
        ["mesh.dcn: a list of axes, not 'data'"],
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
}
