"""Tensors, layouts and calls that the tables of errors are about."""

from pathlib import Path

import jax
import jax.numpy as jnp

import meshdsl as md
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
