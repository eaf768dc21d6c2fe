"""Legal programs. The comment after a `reveal_type` is what the checker infers.

Where it says more than `Tensor`, it is true.

Nothing in this file may be reported.
"""

from functools import partial
from typing import Any, Generic, Literal, TypeVar, TypeVarTuple, reveal_type

import jax
import jax.numpy as jnp
import numpy as np
from flax.struct import PyTreeNode

import meshdsl as md
from meshdsl.dims import without

# Dims

batch, length, d_model, d_ff = (
    md.Dim("batch", 2),
    md.Dim("length", 3),
    md.Dim("d_model", 4),
    md.Dim("d_ff", 5),
)
heads = md.Dim(name="heads", size=2)
Batch = Literal["batch"]
Length = Literal["length"]
DModel = Literal["d_model"]
DFF = Literal["d_ff"]
declared: md.Dim[Batch] = md.Dim("batch", 2)
text = str(batch.name)
computed = md.Dim(text, 2)
formatted = md.Dim(f"{batch.name}_{length.name}", 6)
plain: md.Dim = batch
several: tuple[md.Dim, ...] = tuple(
    md.Dim(name, size) for name, size in (("batch", 2), ("length", 3))
)

reveal_type(batch)  # Dim[batch]
reveal_type(heads)  # Dim[heads]
reveal_type(computed)  # Dim[Any]
reveal_type(plain)  # Dim[Any]
reveal_type({d.name: d.size for d in several})  # dict[Any, int]

# Making tensors

key = jax.random.key(0)
x = md.tensor(jnp.ones((2, 3, 4)), (batch, length, d_model))
ids = md.tensor(jnp.ones((2, 3), int), (batch, length))
vector = md.tensor(np.ones(4), d_model)
scalar = md.tensor(1.0, ())
up = md.parameter(jnp.ones((4, 5)), (d_model, d_ff), ins=(d_model,))
down = md.Tensor(jnp.ones((5, 4)), (d_ff, d_model))

reveal_type(x)  # Tensor[batch, length, d_model]
reveal_type(vector)  # Tensor[d_model]
reveal_type(scalar)  # Tensor[]
reveal_type(up)  # Tensor[d_model, d_ff]
reveal_type(down)  # Tensor[d_ff, d_model]
reveal_type(md.tensor(jnp.ones((2, 3)), [batch, length]))  # Tensor
reveal_type(md.tensor(jnp.ones((2, 3)), several))  # Tensor
reveal_type(md.tensor(jnp.ones((2, 3)), (computed, length)))  # Tensor
reveal_type(md.tensor(array=jnp.ones((2, 3)), dims=(batch, length)))  # Tensor[batch, length]
reveal_type(md.iota(length))  # Tensor[length]
reveal_type(md.iota(formatted))  # Tensor
reveal_type(md.random.normal(key, (batch, length)))  # Tensor[batch, length]
reveal_type(md.random.uniform(key, x.dims, low=-1.0))  # Tensor[batch, length, d_model]
reveal_type(md.random.bernoulli(key, 0.5, (batch, length)))  # Tensor
reveal_type(md.random.randint(key, length, 0, 3))  # Tensor[length]
made = md.random.categorical(key, x, d_model, temperature=0.5, top_k=2)
reveal_type(made)  # Tensor[batch, length]
reveal_type(md.random.permutation(key, length))  # Tensor[length]
reveal_type(md.random.permute(key, x, length))  # Tensor[batch, length, d_model]
reveal_type(md.one_hot(ids, d_ff))  # Tensor[batch, length, d_ff]
reveal_type(md.eye(d_model, d_ff))  # Tensor[d_model, d_ff]

# What a tensor knows

reveal_type(x.dims)  # tuple[Dim[batch], Dim[length], Dim[d_model]]
reveal_type(x.dim("length"))  # Dim[length]
reveal_type(x.dim(text))  # Dim[Any]
reveal_type((*x.dims[:2], d_ff))  # tuple[Dim[batch], Dim[length], Dim[d_ff]]

# Component-wise ops broadcast by name

