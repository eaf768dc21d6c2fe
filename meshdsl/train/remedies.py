"""Settings of a run that would save memory, and that it does not have already."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from meshdsl.dims import Dim
from meshdsl.layout import Layout
from meshdsl.train.config import Config
from meshdsl.train.data import task_of


def settings_that_save_memory(
    config: Config, layout: Layout, sizes: Mapping[str, int]
) -> list[str]:
    """One sentence for each.

    Args:
      sizes: of the mesh axes.
    """
    lines = []
    if getattr(config.model, "remat", "full") != "full":
        lines.append("`model.remat=full` keeps the least for the backward pass")
    batch = Dim("batch", config.batch // config.microbatches)
    axes = layout.split((batch,)).get(batch, ())
    if batch.size // prod(sizes[axis] for axis in axes) % 2 == 0:
        lines.append(
            f"`microbatches={2 * config.microbatches}` runs the batch in parts, one after the other"
        )
    fields = task_of(config).fields(config, Dim("batch", config.batch))
    has_length = any(dim.name == "length" for t in fields.values() for dim in t.dims)
    if has_length and not any(rule.dim == "length" for rule in layout.parsed):
        lines.append("a layout that splits `length`, such as fsdp-sequence, or a shorter --length")
    return lines
