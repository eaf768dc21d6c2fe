"""Tensors, layouts and calls that the tables of errors are about."""

from pathlib import Path

import jax
import jax.numpy as jnp

import meshdsl as md
from tests.helpers import data, dims, integers, weight

A, B, C, T = dims(a=4, b=8, c=3, t=2)
X, Y, W, IDS = data(A, B), data(B, C), weight(A, B), integers(A, below=4)
SCALAR, EMPTY, IMAGE = md.tensor(1.0, ()), data(md.Dim("n", 0), B), data(A, B, C)
MESH = {"data": 2, "model": 4}
LAYOUT = md.Layout(["a -> data", "b -> model"], mesh=MESH)


def lowered(fn, *args):
    """`fn` called in a lowering that splits `a` over `data` and `b` over `model`."""
    return md.lower(fn, LAYOUT, dims=["a", "b"])(*(args or (X,)))


def under(rules, fn=lambda x: x * 2, *args, **how):
    """`fn` called in a lowering under a layout with these `rules`."""
    layout = md.Layout(rules, mesh=MESH, name="layout dp.toml", **how)
    return md.lower(fn, layout)(*(args or (X,)))


def traced(fn):
    """`fn` of a whole number that is known only when the program runs."""
    return jax.eval_shape(lambda i: fn(i) and None, jnp.int32(1))


def shape(*dims):
    """A Tensor with a shape, and without numbers."""
    return md.tensor(jax.ShapeDtypeStruct([d.size for d in dims], jnp.float32), dims)


def file(text):
    """A layout file with this text, read."""
    path = Path(file.folder) / "dp.toml"
    path.write_text(text)
    return md.Layout.load(path)
