"""BERT, ViT and T5 as `transformers` makes them: the same logits, gradients and weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshdsl as md
from meshdsl.models import t5
from meshdsl.models.generate import Sampling
from meshdsl.models.published import form_of
from meshdsl.train.checkpoints.hugging_face import PublishedTensors
from meshdsl.train.checkpoints.safetensors_files import TensorFiles
from meshdsl.train.checkpoints.tree_leaves import describe, named_arrays
from tests.models import common
from tests.models.test_published import TOLERANCE, command, opened

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
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.eval().save_pretrained(folder)
    return model


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


@pytest.mark.parametrize("name", CASES)
def test_a_published_encoder_is_the_same_here_and_back_there(name, tmp_path):
    there = published(name, tmp_path / "there")
    command("import", "hf", tmp_path / "there", "--out", tmp_path / "run")
    model = opened(tmp_path / "run")
    here, given = drawn(there)
    expected = theirs(there, given).detach().numpy()
    assert np.abs(expected).max() > 0.1
    found = np.asarray(jax.jit(logits)(model, tensors(here)).array)
    np.testing.assert_allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE)

    torch = pytest.importorskip("torch")
    command("export", "hf", tmp_path / "run", "--out", tmp_path / "back")
    again = type(there).from_pretrained(tmp_path / "back", attn_implementation="eager").eval()
    before, after = there.state_dict(), again.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    np.testing.assert_allclose(theirs(again, given).detach().numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("t5")])
def test_a_t5_answers_as_theirs(name, tmp_path):
    there = published(name, tmp_path / "there")
    command("import", "hf", tmp_path / "there", "--out", tmp_path / "run")
    model, torch = opened(tmp_path / "run"), pytest.importorskip("torch")
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


def test_pairs_of_texts_have_a_loss():
    config = t5.Config(
        layers=1,
        decoder_layers=1,
        d_model=8,
        heads=2,
        head_dim=4,
        d_ff=8,
        vocab=12,
        source=6,
        length=4,
        dropout=0.1,
    )
    model = jax.jit(config.init)(jax.random.key(0))
    batch = {
        name: md.tensor(jnp.ones([d.size for d in field.dims], jnp.int32), field.dims)
        for name, field in config.batch(md.Dim("batch", 2)).items()
    }
    loss = jax.jit(lambda model: config.loss(model, batch, jax.random.key(1)))(model)
    assert float(loss.count.array) == 8
    assert np.isfinite(float(loss.total.array))


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_of_an_encoder_are_theirs_under_two_layouts(name, tmp_path):
    there = published(name, tmp_path / "there")
    command("import", "hf", tmp_path / "there", "--out", tmp_path / "run")
    torch = pytest.importorskip("torch")
    here, given = drawn(there)
    found = theirs(there, given).square().mean()
    found.backward()
    for parameter in there.parameters():
        parameter.data = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    there.save_pretrained(tmp_path / "slopes")
    model = opened(tmp_path / "run")
    files = TensorFiles(tmp_path / "slopes")
    wanted = PublishedTensors(files, form_of(model.config), describe(model))
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
