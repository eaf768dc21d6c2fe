"""Models that `transformers` makes: the same logits, tokens and weights, there and back."""

from dataclasses import replace

import jax
import numpy as np
import pytest

import meshdsl as md
from meshdsl.mesh import make_mesh
from meshdsl.models.generate import Sampling, generate
from meshdsl.models.published import form_of
from meshdsl.train.checkpoints.hugging_face import PublishedTensors
from meshdsl.train.checkpoints.safetensors_files import TensorFiles
from meshdsl.train.checkpoints.tree_leaves import describe, named_arrays
from meshdsl.train.folder import RunFolder
from meshdsl.train.sample import open_model
from meshdsl_cli import main
from tests.helpers import only
from tests.models import common

pytestmark = pytest.mark.slow

TOLERANCE = 2e-5  # of logits, and of gradients by their norm
GRADIENTS = ("llama 3.1", "qwen3", "gemma3, scaled", "mixtral", "gpt_oss", "deepseek_v3", "glm4")
SIZES = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
PLAIN = {**SIZES, "num_key_value_heads": 4}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
    "long_factor": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}
MSCALES = {"mscale": 0.7, "mscale_all_dim": 1.3}
LATENT = {
    "moe_intermediate_size": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 6,
    "v_head_dim": 8,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
GPT2 = {
    "vocab_size": 96,
    "n_embd": 48,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GEMMA = {**SIZES, "head_dim": 16, "sliding_window": 5, "query_pre_attn_scalar": 24}
CASES = {
    "gpt2": ("GPT2Config", GPT2),
    "gpt2, other sizes": ("GPT2Config", {**GPT2, "n_inner": 56, "activation_function": "gelu"}),
    "gpt2, untied": ("GPT2Config", {**GPT2, "tie_word_embeddings": False}),
    "llama": ("LlamaConfig", SIZES),
    "llama, plain": ("LlamaConfig", {**PLAIN, "tie_word_embeddings": True, "rms_norm_eps": 1e-3}),
    "llama 3.1": ("LlamaConfig", {**SIZES, "rope_parameters": LLAMA3, "head_dim": 10}),
    "llama, linear": (
        "LlamaConfig",
        {**SIZES, "rope_parameters": LINEAR, "attention_bias": True, "mlp_bias": True},
    ),
    "llama, yarn": ("LlamaConfig", {**SIZES, "rope_parameters": YARN}),
    "llama, yarn with a gain": (
        "LlamaConfig",
        {
            **SIZES,
            "hidden_act": "relu",
            "rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.3, "beta_fast": 8},
        },
    ),
    "mistral": ("MistralConfig", {**SIZES, "sliding_window": 7}),
    "mistral, settings that it does not read": (
        "MistralConfig",
        {**SIZES, "sliding_window": 3, "attention_bias": True, "mlp_bias": True},
    ),
    "mistral, no window": ("MistralConfig", {**SIZES, "sliding_window": None, "head_dim": 8}),
    "qwen2": ("Qwen2Config", SIZES),
    "qwen2, windows": (
        "Qwen2Config",
        {**SIZES, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "qwen2, tied and yarn": (
        "Qwen2Config",
        {**SIZES, "tie_word_embeddings": True, "rope_parameters": YARN},
    ),
    "qwen3": ("Qwen3Config", {**SIZES, "head_dim": 8}),
    "qwen3, biases": ("Qwen3Config", {**PLAIN, "head_dim": 20, "attention_bias": True}),
    "gemma2": ("Gemma2Config", GEMMA),
    "gemma2, no caps": (
        "Gemma2Config",
        {**GEMMA, "attn_logit_softcapping": None, "final_logit_softcapping": None},
    ),
    "gemma3": ("Gemma3TextConfig", {**GEMMA, "layer_types": None, "num_hidden_layers": 7}),
    "gemma3, caps and biases": (
        "Gemma3TextConfig",
        {
            **GEMMA,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
            "attention_bias": True,
            "tie_word_embeddings": False,
        },
    ),
    "gemma3, scaled": (
        "Gemma3TextConfig",
        {
            **GEMMA,
            "layer_types": ["sliding_attention", "full_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "phi3": ("Phi3Config", SIZES),
    "phi3, part turned": (
        "Phi3Config",
        {
            **SIZES,
            "hidden_size": 64,
            "sliding_window": 6,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.5,
            },
        },
    ),
    # What is generated grows beyond the first length in both.
    "phi3, longrope": (
        "Phi3Config",
        {**SIZES, "rope_parameters": LONG, "original_max_position_embeddings": 16},
    ),
    "llama, dynamic": (
        "LlamaConfig",
        {**SIZES, "max_position_embeddings": 24, "rope_parameters": DYNAMIC},
    ),
    "olmo2": ("Olmo2Config", SIZES),
    "mixtral": (
        "MixtralConfig",
        {**SIZES, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 9},
    ),
    "mixtral, tied": (
        "MixtralConfig",
        {**PLAIN, "num_local_experts": 3, "num_experts_per_tok": 1, "tie_word_embeddings": True},
    ),
    "qwen2_moe": (
        "Qwen2MoeConfig",
        {**SIZES, "moe_intermediate_size": 40, "num_experts": 6, "num_experts_per_tok": 3}
        | {"shared_expert_intermediate_size": 24},
    ),
    "qwen2_moe, plain": (
        "Qwen2MoeConfig",
        {**PLAIN, "moe_intermediate_size": 24, "num_experts": 4, "num_experts_per_tok": 1}
        | {"shared_expert_intermediate_size": 56, "norm_topk_prob": True}
        | {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1},
    ),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        {**SIZES, "moe_intermediate_size": 40, "num_experts": 6, "num_experts_per_tok": 3}
        | {"norm_topk_prob": True, "head_dim": 8},
    ),
    "qwen3_moe, biases": (
        "Qwen3MoeConfig",
        {**PLAIN, "moe_intermediate_size": 24, "num_experts": 4, "num_experts_per_tok": 4}
        | {"attention_bias": True, "head_dim": 20, "use_sliding_window": True}
        | {"sliding_window": 7},
    ),
    "olmoe": ("OlmoeConfig", {**SIZES, "num_experts": 5, "num_experts_per_tok": 2}),
    "olmoe, plain": (
        "OlmoeConfig",
        {**PLAIN, "num_experts": 8, "num_experts_per_tok": 3, "norm_topk_prob": True}
        | {"attention_bias": True},
    ),
    "gpt_oss": (
        "GptOssConfig",
        {**SIZES, "num_local_experts": 6, "num_experts_per_tok": 3, "head_dim": 8}
        | {"sliding_window": 5, "swiglu_limit": 0.5},
    ),
    "gpt_oss, plain": (
        "GptOssConfig",
        {**PLAIN, "num_local_experts": 4, "num_experts_per_tok": 1, "head_dim": 20}
        | {"sliding_window": 7, "layer_types": ["full_attention"] * 3, "attention_bias": False}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    ),
    "deepseek_v2": (
        "DeepseekV2Config",
        {**PLAIN, **LATENT, "n_routed_experts": 6, "num_experts_per_tok": 3}
        | {"first_k_dense_replace": 1, "q_lora_rank": 20, "topk_method": "group_limited_greedy"}
        | {"n_group": 3, "topk_group": 2, "routed_scaling_factor": 1.5},
    ),
    "deepseek_v2, plain queries": (
        "DeepseekV2Config",
        {**PLAIN, **LATENT, "n_routed_experts": 4, "num_experts_per_tok": 2}
        | {"q_lora_rank": None, "rope_parameters": {**YARN, **MSCALES}, "n_shared_experts": 1},
    ),
    "deepseek_v3": (
        "DeepseekV3Config",
        {**PLAIN, **LATENT, "n_routed_experts": 8, "num_experts_per_tok": 3}
        | {"first_k_dense_replace": 2, "q_lora_rank": 20, "n_group": 4, "topk_group": 2}
        | {"rope_parameters": {**YARN, **MSCALES}},
    ),
    "deepseek_v3, plain queries": (
        "DeepseekV3Config",
        {**PLAIN, **LATENT, "n_routed_experts": 4, "num_experts_per_tok": 2}
        | {"first_k_dense_replace": 0, "q_lora_rank": None, "n_group": 1, "topk_group": 1}
        | {"norm_topk_prob": False, "tie_word_embeddings": True},
    ),
    "olmo2, plain": ("Olmo2Config", {**PLAIN, "attention_bias": True}),
    "glm": ("GlmConfig", {**SIZES, "head_dim": 12, "attention_bias": False}),
    "glm4": ("Glm4Config", {**SIZES, "head_dim": 12}),
    "glm4, yarn": (
        "Glm4Config",
        {**SIZES, "head_dim": 20, "tie_word_embeddings": True}
        | {"rope_parameters": {**YARN, "partial_rotary_factor": 0.5}},
    ),
}


# The nightly profile has variants whose every setting another case has, or another family.
RARE = {"gpt2, untied", "llama, plain", "llama, yarn", "mistral, no window", "olmo2, plain"}
RARE |= {"qwen2, tied and yarn", "qwen3, biases", "gemma2, no caps", "gemma3, caps and biases"}
RARE |= {"phi3, part turned", "mixtral, tied", "qwen2_moe, plain", "qwen3_moe, biases"}
RARE |= {"olmoe, plain", "gpt_oss, plain", "deepseek_v2, plain queries", "glm4, yarn"}
RARE |= {"deepseek_v3, plain queries", "gpt2, other sizes"}

OTHERWISE = {"llama, dynamic": ["model.length=64"]}  # settings of an import


def published(name, folder):
    """A random model of `transformers`, saved in `folder`, with weights that all count."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    kind, settings = CASES[name]
    torch.manual_seed(len(name))
    config = getattr(transformers, kind)(**settings)
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    return saved(model, folder)


def saved(model, folder):
    """A model of `transformers`, saved with weights that all count."""
    torch = pytest.importorskip("torch")
    buffers = [b for name, b in model.named_buffers() if name.endswith("e_score_correction_bias")]
    with torch.no_grad():
        for weights in (*model.parameters(), *buffers):
            weights.add_(0.1 * torch.randn_like(weights))
    model.eval().save_pretrained(folder)
    return model


def imported(folder, *settings):
    """The run of a model in `folder / "there"`, and the model here."""
    command("import", "hf", folder / "there", "--out", folder / "run", *settings)
    return opened(folder / "run")


def assert_back(there, folder, load):
    """What an export writes is `there` again, bit by bit; `load` reads it."""
    torch = pytest.importorskip("torch")
    command("export", "hf", folder / "run", "--out", folder / "back")
    again = load(folder / "back", attn_implementation="eager", dtype=torch.float32).eval()
    before, after = there.state_dict(), again.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    return again


def their_slopes(there, folder, model):
    """The gradients that `there` has, by the names of the parameters here."""
    torch = pytest.importorskip("torch")
    for parameter in there.parameters():  # so that gradients are written as their parameters are
        parameter.data = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    there.save_pretrained(folder / "slopes")
    files = TensorFiles(folder / "slopes")
    return PublishedTensors(files, form_of(model.config), describe(model))


def command(*words):
    assert main([str(word) for word in words]) == 0


def opened(run, layout=common.load("single")):
    folder = RunFolder(run)
    config = folder.stored_config()
    return open_model(folder, config, layout, make_mesh(layout), None, report=print)[1].model


def ours(model, tokens):
    batch, length = (md.Dim(n, s) for n, s in zip(("batch", "length"), tokens.shape, strict=True))
    logits = jax.jit(lambda model, tokens: model(tokens))(
        model, md.tensor(tokens.astype(np.int32), (batch, length))
    )
    return np.asarray(md.transpose(logits, ("batch", "length", "vocab")).array)


def theirs(model, tokens):
    torch = pytest.importorskip("torch")
    with torch.no_grad():
        return model(torch.tensor(tokens)).logits.numpy()


@pytest.mark.parametrize("name", only([], CASES, CASES.keys() - RARE))
def test_a_published_model_is_the_same_here_and_back_there(name, tmp_path):
    there = published(name, tmp_path / "there")
    model = imported(tmp_path, *OTHERWISE.get(name, []))
    tokens = np.random.default_rng(0).integers(3, 96, (2, 40))
    expected = theirs(there, tokens)
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(ours(model, tokens), expected, rtol=TOLERANCE, atol=TOLERANCE)

    torch, transformers = map(pytest.importorskip, ("torch", "transformers"))
    again = assert_back(there, tmp_path, transformers.AutoModelForCausalLM.from_pretrained)
    np.testing.assert_allclose(theirs(again, tokens), expected, rtol=1e-6, atol=1e-6)

    prompt = tokens[:, :8]
    dims = md.Dim("batch", 2), md.Dim("length", 8)
    found = jax.jit(
        lambda model, prompt: generate(
            model, prompt, 32, jax.random.key(0), Sampling(temperature=0.0)
        )
    )(model, md.tensor(prompt.astype(np.int32), dims))
    how = {"do_sample": False, "max_new_tokens": 32, "min_new_tokens": 32, "eos_token_id": None}
    with torch.no_grad():
        wanted = there.generate(torch.tensor(prompt), **how)[:, 8:].numpy()
    assert np.array_equal(np.asarray(found.array), wanted)


@pytest.mark.parametrize(
    "name", only([], GRADIENTS, ["gemma3, scaled", "mixtral", "gpt_oss", "deepseek_v3"])
)
def test_gradients_of_the_loss_are_theirs_under_two_layouts(name, tmp_path):
    there, model = published(name, tmp_path / "there"), imported(tmp_path)
    torch = pytest.importorskip("torch")
    rows = np.random.default_rng(0).integers(3, 96, (8, 33))
    there.config.use_cache = False
    logits = there(torch.tensor(rows[:, :-1])).logits.flatten(0, 1)
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor(rows[:, 1:]).flatten())
    loss.backward()
    wanted = their_slopes(there, tmp_path, model)
    dims = md.Dim("batch", 8), md.Dim("length", 32)
    tokens, targets = (
        md.tensor(part.astype(np.int32), dims) for part in (rows[:, :-1], rows[:, 1:])
    )
    step = md.value_and_grad(lambda m, tokens, targets: m.loss(tokens, targets)[0])
    for layout in ("fsdp", "tensor"):
        layout = common.on(common.load(layout), 2)
        model = opened(tmp_path / "run", layout)  # born split
        model = model.replace(config=replace(model.config, balance_loss=0.0))
        value, found = md.lower(step, layout)(model, tokens, targets)
        np.testing.assert_allclose(float(value.array), loss.item(), rtol=1e-5)
        for key, array in named_arrays(found).items():
            if key.endswith("router.offset"):  # which they move by the load, and not by the loss
                continue
            expected = wanted.read(key, ())
            assert np.linalg.norm(array - expected) <= TOLERANCE * np.linalg.norm(expected), key
