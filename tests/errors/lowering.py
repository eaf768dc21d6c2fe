"""Errors about `lower`, and about what a lowered function takes, does and returns."""

import jax
import jax.numpy as jnp
import numpy as np

import meshdsl as md
from meshdsl.mesh import abstract_mesh
from tests.errors.common import LAYOUT, MESH, A, B, W, X, lowered, shape

ALIKE = "differs between devices along"


def kept():
    """A Tensor that was kept from a traced function."""
    found = []
    jax.eval_shape(lambda x: found.append(x), X)
    return found[0]


def leaked():
    """A Tensor that was kept from a lowering."""
    found = []
    md.lower(lambda x: found.append(x) or x, LAYOUT, dims=["a", "b"]).trace(X)
    return found[0]


def explicit_mesh():
    kinds = (jax.sharding.AxisType.Explicit,) * len(MESH)
    return jax.make_mesh(tuple(MESH.values()), tuple(MESH), axis_types=kinds)


def twice(x):
    return x * 2


ERRORS = {
    # What `lower` is told.
    "lower with a dict": (
        lambda: md.lower(twice, {"rules": []}),
        ["lower: `layout` is a Layout, not of type dict", "md.Layout(rules, mesh={...})"],
    ),
    "lower with a path": (
        lambda: md.lower(twice, "fsdp"),
        ["lower: `layout` is a Layout, not 'fsdp'", "md.Layout.load(file)"],
    ),
    "lower for a mesh that says itself how arrays are split": (
        lambda: md.lower(twice, LAYOUT, explicit_mesh()),
        ["mesh of", "axes of type Explicit, `", "AxisType.Auto"],
    ),
    "lower a number": (lambda: md.lower(3, LAYOUT), ["lower: `fn` is a function, not 3"]),
    "lower on a dict": (
        lambda: md.lower(twice, LAYOUT, MESH),
        ["lower: `mesh` is a mesh", "not of type dict", "md.make_mesh(layout)"],
    ),
    "lower with numbers for dims": (
        lambda: md.lower(twice, LAYOUT, dims=[1]),
        ["lower: `dims` are Dims, or their names, not 1"],
    ),
    "arguments to donate that are no positions": (
        lambda: md.lower(twice, LAYOUT, donate_argnums=["x"]),
        ["lower: donate_argnums are positions of arguments", "not 'x'"],
    ),
    "the record before a trace": (
        lambda: md.lower(lambda x: x, md.Layout()).record,
        ["not traced yet", "program(*args)"],
    ),
    "a call on a mesh without devices": (
        lambda: md.lower(md.square, md.Layout(mesh=MESH), abstract_mesh(MESH))(
            md.tensor(np.zeros(4), (A,))
        ),
        ["square", "without devices", "make_mesh"],
    ),
    # Arguments and results.
    "an argument that is a word": (
        lambda: lowered(twice, "x"),
        ["twice: `argument[0]` is 'x'", "Tensors, arrays and numbers"],
    ),
    "an argument that is a shape": (
        lambda: lowered(twice, shape(A, B)),
        ["twice: `argument[0]` is of type Tensor; a shape without data", "`program`"],
    ),
    "an argument of another shape": (
        lambda: lowered(lambda x: x, md.Tensor(jnp.ones((4, 7)), (A, B))),
        ["(4, 7)", "[a=4, b=8]"],
    ),
    "the state of an optimizer, of other shapes": (
        lambda: md.lower(lambda w, state: w, LAYOUT, dims=["a", "b"], optimizer_argnums=1)(
            W, jax.tree.map(lambda array: array[:1], W)
        ),
        ["the state of the optimizer has an array of shape (1, 8)", "[a=4, b=8]", "adafactor"],
    ),
    "a result that is a word": (
        lambda: lowered(lambda x: {"y": [x, "y"]}),
        ["`result['y'][1]` is 'y'", "Tensors, arrays and numbers"],
    ),
    # Arrays that differ between devices.
    "the array of a part": (
        lambda: lowered(lambda x: x.array),
        [f"`result` is an array that {ALIKE} `data` and `model`", "md.replicate(x).array"],
    ),
    "the array of a pending sum": (
        lambda: lowered(lambda x: (x, md.sum(x, B).array)),
        [f"`result[1]` is an array that {ALIKE}", "pending", "md.replicate"],
    ),
    "a leaf of a part": (
        lambda: lowered(lambda x: jax.tree.leaves(x)[0]),
        [ALIKE, "a sum that is pending"],
    ),
    "a pending sum in jnp": (
        lambda: lowered(lambda x: x * jnp.exp(md.sum(x).array)),
        [f"multiply: an operand [] is an array that {ALIKE}"],
    ),
    "a pending sum given dims": (
        lambda: lowered(lambda x: md.tensor(md.sum(x).array, ())),
        [f"`result`: an operand [] is an array that {ALIKE}"],
    ),
    "a part in the carry": (
        lambda: lowered(
            lambda x: md.scan(lambda c, y: (c + jnp.sum(y.array), ()), jnp.float32(0), x, dim=A)[0]
        ),
        [f"scan: a leaf of the result of the body is an array that {ALIKE}"],
    ),
    "a sum of the parts of a Tensor": (
        lambda: lowered(lambda x: jax.tree.map(lambda part: part * jnp.sum(part), x)),
        ["works on one device's part of an array", "md.sum, md.global_norm"],
    ),
    # Tensors of another lowering, or of a trace that has ended.
    "an argument of the lowering around it": (
        lambda: lowered(lambda x: lowered(lambda y: y, x), X),
        ["belongs to another lowering", "from outside"],
    ),
    "an argument of another lowering": (
        lambda: md.lower(twice, LAYOUT)(leaked()),
        ["twice: an argument belongs to another lowering"],
    ),
    "an operand of another lowering": (
        lambda: lowered(lambda x, y=leaked(): x + y, X),
        ["add", "two different lowerings"],
    ),
    "a lowered function inside of another": (
        lambda: lowered(lambda x: lowered(twice) and x),
        ["twice: is called inside of another lowering", "from outside"],
    ),
    "a result of another lowering": (
        lambda: lowered(lambda x, kept=leaked(): kept),
        ["`result` belongs to another lowering"],
    ),
    "a Tensor kept from a trace": (
        lambda: md.sin(kept()),
        ["sin: cannot be done with [a=4, b=8]", "was kept from a traced function that has ended"],
    ),
    "a Tensor kept from a trace, times a number": (
        lambda: kept() * 2,
        ["multiply: cannot be done with [a=4, b=8]", "was kept"],
    ),
    "a Tensor kept from a trace, lowered": (
        lambda: lowered(lambda x, t=kept(): x * t),
        ["was kept from a traced function", "as an argument"],
    ),
}
