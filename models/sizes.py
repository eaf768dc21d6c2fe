"""Published models by name, as settings of the transformer.

`meshdsl explain --model llama3-8b` explains one of them without any code. Sizes are those of the
models' papers and published configurations: GPT-2 (Radford et al., 2019), Llama 2 (Touvron et al.,
2023), Llama 3 (Grattafiori et al., 2024). All of them recompute each layer in the backward pass.
"""

from __future__ import annotations

from typing import Any

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
