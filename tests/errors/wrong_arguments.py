"""What newcomers hand over by mistake, and what the error says.

`tests/errors/test_errors.py` runs it.
"""

import jax
import jax.numpy as jnp
import numpy as np

import meshdsl as md
from tests.helpers import data, dims, integers, weight

A, B, C, P, V = dims(a=4, b=8, c=3, p=3, v=2)
X, W, IDS = data(A, B), weight(A, B), integers(A, below=4)
IMAGE, KERNEL, KEY, MESH = (
    data(A, B, C),
    weight(P, C, V),
    jax.random.key(0),
    {"data": 2, "model": 4},
)
LAYOUT = md.Layout(["a -> data", "b -> model"], mesh=MESH)


def lowered(fn, *args):
    """`fn` called in a lowering that splits `a` over `data` and `b` over `model`."""
    return md.lower(fn, LAYOUT, dims=["a", "b"])(*(args or (X,)))


def traced(fn):
    """`fn` of a whole number that is known only when the program runs."""
    return jax.eval_shape(lambda i: fn(i) and None, jnp.int32(1))


def shape(*dims):
    return md.tensor(jax.ShapeDtypeStruct([d.size for d in dims], jnp.float32), dims)


ERRORS = {
    # A fraction, a truth value, or what is known only later, where a whole number is wanted.
    "roll, a fraction": (
        lambda: md.roll(X, B, 1.5),
        ["roll: `by` is a whole number, not 1.5", "[a=4, b=8]"],
    ),
    "roll, lowered": (
        lambda: lowered(lambda x: md.roll(x, B, 1.5)),
        ["roll: `by` is a whole number, not 1.5", "[a=4, b=8]"],
    ),
    "roll, True": (lambda: md.roll(X, B, True), ["roll: `by` is a whole number, not True"]),
    "roll, a Tensor": (
        lambda: md.roll(X, B, md.tensor(1, ())),
        ["roll: `by`", "of type Tensor", "before the program runs", "md.take"],
    ),
    "shift, a fraction": (lambda: md.shift(X, B, 1.5), ["shift: `by`", "not 1.5"]),
    "slice, a fraction": (lambda: md.slice(X, B, 0.5, 2), ["slice: `start`", "not 0.5"]),
    "slice, a traced start": (
        lambda: traced(lambda i: md.slice(X, B, i, 2)),
        ["slice: `start` is a whole number, not a value that is being traced", "md.take"],
    ),
    "slice, a Tensor to start at": (
        lambda: md.slice(X, B, X, 2),
        ["slice: `start` is a whole number, not of type Tensor"],
    ),
    "slice, half a size": (
        lambda: md.slice(X, B, 0, 1.5),
        ["slice: `size` is a whole number or a Dim", "not 1.5"],
    ),
    "slice, a negative size": (
        lambda: md.slice(X, B, 0, -1),
        ["slice: `size` along b=8", "at least 0, not -1"],
    ),
    "split, a fraction": (
        lambda: md.split(X, B, 2.0),
        ["split: `sizes` is a whole number or a list", "not 2.0", "[a=4, b=8]"],
    ),
    "split, a fraction among sizes": (
        lambda: md.split(X, B, [3.0, 5]),
        ["split: a part of b=8 is a whole number", "not 3.0"],
    ),
    "top_k, a fraction": (
        lambda: md.top_k(X, B, 2.0),
        ["top_k: `k` is a whole number or a Dim", "not 2.0"],
    ),
    "nth_largest, a fraction": (lambda: md.nth_largest(X, B, 2.0), ["nth_largest: `n`", "not 2.0"]),
    "tril, a fraction": (lambda: md.tril(X, A, B, 0.5), ["tril: `k`", "not 0.5"]),
    "pad, a fraction": (lambda: md.pad(X, B, 0.5), ["pad: `before`", "not 0.5"]),
    "var, a fraction": (lambda: md.var(X, B, ddof=0.5), ["var: `ddof`", "not 0.5"]),
    "unroll, a fraction": (
        lambda: md.scan(lambda c, x: (c, x), (), X, dim=A, unroll=1.5),
        ["scan: `unroll`", "not 1.5"],
    ),
    "unroll, less than none": (
        lambda: md.scan(lambda c, x: (c, x), (), X, dim=A, unroll=-1),
        ["scan: `unroll`", "at least 0, not -1"],
    ),
    "map_over, half a batch": (
        lambda: md.map_over(md.sin, X, dim=A, batch=1.5),
        ["map_over: `batch` is a whole number or None", "1.5"],
    ),
    "conv, half a stride": (
        lambda: md.conv(IMAGE, KERNEL, {"b": "p"}, out=(..., V), stride=1.5),
        ["conv: the stride along b=8", "at least 1, not 1.5"],
    ),
    "conv, an array as stride": (
        lambda: md.conv(IMAGE, KERNEL, {"b": "p"}, out=(..., V), stride=np.ones(2)),
        ["conv: the stride along b=8", "of type ndarray"],
    ),
    "pool, half a window": (
        lambda: md.max_pool(IMAGE, {"b": 1.5}),
        ["max_pool: the window along b=8", "at least 1, not 1.5"],
    ),
    "reshape, a fraction": (
        lambda: md.reshape(X, "a (u v) -> a u v", u=2.0),
        ["Dim: the size of `u` is a whole number", "2.0"],
    ),
    "Dim, True": (
        lambda: md.Dim("a", True),
        ["Dim: the size of `a` is a whole number", "not True"],
    ),
    "Dim, traced": (
        lambda: traced(lambda i: md.Dim("a", i)),
        ["Dim: the size of `a`", "not a value that is being traced"],
    ),
    "categorical, half an index": (
        lambda: md.random.categorical(KEY, X, B, top_k=1.5),
        ["categorical: `top_k` is a whole number or None", "not 1.5"],
    ),
    # Numbers that a Tensor cannot hold.
    "pad, a fraction among whole numbers": (
        lambda: md.pad(IDS, A, 1, value=1.5),
        ["pad: [a=4] of int32 cannot hold 1.5", "md.cast"],
    ),
    "pad, too much": (
        lambda: md.pad(IDS, A, 1, value=2**40),
        ["pad: [a=4] of int32 cannot hold 1099511627776"],
    ),
    "pad, infinity": (
        lambda: md.pad(IDS, A, 1, value=-jnp.inf),
        ["pad: [a=4] of int32 cannot hold -inf"],
    ),
    "shift, a fraction for a truth value": (
        lambda: md.shift(X > 0, B, 1, 0.5),
        ["shift: [a=4, b=8] of bool cannot hold 0.5"],
    ),
    "shift, nothing to fill with": (
        lambda: md.shift(X, B, 1, None),
        ["shift: [a=4, b=8] is filled up with a number, not None"],
    ),
    # Other kinds of arguments.
    "sum of an array": (
        lambda: md.sum(jnp.ones(3)),
        ["sum: `x` is a Tensor, not of type ArrayImpl", "md.tensor(array, dims)"],
    ),
    "sum of a list": (lambda: md.sum([X]), ["sum: `x` is a Tensor, not of type list"]),
    "concat of a Tensor": (
        lambda: md.concat(X, B),
        ["concat: `tensors` is a list or tuple, not of type Tensor"],
    ),
    "concat of numbers": (
        lambda: md.concat([X, 1], B),
        ["concat", "one Tensor or more", "['Tensor', 'int']"],
    ),
    "sort, a word": (
        lambda: md.sort(X, B, descending="yes"),
        ["sort: `descending` is True or False, not 'yes'"],
    ),
    "cast to nothing": (
        lambda: md.cast(X, None),
        ["cast: `dtype` is a dtype such as jnp.bfloat16, not None", "[a=4, b=8]"],
    ),
    "cast to a word": (lambda: md.cast(X, "flaot32"), ["cast: `dtype`", "not 'flaot32'"]),
    "iota of a name": (
        lambda: md.iota("a"),
        ["iota: a dim that no operand has is given with its size, such as Dim('a', 8), not as"],
    ),
    "dropout, a word": (
        lambda: md.dropout(X, "0.1", KEY),
        ["dropout: `rate` is a number, not '0.1'"],
    ),
    "bernoulli of an array": (
        lambda: md.random.bernoulli(KEY, np.ones(4), (A,)),
        ["bernoulli", "shape (4,)", "md.tensor"],
    ),
    "einsum, out of nothing": (
        lambda: md.einsum(X, W, out=None),
        ["einsum: dims are Dims such as", "not None"],
    ),
    "einsum, out of a word": (
        lambda: md.einsum(X, W, out="all"),
        ["einsum, out: no dim `all` in [a=4, b=8]"],
    ),
    "local, out of a word": (
        lambda: md.local(jnp.sin, X, out=("a", "heads")),
        ["local, out: no dim `heads` in [a=4, b=8]", "with its size, such as Dim('heads', 8)"],
    ),
    "conv, out of a word": (
        lambda: md.conv(IMAGE, KERNEL, {"b": "p"}, out=("a", "b", "w")),
        ["conv, out: no dim `w` in"],
    ),
    "normal, a name of nothing": (
        lambda: md.random.normal(KEY, ("a", "heads"), like=X),
        ["random: no dim `heads` in [a=4, b=8]", "with its size"],
    ),
    "diagonal, a number": (lambda: md.diagonal(X, A, B, 3), ["identifier", "not 3"]),
    "einsum, a precision": (
        lambda: md.einsum(X, W, out=(A,), precision="hi"),
        ["einsum: cannot be done with [a=4, b=8] of float32", "Precision"],
    ),
    "conv, out of nothing": (
        lambda: md.conv(IMAGE, KERNEL, {"b": "p"}, out=None),
        ["conv: dims are Dims such as", "not None"],
    ),
    "local, out of nothing": (
        lambda: md.local(jnp.sin, X, out=None),
        ["local: dims are Dims such as", "not None"],
    ),
    "bits of fractions": (
        lambda: md.bitwise_and(X, 1),
        ["bitwise_and: cannot be done with [a=4, b=8] of float32", "float32"],
    ),
    "shapes alone": (
        lambda: md.sum(shape(A, B), B),
        ["sum", "[a=4, b=8] has no values", "ShapeDtypeStruct", "jax.eval_shape"],
    ),
    "checkpoint, a number as a name": (
        lambda: md.checkpoint(md.sin, save=3),
        ["checkpoint: save points are called by names", "not 3"],
    ),
    "reshard over a number": (
        lambda: md.reshard(X, {"a": 0}),
        ["reshard: an axis of the mesh is given by its name, not 0"],
    ),
    "reshard over nothing": (
        lambda: md.reshard(X, None),
        ["reshard: `split` is a mapping, not None"],
    ),
    "tensor of a Tensor": (
        lambda: md.tensor(X, (A, B)),
        ["tensor", "a Tensor [a=4, b=8] already", "md.rename"],
    ),
    "tensor of nothing": (
        lambda: md.tensor(None, (A,)),
        ["tensor: an array of numbers gets dims, not None"],
    ),
    "shardings, a level": (
        lambda: md.shardings(X, LAYOUT, md.make_mesh(MESH), "params"),
        ["shardings: level is 'value'", "not 'params'"],
    ),
    "from_local of a number": (
        lambda: md.from_local(3, (A,), md.make_mesh(MESH), {}),
        ["from_local: the shards are pairs", "not 3"],
    ),
    "from_local without devices": (
        lambda: md.from_local({0: X}, (A,), md.make_mesh(MESH), {}),
        ["from_local: each part comes with its device", "not with 0"],
    ),
}
