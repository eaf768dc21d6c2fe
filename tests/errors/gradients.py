"""Errors of gradients and other derivatives."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

import meshdsl as md
from tests.errors.common import EMPTY, IDS, SCALAR, A, B, T, W, X, Y, lowered


def kernel(x):
    """A Pallas kernel that copies `x`."""
    like = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pl.pallas_call(lambda x, o: o.__setitem__(..., x[...]), like, interpret=True)(x)


def same(sent, largest=None):
    """Sends or decodes what it gets."""
    return sent


def wired(wire):
    """The gradient of a matrix that is split over `model`, from rows split over `data`."""
    rules = md.Layout(rules=["a -> data", "b -> model"], mesh={"data": 2, "model": 2})
    run = md.value_and_grad(lambda w, x: md.sum(md.einsum(x, w, out=())), wire=wire)
    return md.lower(run, rules)(W, X)


ERRORS = [
    # value_and_grad.
    (
        lambda: md.value_and_grad(lambda x: x, reduce="int32"),
        "value_and_grad: reduce is a floating-point dtype such as bfloat16, not 'int32'",
    ),
    (
        lambda: md.value_and_grad(lambda x: x, reduce="bfloat"),
        "value_and_grad: reduce is a floating-point dtype such as bfloat16, not 'bfloat'",
    ),
    (
        lambda: md.value_and_grad(md.sum, wire="int8"),
        "value_and_grad: `wire` is a mapping or None, not 'int8'",
    ),
    (
        lambda: md.value_and_grad(md.sum, wire={"r": "int7"}),
        "value_and_grad: wire: gradients are sent over `r` as 'int8', 'fp8' or 'bfloat16', not "
        "'int7'; did you mean `int8`?",
    ),
    (
        lambda: wired({"dat": "int8"}),
        "value_and_grad: wire: no axis `dat` in the mesh; did you mean `data`?",
    ),
    (
        lambda: wired({"model": "int8"}),
        "value_and_grad: wire: no gradient of two or more dims is summed over `model`, so none can "
        "be sent as 'int8'",
    ),
    # register_wire.
    (lambda: md.register_wire(" ", same, same), "register_wire: the name is a text, not ' '"),
    (
        lambda: md.register_wire("int8", same, same),
        "register_wire: 'int8' is taken; known: 'int8', 'fp8', 'bfloat16'",
    ),
    (
        lambda: md.register_wire("other", 3, same),
        "register_wire: `encode` is a function, not 3",
    ),
    (
        lambda: md.register_wire("other", lambda x, largest: x[0], same),
        "register_wire: 'other': `encode` gives an array of shape (128,) for 4 rows; each array "
        "that travels has a position for each row in front",
    ),
    (
        lambda: md.register_wire("other", lambda x, largest: (), same),
        "register_wire: 'other': `encode` gives no array that could travel",
    ),
    (
        lambda: md.register_wire("other", lambda x, largest: x.astype("int4"), same),
        "register_wire: 'other': `encode` gives int4, and devices send whole bytes; pack several "
        "numbers into a uint8, or give a dtype of 8 bits",
    ),
    (
        lambda: md.register_wire("other", lambda x, largest: largest, same),
        "register_wire: 'other': `decode` gives float32 of shape (4, 1) for what `encode` made of "
        "float32 of shape (4, 128); it gives float32 of that shape",
    ),
    (
        lambda: md.register_wire("other", lambda x, largest: x.astype("bfloat16"), same),
        "register_wire: 'other': `decode` gives bfloat16 of shape (4, 128) for what `encode` made "
        "of float32 of shape (4, 128); it gives float32 of that shape",
    ),
    (
        lambda: md.register_wire("other", lambda x, largest: (x, x), same),
        "register_wire: 'other': `decode` gives no array for what `encode` made of float32",
    ),
    (lambda: md.value_and_grad(lambda w: w * 2)(W), "value_and_grad … not [a=4, b=8] … md.mean"),
    (
        lambda: md.value_and_grad(lambda w: 2.0)(W),
        "value_and_grad … a Tensor without dims, not 2.0",
    ),
    (
        lambda: md.value_and_grad(lambda w: w)(jnp.ones(3)),
        "value_and_grad … pytree of Tensors … Array",
    ),
    (
        lambda: md.value_and_grad(lambda x: md.count_nonzero(x))(X),
        "value_and_grad … a real floating-point number, not int32 … md.cast",
    ),
    (
        lambda: md.value_and_grad(lambda w, x: md.sum(w * x), accumulate=EMPTY.dim("n"))(W, EMPTY),
        "value_and_grad: n=0 has no microbatch … a size of 1 or more",
    ),
    (
        lambda: md.value_and_grad(lambda w, x: md.sum(w), accumulate=T)(W, X),
        "value_and_grad: no argument … t=2",
    ),
    (
        lambda: md.value_and_grad(md.sum)(IDS),
        "value_and_grad: the first argument [a=4] is of int32 … no gradient … cast",
    ),
    (
        lambda: md.value_and_grad(lambda p: md.sum(p["w"]))({"w": W, "n": [IDS]}),
        "`n.0` [a=4] is of int32",
    ),
    (
        lambda: md.value_and_grad(md.sum, has_aux=True)(W),
        "value_and_grad: with has_aux the function returns (value, aux), not []",
    ),
    (
        lambda: md.value_and_grad(lambda w: (md.sum(w), w))(W),
        "value_and_grad … not of type tuple … has_aux=True",
    ),
    # Other derivatives.
    (
        lambda: md.jvp(md.sin, (IDS,), (IDS,)),
        "jvp: a primal is a floating-point Tensor … [a=4] of int32; close over",
    ),
    (lambda: md.jvp(md.sin, (X,), (X, X)), "jvp … different structures"),
    (lambda: md.jvp(md.sin, (X,), (Y,)), "jvp: a tangent [b=8, c=3] … its primal [a=4, b=8]"),
    (lambda: md.vjp(md.sin, X)[1]((X, X)), "vjp … another structure than the result"),
    (
        lambda: md.vjp(md.sin, X)[1](SCALAR),
        "vjp: a cotangent [] of float32 … its result [a=4, b=8]",
    ),
    (lambda: md.hvp(md.sin, (X,), (X,)), "hvp … without dims … [a=4, b=8] … md.mean"),
    (
        lambda: lowered(md.value_and_grad(lambda w: md.sum(md.local(kernel, w, out=(A, B)))), W),
        "kernel: JAX cannot differentiate this kernel … jax.custom_vjp",
    ),
    # custom_gradient.
    (lambda: md.custom_gradient(md.sin)(X), "custom_gradient … (result, backward) … Tensor"),
    (
        lambda: md.custom_gradient(lambda x: (x.array, len))(X),
        "custom_gradient … pytree of Tensors",
    ),
    (
        lambda: md.value_and_grad(
            lambda w: md.sum(md.custom_gradient(lambda x, w: (x * w, lambda ct: ct))(X, w))
        )(W),
        "custom_gradient … each of 2 arguments",
    ),
    (
        lambda: md.value_and_grad(
            lambda w: md.sum(md.custom_gradient(lambda t: (t["w"], lambda ct: {"v": ct}))({"w": w}))
        )(W),
        "custom_gradient … another structure than its argument",
    ),
    (
        lambda: md.value_and_grad(lambda w: md.sum(md.custom_gradient(lambda w: (w, md.sum))(w)))(
            W
        ),
        "custom_gradient … [a=4, b=8] of float32 … [] of float32 … or None",
    ),
]