rows = md.sum(x, d_model)
turned = md.transpose(x, (d_model, batch, length))
reveal_type(rows)  # Tensor[batch, length]
reveal_type(x + x)  # Tensor[batch, length, d_model]
reveal_type(x + turned)  # Tensor[batch, length, d_model]
reveal_type(turned * x)  # Tensor[d_model, batch, length]
reveal_type(rows + turned)  # Tensor[d_model, batch, length]
reveal_type(x * scalar)  # Tensor[batch, length, d_model]
reveal_type(2 * x**2.0 + np.float32(1) + jnp.ones(()))  # Tensor[batch, length, d_model]
reveal_type(-abs(x))  # Tensor[batch, length, d_model]
reveal_type((x > vector) & (x != 0.0) | ~(x == x))  # Tensor[batch, length, d_model]
reveal_type(md.maximum(0.0, x))  # Tensor[batch, length, d_model]
reveal_type(md.where(x > 0, x, 0.0))  # Tensor[batch, length, d_model]
reveal_type(md.where(rows > 0, 0.0, turned))  # Tensor[d_model, batch, length]
reveal_type(md.gelu(x))  # Tensor[batch, length, d_model]
reveal_type(md.gelu(x, approximate=False))  # Tensor[batch, length, d_model]
reveal_type(md.clip(x, -1.0, max=1.0))  # Tensor[batch, length, d_model]
reveal_type(md.clip(x, vector, 1.0))  # Tensor
reveal_type(md.exp(jnp.ones(())))  # Tensor[]
reveal_type(md.map(lambda a: a + 1, x))  # Tensor[batch, length, d_model]
reveal_type(md.map(lambda a, b: a * b, vector, x, name="scale"))  # Tensor
reveal_type(md.cast(x, jnp.bfloat16))  # Tensor[batch, length, d_model]
reveal_type(md.dropout(md.stop_gradient(x), 0.5, key))  # Tensor[batch, length, d_model]

# Contracting

hidden = md.gelu(md.einsum(x, up, out=(batch, length, d_ff)))
reveal_type(hidden)  # Tensor[batch, length, d_ff]
reveal_type(md.einsum(hidden, down, out=x.dims))  # Tensor[batch, length, d_model]
reveal_type(md.einsum(x, up, down, out=(length, d_model)))  # Tensor[length, d_model]
reveal_type(md.einsum(x, x, out=()))  # Tensor[]
reveal_type(md.einsum(x, vector, out=batch))  # Tensor[batch]
reveal_type(md.einsum(x, up, out=(..., d_ff)))  # Tensor[batch, length, d_ff]
reveal_type(md.einsum(hidden, up, out=(..., d_model)))  # Tensor[batch, length, d_model]
reordered = md.transpose(x, (length, batch, d_model))
made = md.einsum(reordered, md.one_hot(ids, d_model), out=(..., d_model), contract=())
reveal_type(made)  # Tensor
reveal_type(md.einsum(x, up, out=(d_ff, ...)))  # Tensor
reveal_type(md.einsum(x, up, out=(..., d_ff), contract=d_model))  # Tensor
reveal_type(md.einsum(x, x, out=(...,), contract=[length, "d_model"]))  # Tensor
reveal_type(md.einsum(x, up, out=(length, d_ff), contract=(batch, d_model)))  # Tensor[length, d_ff]
reveal_type(md.einsum(x, up, out=several))  # Tensor
remembered = md.rename(x, length, "memory")
found = md.attention(x, remembered, remembered, queries=length, head_dim="d_model", causal=True)
reveal_type(found)  # Tensor
reveal_type(md.mean(x))  # Tensor[]
reveal_type(md.mean(x, batch))  # Tensor[length, d_model]
reveal_type(md.max(x, "length"))  # Tensor[batch, d_model]
reveal_type(md.var(x, (d_model, batch), ddof=1))  # Tensor[length]
reveal_type(md.logsumexp(x, ("batch", "length")))  # Tensor[d_model]
reveal_type(md.sum(x, (d_model, length, batch)))  # Tensor[]
reveal_type(md.sum(x, several))  # Tensor
reveal_type(md.sum(x, dims=batch))  # Tensor[length, d_model]
reveal_type(md.argmax(x, d_model))  # Tensor[batch, length]
reveal_type(md.softmax(x, d_model))  # Tensor[batch, length, d_model]
reveal_type(md.log_softmax(x, ("length", d_model)))  # Tensor[batch, length, d_model]

# Shape

