"""What is wrong with control flow, gradients and lowered functions, and what the error says."""

import jax.numpy as jnp

import meshdsl as md
from tests.errors.common import EMPTY, IDS, SCALAR, A, B, C, T, W, X, Y, leaked, lower

ERRORS = {
    # Lowering and gradients.
    "no trace yet": (
        lambda: md.lower(lambda x: x, md.Layout()).record,
        ["not traced yet", "program(*args)"],
    ),
    "another lowering's argument": (
        lambda: lower(lambda x: lower(lambda y: y, x), X),
        ["belongs to another lowering", "from outside"],
    ),
    "another lowering's operand": (
        lambda: lower(lambda x, y=leaked(): x + y, X),
        ["add", "two different lowerings"],
    ),
    "an argument of another shape": (
        lambda: lower(lambda x: x, md.Tensor(jnp.ones((4, 7)), (A, B))),
        ["(4, 7)", "[a=4, b=8]"],
    ),
    "a value with dims": (
        lambda: md.value_and_grad(lambda w: w * 2)(W),
        ["value_and_grad", "not [a=4, b=8]", "md.mean"],
    ),
    "a value that is no tensor": (
        lambda: md.value_and_grad(lambda w: 2.0)(W),
        ["value_and_grad", "a Tensor without dims, not 2.0"],
    ),
    "gradients of arrays": (
        lambda: md.value_and_grad(lambda w: w)(jnp.ones(3)),
        ["value_and_grad", "pytree of Tensors", "Array"],
    ),
    "a gradient of whole numbers": (
        lambda: md.value_and_grad(lambda x: md.count_nonzero(x))(X),
        ["value_and_grad", "a real floating-point number, not int32", "md.cast"],
    ),
    "no microbatch": (
        lambda: md.value_and_grad(lambda w, x: md.sum(w * x), accumulate=EMPTY.dim("n"))(W, EMPTY),
        ["value_and_grad", "n=0 has no microbatch", "a size of 1 or more"],
    ),
    "nothing to accumulate": (
        lambda: md.value_and_grad(lambda w, x: md.sum(w), accumulate=T)(W, X),
        ["value_and_grad", "no argument", "t=2"],
    ),
    # Control flow and calculus.
    "scan, another kind of carry": (
        lambda: md.scan(lambda c, x: (X, x), jnp.ones(3), (), dim=A),
        ["scan", "array of shape (3,)", "[a=4, b=8] of float32"],
    ),
    "while_loop, many": (
        lambda: md.while_loop(lambda c: c > 0, lambda c: c, X),
        ["while_loop", "bool without dims", "[a=4, b=8] of bool", "md.any"],
    ),
    "while_loop, another carry": (
        lambda: md.while_loop(lambda c: md.any(c > 0), md.sum, X),
        ["while_loop", "[a=4, b=8] of float32", "[] of float32"],
    ),
    "while_loop, its gradient": (
        lambda: md.value_and_grad(
            lambda w: md.sum(md.while_loop(lambda c: md.sum(c) < 0, lambda c: c, w))
        )(W),
        ["while_loop", "no gradient", "md.scan", "md.jvp"],
    ),
    "map_over an array": (
        lambda: md.map_over(len, jnp.ones(4), dim=A),
        ["map_over", "Tensors that have a=4", "Array", "close over"],
    ),
    "map_over, no batch": (
        lambda: md.map_over(md.sin, X, dim=A, batch=0),
        ["map_over", "at least 1", "not 0"],
    ),
    "map_over, no such dim": (
        lambda: md.map_over(md.sin, X, dim=C, batch=2),
        ["map_over", "no dim `c` in [a=4, b=8]"],
    ),
    "switch, fractions": (
        lambda: md.switch(SCALAR, [md.sin], X),
        ["switch", "whole numbers without dims", "[] of float32"],
    ),
    "switch, a number": (
        lambda: md.switch(1, [md.sin], X),
        ["switch", "`index` is a Tensor, not 1"],
    ),
    "switch, no branch": (lambda: md.switch(md.tensor(1, ()), [], X), ["switch", "no branch"]),
    "switch, other dims": (
        lambda: md.switch(md.tensor(1, ()), [md.sin, md.cos, md.sum], X),
        ["switch", "[a=4, b=8] of float32 and [] of float32"],
    ),
    "over a name of nothing": (
        lambda: md.over("aa", md.sin)(X),
        ["over: no dim `aa` in [a=4, b=8]", "did you mean `a`?"],
    ),
    "value_and_grad, microbatches of a name of nothing": (
        lambda: md.value_and_grad(lambda w, x: md.sum(w * x), accumulate="aa")(X, X),
        ["value_and_grad, accumulate: no dim `aa` in [a=4, b=8]", "did you mean `a`?"],
    ),
    "over, no such dim": (
        lambda: md.over(C, md.sin)(X),
        ["over", "no argument has c=3", "[a=4, b=8]"],
    ),
    "over, another size": (
        lambda: md.over(md.Dim("a", 5), md.sin)(X),
        ["over", "`a` is 5 here and 4 in [a=4, b=8]"],
    ),
    "over, an array": (
        lambda: md.over(A, lambda x: x.array)(X),
        ["over", "returns Tensors", "md.tensor"],
    ),
    "over, a result with the dim": (
        lambda: md.over(A, lambda x: X)(X),
        ["over", "`a` occurs twice"],
    ),
    "checkpoint, a name twice": (
        lambda: md.checkpoint(len, save="y", offload="y"),
        ["checkpoint", "`y`", "name it once"],
    ),
    "checkpoint, a name of nothing": (
        lambda: md.checkpoint(lambda x: md.checkpoint_name(x, "hidden"), save="hiden")(X),
        ["checkpoint", "no save point `hiden`", "did you mean `hidden`?"],
    ),
    "checkpoint, no names": (
        lambda: md.checkpoint(md.sin, offload="hidden")(X),
        ["checkpoint", "`hidden`", "marks none", "checkpoint_name"],
    ),
    "checkpoint_name of an array": (
        lambda: md.checkpoint_name(jnp.ones(3), "y"),
        ["checkpoint_name", "`x` is a Tensor", "md.tensor"],
    ),
    "jvp by integers": (
        lambda: md.jvp(md.sin, (IDS,), (IDS,)),
        ["jvp", "a primal is a floating-point Tensor", "[a=4] of int32", "close over"],
    ),
    "jvp, another structure": (
        lambda: md.jvp(md.sin, (X,), (X, X)),
        ["jvp", "different structures"],
    ),
    "jvp, another tangent": (
        lambda: md.jvp(md.sin, (X,), (Y,)),
        ["jvp: a tangent [b=8, c=3]", "its primal [a=4, b=8]"],
    ),
    "vjp, another structure": (
        lambda: md.vjp(md.sin, X)[1]((X, X)),
        ["vjp", "another structure than the result"],
    ),
    "vjp, another cotangent": (
        lambda: md.vjp(md.sin, X)[1](SCALAR),
        ["vjp: a cotangent [] of float32", "its result [a=4, b=8]"],
    ),
    "hvp of many": (
        lambda: md.hvp(md.sin, (X,), (X,)),
        ["hvp", "without dims", "[a=4, b=8]", "md.mean"],
    ),
    "custom_gradient without one": (
        lambda: md.custom_gradient(md.sin)(X),
        ["custom_gradient", "(result, backward)", "Tensor"],
    ),
    "custom_gradient of an array": (
        lambda: md.custom_gradient(lambda x: (x.array, len))(X),
        ["custom_gradient", "pytree of Tensors"],
    ),
    "custom_gradient, too few cotangents": (
        lambda: md.value_and_grad(
            lambda w: md.sum(md.custom_gradient(lambda x, w: (x * w, lambda ct: ct))(X, w))
        )(W),
        ["custom_gradient", "each of 2 arguments"],
    ),
    "custom_gradient, another structure": (
        lambda: md.value_and_grad(
            lambda w: md.sum(md.custom_gradient(lambda t: (t["w"], lambda ct: {"v": ct}))({"w": w}))
        )(W),
        ["custom_gradient", "another structure than its argument"],
    ),
    "custom_gradient, another cotangent": (
        lambda: md.value_and_grad(lambda w: md.sum(md.custom_gradient(lambda w: (w, md.sum))(w)))(
            W
        ),
        ["custom_gradient", "[a=4, b=8] of float32", "[] of float32", "or None"],
    ),
}
