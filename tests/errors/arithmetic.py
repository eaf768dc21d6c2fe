"""Errors of component-wise ops, einsum, dot, attention, reductions and local functions."""

from unittest import mock

import jax
import jax.numpy as jnp

import meshdsl as md
from meshdsl.ops.attention import kernels
from tests.errors.common import EMPTY, IDS, IMAGE, A, B, C, T, W, X, Y, lowered, under
from tests.helpers import data, dims, integers, weight

COMPLEX = md.cast(X, jnp.complex64)
QUERIES, MEMORY, HEAD_DIM = dims(queries=4, memory=8, head_dim=3)
QUERY, KEY = data(A, QUERIES, HEAD_DIM), data(A, MEMORY, HEAD_DIM)
VOCAB = md.Dim("vocab", 5)
HEAD = data(B, VOCAB)


def cudnn_of_another_jax():
    """Attention by cuDNN where JAX's backward pass reads something else."""
    query, key = (
        md.cast(data(A, QUERIES, md.Dim("head_dim", 8)), jnp.bfloat16),
        md.cast(data(A, MEMORY, md.Dim("head_dim", 8)), jnp.bfloat16),
    )
    with (
        mock.patch.object(jax.nn, "dot_product_attention", lambda q, k, v, **_: 2 * q),
        mock.patch.object(kernels, "_has_cudnn", return_value=True),
    ):
        md.attention(query, key, key, implementation="cudnn")


EXPERTS = data(C, B, md.Dim("n", 8))


def _routed(
    fn=lambda groups, rows, w: groups.dot(rows, w),
    x=X,
    ids=IDS,
    weights=data(A),
    parameters=(EXPERTS,),
    **how,
):
    return md.routed(fn, x, ids, weights, parameters, C, **how)


def _exchanged_with_a_closure():
    def fn(x, ids, shares, weights):
        factors = jnp.arange(8)
        scaled = lambda groups, rows, w: groups.dot(rows * factors, w)
        return md.routed(scaled, x, ids, shares, (weights,), experts="e")

    rules = [{"rule": "e -> data", "move": "exchange"}, "a -> data"]
    weights = weight(md.Dim("e", 4), B, md.Dim("n", 8))
    return under(rules, fn, X, IDS, data(A), weights)