reveal_type(md.rename(x, length, md.Dim("memory", 3)))  # Tensor[batch, memory, d_model]
reveal_type(md.rename(x, length, "memory"))  # Tensor
reveal_type(md.rename(x, "d_model", md.Dim("features", 4)))  # Tensor[batch, length, features]
reveal_type(md.rename(x, {length: "memory", "batch": "rows"}))  # Tensor
reveal_type(md.transpose(x, ("length", "batch", "d_model")))  # Tensor
reveal_type(md.broadcast(vector, (batch, d_model)))  # Tensor[batch, d_model]
reveal_type(md.broadcast(vector, (batch, *vector.dims)))  # Tensor[batch, d_model]
reveal_type(md.reshape(up, (rows_ff := md.Dim("rows", 10), md.Dim("two", 2))))  # Tensor[rows, two]
made = md.reshape(x, "batch length (heads head_dim) -> batch length heads head_dim", heads=heads)
reveal_type(made)  # Tensor

# Indexing

table = md.tensor(jnp.ones((5, 4)), (d_ff, d_model))
reveal_type(md.take(table, ids, d_ff))  # Tensor[batch, length, d_model]
reveal_type(md.take(md.log_softmax(x, d_model), ids, d_model))  # Tensor[batch, length]
reveal_type(md.take(up, md.iota(d_ff), d_model))  # Tensor
reveal_type(md.take(x, md.iota(d_ff), length))  # Tensor
reveal_type(md.scatter(turned, ids, rows, d_model))  # Tensor[d_model, batch, length]
reveal_type(md.scatter(turned, (ids,), rows, (d_model,)))  # Tensor[d_model, batch, length]
reveal_type(md.segment_sum(x, ids, batch, d_ff))  # Tensor
reveal_type(md.bincount(ids, d_ff))  # Tensor[d_ff]
reveal_type(md.bincount(ids, d_ff, weights=x))  # Tensor

# Cutting, joining, and working along a dim

reveal_type(md.slice(x, length, 1, 2))  # Tensor[batch, length, d_model]
reveal_type(md.slice(x, length, 1, md.Dim("part", 2)))  # Tensor
reveal_type(md.pad(x, "length", 1, after=2))  # Tensor[batch, length, d_model]
reveal_type(md.pad(x, length, 1, out="padded"))  # Tensor
reveal_type(md.split(x, d_model, 2))  # tuple[Tensor[batch, length, d_model], ...]
reveal_type(md.split(x, d_model, [1, md.Dim("rest", 3)]))  # tuple[Tensor, ...]
reveal_type(md.concat([x, x], "length"))  # Tensor[batch, length, d_model]
reveal_type(md.concat([x, turned], "length"))  # Tensor
reveal_type(md.concat((x, turned), md.Dim("length", 6)))  # Tensor
reveal_type(md.stack([rows, rows], "copies"))  # Tensor
reveal_type(md.stack([rows, rows], heads))  # Tensor[heads, batch, length]
reveal_type(md.unstack(x, batch))  # tuple[Tensor, ...]
reveal_type(md.cumsum(md.flip(x, batch), length, reverse=True))  # Tensor[batch, length, d_model]
reveal_type(md.roll(md.shift(x, batch, 1, fill=2), length, by=-1))  # Tensor[batch, length, d_model]
reveal_type(md.sort(x, batch, descending=True))  # Tensor[batch, length, d_model]
made = md.top_k(x, d_model, 2)
reveal_type(made)  # tuple[Tensor[batch, length, d_model], Tensor[batch, length, d_model]]
reveal_type(md.top_k(x, d_model, md.Dim("best", 2)))  # tuple[Tensor, Tensor]
reveal_type(md.searchsorted(md.sort(vector, d_model), rows, d_model))  # Tensor
reveal_type(md.tril(x, length, d_model))  # Tensor[batch, length, d_model]
reveal_type(md.diagonal(x, batch, length, md.Dim("both", 2)))  # Tensor

# Convolving

image = md.tensor(jnp.ones((2, 6, 4)), (batch, (width := md.Dim("width", 6)), d_model))
kernel = md.tensor(jnp.ones((3, 4, 5)), (md.Dim("taps", 3), d_model, d_ff))
over = {"width": "taps"}
made = md.conv(image, kernel, over, out=(batch, width, d_ff), stride=2)
reveal_type(made)  # Tensor[batch, width, d_ff]
reveal_type(md.conv(image, kernel, over, out=(..., d_ff)))  # Tensor
made = md.conv(image, kernel, {width: "taps"}, out=(batch, width, d_ff), into={width: "out"})
reveal_type(made)  # Tensor
made = md.conv_transpose(image, kernel, over, out=(batch, width, d_ff), stride={width: 2})
reveal_type(made)  # Tensor[batch, width, d_ff]
reveal_type(md.max_pool(image, {width: 2}))  # Tensor[batch, width, d_model]
reveal_type(md.mean_pool(image, {"width": 2}, into={"width": "out"}))  # Tensor


