"""Generating with a cache gives the tokens of the whole model, run again at every position.

They are the same under every layout.
"""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshdsl as md
from meshdsl.models.generate import Sampling, advance, generate, start
from meshdsl.train.sample import Opened, continuations
from tests.helpers import every, only
from tests.models import common

LENGTH = md.Dim("length", 8)
COUNT = 6
SIZES = (8, 5, 1, 2, 7, 3, 8, 4)
GREEDY, DRAWN = Sampling(temperature=0.0), Sampling(temperature=0.9, top_k=20, top_p=0.95)


def prompts() -> tuple[md.Tensor, md.Tensor]:
    """Tokens, and how many of each row are the prompt."""
    tokens = jax.random.randint(jax.random.key(1), (common.BATCH.size, LENGTH.size), 0, 64)
    return md.tensor(tokens, (common.BATCH, LENGTH)), md.tensor(
        jnp.asarray(SIZES, jnp.int32), (common.BATCH,)
    )


@functools.cache
def on_one_device(style: str, how: Sampling):
    model = common.init(common.CONFIGS[style])
    tokens, sizes = prompts()
    written = jax.jit(lambda model: generate(model, tokens, COUNT, jax.random.key(7), how, sizes))(
        model
    )
    return model, np.asarray(written.array)


def whole_rows(written: np.ndarray) -> np.ndarray:
    """Each prompt with its continuation behind it, up to the longest row."""
    tokens = np.asarray(prompts()[0].array)
    rows = np.zeros((len(SIZES), LENGTH.size + COUNT), np.int32)
    for row, size in enumerate(SIZES):
        rows[row, : size + COUNT] = [*tokens[row, :size], *written[row]]
    return rows


def logits_of(model, rows: np.ndarray) -> np.ndarray:
    """The whole model on all of the rows: [row, position, vocab]."""
    tokens = md.tensor(jnp.asarray(rows), (common.BATCH, md.Dim("length", rows.shape[1])))
    return np.asarray(
        jax.jit(lambda model: md.transpose(model(tokens), ("batch", "length", "vocab")).array)(
            model
        )
    )


CASES = [("llama", "fsdp-sequence"), ("gpt2", "fsdp-tensor"), ("gpt2", "pipeline-fsdp")]
QUICK = [("gpt2", "fsdp-tensor")]


@pytest.mark.parametrize("style, name", only(QUICK, CASES))
def test_every_layout_writes_the_same(style, name):
    how = {"llama": DRAWN, "gpt2": GREEDY}[style]
    model, expected = on_one_device(style, how)
    tokens, sizes = prompts()
    lowered = md.lower(
        lambda m, p, n, k: generate(m, p, COUNT, k, how, n),
        common.on(common.load(name), 8),
        dims=common.CONFIGS[style].dims,
    )
    assert np.array_equal(lowered(model, tokens, sizes, jax.random.key(7)).array, expected)


@pytest.mark.parametrize("style", common.CONFIGS)
def test_every_token_is_the_likeliest_after_all_tokens_before_it(style):
    model, written = on_one_device(style, GREEDY)
    likeliest = logits_of(model, whole_rows(written)).argmax(-1)
    for row, size in enumerate(SIZES):
        assert np.array_equal(written[row], likeliest[row, size - 1 : size - 1 + COUNT])


def test_a_draw_is_of_the_key_the_row_and_the_number_of_tokens_before_it():
    """Other rows, and what lies behind a prompt, change nothing.

    And what is drawn is among the likeliest.
    """
    model, written = on_one_device("llama", DRAWN)
    tokens, sizes = prompts()
    behind = np.arange(LENGTH.size) >= np.array(SIZES)[:, None]
    other = md.tensor(
        jnp.where(behind | (np.arange(8) % 2 == 1)[:, None], 3, tokens.array), tokens.dims
    )
    again = np.asarray(
        jax.jit(lambda model: generate(model, other, COUNT, jax.random.key(7), DRAWN, sizes).array)(
            model
        )
    )
    assert np.array_equal(again[::2], written[::2])
    logits = logits_of(model, whole_rows(written))
    for row, size in enumerate(SIZES):
        for i, token in enumerate(written[row]):
            assert (
                logits[row, size - 1 + i] > logits[row, size - 1 + i, token]
            ).sum() < DRAWN.top_k
    assert len({tuple(row) for row in written}) == len(SIZES)


def test_a_row_that_has_ended_repeats_its_end_and_the_others_go_on():
    _, written = on_one_device("llama", GREEDY)
    end = int(written[0, 2])
    stopped = on_one_device("llama", dataclasses.replace(GREEDY, end=end))[1]
    for row, before in zip(stopped, written, strict=True):
        first = int(np.argmax(before == end)) if end in before else COUNT
        assert np.array_equal(row[:first], before[:first]) and (row[first:] == end).all()
    assert not (stopped == end).all(axis=1).all()


