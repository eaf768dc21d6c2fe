"""Published models by name, as configurations of the transformer, and the FLOPs of a training step.

`meshdsl explain --model llama3-8b` explains one of them without any code. Sizes are those of the
models' papers and published configurations: GPT-2 (Radford et al., 2019), Llama 2 (Touvron et al.,
2023), Llama 3 (Grattafiori et al., 2024). All of them recompute each layer in the backward pass.
"""

from __future__ import annotations

from typing import Any

from meshdsl.errors import MeshDSLError, nearest
from meshdsl.models.transformer import STYLES, Config

_COLUMNS = (
    *("style", "layers", "d_model", "heads", "kv_heads", "d_ff", "vocab", "length"),
    *("rotary_base", "norm_epsilon"),
)
_ROWS = {
    "gpt2-124m": ("gpt2", 12, 768, 12, 0, 3072, 50257, 1024, 0, 1e-5),
    "gpt2-355m": ("gpt2", 24, 1024, 16, 0, 4096, 50257, 1024, 0, 1e-5),
    "gpt2-774m": ("gpt2", 36, 1280, 20, 0, 5120, 50257, 1024, 0, 1e-5),
    "gpt2-1.5b": ("gpt2", 48, 1600, 25, 0, 6400, 50257, 1024, 0, 1e-5),
    "llama2-7b": ("llama", 32, 4096, 32, 0, 11008, 32000, 4096, 10_000.0, 1e-5),
    "llama2-13b": ("llama", 40, 5120, 40, 0, 13824, 32000, 4096, 10_000.0, 1e-5),
    "llama2-70b": ("llama", 80, 8192, 64, 8, 28672, 32000, 4096, 10_000.0, 1e-5),
    "llama3-8b": ("llama", 32, 4096, 32, 8, 14336, 128256, 8192, 500_000.0, 1e-5),
    "llama3-70b": ("llama", 80, 8192, 64, 8, 28672, 128256, 8192, 500_000.0, 1e-5),
    "llama3-405b": ("llama", 126, 16384, 128, 8, 53248, 128256, 8192, 500_000.0, 1e-5),
}
SIZES: dict[str, dict[str, Any]] = {
    name: {key: value for key, value in zip(_COLUMNS, row, strict=True) if value}
    for name, row in _ROWS.items()
}


def size(name: str) -> dict[str, Any]:
    """The fields of `Config` that make the model `name`.

    Args:
      name: one of SIZES; or a style, which leaves everything else as it is.

    Raises:
      MeshDSLError: there is no such model.
    """
    if name in STYLES:
        return {"style": name}
    if name not in SIZES:
        raise MeshDSLError(f"no model `{name}`{nearest(name, (*SIZES, *STYLES))}")
    return dict(SIZES[name])


def step_flops(config: Config, tokens: int, length: int) -> tuple[float, float]:
    """Floating-point operations of the model in one training step.

    Six per token and parameter of a matrix (two forward, four backward), and as many for each
    pair of positions that meet in attention; what is recomputed does not count (Chowdhery et al.,
    2022, appendix B). Looking up an embedding is no product; an output layer that shares its
    table is one.

    Returns:
      Two counts: with causal attention counted half, and in full.
    """
    d = {name: dim.size for name, dim in config.dims.items()}
    kv = (config.kv_heads or config.heads) * d["head_dim"]
    queries = config.heads * d["head_dim"]
    mlp = (2 if config.style == "gpt2" else 3) * d["d_model"] * d["d_ff"]
    layer = d["d_model"] * (2 * queries + 2 * kv) + mlp
    matrices = config.layers * layer + d["d_model"] * d["vocab"]
    attention = config.layers * 2 * queries * length
    return 6.0 * tokens * (matrices + attention / 2), 6.0 * tokens * (matrices + attention)