# Functions with dims in their signatures


def mlp(
    x: md.Tensor[Batch, Length, DModel], up: md.Tensor[DModel, DFF], down: md.Tensor[DFF, DModel]
) -> md.Tensor[Batch, Length, DModel]:
    hidden = md.gelu(md.einsum(x, up, out=(batch, length, d_ff)))
    return x + md.einsum(hidden, down, out=(batch, length, d_model))


def unknown(x: md.Tensor, w: Any, dim: md.Dim) -> md.Tensor:
    """Nothing of all this may be refused."""
    y = md.einsum(x, w, out=(*without(x.dims, (dim,)), dim))
    y = md.softmax(y + x * w, dim) - md.sum(y, dim)
    y = md.where(y > x, y, vector) + md.take(y, ids, dim)
    return md.transpose(md.rename(y, dim, "other"), (dim, *y.dims))


reveal_type(mlp(x, up, down))  # Tensor[batch, length, d_model]
anything: Any = x
loose: md.Tensor = x
mlp(anything, loose, md.transpose(loose, several)) if not loose.dims else None
reveal_type(loose + x)  # Tensor
reveal_type(md.sum(loose, d_model))  # Tensor
reveal_type(md.softmax(loose, d_model))  # Tensor
reveal_type(md.broadcast(md.sum(loose), (batch, length)))  # Tensor[batch, length]
agreed: md.Tensor[Batch, Length, DModel] = loose * 2
half: md.Tensor[Batch, Any] = ids
reveal_type(half + ids)  # Tensor
reveal_type(md.sum(half, batch))  # Tensor

# A type that is generic over dims

Ds = TypeVarTuple("Ds")
N = TypeVar("N")


def standardised(x: md.Tensor[*Ds, N], dim: md.Dim[N]) -> md.Tensor[*Ds, N]:
    centred = x - md.mean(x, dim)
    return centred / (md.std(centred, dim) + 1e-6)


class Scale(PyTreeNode, Generic[N]):
    scale: md.Tensor[N]

    def __call__(self, x: md.Tensor[*Ds, N]) -> md.Tensor[*Ds, N]:
        return x * self.scale


reveal_type(standardised(x, d_model))  # Tensor[batch, length, d_model]
reveal_type(Scale(vector)(x))  # Tensor[batch, length, d_model]

# Loops over dims and tensors

total = x
for d in (batch, length):
    total = md.sum(total, d)
reveal_type(total)  # Tensor
for d in x.dims:
    x = md.flip(x, d)
weights = {"up": up, "bias": vector}
made = {name: w - 0.1 * g for (name, w), g in zip(weights.items(), weights.values(), strict=True)}
reveal_type(made)  # dict[str, Any]
for t in [x, up, vector]:
    reveal_type(t + t)  # Any
some: md.Tensor
for some in (up, vector):
    some = some + some

# Methods, and indices by name

reveal_type(x.exp())  # Tensor[batch, length, d_model]
reveal_type(x.gelu(approximate=False).clip(-1.0, 1.0))  # Tensor[batch, length, d_model]
reveal_type(x.sum())  # Tensor[]
reveal_type(x.sum(length))  # Tensor[batch, d_model]
reveal_type(x.var(d_model, ddof=1))  # Tensor[batch, length]
reveal_type(x.argmax(d_model))  # Tensor[batch, length]
reveal_type(x.softmax(d_model).cumsum(length, reverse=True))  # Tensor[batch, length, d_model]
reveal_type(x.cast(jnp.bfloat16))  # Tensor[batch, length, d_model]
memory = length.alias("memory")
reveal_type(x.rename(length, memory))  # Tensor[batch, memory, d_model]
reveal_type(x.transpose((d_model, batch, length)))  # Tensor[d_model, batch, length]
reveal_type(rows.broadcast((d_ff, batch, length)))  # Tensor[d_ff, batch, length]
reveal_type(x.take(md.iota(length), d_model))  # Tensor
reveal_type(x.reshape("batch length d_model -> batch (length d_model)"))  # Tensor
reveal_type(x.unstack(batch))  # tuple[Tensor, ...]
made = x.top_k(d_model, 2)
reveal_type(made)  # tuple[Tensor[batch, length, d_model], Tensor[batch, length, d_model]]
reveal_type(x[length, 0])  # Tensor[batch, d_model]
reveal_type(x["batch", -1])  # Tensor[length, d_model]
reveal_type(x["length", 0:2])  # Tensor[batch, length, d_model]
reveal_type(x["length", 0:2, d_model, ::-1])  # Tensor[batch, length, d_model]
reveal_type(x["length", 0, "batch", 1:])  # Tensor
reveal_type(x[length, md.iota(d_ff)])  # Tensor
reveal_type(x[text, 0])  # Tensor
reveal_type(memory)  # Dim[memory]
reveal_type(length.alias(text))  # Dim[Any]

