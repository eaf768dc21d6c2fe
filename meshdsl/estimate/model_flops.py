"""The FLOPs of a model's matrix products and convolutions in a step, counted from its record."""

from __future__ import annotations

from meshdsl.estimate.fusion.kernel_graph import kernel_graph
from meshdsl.record.program import Program


def model_flops(program: Program) -> float:
    """The FLOPs of one call, forward and backward, without what is computed a second time.

    A multiplication and an addition count as two. The count is that of one device, so it is the
    model's where the program is one for a single device.
    """
    flops = kernel_graph(program).flops
    return float(sum(n for (_, phase), n in flops.items() if phase in ("forward", "backward")))
