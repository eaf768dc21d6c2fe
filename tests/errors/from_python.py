"""What is wrong with a call of `md.init`, `md.explain` and the like, and what the error says."""

import jax
import jax.numpy as jnp

import meshdsl as md
from tests.errors.common import MESH, T, W, X, lowered

KEY = jax.random.key(0)
LAYOUT = md.Layout(["a -> data", "b -> model"], mesh=MESH, name="layout dp.toml")
LOWERED = md.lower(md.sin, LAYOUT)


def fails(x):
    """A user's function with a mistake that meshdsl finds."""
    return md.sum(x, "width")


ERRORS = [
    (
        lambda: md.init(lambda key: {"w": jax.random.normal(key, (4,))}, KEY, LAYOUT),
        "init: `<lambda>` makes no Tensors … of type dict … md.parameter(array, dims)",
    ),
    (
        lambda: md.init(lambda key: W, "seed", LAYOUT),
        "init: the key … jax.random.key(seed) … 'seed'",
    ),
    (
        lambda: md.init(
            lambda key: md.parameter(jnp.zeros(2), T), KEY, md.Layout(["t -> x"], mesh={"x": 4})
        ),
        "rule 1: t -> x: `t`=2 does not divide over `x`=4; use a `x` of 1 or 2",
    ),
    (
        lambda: md.init(lambda key: W, KEY, LAYOUT, md.make_mesh({"data": 8})),
        "layout dp.toml, rule 2: no axis `model` in the mesh",
    ),
    (lambda: md.global_norm([X, jnp.ones(3)]), "global_norm … a pytree of Tensors … ArrayImpl"),
    (lambda: md.clip_by_global_norm(0.0), "clip_by_global_norm: a norm above 0, not 0.0"),
    (
        lambda: md.explain(jnp.sin, jnp.ones(3), layout=LAYOUT),
        "explain: no argument is a Tensor … `sin` … md.tensor(array, dims)",
    ),
    (lambda: md.explain(md.sin, layout=LAYOUT), "explain: no arguments are given … `sin`"),
    (
        lambda: md.explain(md.sin, X),
        "explain: `layout` says how `sin` is split … md.Layout.load(file)",
    ),
    (
        lambda: md.explain(LOWERED, X, layout=LAYOUT),
        "explain: `sin` is lowered already, by layout dp.toml … md.lower",
    ),
    (
        lambda: md.explain(md.sin, X, layout=LAYOUT, target=8),
        "explain: `target` is a machine such as 'v5p:4x4x4', not 8",
    ),
    (
        lambda: md.explain(md.sin, X, layout=LAYOUT, target="v5e:4x4"),
        "mesh data=2 model=4 is of 8 devices and v5e:4x4 has 16; use data=",
    ),
    (
        lambda: md.explain(md.sin, X, layout=LAYOUT, mesh=8),
        "explain: `mesh` is a mesh, a mesh without devices, a mapping or None, not 8",
    ),
    (
        lambda: lowered(lambda x: md.explain(md.sin, x, layout=LAYOUT), X),
        "explain: is called inside of a lowering",
    ),
    (lambda: md.explain(fails, X, layout=LAYOUT), "sum … width … a=4, b=8"),
    (
        lambda: md.compile(
            md.sin, X, layout=LAYOUT, target="cpu:64", mesh={"data": 64, "model": 1}
        ),
        "target cpu:64 … 8 CPU devices",
    ),
    (
        lambda: md.compile(md.sin, X, layout=LAYOUT, options={"xla_make_it_fast": "True"}),
        "option `xla_make_it_fast`: the compiler for cpu:8 has no such option",
    ),
    (
        lambda: md.compare(LOWERED, X, layouts=[LAYOUT], target="cpu:8"),
        "compare: `sin` is lowered already … the function itself",
    ),
    (
        lambda: md.compare(md.sin, X, layouts=[], target="cpu:8"),
        "compare: `layouts` has no layout in it",
    ),
    (
        lambda: md.compare(md.sin, X, layouts=["fsdp"], target="cpu:8"),
        "each of `layouts` is a Layout, not 'fsdp' … md.Layout.load",
    ),
    (
        lambda: md.compare(
            fails,
            X,
            layouts=[LAYOUT, md.Layout(["a -> x"], mesh={"x": 8}, uneven="pad")],
            target="cpu:8",
        ),
        "sum … width … a=4, b=8",
    ),
]
