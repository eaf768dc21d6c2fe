"""How Hugging Face writes the models of each family: one table, which is read both ways.

`hugging_face` reads and writes settings by it, and `places` says where the parameters are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

_TABLES = {"model.embed_tokens": ("embedding",), "model.norm": ("norm",), "lm_head": ("head",)}
_ATTENTION = {
    "self_attn.q_proj": ("attention.query",),
    "self_attn.k_proj": ("attention.key",),
    "self_attn.v_proj": ("attention.value",),
    "self_attn.o_proj": ("attention.out",),
}
_QUERY_NORM = {
    "self_attn.q_norm": ("attention.query_norm",),
    "self_attn.k_norm": ("attention.key_norm",),
}
_MLP = {
    "mlp.gate_proj": ("mlp.gate",),
    "mlp.up_proj": ("mlp.up",),
    "mlp.down_proj": ("mlp.down",),
}
_BEFORE = {"input_layernorm": ("attention_norm",), "post_attention_layernorm": ("mlp_norm",)}
_AFTER = {
    "post_attention_layernorm": ("attention_out_norm",),
    "post_feedforward_layernorm": ("mlp_out_norm",),
}
_BOTH = {
    **_AFTER,
    "input_layernorm": ("attention_norm",),
    "pre_feedforward_layernorm": ("mlp_norm",),
}
# Parameters of experts: their name, with the number of an expert, and ours.
_EXPERTS = {
    "mlp.experts.{}.gate_proj.weight": ("mlp.gate",),
    "mlp.experts.{}.up_proj.weight": ("mlp.up",),
    "mlp.experts.{}.down_proj.weight": ("mlp.down",),
}
_ROUTER = {"mlp.gate": ("mlp.router",)}
SHARED, QUERY_LATENT = "shared_expert_intermediate_size", "q_lora_rank"
_NAMES = {
    "vocab": "vocab_size",
    "d_model": "hidden_size",
    "d_ff": "intermediate_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "length": "max_position_embeddings",
    "norm_epsilon": "rms_norm_eps",
}


class Format(NamedTuple):
    """How models of one `model_type` are written.

    Attributes:
      architecture: the class that reads them.
      layers: for each module of a layer by their name, the modules here that it has the parameters
        of, one after another.
      tables: the same of what is outside of the layers.
      names: their names of settings.
      absent: their values of settings that a file may leave out.
      prefix: of the names of a layer's tensors, before its number.
      outs_first: matrices are `[outs, ins]`, and not the other way round.
      activation: their name for the setting of the activation.
      windows: how a window is said: for all layers, by `layer_types`, by those and a switch, or not
        at all.
      biases: their settings for biases, where there are any.
      part_turned: a part of each head may be left as it is by rotary positions.
      stack: the stack here that the layers are of.
      stacks: others, with the prefix and the modules of each.
      bare: parameters that are not of a module: the name here, and how many dims of size 1 their
        tensor has in front.
      vectors: the same of a layer, where nothing is of size 1 in front.
      by_head: modules that have for each head the outs of one module here after another.
      pairs: modules here of which rotary positions turn features that are neighbours there.
      in_a_row: the layers of `stacks` come before the others, and are numbered with them.
      apart: modules whose matrices have each dim that is contracted as a dim of its own.
      unused: what the names of tensors begin with that a model here has no use for.
      copies: such tensors that are copies of others, by name.
      experts: for each tensor of experts our names in the layer of the parameters in it, where the
        experts are a dim. It is of one expert where its name has `{}` for the number, else of all.
      counts: their names for the number of experts: one is read, all are written.
      normalises: whether a file says that the weights of a token's experts add up to 1.
      scores: what the router ranks experts by, where files have groups of experts, layers without
        experts before the others, and latent attention, as those of DeepSeek have.
      ahead: files may have layers after the last one, which predict tokens further ahead.
    """

    @property
    def every_stack(self) -> dict[str, tuple[str, Mapping[str, tuple[str, ...]]]]:
        """The prefix and the modules of each stack of layers."""
        return {**self.stacks, self.stack: (self.prefix, self.layers)}

    architecture: str
    layers: Mapping[str, tuple[str, ...]]
    tables: Mapping[str, tuple[str, ...]] = _TABLES
    names: Mapping[str, str] = _NAMES
    absent: Mapping[str, Any] = {}
    prefix: str = "model.layers."
    outs_first: bool = True
    activation: str = "hidden_act"
    windows: str = ""
    biases: tuple[str, ...] = ()
    part_turned: bool = False
    stack: str = "blocks"
    stacks: Mapping[str, tuple[str, Mapping[str, tuple[str, ...]]]] = {}
    bare: Mapping[str, tuple[str, int]] = {}
    vectors: Mapping[str, str] = {}
    by_head: tuple[str, ...] = ()
    pairs: tuple[str, ...] = ()
    in_a_row: bool = False
    apart: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    copies: Mapping[str, str] = {}
    experts: Mapping[str, tuple[str, ...]] = {}
    counts: tuple[str, ...] = ()
    normalises: bool = False
    scores: str = ""
    ahead: bool = False


_GEMMA = {
    "head_dim": 256,
    "tie_word_embeddings": True,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "rms_norm_eps": 1e-6,
}
# By style, which is also their name of the family, but for that of Gemma 3.
FORMATS = {
    "gpt2": Format(
        "GPT2LMHeadModel",
        {
            "ln_1": ("attention_norm",),
            "attn.c_attn": ("attention.query", "attention.key", "attention.value"),
            "attn.c_proj": ("attention.out",),
            "ln_2": ("mlp_norm",),
            "mlp.c_fc": ("mlp.up",),
            "mlp.c_proj": ("mlp.down",),
        },
        tables={
            "transformer.wte": ("embedding",),
            "transformer.wpe": ("positions",),
            "transformer.ln_f": ("norm",),
            "lm_head": ("head",),
        },
        names={
            "vocab": "vocab_size",
            "d_model": "n_embd",
            "d_ff": "n_inner",
            "layers": "n_layer",
            "heads": "n_head",
            "length": "n_positions",
            "norm_epsilon": "layer_norm_epsilon",
        },
        absent={
            "activation_function": "gelu_new",
            "tie_word_embeddings": True,
            "layer_norm_epsilon": 1e-5,
        },
        prefix="transformer.h.",
        outs_first=False,
        activation="activation_function",
    ),
    "llama": Format(
        "LlamaForCausalLM",
        {**_ATTENTION, **_MLP, **_BEFORE},
        biases=("attention_bias", "mlp_bias"),
    ),
    "mistral": Format(
        "MistralForCausalLM",
        {**_ATTENTION, **_MLP, **_BEFORE},
        absent={"sliding_window": 4096, "num_key_value_heads": 8},
        windows="all",
    ),
    "phi3": Format(
        "Phi3ForCausalLM",
        {
            "self_attn.qkv_proj": ("attention.query", "attention.key", "attention.value"),
            "self_attn.o_proj": ("attention.out",),
            "mlp.gate_up_proj": ("mlp.gate", "mlp.up"),
            "mlp.down_proj": ("mlp.down",),
            **_BEFORE,
        },
        absent={"rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096},
        windows="all",
        part_turned=True,
    ),
    "qwen2": Format(
        "Qwen2ForCausalLM", {**_ATTENTION, **_MLP, **_BEFORE}, windows="layers, if switched on"
    ),
    "qwen3": Format(
        "Qwen3ForCausalLM",
        {**_ATTENTION, **_QUERY_NORM, **_MLP, **_BEFORE},
        absent={"head_dim": 128},
        windows="layers, if switched on",
        biases=("attention_bias",),
    ),
    "gemma2": Format(
        "Gemma2ForCausalLM",
        {**_ATTENTION, **_MLP, **_BOTH},
        absent={
            **_GEMMA,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
            "sliding_window_pattern": 2,
        },
        activation="hidden_activation",
        windows="layers",
        biases=("attention_bias",),
    ),
    "gemma3": Format(
        "Gemma3ForCausalLM",
        {**_ATTENTION, **_QUERY_NORM, **_MLP, **_BOTH},
        absent={
            **_GEMMA,
            "sliding_window_pattern": 6,
            "rope_theta": 1e6,
            "rope_local_base_freq": 1e4,
            # The text of a model that reads images too is written without what follows.
            "vocab_size": 262_208,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "max_position_embeddings": 131_072,
        },
        activation="hidden_activation",
        windows="layers",
        biases=("attention_bias",),
    ),
    "olmo2": Format(
        "Olmo2ForCausalLM",
        {**_ATTENTION, **_QUERY_NORM, **_MLP, **_AFTER},
        absent={"rms_norm_eps": 1e-5},
        biases=("attention_bias",),
    ),
    "mixtral": Format(
        "MixtralForCausalLM",
        {**_ATTENTION, "block_sparse_moe.gate": ("mlp.router",), **_BEFORE},
        absent={
            "num_key_value_heads": 8,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "rms_norm_eps": 1e-5,
            "rope_theta": 1e6,
        },
        windows="all",
        experts={
            "block_sparse_moe.experts.{}.w1.weight": ("mlp.gate",),
            "block_sparse_moe.experts.{}.w3.weight": ("mlp.up",),
            "block_sparse_moe.experts.{}.w2.weight": ("mlp.down",),
        },
        counts=("num_local_experts",),
    ),
    "qwen2_moe": Format(
        "Qwen2MoeForCausalLM",
        {
            **_ATTENTION,
            **_ROUTER,
            **_BEFORE,
            "mlp.shared_expert.gate_proj": ("mlp.shared.gate",),
            "mlp.shared_expert.up_proj": ("mlp.shared.up",),
            "mlp.shared_expert.down_proj": ("mlp.shared.down",),
            "mlp.shared_expert_gate": ("mlp.shared_gate",),
        },
        names={
            **{key: name for key, name in _NAMES.items() if key != "head_dim"},
            "d_ff": "moe_intermediate_size",
            "experts_shared": SHARED,
        },
        absent={"moe_intermediate_size": 1408, "num_experts_per_tok": 4, SHARED: 5632},
        windows="layers, if switched on",
        experts=_EXPERTS,
        counts=("num_experts",),
        normalises=True,
    ),
    "qwen3_moe": Format(
        "Qwen3MoeForCausalLM",
        {**_ATTENTION, **_QUERY_NORM, **_ROUTER, **_BEFORE},
        names={**_NAMES, "d_ff": "moe_intermediate_size"},
        absent={
            "num_key_value_heads": 4,
            "moe_intermediate_size": 768,
            "num_experts_per_tok": 8,
        },
        windows="all, if switched on",
        biases=("attention_bias",),
        experts=_EXPERTS,
        counts=("num_experts", "num_local_experts"),
        normalises=True,
    ),
    "olmoe": Format(
        "OlmoeForCausalLM",
        {**_ATTENTION, **_QUERY_NORM, **_ROUTER, **_BEFORE},
        names={key: name for key, name in _NAMES.items() if key != "head_dim"},
        absent={"rms_norm_eps": 1e-5, "num_experts_per_tok": 8},
        biases=("attention_bias",),
        experts=_EXPERTS,
        counts=("num_experts",),
        normalises=True,
    ),
    "gpt_oss": Format(
        "GptOssForCausalLM",
        {**_ATTENTION, "mlp.router": ("mlp.router",), **_BEFORE},
        names={
            **_NAMES,
            "activation_limit": "swiglu_limit",
            "activation_slope": "swiglu_alpha",
        },
        absent={
            "vocab_size": 201_088,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "num_experts_per_tok": 4,
            "rms_norm_eps": 1e-5,
            "rope_theta": 150_000.0,
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 32.0,
                "original_max_position_embeddings": 4096,
                "truncate": False,
            },
            "sliding_window": 128,
            "sliding_window_pattern": 2,
            "attention_bias": True,
            "swiglu_limit": 7.0,
            "swiglu_alpha": 1.702,
        },
        windows="layers",
        biases=("attention_bias",),
        vectors={"self_attn.sinks": "attention.sinks"},
        experts={
            "mlp.experts.gate_up_proj": ("mlp.gate", "mlp.up"),
            "mlp.experts.gate_up_proj_bias": ("mlp.biases.0", "mlp.biases.1"),
            "mlp.experts.down_proj": ("mlp.down",),
            "mlp.experts.down_proj_bias": ("mlp.biases.2",),
        },
        counts=("num_local_experts",),
    ),
}
_DEEPSEEK = {
    "self_attn.q_a_proj": ("attention.query_latent",),
    "self_attn.q_a_layernorm": ("attention.query_norm",),
    "self_attn.q_b_proj": ("attention.query", "attention.query_turned"),
    "self_attn.kv_a_proj_with_mqa": ("attention.latent", "attention.key_turned"),
    "self_attn.kv_a_layernorm": ("attention.latent_norm",),
    "self_attn.kv_b_proj": ("attention.key", "attention.value"),
    "self_attn.o_proj": ("attention.out",),
    **_ROUTER,
    "mlp.shared_experts.gate_proj": ("mlp.shared.gate",),
    "mlp.shared_experts.up_proj": ("mlp.shared.up",),
    "mlp.shared_experts.down_proj": ("mlp.shared.down",),
    **_MLP,
    **_BEFORE,
}
_DEEPSEEK_V2 = Format(
    "DeepseekV2ForCausalLM",
    _DEEPSEEK,
    names={
        **{key: name for key, name in _NAMES.items() if key != "kv_heads"},
        "d_ff": "moe_intermediate_size",
        "dense_d_ff": "intermediate_size",
        "dense_layers": "first_k_dense_replace",
        "head_dim": "qk_nope_head_dim",
        "turned": "qk_rope_head_dim",
        "value_dim": "v_head_dim",
        "latent": "kv_lora_rank",
        "query_latent": QUERY_LATENT,
        "router_scale": "routed_scaling_factor",
    },
    absent={
        "moe_intermediate_size": 1407,
        "intermediate_size": 11_008,
        "first_k_dense_replace": 0,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "kv_lora_rank": 512,
        QUERY_LATENT: 1536,
        "routed_scaling_factor": 1.0,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "num_experts_per_tok": 6,
    },
    stacks={"first": ("model.layers.", _DEEPSEEK)},
    in_a_row=True,
    by_head=("self_attn.q_proj", "self_attn.q_b_proj", "self_attn.kv_b_proj"),
    pairs=("attention.query_turned", "attention.key_turned"),
    experts=_EXPERTS,
    counts=("n_routed_experts",),
    scores="softmax",
)
FORMATS |= {
    "deepseek_v2": _DEEPSEEK_V2,
    "deepseek_v3": _DEEPSEEK_V2._replace(
        architecture="DeepseekV3ForCausalLM",
        absent={
            **_DEEPSEEK_V2.absent,
            "moe_intermediate_size": 2048,
            "intermediate_size": 18_432,
            "first_k_dense_replace": 3,
            "routed_scaling_factor": 2.5,
            "n_routed_experts": 256,
            "n_shared_experts": 1,
            "num_experts_per_tok": 8,
            "n_group": 8,
            "topk_group": 4,
            "norm_topk_prob": True,
        },
        vectors={"mlp.gate.e_score_correction_bias": "mlp.router.offset"},
        scores="sigmoid",
        normalises=True,
        ahead=True,
    ),
}
TYPES = {**{style: style for style in FORMATS}, "gemma3_text": "gemma3"}
# The same where queries are made of d_model: one matrix, of another name.
PLAIN_QUERIES = ", plain queries"
_PLAIN = {
    {"self_attn.q_b_proj": "self_attn.q_proj"}.get(name, name): modules
    for name, modules in _DEEPSEEK.items()
}
FORMATS |= {
    f"{style}{PLAIN_QUERIES}": FORMATS[style]._replace(
        layers=_PLAIN, stacks={"first": ("model.layers.", _PLAIN)}
    )
    for style in ("deepseek_v2", "deepseek_v3")
}
QUANTIZED = ("fp8", "mxfp4")  # how files may store tensors in fewer bits
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "gelu": "gelu_exact",
    "gelu_python": "gelu_exact",
    "relu": "relu",
}
