"""The text at the end of a run."""

import jax
import pytest

import meshdsl as md
from meshdsl.commands.find import devices_of_mesh, find_layout
from meshdsl.train.config import Config, override
from meshdsl.train.job import Job
from meshdsl.train.sample import sample_text

pytestmark = pytest.mark.usefixtures("quick_compiler")

TINY = ["model.d_model=16", "model.layers=1", "model.heads=2", "model.d_ff=16", "model.length=16", "batch=8"]


def sample(layout, *settings):
    config, layout = override(Config(), [*TINY, *settings]), find_layout(layout)
    job = Job(config, layout, md.make_mesh(layout, jax.devices()[: devices_of_mesh(layout)]))
    return sample_text(job, job.step.init(jax.random.key(0)).params)


def test_a_sample_continues_the_prompt_up_to_the_length_of_the_model():
    text = sample("single", "sample.prompt=def f")
    assert text.startswith("def f")
    assert len("def f") < len(text) <= 16
    assert all(c.isprintable() or c in "\n\t" for c in text)


def test_a_sample_is_the_same_under_every_layout():
    assert sample("fsdp", "sample.bytes=8") == sample("single", "sample.bytes=8")


def test_a_prompt_longer_than_the_model_is_cut():
    assert sample("single", "sample.prompt=a very long prompt indeed").startswith("a very long pro")
