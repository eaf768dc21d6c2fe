"""What newcomers lower by mistake, and what the error says.

`tests/errors/test_errors.py` runs it.
"""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

import meshdsl as md
from tests.errors.wrong_arguments import IDS, LAYOUT, MESH, A, B, C, W, X, lowered, shape
from tests.helpers import data, dims

(NONE,) = dims(n=0)
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


def twice(x):
    return x * 2


def kernel(x):
    like = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pl.pallas_call(lambda x, o: o.__setitem__(..., x[...]), like, interpret=True)(x)


ERRORS = {
    # Layouts and meshes.
    "lower with a dict": (
        lambda: md.lower(twice, {"rules": []}),
        ["lower: `layout` is a Layout, not of type dict", "md.Layout(rules, mesh={...})"],
    ),
    "lower with a path": (
        lambda: md.lower(twice, "fsdp"),
        ["lower: `layout` is a Layout, not 'fsdp'", "md.Layout.load(file)"],
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
    "make_mesh of a number": (
        lambda: md.make_mesh(3),
        ["make_mesh: `layout` is a Layout or a mapping, not 3"],
    ),
    "a rule that names a dim twice": (
        lambda: md.Layout(["a, a -> x"]),
        ["rule 1: dim `a` is named twice in 'a, a -> x'"],
    ),
    "a rule that names a dim twice, once optional": (
        lambda: md.Layout(["a, b, a? -> x"]),
        ["dim `a` is named twice in 'a, b, a? -> x'"],
    ),
    "axes across slices that are one word": (
        lambda: md.Layout(mesh=MESH, dcn="data"),
        ["mesh.dcn: a list of axes, not 'data'"],
    ),
    "a layout that is called by a number": (
        lambda: md.Layout(name=3),
        ["layout: its name", "not 3"],
    ),
    "an axis that is called by a number": (
        lambda: md.Layout(mesh={1: 2}),
        ["an axis has a name such as 'data', not 1"],
    ),
    "load a number": (
        lambda: md.Layout.load(3),
        ["layout: a file, or the name of a shipped layout such as 'fsdp', not 3"],
    ),
    "load what is not shipped": (
        lambda: md.Layout.load("fspd"),
        ["layout fspd: no such file", "did you mean `fsdp`?"],
    ),
    # What a lowered function takes and returns.
    "an argument that is a word": (
        lambda: lowered(twice, "x"),
        ["twice: `argument[0]` is 'x'", "Tensors, arrays and numbers"],
    ),
    "an argument that is a shape": (
        lambda: lowered(twice, shape(A, B)),
        ["twice: `argument[0]` is of type Tensor; a shape without data", "`program`"],
    ),
    "a result that is a word": (
        lambda: lowered(lambda x: {"y": [x, "y"]}),
        ["`result['y'][1]` is 'y'", "Tensors, arrays and numbers"],
    ),
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
    "an argument of another lowering": (
        lambda: md.lower(twice, LAYOUT)(leaked()),
        ["twice: an argument belongs to another lowering"],
    ),
    "a lowered function inside of another": (
        lambda: lowered(lambda x: lowered(twice) and x),
        ["twice: is called inside of another lowering", "from outside"],
    ),
    "a sum of the parts of a Tensor": (
        lambda: lowered(lambda x: jax.tree.map(lambda part: part * jnp.sum(part), x)),
        ["works on one device's part of an array", "md.sum, md.norm"],
    ),
    "arguments to donate that are no positions": (
        lambda: md.lower(twice, LAYOUT, donate_argnums=["x"]),
        ["lower: donate_argnums are positions of arguments", "not 'x'"],
    ),
    "the state of an optimizer, of other shapes": (
        lambda: md.lower(lambda w, state: w, LAYOUT, dims=["a", "b"], optimizer_argnums=1)(
            W, jax.tree.map(lambda array: array[:1], W)
        ),
        ["the state of the optimizer has an array of shape (1, 8)", "[a=4, b=8]", "adafactor"],
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
    "item of many": (lambda: X.item(), ["item: a Tensor [a=4, b=8] has 32 elements"]),
    "item inside": (
        lambda: lowered(lambda x: md.sum(x).item()),
        ["item: inside of a lowering a Tensor [] has no value yet", "ops on it"],
    ),
    # What functions that are handed over take and return.
    "a body that is none": (lambda: md.scan(3, X, X, dim=A), ["scan: `fn` is a function, not 3"]),
    "a body that returns one": (
        lambda: md.scan(lambda c, x: c, X, (), dim=A),
        ["scan: the body returns the carry and a result", "`(carry, y)`"],
    ),
    "a carry of words": (
        lambda: md.scan(lambda c, x: (c, x), "c", X, dim=A),
        ["scan: the carry is a pytree of Tensors, arrays and numbers", "'c'"],
    ),
    "map_over, a word": (
        lambda: md.map_over(lambda x: "y", X, dim=A),
        ["map_over: the result of the body", "one leaf 'y'"],
    ),
    "map_over, no such dim, no batch": (
        lambda: md.map_over(md.sin, X, dim=C),
        ["map_over: no dim `c` in [a=4, b=8]"],
    ),
    "map_over, the dim again": (
        lambda: md.map_over(lambda x: X, X, dim=A),
        ["map_over: `a` occurs twice"],
    ),
    "branches that are none": (
        lambda: md.switch(md.tensor(1, ()), [md.sin, 3], X),
        ["switch: there is a branch 3"],
    ),
    "a branch of words": (
        lambda: md.cond(md.tensor(True, ()), lambda: "y", lambda: "n"),
        ["cond: the result of a branch", "one leaf 'y'"],
    ),
    "gradients by whole numbers": (
        lambda: md.value_and_grad(md.sum)(IDS),
        ["value_and_grad: the first argument [a=4] is of int32", "no gradient", "cast"],
    ),
    "gradients by whole numbers, in a tree": (
        lambda: md.value_and_grad(lambda p: md.sum(p["w"]))({"w": W, "n": [IDS]}),
        ["`n.0` [a=4] is of int32"],
    ),
    "the gradient of a whole number": (
        lambda: md.value_and_grad(lambda w: md.sum(md.cast(w, "int32")))(W),
        ["the value is a real floating-point number, not int32", "cast"],
    ),
    "no microbatch": (
        lambda: md.value_and_grad(md.sum, accumulate=NONE)(W, data(NONE)),
        ["value_and_grad: n=0 has no microbatch"],
    ),
    "a kernel without a derivative": (
        lambda: lowered(md.value_and_grad(lambda w: md.sum(md.local(kernel, w, out=(A, B)))), W),
        ["kernel: JAX cannot differentiate this kernel", "jax.custom_vjp"],
    ),
    "the largest of nothing": (
        lambda: md.max(data(A, NONE), NONE),
        ["max: [n=0] of [a=4, n=0] has no element to choose"],
    ),
    "the largest complex number": (
        lambda: md.argmax(md.cast(X, jnp.complex64), A),
        ["argmax: takes no complex numbers, and [a=4, b=8] is complex64", "md.abs"],
    ),
    "has_aux without aux": (
        lambda: md.value_and_grad(md.sum, has_aux=True)(W),
        ["value_and_grad: with has_aux the function returns (value, aux), not []"],
    ),
    "aux without has_aux": (
        lambda: md.value_and_grad(lambda w: (md.sum(w), w))(W),
        ["value_and_grad", "not of type tuple", "has_aux=True"],
    ),
    "value_and_grad of a Tensor": (
        lambda: md.value_and_grad(W),
        ["value_and_grad: `fn` is a function, not of type Tensor"],
    ),
}
