"""What flags of several commands mean as settings of a run."""

from __future__ import annotations

from typing import Any


def model_values(name: str | None) -> dict[str, Any]:
    """The settings that the model `name` stands for; none without a name. Published sizes compute in bfloat16, as they were trained."""
    from meshdsl.models.sizes import SIZES, size

    if name is None:
        return {}
    precision = {"precision.compute": "bfloat16"} if name in SIZES else {}
    return precision | {f"model.{key}": value for key, value in size(name).items()}