ERRORS = [
    # Component-wise ops.
    (
        lambda: X + data(md.Dim("b", 7)),
        "add: `b` is 8 in operand 0 [a=4, b=8] and 7 in operand 1 [b=7]",
    ),
    (lambda: X * Y, "multiply … [a=4, b=8] and [b=8, c=3] … lacks `c` … broadcast … einsum"),
    (lambda: X + jnp.ones((4, 8)), "add … shape (4, 8) … md.tensor"),
    (lambda: X + "y", "add … Tensors and numbers … str"),
    (lambda: md.maximum(1, 2), "maximum: at least one operand"),
    (lambda: md.map(jnp.sum, X), "sum … shape () … [a=4, b=8] … (4, 8)"),
    (lambda: md.floor(COMPLEX), "floor … not defined for [a=4, b=8] of complex64 … md.real"),
    (
        lambda: lowered(lambda x: md.floor(md.cast(x, jnp.complex64))),
        "floor: is not defined for [a=4, b=8] of complex64",
    ),
    (lambda: md.bitwise_and(X, 1), "bitwise_and: cannot be done with [a=4, b=8] of float32"),
    (lambda: md.cast(X, "flaot32"), "cast: `dtype` … not 'flaot32'"),
    # einsum.
    (
        lambda: md.einsum(X, data(C, md.Dim("b", 4)), out=(A, C)),
        "einsum: `b` is 8 in operand 0 [a=4, b=8] and 4 in operand 1 [c=3, b=4]",
    ),
    (
        lambda: md.einsum(X, Y, out=(A, T)),
        "einsum: out has t=2 … none of [a=4, b=8], [b=8, c=3]; known",
    ),
    (
        lambda: md.einsum(X, 3.0, out=(A,)),
        "einsum: each of `tensors` is a Tensor, not 3.0 … [a=4, b=8]",
    ),
    (lambda: md.einsum(out=(A,)), "einsum … Tensors"),
    (
        lambda: md.einsum(data(A, B, C), data(A, B, T), out=(..., B, C, T)),
        "einsum: [a=4, b=8, c=3], [a=4, b=8, t=2] share [a=4] … `out` does not name … Write "
        "contract=a, less what is to be kept … `...` stands for all other dims … one by one, "
        "without `...`",
    ),
    (
        lambda: md.einsum(IMAGE, data(A, B, T), out=(..., T)),
        "share [a=4, b=8] … contract=(a, b), less",
    ),
    (
        lambda: md.einsum(X, Y, out=(A, B), contract=(B, C)),
        "einsum: [b=8] cannot be in `out` and in `contract`",
    ),
    (
        lambda: md.einsum(X, Y, out=(A,), contract=B),
        "[c=3] of [a=4, b=8], [b=8, c=3] is neither in `out` nor in `contract` … write `...`",
    ),
    (
        lambda: md.einsum(X, Y, out=(...,), contract="bb"),
        "einsum, contract: no dim `bb` in [a=4, b=8, c=3]; did you mean `b`?",
    ),
    (lambda: md.einsum(X, Y, out=(..., ...)), "einsum … ellipsis"),
    (lambda: md.einsum(X, W, out=None), "einsum: dims are Dims such as … not None"),
    (
        lambda: md.einsum(X, W, out=(A,), precision="hi"),
        "einsum: cannot be done with [a=4, b=8] of float32 … Precision",
    ),
    # dot.
    (
        lambda: md.dot(X, Y),
        "dot: the second operand [b=8, c=3] does not say … ins=... … md.einsum(x, w, out=",
    ),
    (
        lambda: md.dot(X, weight(T, C, ins=T)),
        "dot: the weight [t=2, c=3] contracts t=2, which [a=4, b=8] lacks; known: `a`, `b`",
    ),
    (
        lambda: md.dot(IDS, weight(A, B, ins=A)),
        "dot: [a=4] is int32 … a weight of float32 … md.cast … md.take",
    ),
    (
        cudnn_of_another_jax,
        'attention: in this version of JAX … cuDNN\'s backward pass … implementation="blocks"',
    ),
    # Cross-entropy.
    (
        lambda: md.cross_entropy(X, HEAD, IDS, vocab="vocb"),
        "cross_entropy, the weight: no dim `vocb` … did you mean `vocab`?",
    ),
    (
        lambda: md.cross_entropy(data(A, VOCAB), HEAD, IDS),
        "cross_entropy: `x` [a=4, vocab=5] has vocab=5",
    ),
    (
        lambda: md.cross_entropy(X, data(C, VOCAB), IDS),
        "cross_entropy: the weight [c=3, vocab=5] has c=3, which `x` [a=4, b=8] lacks",
    ),
    (
        lambda: md.cross_entropy(X, HEAD, integers(A, C, below=5)),
        "cross_entropy: the targets have the dims of the tokens, [a=4], not [a=4, c=3]",
    ),
    (
        lambda: md.cross_entropy(X, HEAD, IDS, dtype=HEAD.array),
        "cross_entropy: `dtype` is a dtype such as jnp.bfloat16 or None, not of type ArrayImpl",
    ),
    (
        lambda: md.cross_entropy(X, HEAD, IDS, dtype=int),
        "cross_entropy: `dtype` is a floating-point dtype, not int",
    ),
    (
        lambda: md.cross_entropy(X, HEAD, IDS, bias=data(A, VOCAB)),
        "cross_entropy: the bias has vocab=5 alone, not [a=4, vocab=5]",
    ),
    (
        lambda: md.cross_entropy(X, HEAD, data(A)),
        "cross_entropy: the targets [a=4] are float32, not whole numbers",
    ),
    (
        lambda: md.cross_entropy(integers(A, B, below=2), HEAD, IDS),
        "cross_entropy … not int32 and float32; md.cast them",
    ),
    (lambda: md.cross_entropy(X, HEAD, IDS, chunk=0), "cross_entropy: `chunk` … 0"),
    (
        lambda: md.cross_entropy(X, HEAD, IDS, softcap=0.0),
        "cross_entropy: `softcap` is a number above 0, not 0.0",
    ),
    # Attention.
    (
        lambda: md.attention(QUERY, KEY, KEY, memory="memry"),
        "attention, the key: no dim `memry` … did you mean `memory`?",
    ),
    (
        lambda: md.attention(QUERY, QUERY, KEY, memory="a"),
        "attention: the key … has queries=4 … rename",
    ),
    (
        lambda: md.attention(data(QUERIES, MEMORY, HEAD_DIM), KEY, KEY),
        "attention: the query … has memory=8 … rename",
    ),
    (
        lambda: md.attention(QUERY, KEY, KEY, queries="head_dim"),
        "attention: the key … has head_dim=3",
    ),
    (
        lambda: md.attention(QUERY, KEY, data(MEMORY, T, B)),
        "attention: the value [memory=8, t=2, b=8] has 2 dims … head_dim=3",
    ),
    (
        lambda: md.attention(QUERY, KEY, md.cast(KEY, jnp.bfloat16)),
        "attention … of one dtype … float32, float32, bfloat16; md.cast",
    ),
    (
        lambda: md.attention(QUERY, KEY, KEY, softcap=0.0),
        "attention: `softcap` is a number above 0, not 0.0",
    ),
    (
        lambda: md.attention(QUERY, KEY, KEY, segments=(integers(QUERIES, below=2),)),
        "attention: `segments` is a pair of Tensors",
    ),
    (
        lambda: md.attention(QUERY, KEY, KEY, segments=(integers(MEMORY, below=2),) * 2),
        "attention: `segments` are a pair … queries=4 … memory=8 … [memory=8]",
    ),
    (
        lambda: md.attention(QUERY, KEY, KEY, segments=(data(QUERIES), data(MEMORY))),
        "attention: `segments` [queries=4] is float32; it has whole numbers",
    ),
    (
        lambda: md.attention(QUERY, KEY, KEY, bias=data(QUERIES)),
        "attention: `bias` [queries=4] has no memory=8 … cancel",
    ),
    (
        lambda: md.attention(QUERY, KEY, KEY, sinks=data(T)),
        "attention: `sinks` [t=2] has t=2 … [a=4, queries=4]",
    ),
    (
        lambda: md.attention(QUERY, KEY, KEY, implementation="splsh"),
        "attention: `implementation` is one of 'blocks' … 'splsh'",
    ),
    (
        lambda: md.attention(QUERY, KEY, KEY, sinks=data(A), implementation="splash"),
        'attention: splash cannot serve this call: it has no `sinks` … "blocks"',
    ),
    # Reductions.
    (lambda: md.max(EMPTY, "n"), "max: [n=0] of [n=0, b=8] … no element … a size of 1 or more"),
    (lambda: md.argmax(COMPLEX, A), "argmax … [a=4, b=8] is complex64 … md.real … md.abs"),
    (lambda: md.argmax(X, (A, B)), "argmax … one dim … tuple … [a=4, b=8]"),
    # Local functions.
    (lambda: md.local(lambda x: x.T, X, out=(A, B)), "(8, 4) … [a=4, b=8] … (4, 8)"),
    (
        lambda: md.local(jnp.sin, X, out=(A, B), sums=A),
        "local, sums: no sum over a=4, because the result has it",
    ),
    (
        lambda: md.local(jnp.sum, X, out=(), sums=A, whole=A),
        "local, sums: no sum over a=4, because it is to be whole",
    ),
    # Mixtures of experts.
    (
        lambda: md.cumcount(X, A, C),
        "cumcount: the indices [a=4, b=8] are float32, not whole numbers",
    ),
    (lambda: md.cumcount(IDS, A, A), "cumcount: [a=4] has a dim `a` already"),
    (
        lambda: _routed(ids=md.tensor(jnp.zeros(4), A)),
        "routed: the indices [a=4] are float32, not whole numbers",
    ),
    (lambda: _routed(weights=IDS), "routed: takes real floating-point numbers, and [a=4] is int32"),
    (
        lambda: _routed(x=data(A, B, T)),
        "[a=4, b=8, t=2] has one dim of features … the indices [a=4] lack, not 2",
    ),
    (
        lambda: _routed(weights=X),
        "routed: the weights [a=4, b=8] have not the dims of the indices [a=4]",
    ),
    (
        lambda: _routed(parameters=(EXPERTS, data(B, T))),
        "routed: a parameter [b=8, t=2] has not c=3",
    ),
    (
        lambda: _routed(x=data(A, C), parameters=(data(C, B),)),
        "routed: [a=4, c=3] has the dim c=3 of the parameters",
    ),
    (
        lambda: _routed(parameters=(data(C, A, B),)),
        "routed: the parameters and the indices [a=4] share a=4",
    ),
    (
        lambda: _routed(fn=lambda groups, rows, w: rows[:, :2]),
        "routed: the function gives an array of shape (4, 2) for rows of (4, 8)",
    ),
    (
        _exchanged_with_a_closure,
        "routed: the function closes over int32 (8,) … make it inside of the function",
    ),
    (
        lambda: _routed(implementation="megablox"),
        "megablox cannot serve this call: it takes 128 rows and features or more, not 4 and 8",
    ),
    (
        lambda: _routed(implementation="block"),
        "routed: `implementation` is one of 'megablox', 'pallas', 'blocks' … did you mean `blocks`",
    ),
]
