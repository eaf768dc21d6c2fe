"""What flags of several commands mean as settings of a run."""

from __future__ import annotations

from typing import Any


def model_values(name: str | None) -> dict[str, Any]:
    """The settings that the model `name` stands for; none without a name."""
    from meshdsl.models.sizes import size

    return {} if name is None else {f"model.{key}": value for key, value in size(name).items()}
