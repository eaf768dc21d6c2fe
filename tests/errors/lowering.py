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


ERRORS = [
    # What `lower` is told.
    (
        lambda: md.lower(twice, "fsdp"),
        "lower: `layout` is a Layout, not 'fsdp' … md.Layout.load(file)",
    ),
    (
        lambda: md.lower(twice, LAYOUT, explicit_mesh()),
        "mesh of … axes of type Explicit, ` … AxisType.Auto",
    ),
    (lambda: md.lower(3, LAYOUT), "lower: `fn` is a function, not 3"),
    (lambda: md.lower(twice, LAYOUT, dims=[1]), "lower: `dims` are Dims, or their names, not 1"),
    (
        lambda: md.lower(twice, LAYOUT, donate_argnums=["x"]),
        "lower: donate_argnums are positions of arguments … not 'x'",
    ),
    (lambda: md.lower(lambda x: x, md.Layout()).record, "not traced yet … program(*args)"),
    (
        lambda: md.lower(md.square, md.Layout(mesh=MESH), abstract_mesh(MESH))(
            md.tensor(np.zeros(4), (A,))
        ),
        "square … without devices … make_mesh",
    ),
    # Arguments and results.
    (lambda: lowered(twice, "x"), "twice: `argument[0]` is 'x' … Tensors, arrays and numbers"),
    (
        lambda: lowered(twice, shape(A, B)),
        "twice: `argument[0]` is of type Tensor; a shape without data … `program`",
    ),
    (lambda: lowered(lambda x: x, md.Tensor(jnp.ones((4, 7)), (A, B))), "[a=4, b=8] … (4, 7)"),
    (
        lambda: md.lower(lambda w, state: w, LAYOUT, dims=["a", "b"], optimizer_argnums=1)(
            W, jax.tree.map(lambda array: array[:1], W)
        ),
        "the state of the optimizer has an array of shape (1, 8) … [a=4, b=8] … adafactor",
    ),
    (
        lambda: lowered(lambda x: {"y": [x, "y"]}),
        "`result['y'][1]` is 'y' … Tensors, arrays and numbers",
    ),
    # Arrays that differ between devices.
    (
        lambda: lowered(lambda x: x.array),
        "`result` is an array that differs between devices along `data` and `model` … a term of a "
        "sum that is pending … md.replicate(x).array",
    ),
    (lambda: lowered(lambda x: (x, md.sum(x, B).array)), f"`result[1]` is an array that {ALIKE}"),
    (
        lambda: lowered(lambda x: x * jnp.exp(md.sum(x).array)),
        f"multiply: an operand [] is an array that {ALIKE}",
    ),
    (
        lambda: lowered(
            lambda x: md.scan(lambda c, y: (c + jnp.sum(y.array), ()), jnp.float32(0), x, dim=A)[0]
        ),
        f"scan: a leaf of the result of the body is an array that {ALIKE}",
    ),
    (
        lambda: lowered(lambda x: jax.tree.map(lambda part: part * jnp.sum(part), x)),
        "works on one device's part of an array … md.sum, md.global_norm",
    ),
    # Tensors of another lowering, or of a trace that has ended.
    (
        lambda: lowered(lambda x: lowered(lambda y: y, x), X),
        "belongs to another lowering … from outside",
    ),
    (lambda: md.lower(twice, LAYOUT)(leaked()), "twice: an argument belongs to another lowering"),
    (lambda: lowered(lambda x, y=leaked(): x + y, X), "add … two different lowerings"),
    (
        lambda: lowered(lambda x: lowered(twice) and x),
        "twice: is called inside of another lowering … from outside",
    ),
    (lambda: lowered(lambda x, kept=leaked(): kept), "`result` belongs to another lowering"),
    (
        lambda: md.sin(kept()),
        "sin: cannot be done with [a=4, b=8] … was kept from a traced function that has ended",
    ),
    (
        lambda: lowered(lambda x, t=kept(): x * t),
        "was kept from a traced function … as an argument",
    ),
]
