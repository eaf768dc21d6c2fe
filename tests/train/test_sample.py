"""Texts that a model writes: the same under every layout, each prompt by itself, token by token."""

import functools

import jax
import numpy as np
import pytest

import meshdsl as md
from meshdsl.commands.lookup import devices_of_mesh
from meshdsl.models.generate import Sampling
from meshdsl.train.config import Config
from meshdsl.train.data.tokenizer import Bytes
from meshdsl.train.precision_settings import Precision
from meshdsl.train.sample import (
    Opened,
    continuations,
    in_dtype,
    in_few_bits,
    printable,
    sample_text,
)
from meshdsl.train.settings import override
from meshdsl.train.stored_layout import find_layout
from tests.helpers import distance, only
from tests.train.common import TINY, tiny_job

PROMPTS = ((1, 2, 3), (4,), (5, 6, 7, 8, 9))
DRAWN, GREEDY = Sampling(0.9), Sampling(0.0)


@functools.cache
def untrained():
    """The parameters that every run of the tiny model begins with."""
    return tiny_job("single").step.init(jax.random.key(0)).params


def sample(*settings: str) -> str:
    return sample_text(tiny_job("single", *settings), untrained(), Bytes())


@functools.cache
def continued(layout: str, prompts=PROMPTS, how: Sampling = DRAWN, weights: str = "") -> np.ndarray:
    """[prompts, tokens]"""
    layout = find_layout(layout)
    mesh = md.make_mesh(layout, jax.devices()[: devices_of_mesh(layout)])

    family = override(Config(), TINY).model
    places = md.shardings(jax.eval_shape(family.init, jax.random.key(0)), layout, mesh)
    model = jax.jit(family.init, out_shardings=places)(jax.random.key(0))
    key = jax.random.key(1)
    if weights:
        model = in_few_bits(model, Precision(), weights)
    opened = Opened(family, model, layout, mesh)
    return np.stack([*continuations(opened, prompts, 8, key, how)], axis=1)


def test_a_sample_continues_the_prompt_up_to_the_length_of_the_model():
    text = sample("sample.prompt=def f")
    assert text.startswith("def f")
    assert len("def f") < len(text) <= 16
    assert all(c.isprintable() or c in "\n\t" for c in text)


def test_a_prompt_longer_than_the_model_is_cut_and_none_begins_a_document():
    assert sample("sample.prompt=a very long prompt indeed").startswith("a very long pro")
    assert sample("sample.prompt=", "sample.tokens=3").startswith("\ufffd")


@pytest.mark.slow
def test_prompts_of_any_number_and_length_are_continued_alike_where_neither_divides():
    """Under a layout that splits the batch over four devices and the length over two."""
    assert np.array_equal(continued("fsdp-sequence"), continued("single"))


def test_a_prompt_is_continued_as_if_it_were_alone():
    assert np.array_equal(continued("single", PROMPTS[:1])[0], continued("single")[0])


def test_tokens_stop_when_all_prompts_have_ended():
    written = continued("single", ((3,),), GREEDY)[0]
    end = int(written[4])
    stopped = continued("single", ((3,),), Sampling(temperature=0.0, end=end))[0]
    assert np.array_equal(stopped, written[: list(written).index(end) + 1])


def test_a_model_is_used_in_the_precision_of_its_run():
    places = tiny_job("fsdp").step.shardings.params
    params = jax.device_put(untrained(), places)
    used = in_dtype(params, "bfloat16")
    assert {str(x.dtype) for x in jax.tree.leaves(used)} == {"bfloat16"}
    assert all(
        a.sharding.is_equivalent_to(b.sharding, a.ndim)
        for a, b in zip(jax.tree.leaves(used), jax.tree.leaves(params), strict=True)
    )


def test_what_a_terminal_would_obey_is_replaced():
    assert printable("a\x1b[31m\tb\n\x00") == "a\ufffd[31m\tb\n\ufffd"


@pytest.mark.parametrize("layout", only([], ["fsdp-tensor", "data", "tensor"], ["fsdp-tensor"]))
def test_weights_that_lie_in_few_bits_write_the_same_under_every_layout(layout):
    expected = continued("single", how=GREEDY, weights="int8")
    np.testing.assert_array_equal(continued(layout, how=GREEDY, weights="int8"), expected)


def test_matrices_lie_in_8_bits_and_stand_for_nearly_the_same():
    params = untrained()
    found = in_few_bits(params, Precision(), "int8")
    up, wide = found.blocks.layer.mlp.up.weight, params.blocks.layer.mlp.up.weight
    assert up.weight.dtype == np.int8 and up.dtype == wide.dtype and up.role == wide.role
    assert 0 < distance(up.as_tensor(), wide) < 0.01
    assert up.scale.dims == md.sum(wide, "d_model").dims
    assert found.embedding.table.dtype == np.float32
