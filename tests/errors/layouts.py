"""Errors about layouts and meshes: their files, their rules, and sizes that do not fit."""

import jax

import meshdsl as md
from meshdsl.mesh import arrange
from tests.errors.common import MESH, A, Y, file, under
from tests.helpers import data

ERRORS = [
    # Files.
    (lambda: file("[layout\nrules"), "dp.toml: not valid TOML … line 1"),
    (lambda: md.Layout.load("nowhere.toml"), "layout nowhere.toml: cannot be read: No such file"),
    (
        lambda: md.Layout.load(3),
        "layout: a file, or the name of a shipped layout such as 'fsdp', not 3",
    ),
    (lambda: md.Layout.load("fspd"), "layout fspd: no such file … did you mean `fsdp`?"),
    (
        lambda: file("[layuot]\nrules = []"),
        "layout dp.toml: unknown key `layuot`; did you mean `layout`?",
    ),
    (lambda: file("[layout]\nrule = []"), "layout dp.toml … `layout.rule`; did you mean `rules`?"),
    (lambda: file("layout = 3"), "layout dp.toml: `layout` is a table, not 3"),
    (lambda: md.Layout(name=3), "layout: its name … not 3"),
    # Rules.
    (lambda: file('[layout]\nrules = "a -> data"'), "dp.toml, rules … list of strings … a -> data"),
    (
        lambda: file('[layout]\nrules = ["a -> b", "a => b"]'),
        "dp.toml, rule 2: 'a => b' … dim, ... -> axis, ...",
    ),
    (lambda: md.Layout(["a -> data, data"]), "rule 1 … `data` is named twice … 'a -> data, data'"),
    (lambda: md.Layout(["a, a -> x"]), "rule 1: dim `a` is named twice in 'a, a -> x'"),
    (
        lambda: md.Layout([{"rul": "a -> data"}], name="layout dp.toml"),
        "layout dp.toml, rule 1: unknown key `rul`; did you mean `rule`?",
    ),
    (
        lambda: md.Layout(["a -> data"], gather="steps"),
        "layout: gather is 'layer' or 'step', not 'steps'; did you mean `step`?",
    ),
    (
        lambda: file('[layout]\nuneven = "padd"'),
        "layout dp.toml: uneven is 'error' or 'pad', not 'padd'; did you mean `pad`?",
    ),
    (
        lambda: md.Layout([{"rule": "a -> data", "uneven": True}], name="layout dp.toml"),
        "layout dp.toml, rule 1 … 'error' or 'pad', not True",
    ),
    (
        lambda: md.Layout(parameters=[{"rule": "a -> data", "move": "ring"}]),
        'parameters rule 1: move = "ring" is of the list `rules` … `parameters` splits',
    ),
    (lambda: file('[layout]\nstrict = "yes"'), "strict is true or false … 'yes'"),
    # Rules that do not fit the mesh, or what is lowered.
    (lambda: md.Layout(["a -> modl"], mesh=MESH), "rule 1: no axis `modl` … did you mean `model`?"),
    (
        lambda: under(["bath -> data"], lambda x: md.rename(x, "a", "batch")),
        "rule 1: no dim `bath` … did you mean `batch`?",
    ),
    (
        lambda: under(["a -> data", "c -> model"], lambda x: x, Y, optimizer=["b -> data"]),
        "layout dp.toml, rule 2: c -> model: `c`=3 does not divide over `model`=4 … a "
        '`model` of 1 or 3, or uneven = "pad"',
    ),
    (
        lambda: under(["b -> data", "a -> data, model"], lambda x: x, data(A)),
        "rule 2 … `a`=4 does not divide over `data`=2 x `model`=4",
    ),
    (
        lambda: md.Layout([{"rule": "a -> data", "order": "zigzga"}]),
        "layout, rule 1: order is 'natural' or 'zigzag', not 'zigzga'; did you mean `zigzag`?",
    ),
    (
        lambda: md.Layout(parameters=[{"rule": "a -> data", "order": "zigzag"}]),
        'parameters rule 1: order = "zigzag" is of the list `rules` … natural order',
    ),
    (
        lambda: md.Layout([{"rule": "a -> data", "order": "zigzag"}, "b, a -> model"]),
        "layout, rule 2: b, a -> model: `a` is in natural order over `model` here … in "
        "zigzag order over `data` in layout, rule 1: a -> data; all rules of a dim have one "
        "order",
    ),
    (
        lambda: under([{"rule": "a -> model", "order": "zigzag"}]),
        "layout dp.toml, rule 1: a -> model: `a`=4 does not divide into 8 blocks, 2 for each "
        'part over `model`=4, which order = "zigzag" takes; use a `model` of 1 or 2 … uneven '
        '= "pad"',
    ),
    (
        lambda: under(
            [{"rule": "a -> data", "order": "zigzag"}], lambda x: md.reshard(x, {"a": "model"})
        ),
        "reshard: `a`=4 does not divide over `model`=4 in zigzag order, into 8 blocks",
    ),
    (
        lambda: under(["a -> data", "b -> data"], strict=True),
        "rule 2 … `b` and `a` both want axis `data` … [a, b] … strict = true … rule 1: a -> data",
    ),
    # Meshes.
    (lambda: file("mesh = 3"), 'layout dp.toml, mesh … {"data": 4}, not 3'),
    (lambda: file('[mesh]\ndata = "all"'), "mesh … axis `data` … \"rest\" … 'all'"),
    (lambda: file('[mesh]\ndata = "rest"\nmodel = "rest"'), "only one axis can be … data … model"),
    (lambda: md.Layout(mesh={1: 2}), "an axis has a name such as 'data', not 1"),
    (lambda: md.make_mesh(3), "make_mesh: `layout` is a Layout or a mapping, not 3"),
    (
        lambda: md.make_mesh(MESH, jax.devices()[:4]),
        "data=2, model=4 needs 8 devices … 4 are given … rest",
    ),
    (lambda: md.make_mesh({}, jax.devices()), "of one device … 8 are given; use 1"),
    (lambda: md.make_mesh({"data": 0}), "mesh … axis `data` … at least 1 … not 0"),
    (
        lambda: arrange({"data": 8}, jax.devices()[:6]),
        "mesh data=8 … no place for it on these 6 devices",
    ),
    (
        lambda: md.make_mesh(md.Layout(mesh={"data": "rest", "model": 3})),
        "layout … data=rest, model=3 … 3 does not divide 8",
    ),
    # Axes across slices.
    (
        lambda: file("[mesh]\ndata = 2\n[mesh.dcn]\ndata = 2"),
        "dp.toml, mesh.dcn: axis `data` is in [mesh] too; an axis goes across slices or lies",
    ),
    (
        lambda: md.Layout.from_dict({"mesh": {"data": 2, "dcn": {"replica": 0}}}),
        "the size of axis `replica` is a whole number of at least 1",
    ),
    (lambda: md.Layout(mesh=MESH, dcn="data"), "mesh.dcn: a list of axes, not 'data'"),
    (
        lambda: md.Layout(mesh={"data": 2, "replica": 2}, dcn=["replica"]),
        "mesh.dcn: axes across slices, [replica], stand first in the mesh, which is [data, "
        "replica]",
    ),
]
