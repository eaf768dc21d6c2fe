"""BERT, ViT and T5 as `transformers` makes them: the same logits, gradients and weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshdsl as md
from meshdsl.models.generate import Sampling
from meshdsl.train.checkpoints.tree_leaves import named_arrays
from tests.helpers import only
from tests.models import common
from tests.models.test_published import (
    TOLERANCE,
    assert_back,
    imported,
    opened,
    saved,
    their_slopes,
)

pytestmark = pytest.mark.slow

GRADIENTS = ("bert", "vit", "t5")
BERT = {
    "vocab_size": 60,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 32,
}
VIT = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "image_size": 12,
    "patch_size": 4,
}
T5 = {
    "vocab_size": 60,
    "d_model": 24,
    "d_kv": 6,
    "num_heads": 4,
    "num_layers": 2,
    "d_ff": 40,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
    "decoder_start_token_id": 0,
}
CLASSES = {"num_labels": 5}
# By name: the class of the model, and the settings.
CASES = {
    "bert": ("BertForMaskedLM", BERT),
    "bert, other sizes": (
        "BertForMaskedLM",
        {**BERT, "hidden_act": "relu", "type_vocab_size": 3, "layer_norm_eps": 1e-3},
    ),
    "bert of classes": ("BertForSequenceClassification", {**BERT, **CLASSES}),
    "vit": ("ViTForImageClassification", {**VIT, **CLASSES}),
    "vit, other sizes": (
        "ViTForImageClassification",
        {**VIT, "num_channels": 1, "qkv_bias": False, "hidden_act": "gelu_new", "patch_size": 3},
    ),
    "t5": ("T5ForConditionalGeneration", T5),
    "t5, with a gate": (
        "T5ForConditionalGeneration",
        {**T5, "feed_forward_proj": "gated-gelu", "num_decoder_layers": 3, "d_kv": 5},
    ),
    "t5, unscaled": (
        "T5ForConditionalGeneration",
        {**T5, "tie_word_embeddings": False, "feed_forward_proj": "gated-silu"},
    ),
}


def published(name, folder):
    """A random model of `transformers`, saved in `folder`, with weights that all count."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    kind, settings = CASES[name]
    torch.manual_seed(len(name))
    family = getattr(transformers, kind)
    model = family._from_config(family.config_class(**settings), attn_implementation="eager")
    return saved(model, folder)


def drawn(model):
    """What a model reads, as numpy arrays by our names, and by theirs."""
    random, config = np.random.default_rng(0), model.config
    if config.model_type == "vit":
        image = random.normal(size=(4, 12, 12, config.num_channels)).astype(np.float32)
        return {"image": image}, {"pixel_values": image.transpose(0, 3, 1, 2)}
    first = random.integers(2, 60, (4, 24)).astype(np.int32)
    seen = (np.arange(24) < np.array([24, 9, 1, 17])[:, None]).astype(np.int32)
    if config.model_type == "bert":
        types = random.integers(0, config.type_vocab_size, (4, 24)).astype(np.int32)
        ours = {"tokens": first, "seen": seen, "types": types}
        return ours, {"input_ids": first, "attention_mask": seen, "token_type_ids": types}
    second = random.integers(2, 60, (4, 16)).astype(np.int32)
    ours = {"source": first, "tokens": second, "seen": seen}
    theirs = {"input_ids": first, "attention_mask": seen, "decoder_input_ids": second}
    return ours, theirs


DIMS = {
    "image": ("batch", "height", "width", "colors"),
    "source": ("batch", "source"),
    "tokens": ("batch", "length"),
    "types": ("batch", "length"),
}


def tensors(given):
    found = {}
    for name, array in given.items():
        names = DIMS.get(name, DIMS["source"] if "source" in given else DIMS["tokens"])
        dims = (md.Dim(n, size) for n, size in zip(names, array.shape, strict=True))
        found[name] = md.tensor(jnp.asarray(array, bool if name == "seen" else None), dims)
    return found


def logits(model, given):
    found = model(**given)
    order = [name for name in ("batch", "length", "vocab", "classes") if name in names(found)]
    return md.transpose(found, order)


def names(tensor):
    return [dim.name for dim in tensor.dims]


def theirs(model, given):
    torch = pytest.importorskip("torch")
    return model(**{name: torch.tensor(array) for name, array in given.items()}).logits


RARE = {"bert, other sizes", "vit, other sizes", "t5, unscaled"}


@pytest.mark.parametrize("name", only([], CASES, CASES.keys() - RARE))
def test_a_published_encoder_is_the_same_here_and_back_there(name, tmp_path):
    there, model = published(name, tmp_path / "there"), imported(tmp_path)
    here, given = drawn(there)
    expected = theirs(there, given).detach().numpy()
    assert np.abs(expected).max() > 0.1
    found = np.asarray(jax.jit(logits)(model, tensors(here)).array)
    np.testing.assert_allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE)

    again = assert_back(there, tmp_path, type(there).from_pretrained)
    np.testing.assert_allclose(theirs(again, given).detach().numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("t5")])
def test_a_t5_answers_as_theirs(name, tmp_path):
    there, model = published(name, tmp_path / "there"), imported(tmp_path)
    torch = pytest.importorskip("torch")
    here, given = drawn(there)
    source, seen = (tensors(here)[each] for each in ("source", "seen"))
    how = {"do_sample": False, "num_beams": 1, "max_new_tokens": 32, "min_new_tokens": 32}
    how |= {"eos_token_id": None, "pad_token_id": 0, "use_cache": False}
    given = {each: torch.tensor(given[each]) for each in ("input_ids", "attention_mask")}
    wanted = there.generate(**given, **how)[:, 1:].numpy()
    write = lambda model, source, seen: model.answer(
        source, 32, jax.random.key(0), Sampling(temperature=0.0), seen
    )
    for layout in ("single", "tensor"):
        layout = common.on(common.load(layout), 2) if layout != "single" else common.load(layout)
        model = opened(tmp_path / "run", layout)
        found = md.lower(write, layout)(model, source, seen)
        assert np.array_equal(np.asarray(found.array), wanted)


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_of_an_encoder_are_theirs_under_two_layouts(name, tmp_path):
    there, model = published(name, tmp_path / "there"), imported(tmp_path)
    here, given = drawn(there)
    found = theirs(there, given).square().mean()
    found.backward()
    wanted = their_slopes(there, tmp_path, model)
    step = md.value_and_grad(lambda m, given: md.mean(md.square(logits(m, given))))
    for layout in ("fsdp", "tensor"):
        layout = common.on(common.load(layout), 2)
        model = opened(tmp_path / "run", layout)  # born split
        value, slopes = md.lower(step, layout)(model, tensors(here))
        np.testing.assert_allclose(float(value.array), float(found.detach()), rtol=1e-5)
        for key, array in named_arrays(slopes).items():
            expected = wanted.read(key, ())
            # Biases of keys change no score: their slopes are rounding alone.
            assert np.linalg.norm(array - expected) <= TOLERANCE * max(
                np.linalg.norm(expected), 1e-3
            ), key
