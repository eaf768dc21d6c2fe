"""Programs that are surely wrong. What the checker reports for a line stands behind it.

`# error:` the statement raises an error when it runs; `# claim:` only what is declared is wrong.
"""

from typing import Literal

import jax
import jax.numpy as jnp

import meshdsl as md

batch, length, d_model, d_ff = (
    md.Dim("batch", 2),
    md.Dim("length", 3),
    md.Dim("d_model", 4),
    md.Dim("d_ff", 5),
)
Batch = Literal["batch"]
Length = Literal["length"]
DModel = Literal["d_model"]
key = jax.random.key(0)
x = md.tensor(jnp.ones((2, 3, 4)), (batch, length, d_model))
h = md.tensor(jnp.ones((2, 3, 5)), (batch, length, d_ff))
ids = md.tensor(jnp.ones((2, 3), int), (batch, length))
vector = md.tensor(jnp.ones(4), (d_model,))
up = md.parameter(jnp.ones((4, 5)), (d_model, d_ff), ins=(d_model,))

# Operands of which none has the dims of the other
x + h  # error: Operator "+" not supported
up * ids  # error: Operator "*" not supported
x - md.sum(h, batch)  # error: Operator "-" not supported
vector / ids  # error: Operator "/" not supported
x == h  # error: Operator "==" not supported
x < up  # error: Operator "<" not supported
md.add(x, h)  # error: No overloads
md.where(x > 0, x, h)  # error: No overloads
x + md.gelu(md.einsum(x, up, out=(batch, length, d_ff)))  # error: Operator "+" not supported
x + md.einsum(x, up, out=(..., d_ff))  # error: Operator "+" not supported
x + md.one_hot(ids, d_ff)  # error: Operator "+" not supported
x + md.rename(x, length, md.Dim("memory", 3))  # error: Operator "+" not supported
x + md.random.normal(key, (batch, d_ff))  # error: Operator "+" not supported

# What is no operand
x + "1"  # error: Operator "+" not supported
x @ up  # error: Operator "@" not supported
x[0]  # error: __getitem__
x[batch]  # error: __getitem__
x["batch", "length"]  # error: __getitem__
len(x)  # error: Argument of type
jnp.sin(x)  # error: Argument of type
md.exp(2.0)  # error: No overloads
md.exp(x, x)  # error: No overloads
md.add(x)  # error: No overloads
md.sum(jnp.ones(3))  # error: Argument of type
md.einsum(x, jnp.ones(3), out=(batch,))  # error: No overloads

# A dim that the tensor lacks
md.sum(x, d_ff)  # error: No overloads
md.mean(x, (batch, d_ff))  # error: No overloads
md.softmax(x, d_ff)  # error: Argument of type
md.sort(vector, length)  # error: Argument of type
md.slice(x, d_ff, 0, 1)  # error: No overloads
md.pad(x, d_ff, 1)  # error: Argument of type
md.top_k(x, d_ff, 1)  # error: No overloads
md.tril(x, length, d_ff)  # error: Argument of type
md.rename(x, d_ff, "other")  # error: No overloads
md.take(x, ids, d_ff)  # error: No overloads
md.unstack(x, d_ff)  # error: Argument of type
md.random.categorical(key, x, d_ff)  # error: No overloads
md.transpose(x, (d_ff, length, batch))  # error: No overloads
md.broadcast(x, (batch, length, d_ff))  # error: No overloads
x[d_ff, 0]  # error: __getitem__
x[d_ff, 1:2]  # error: __getitem__
x.sum(d_ff)  # error: No overloads
x.softmax(d_ff)  # error: Argument of type

# Settings
md.tensor(jnp.ones(2), ("batch",))  # error: No overloads
md.sum(x, axis=0)  # error: No overloads
md.cumsum(x, batch, True)  # error: Expected 2 positional arguments
md.cond(x > 0, lambda: x, lambda: x)  # error: No overloads
md.conv(x, up, {}, out=(batch,), strides=2)  # error: No overloads
md.summ(x)  # error: "summ" is not a known attribute
x.summ()  # error: Cannot access attribute "summ"
x.exp(x)  # error: Expected 0 positional argument


# What is declared
def mlp(x: md.Tensor[Batch, Length, DModel]) -> md.Tensor[Batch, DModel]:
    return md.sum(x, batch)  # claim: is not assignable to return type


def halves(x: md.Tensor[Batch, Length]) -> md.Tensor[Batch, Length]:
    made = md.einsum(x, out=(length, batch))
    return x + made * md.iota(d_model)  # claim: Operator "*" not supported


other: md.Dim[Length] = md.Dim("batch", 2)  # claim: is not assignable to
few: md.Tensor[Batch, Length] = x  # claim: is not assignable to declared type
turned: md.Tensor[DModel, Batch, Length] = x  # claim: is not assignable to declared type
mlp(h)  # claim: Argument of type
md.checkpoint(mlp)(h)  # claim: Argument of type
md.lower(mlp, md.Layout(["batch -> data"], mesh={"data": 1}))(h)  # claim: Argument of type
md.value_and_grad(halves)(x)  # claim: Argument of type
