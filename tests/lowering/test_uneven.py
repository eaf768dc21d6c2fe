"""Dims that do not divide over their axes are padded inside of a lowering, and nobody sees it."""

import jax

import meshdsl as md
from tests.helpers import assert_same, collectives, data, dims, every, integers, layout, weight

BATCH, LENGTH, HEADS, VOCAB, D = dims(batch=6, length=10, heads=25, vocab=17, d=12)
MESH = {"data": 4, "model": 2}
LAYOUTS = {
    "batch over two axes": layout("batch -> data, model", mesh=MESH, uneven="pad"),
    "minor first": layout("batch -> model, data", "vocab? -> data", mesh=MESH, uneven="pad"),
    "several": layout("heads?, vocab?, length? -> data", "batch -> model", mesh=MESH, uneven="pad"),
    "over eight": layout("heads?, vocab?, length? -> m", mesh={"m": 8}, uneven="pad"),
    "at rest too": layout(
        "vocab? -> model", "batch -> data", parameters=["d? -> data"], mesh=MESH, uneven="pad"
    ),
    "one rule": layout("length? -> model", {"rule": "batch -> data", "uneven": "pad"}, mesh=MESH),
}


def language_model(table, w, ids, targets):
    """Everything that a vocabulary of 17 over 2, 4 or 8 and a batch of 6 over 4 meet in a model."""
    x = md.take(table, ids, VOCAB)
    x = x + md.mean(x, D) / md.sqrt(md.var(x, D) + 1e-3)
    x = md.dropout(md.tanh(x), 0.2, jax.random.key(3))
    logits = md.einsum(x, w, out=(BATCH, LENGTH, VOCAB))
    nats = md.logsumexp(logits, VOCAB) - md.take(logits, targets, VOCAB)
    return md.mean(nats), md.argmax(logits, VOCAB), md.softmax(logits, VOCAB)


def under(*names, slow=()):
    """Cases for some of the layouts."""
    return every({name: LAYOUTS[name] for name in (*names, *slow)}, *slow)


@under("over eight", "at rest too", slow=("several", "minor first"))
def test_a_language_model_is_the_same_with_padded_dims(rules):
    ids, targets = integers(BATCH, LENGTH, below=17), integers(BATCH, LENGTH, below=17, seed=5)
    weights = weight(VOCAB, D), weight(D, VOCAB, ins=D, seed=2)
    assert_same(language_model, *weights, ids, targets, layout=rules)


@under("batch over two axes", "one rule", slow=("several",))
def test_padding_never_poisons_gradients(rules):
    """In padding a logarithm or a quotient may be anything.

    Nobody who has the dim or lacks it may see it.
    """

    def run(x, w, v):
        y = md.log(x) * w + w / x + md.sqrt(x - 0.4) + md.arccosh(x + 0.6) + md.power(x, w)
        sums = md.sum(y, BATCH), md.max(y, BATCH), md.prod(x, BATCH)
        return *sums, md.einsum(y, v, out=(HEADS,)), md.logsumexp(y / v, BATCH)

    w, v = data(HEADS, low=1, high=2), data(BATCH, low=1, high=2)
    assert_same(run, data(BATCH, HEADS, low=0.5, high=2), w, v, layout=rules, dims=["vocab"])


def test_results_have_their_logical_size_and_no_device_more_than_its_share():
    rules = layout("batch -> data", mesh={"data": 4}, uneven="pad")
    result = md.lower(lambda x: x * 2, rules)(data(BATCH, D))
    assert result.array.shape == (6, 12)
    assert result.split == {
        D: ("data",)
    }  # the axis that would cut the batch unevenly cuts another dim
    assert md.lower(lambda x: x * 2, rules)(data(BATCH)).split == {}


def test_a_padded_dim_nests_so_that_no_move_between_its_splits_gathers_it_all():
    length, heads = dims(length=1000, heads=4)
    three = "length -> context", "heads? -> model", "length -> model"
    rules = layout(*three, mesh={"context": 4, "model": 2}, uneven="pad")

    def run(x):
        return md.sum(md.tanh(md.broadcast(md.tanh(x), (length, heads))))

    x = data(length)
    seen = collectives(run, x, layout=rules)
    assert seen == {("all_gather", ("model",)): 1, ("psum", ("context", "model")): 1}, seen
    assert_same(run, x, layout=rules)


def test_a_dim_that_divides_over_some_of_its_axes_only_is_whole_at_rest():
    """Over `m` alone 36 is even, but its parts nest with those over `m, n`, which are padded."""
    vocab, other = dims(vocab=36, other=3)
    rules = layout("vocab -> m, n", mesh={"n": 2, "m": 4}, uneven="pad")
    assert_same(md.tanh, data(vocab, other), layout=rules)
    assert_same(lambda x: md.reshape(x, (other, *dims(c=6, e=6))), data(vocab, other), layout=rules)


def test_the_record_shows_the_waste():
    rules = layout("heads -> model", "batch -> data", mesh={"data": 4, "model": 2}, uneven="pad")
    lowered = md.lower(lambda x: md.tanh(x), rules)
    table = lowered.program(data(BATCH, HEADS)).table()
    tanh = next(line for line in table.splitlines() if "tanh[" in line)
    assert "+39% padding" in tanh, table  # 8 x 26 elements where 6 x 25 are meant
