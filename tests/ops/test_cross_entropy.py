"""cross_entropy equals the loss of logits that all stand in memory, under every layout."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshdsl as md
from tests.helpers import (
    assert_equal,
    assert_same,
    collectives,
    data,
    dims,
    every,
    in_a_row,
    integers,
    layout,
    weight,
    with_gradients,
)

EVEN = dims(batch=8, length=6, d_model=8, vocab=16)
UNEVEN = dims(batch=5, length=3, d_model=8, vocab=11)


def expected(x, head, targets, bias=None, softcap=None):
    """Twice [batch, length], by ops that need all logits at once."""
    logits = md.einsum(x, head, out=("batch", "length", "vocab"), contract="d_model")
    logits = logits if bias is None else logits + md.broadcast(bias, logits.dims)
    logits = logits if softcap is None else softcap * md.tanh(logits / softcap)
    vocab = logits.dim("vocab")
    normaliser = md.logsumexp(logits, vocab)
    chosen = md.sum(md.where(md.one_hot(targets, vocab, bool), logits, 0.0), vocab)
    return normaliser - chosen, normaliser


def operands(sizes=EVEN, tied=False):
    """Some targets are no index of the vocabulary."""
    batch, length, d_model, vocab = sizes
    x, bias = data(batch, length, d_model, low=-2, high=2), weight(vocab, seed=3)
    head = weight(vocab, d_model) if tied else weight(d_model, vocab, ins=d_model)
    return x, head, integers(length, batch, below=vocab.size + 3) - 1, bias


@pytest.mark.parametrize("how", [{}, {"softcap": 1.5}], ids=["plain", "soft cap"])
@pytest.mark.parametrize("chunk", [None, 7])
def test_it_is_what_all_logits_give(chunk, how):
    args = operands(tied=bool(how))
    plain = lambda x, w, t, b: expected(x, w, t, b, **how)
    chunked = lambda x, w, t, b: md.cross_entropy(x, w, t, bias=b, chunk=chunk, **how)
    found = jax.jit(with_gradients(chunked, args))(*args)
    assert_equal(found, jax.jit(with_gradients(plain, args))(*args))


LAYOUTS = {
    "sequence": (
        EVEN,
        layout(
            "batch -> x",
            "vocab -> y",
            "length -> y",
            mesh={"x": 4, "y": 2},
            parameters=["d_model -> x"],
        ),
    ),
    "split features": (
        EVEN,
        layout("batch -> x", "d_model -> y", "vocab -> z", mesh={"x": 2, "y": 2, "z": 2}),
    ),
    "uneven": (
        UNEVEN,
        layout("batch -> x", "vocab -> y", "length? -> y", mesh={"x": 2, "y": 4}, uneven="pad"),
    ),
}


@every(LAYOUTS, "split features")
def test_it_is_the_same_under_every_layout(sizes, rules):
    fn = lambda x, w, t, b: md.cross_entropy(x, w, t, bias=b, chunk=2)
    program, _ = assert_same(fn, *operands(sizes), layout=rules)
    assert all(in_a_row(program, c) for c in program.collectives)


def test_all_chunks_together_move_two_numbers_for_each_token():
    """Forwards one maximum and one sum, however many chunks there are; backwards nothing."""
    rules = layout("batch -> x", "vocab -> y", mesh={"x": 2, "y": 4})
    x, head, targets, _ = operands()
    fn = lambda x, w, t: md.sum(md.cross_entropy(x, w, t, chunk=3)[0])
    forward = {("pmax", ("y",)): 1, ("psum", ("y",)): 1, ("psum", ("x",)): 1}
    assert collectives(fn, x, head, targets, layout=rules) == forward
    program = md.lower(fn, rules).program(x, head, targets)
    (op,) = (op for op in program.ops if op.name == "cross_entropy")
    tokens = x.size // 8 // 2
    assert [(m.operation, m.bytes) for m in op.moves if m.operation != "vary"] == [
        ("pmax", 4 * tokens),
        ("psum", 2 * 4 * tokens),
    ]


def test_an_empty_dim_costs_what_its_logits_would():
    batch, length, d_model, vocab = EVEN
    for sizes in (
        (md.Dim("batch", 0), length, d_model, vocab),
        (batch, length, md.Dim("d_model", 0), vocab),
        (batch, length, d_model, md.Dim("vocab", 0)),
    ):
        args = operands(sizes)[:3]
        both = lambda *args: (md.cross_entropy(*args, chunk=5), expected(*args))
        assert_equal(*jax.jit(both)(*args))


def test_logits_are_rounded_to_the_dtype_that_is_asked_for():
    x, head, targets, _ = operands()

    @jax.jit
    def of_logits(x, head):
        logits = md.einsum(x, head, out=("batch", "length", "vocab"), contract="d_model")
        return md.logsumexp(md.cast(md.cast(logits, jnp.bfloat16), jnp.float32), "vocab")

    in_16 = jax.jit(lambda *args: md.cross_entropy(*args, dtype=jnp.bfloat16, chunk=5))
    coarse = in_16(x, head, targets)
    assert_equal(coarse[1], of_logits(x, head))
    assert all(t.dtype == jnp.float32 for t in coarse)
    args = md.cast(x, jnp.bfloat16), md.cast(head, jnp.bfloat16), targets
    narrow = jax.eval_shape(md.cross_entropy, *args)
    assert all(t.dtype == jnp.float32 for t in narrow)


def test_the_gradient_of_a_narrow_weight_is_added_up_in_float32():
    """In bfloat16, 512 equal terms would come to 256 at most."""
    tokens, d_model, vocab = dims(tokens=512, d_model=1, vocab=2)
    x = md.tensor(jnp.ones((512, 1), jnp.bfloat16), (tokens, d_model))
    head = md.tensor(jnp.zeros((1, 2), jnp.bfloat16), (d_model, vocab))
    targets = md.tensor(jnp.zeros(512, jnp.int32), (tokens,))
    loss = lambda w: md.sum(md.cross_entropy(x, w, targets, chunk=1)[0])
    _, gradient = jax.jit(md.value_and_grad(loss))(head)
    np.testing.assert_array_equal(gradient.array.astype(np.float32), [[-256, 256]])


def test_memory_holds_the_logits_of_one_chunk():
    """Compiled for the CPU, with gradients, over 64 chunks."""
    tokens, d_model, vocab = dims(tokens=4096, d_model=16, vocab=1024)
    args = (data(tokens, d_model), data(d_model, vocab), integers(tokens, below=1024))

    def temporaries(**how):
        run = with_gradients(lambda x, w, t: md.cross_entropy(x, w, t, **how), args)
        found = jax.jit(run).lower(*args).compile().memory_analysis()
        assert found is not None
        return found.temp_size_in_bytes

    of_all = 4 * tokens.size * vocab.size
    assert temporaries() > of_all
    assert temporaries(chunk=64) < of_all / 8
