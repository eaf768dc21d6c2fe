"""What flags of several commands mean as settings of a run."""

from __future__ import annotations

from typing import Any

from meshdsl.models.sizes import SIZES, size


def model_values(name: str | None) -> dict[str, Any]:
    """The settings that a model such as `llama3-8b` stands for; none without a name.

    Published sizes compute in bfloat16, as they were trained.

    Raises:
      MeshDSLError: there is no model of that name.
    """
    if name is None:
        return {}
    precision = {"precision.compute": "bfloat16"} if name in SIZES else {}
    return precision | {f"model.{key}": value for key, value in size(name).items()}