# Names of dims of operands

reveal_type(md.einsum(x, up, out=("batch", ..., "d_ff"), contract="d_model"))  # Tensor
reveal_type(md.einsum(x, up, out=("batch", d_ff)))  # Tensor
reveal_type(md.broadcast(rows, ("batch", d_ff, length)))  # Tensor
reveal_type(md.reshape(x, (batch, "length", "d_model")))  # Tensor
reveal_type(md.random.normal(key, ("batch", d_ff), like=x))  # Tensor
reveal_type(md.random.permutation(key, "batch", like=x))  # Tensor
reveal_type(md.iota("batch", like=x))  # Tensor
reveal_type(md.eye("batch", length, like=x))  # Tensor
reveal_type(md.local(lambda a: a, x, out=("batch", length, "d_model")))  # Tensor
reveal_type(md.over("batch", lambda row: md.sum(row))(x))  # Any
reveal_type(md.map_over(lambda row: md.sum(row), x, dim="batch"))  # Any

# Functions of functions


def loss(
    weights: dict[str, md.Tensor], x: md.Tensor[Batch, Length, DModel], scale: float = 1.0
) -> md.Tensor[()]:
    return md.mean(md.einsum(x, weights["up"], out=(batch, d_ff))) * scale


reveal_type(md.value_and_grad(loss)(weights, x))  # tuple[Tensor[], dict[str, Tensor]]
reveal_type(md.value_and_grad(lambda w: md.sum(md.square(w)))(up))  # tuple[Tensor[], Any]
made = md.value_and_grad(lambda w: (md.sum(w), {"w": w}), has_aux=True)(up)
reveal_type(made)  # tuple[tuple[Tensor[], dict[str, Any]], Any]
made = md.value_and_grad(partial(loss, scale=2.0), accumulate=None)(weights, x)
reveal_type(made)  # tuple[Tensor[], dict[str, Tensor]]
reveal_type(md.checkpoint(mlp, "dots")(x, up, down))  # Tensor[batch, length, d_model]
layout = md.Layout(["batch -> data"], mesh={"data": 1})
nothing = None
reveal_type(x == nothing)  # bool
reveal_type(x.ndim)  # int
lowered = md.lower(mlp, layout, dims=("batch",))
reveal_type(lowered(x, up, down))  # Tensor[batch, length, d_model]
made = md.lower(md.value_and_grad(loss), layout)(weights, x)
reveal_type(made)  # tuple[Tensor[], dict[str, Tensor]]
lowered.program(x, up, down).table()
reveal_type(md.cond(md.any(x > 0), lambda: x, lambda: x + 1))  # Tensor[batch, length, d_model]
reveal_type(md.cond(md.any(x > 0), lambda t: (t, t), lambda t: (t, -t), x))  # Any
made = md.scan(lambda carry, row: (carry + md.sum(row), row), scalar, x, dim=batch)
reveal_type(made)  # tuple[Tensor[], Any]
reveal_type(md.while_loop(lambda t: md.all(t < 3), lambda t: t + 1, vector))  # Tensor[d_model]
reveal_type(md.map_over(lambda row: md.sum(row), x, dim=batch))  # Any
reveal_type(md.over(batch, lambda row: md.sum(row))(x))  # Any
reveal_type(md.jvp(lambda a: a * a, (vector,), (vector,)))  # tuple[Any, Any]
made = md.vjp(lambda a, b: md.sum(a * b), x, vector)[1](scalar)
reveal_type(made)  # tuple[Tensor[batch, length, d_model], Tensor[d_model]]
reveal_type(md.hvp(lambda a: md.sum(a * a), (vector,), (vector,)))  # tuple[Tensor[d_model]]
reveal_type(md.local(lambda a: a[0], x, out=(length, d_model)))  # Tensor[length, d_model]
reveal_type(md.replicate(md.reshard(x, {batch: "data"})))  # Tensor[batch, length, d_model]
