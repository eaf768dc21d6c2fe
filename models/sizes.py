"""Published models by name, as settings of the transformer.

`meshdsl explain --model llama3-8b` explains one of them without any code. Sizes are those of the
models' papers and published configurations: GPT-2 (Radford et al., 2019), Llama 2 (Touvron et al.,
2023), Llama 3 to 3.2 (Grattafiori et al., 2024), Mistral (Jiang et al., 2023), Qwen2, Qwen2.5 and
Qwen3 (Yang et al., 2024 and 2025), Gemma 2 and 3 (Gemma Team, 2024 and 2025), Phi-3 and Phi-4
(Abdin et al., 2024), OLMo 2 (OLMo Team, 2024). All of them recompute each layer in the backward
pass.
"""

from __future__ import annotations

from typing import Any

_COLUMNS = (
    *("style", "layers", "d_model", "heads", "kv_heads", "d_ff", "vocab", "length"),
    *("rotary_base", "norm_epsilon", "head_dim"),
)
_ROWS = {
    "gpt2-124m": ("gpt2", 12, 768, 12, 0, 3072, 50257, 1024, 0, 1e-5, 0),
    "gpt2-355m": ("gpt2", 24, 1024, 16, 0, 4096, 50257, 1024, 0, 1e-5, 0),
    "gpt2-774m": ("gpt2", 36, 1280, 20, 0, 5120, 50257, 1024, 0, 1e-5, 0),
    "gpt2-1.5b": ("gpt2", 48, 1600, 25, 0, 6400, 50257, 1024, 0, 1e-5, 0),
    "llama2-7b": ("llama", 32, 4096, 32, 0, 11008, 32000, 4096, 1e4, 1e-5, 0),
    "llama2-13b": ("llama", 40, 5120, 40, 0, 13824, 32000, 4096, 1e4, 1e-5, 0),
    "llama2-70b": ("llama", 80, 8192, 64, 8, 28672, 32000, 4096, 1e4, 1e-5, 0),
    "llama3-8b": ("llama", 32, 4096, 32, 8, 14336, 128256, 8192, 5e5, 1e-5, 0),
    "llama3-70b": ("llama", 80, 8192, 64, 8, 28672, 128256, 8192, 5e5, 1e-5, 0),
    "llama3-405b": ("llama", 126, 16384, 128, 8, 53248, 128256, 8192, 5e5, 1e-5, 0),
    "llama3.1-8b": ("llama", 32, 4096, 32, 8, 14336, 128256, 131072, 5e5, 1e-5, 0),
    "llama3.1-70b": ("llama", 80, 8192, 64, 8, 28672, 128256, 131072, 5e5, 1e-5, 0),
    "llama3.1-405b": ("llama", 126, 16384, 128, 8, 53248, 128256, 131072, 5e5, 1e-5, 0),
    "llama3.2-1b": ("llama", 16, 2048, 32, 8, 8192, 128256, 131072, 5e5, 1e-5, 0),
    "llama3.2-3b": ("llama", 28, 3072, 24, 8, 8192, 128256, 131072, 5e5, 1e-5, 0),
    "mistral-7b-v0.1": ("mistral", 32, 4096, 32, 8, 14336, 32000, 32768, 1e4, 1e-5, 0),
    "mistral-7b-v0.3": ("mistral", 32, 4096, 32, 8, 14336, 32768, 32768, 1e6, 1e-5, 0),
    "mistral-nemo-12b": ("mistral", 40, 5120, 32, 8, 14336, 131072, 131072, 1e6, 1e-5, 128),
    "qwen2-0.5b": ("qwen2", 24, 896, 14, 2, 4864, 151936, 131072, 1e6, 1e-6, 0),
    "qwen2-1.5b": ("qwen2", 28, 1536, 12, 2, 8960, 151936, 131072, 1e6, 1e-6, 0),
    "qwen2-7b": ("qwen2", 28, 3584, 28, 4, 18944, 152064, 131072, 1e6, 1e-6, 0),
    "qwen2-72b": ("qwen2", 80, 8192, 64, 8, 29568, 152064, 131072, 1e6, 1e-5, 0),
    "qwen2.5-0.5b": ("qwen2", 24, 896, 14, 2, 4864, 151936, 32768, 1e6, 1e-6, 0),
    "qwen2.5-1.5b": ("qwen2", 28, 1536, 12, 2, 8960, 151936, 131072, 1e6, 1e-6, 0),
    "qwen2.5-3b": ("qwen2", 36, 2048, 16, 2, 11008, 151936, 32768, 1e6, 1e-6, 0),
    "qwen2.5-7b": ("qwen2", 28, 3584, 28, 4, 18944, 152064, 131072, 1e6, 1e-6, 0),
    "qwen2.5-14b": ("qwen2", 48, 5120, 40, 8, 13824, 152064, 131072, 1e6, 1e-5, 0),
    "qwen2.5-32b": ("qwen2", 64, 5120, 40, 8, 27648, 152064, 131072, 1e6, 1e-5, 0),
    "qwen2.5-72b": ("qwen2", 80, 8192, 64, 8, 29568, 152064, 131072, 1e6, 1e-5, 0),
    "qwen3-0.6b": ("qwen3", 28, 1024, 16, 8, 3072, 151936, 40960, 1e6, 1e-6, 128),
    "qwen3-1.7b": ("qwen3", 28, 2048, 16, 8, 6144, 151936, 40960, 1e6, 1e-6, 128),
    "qwen3-4b": ("qwen3", 36, 2560, 32, 8, 9728, 151936, 40960, 1e6, 1e-6, 128),
    "qwen3-8b": ("qwen3", 36, 4096, 32, 8, 12288, 151936, 40960, 1e6, 1e-6, 128),
    "qwen3-14b": ("qwen3", 40, 5120, 40, 8, 17408, 151936, 40960, 1e6, 1e-6, 128),
    "qwen3-32b": ("qwen3", 64, 5120, 64, 8, 25600, 151936, 40960, 1e6, 1e-6, 128),
    "gemma2-2b": ("gemma2", 26, 2304, 8, 4, 9216, 256000, 8192, 1e4, 1e-6, 256),
    "gemma2-9b": ("gemma2", 42, 3584, 16, 8, 14336, 256000, 8192, 1e4, 1e-6, 256),
    "gemma2-27b": ("gemma2", 46, 4608, 32, 16, 36864, 256000, 8192, 1e4, 1e-6, 128),
    "gemma3-270m": ("gemma3", 18, 640, 4, 1, 2048, 262144, 32768, 1e6, 1e-6, 256),
    "gemma3-1b": ("gemma3", 26, 1152, 4, 1, 6912, 262144, 32768, 1e6, 1e-6, 256),
    "gemma3-4b": ("gemma3", 34, 2560, 8, 4, 10240, 262208, 131072, 1e6, 1e-6, 256),
    "gemma3-12b": ("gemma3", 48, 3840, 16, 8, 15360, 262208, 131072, 1e6, 1e-6, 256),
    "gemma3-27b": ("gemma3", 62, 5376, 32, 16, 21504, 262208, 131072, 1e6, 1e-6, 128),
    "phi3-mini": ("phi3", 32, 3072, 32, 0, 8192, 32064, 4096, 1e4, 1e-5, 0),
    "phi3-medium": ("phi3", 40, 5120, 40, 10, 17920, 32064, 4096, 1e4, 1e-5, 0),
    "phi4-14b": ("phi3", 40, 5120, 40, 10, 17920, 100352, 16384, 250_000.0, 1e-5, 0),
    "olmo2-1b": ("olmo2", 16, 2048, 16, 0, 8192, 100352, 4096, 5e5, 1e-6, 0),
    "olmo2-7b": ("olmo2", 32, 4096, 32, 0, 11008, 100352, 4096, 5e5, 1e-6, 0),
    "olmo2-13b": ("olmo2", 40, 5120, 40, 0, 13824, 100352, 4096, 5e5, 1e-6, 0),
    "olmo2-32b": ("olmo2", 64, 5120, 40, 8, 27648, 100352, 4096, 5e5, 1e-6, 0),
    "mixtral-8x7b": ("mixtral", 32, 4096, 32, 8, 14336, 32000, 32768, 1e6, 1e-5, 0),
    "qwen1.5-moe-a2.7b": ("qwen2_moe", 24, 2048, 16, 0, 1408, 151936, 8192, 1e6, 1e-6, 0),
    "qwen2-57b-a14b": ("qwen2_moe", 28, 3584, 28, 4, 2560, 151936, 131072, 1e6, 1e-6, 0),
    "qwen3-30b-a3b": ("qwen3_moe", 48, 2048, 32, 4, 768, 151936, 40960, 1e6, 1e-6, 128),
    "qwen3-235b-a22b": ("qwen3_moe", 94, 4096, 64, 4, 1536, 151936, 40960, 1e6, 1e-6, 128),
    "gpt-oss-20b": ("gpt_oss", 24, 2880, 64, 8, 2880, 201088, 131072, 150_000.0, 1e-5, 64),
    "gpt-oss-120b": ("gpt_oss", 36, 2880, 64, 8, 2880, 201088, 131072, 150_000.0, 1e-5, 64),
    "deepseek-v2-lite": ("deepseek_v2", 27, 2048, 16, 0, 1408, 102400, 163840, 1e4, 1e-6, 128),
    "deepseek-v2-236b": ("deepseek_v2", 60, 5120, 128, 0, 1536, 102400, 163840, 1e4, 1e-6, 128),
    "deepseek-v3-671b": ("deepseek_v3", 61, 7168, 128, 0, 2048, 129280, 163840, 1e4, 1e-6, 128),
    "olmoe-1b-7b": ("olmoe", 16, 2048, 16, 0, 1024, 50304, 4096, 1e4, 1e-5, 0),
}
_QWEN2_MOE = {"experts_shared_gate": True, "router_normalise": False}
_QWEN3_MOE = {"experts": 128, "experts_used": 8}
_YARN = {"rotary_scaling": "yarn", "rotary_length": 4096, "rotary_high": 32.0}
_GPT_OSS = {
    **_YARN,
    "rotary_factor": 32.0,
    "rotary_whole": False,
    "window": 128,
    "pattern": ("local", "global"),
    "experts_used": 4,
}
_DEEPSEEK = {
    **_YARN,
    "rotary_factor": 40.0,
    "rotary_gain": 1.0,
    "latent": 512,
    "turned": 64,
    "value_dim": 128,
}
_DEEPSEEK_V2 = {
    **_DEEPSEEK,
    "rotary_score_gain": 0.707,
    "dense_layers": 1,
    "experts_used": 6,
    "router_normalise": False,
}
_LLAMA31 = {"rotary_scaling": "llama3", "rotary_factor": 8.0, "rotary_length": 8192}
_LLAMA32 = {**_LLAMA31, "rotary_factor": 32.0, "tied": "yes"}
_GEMMA2 = {
    "attention_softcap": 50.0,
    "logit_softcap": 30.0,
    "query_scale": 256.0,
    "window": 4096,
    "pattern": ("local", "global"),
}
_GEMMA3 = {
    "rotary_local_base": 1e4,
    "query_scale": 256.0,
    "window": 512,
    "pattern": (*("local",) * 5, "global"),
}
_LONG_GEMMA3 = {
    **_GEMMA3,
    "window": 1024,
    "rotary_scaling": "linear",
    "rotary_factor": 8.0,
}
_TIED = {"tied": "yes"}
# What else a size has, or all sizes whose names begin so.
_BESIDE: dict[str, dict[str, Any]] = {
    "llama3.1-": _LLAMA31,
    "llama3.2-": _LLAMA32,
    "mistral-7b-v0.1": {"window": 4096},
    "qwen2-0.5b": _TIED,
    "qwen2-1.5b": _TIED,
    "qwen2.5-0.5b": _TIED,
    "qwen2.5-1.5b": _TIED,
    "qwen2.5-3b": _TIED,
    "qwen3-0.6b": _TIED,
    "qwen3-1.7b": _TIED,
    "qwen3-4b": _TIED,
    "gemma2-2b": _GEMMA2,
    "gemma2-9b": _GEMMA2,
    "gemma2-27b": {**_GEMMA2, "query_scale": 144.0},
    "gemma3-270m": _GEMMA3,
    "gemma3-1b": _GEMMA3,
    "gemma3-4b": _LONG_GEMMA3,
    "gemma3-12b": _LONG_GEMMA3,
    "gemma3-27b": {**_LONG_GEMMA3, "query_scale": 168.0},
    "phi3-": {"window": 2047},
    "mixtral-": {"experts": 8, "experts_used": 2},
    "qwen1.5-moe-a2.7b": {**_QWEN2_MOE, "experts": 60, "experts_used": 4, "experts_shared": 5632},
    "qwen2-57b-a14b": {**_QWEN2_MOE, "experts": 64, "experts_used": 8, "experts_shared": 20480},
    "qwen3-30b-a3b": _QWEN3_MOE,
    "qwen3-235b-a22b": _QWEN3_MOE,
    "gpt-oss-20b": {**_GPT_OSS, "experts": 32},
    "gpt-oss-120b": {**_GPT_OSS, "experts": 128},
    "deepseek-v2-lite": {
        **_DEEPSEEK_V2,
        "dense_d_ff": 10944,
        "experts": 64,
        "experts_shared": 2816,
    },
    "deepseek-v2-236b": {
        **_DEEPSEEK_V2,
        "query_latent": 1536,
        "dense_d_ff": 12288,
        "experts": 160,
        "experts_shared": 3072,
        "router_groups": 8,
        "router_groups_used": 3,
        "router_scale": 16.0,
    },
    "deepseek-v3-671b": {
        **_DEEPSEEK,
        "rotary_score_gain": 1.0,
        "query_latent": 1536,
        "dense_layers": 3,
        "dense_d_ff": 18432,
        "experts": 256,
        "experts_used": 8,
        "experts_shared": 2048,
        "router_scores": "sigmoid",
        "router_offset": True,
        "router_groups": 8,
        "router_groups_used": 4,
        "router_scale": 2.5,
    },
    "olmoe-": {"experts": 64, "experts_used": 8, "router_normalise": False},
}
SIZES: dict[str, dict[str, Any]] = {
    name: {
        **{key: value for key, value in zip(_COLUMNS, row, strict=True) if value},
        **{
            k: v
            for start, also in _BESIDE.items()
            if name.startswith(start)
            for k, v in also.items()
        },
    }
    for name, row in _ROWS.items()
}