CACHES = {
    "batch, heads and memory": md.Layout(
        ["batch -> data", "kv_heads, d_ff -> model", "memory -> context"],
        mesh={"data": 2, "model": 2, "context": 2},
    ),
    "memory": md.Layout(["memory -> context"], mesh={"context": 2}),
}


@every(CACHES, "memory")
def test_a_cache_that_is_split_over_its_positions_writes_the_same(rules):
    """Attention may gather them or merge what is found in each part."""
    model, expected = on_one_device("llama", GREEDY)
    lowered = md.lower(lambda m, p, n: generate(m, p, COUNT, jax.random.key(7), GREEDY, n), rules)
    assert np.array_equal(lowered(model, *prompts()).array, expected)


def test_a_step_writes_the_cache_in_place():
    """Nothing of its size is made beside it, neither in a step nor for a layer of it."""
    layout, memory = common.on(common.load("tensor"), 8), md.Dim("memory", 512)
    config = dataclasses.replace(common.CONFIGS["llama"], layers=8, length=memory.size)
    key, model = jax.random.key(7), common.init(config)
    shapes = jax.eval_shape(lambda m, p, n: start(m, p, n, memory, key, GREEDY), model, *prompts())

    def step(cache, rest, model):
        return advance(model, rest.replace(cache=cache), key, GREEDY)

    args = shapes.cache, shapes.replace(cache=None), model
    lowered = md.lower(step, layout)
    compiled = jax.jit(lowered, donate_argnums=0).lower(*args).compile()
    # On each of eight devices, which have a head each: keys alone, and as many values.
    size = config.layers * common.BATCH.size * memory.size * 8 * 4
    memory_of = compiled.memory_analysis()
    assert memory_of.alias_size_in_bytes >= 2 * size
    assert memory_of.temp_size_in_bytes < size
    assert not re.search(rf"f32\[8,8,1,{memory.size},8\]\S* (copy|select)\(", compiled.as_text())


def test_a_step_reads_the_cache_where_the_law_put_it():
    """Heads are split by `model`: a step sums after attention and the feed-forward layer.

    It moves no key and no value.
    """
    model, layout = on_one_device("llama", GREEDY)[0], common.on(common.load("tensor"), 8)
    tokens, sizes = prompts()
    program = md.lower(
        lambda m, p, n: generate(m, p, COUNT, jax.random.key(7), GREEDY, n), layout
    ).program(model, tokens, sizes)
    moved = {
        c.operation for c in program.collectives if ("written", COUNT) in program.op_of(c).loops
    }
    assert moved == {"psum", "pmax", "pmin"}


def test_a_continuation_longer_than_the_model_is_an_error():
    with pytest.raises(
        md.MeshDSLError, match="8 tokens of prompt and 12 more exceed the model's length=16"
    ):
        generate(on_one_device("gpt2", GREEDY)[0], prompts()[0], 12, jax.random.key(0))


@pytest.mark.slow
def test_a_text_that_becomes_long_is_read_anew_whatever_is_in_its_batch():
    long = {"rotary_scaling": "longrope", "rotary_length": 12}
    long |= {"rotary_short": (1.0, 1.2, 1.3, 1.4), "rotary_long": (3.0, 5.0, 6.0, 7.0)}
    config = dataclasses.replace(common.CONFIGS["llama"], **long, length=32)
    model = common.init(config)
    random, layout = np.random.default_rng(0), common.load("single")
    prompts = [random.integers(1, 64, size).tolist() for size in (3, 9, 12, 14)]
    how, key = Sampling(temperature=0.0), jax.random.key(3)
    opened = Opened(config, model, layout, md.make_mesh(layout))
    rows = np.stack(list(continuations(opened, prompts, 8, key, how)), 1)
    prompt = md.tensor(
        np.asarray(prompts[1:2], np.int32), (md.Dim("batch", 1), md.Dim("length", 9))
    )
    alone = jax.jit(lambda model, prompt: generate(model, prompt, 8, key, how))(model, prompt)
    assert np.array_equal(np.asarray(alone.array), rows[1:2])
    whole = jax.jit(lambda model, text: model(text).array)
    for prompt, row in zip(prompts, rows, strict=True):
        for count in (0, 7):
            text = np.asarray([[*prompt, *row[:count]]], np.int32)
            dims = md.Dim("batch", 1), md.Dim("length", text.shape[1])
            logits = whole(model, md.tensor(text, dims))
            assert int(logits[0, -1].argmax()) == row[count]
    sizes = md.tensor(np.asarray([9], np.int32), (md.Dim("batch", 1),))
    tokens = md.tensor(np.asarray(prompts[1:2], np.int32), (sizes.dims[0], md.Dim("length", 9)))
    with pytest.raises(
        md.MeshDSLError, match="texts of several sizes grow beyond rotary_length=12"
    ):
        generate(model, tokens, 8, key, how, sizes)
