"""The time of one step of a compiled program, by replaying the compiler's schedule.

`actions` says what each instruction is and takes, and `machine.timeline` does them one after the
other. What is not understood takes no time, and is counted in `Module.unread`.
"""

from __future__ import annotations

from collections.abc import Mapping

from meshdsl.machine import Chip, Network
from meshdsl.machine.timeline import Timeline, timeline
from meshdsl.predict.compiler.actions import Actions
from meshdsl.predict.compiler.hlo_text import Module


def replay(
    text: str | Module, chip: Chip, network: Network, axis_sizes: Mapping[str, int]
) -> Timeline:
    """The time of one step of a compiled program.

    Args:
      text: `compiled.as_text()`, or a `Module` of it, in which what could not be read is counted.
      chip: what computes.
      network: how long a collective takes: `network.seconds(operation, axes, bytes)`.
      axis_sizes: the mesh, `{axis: size}`. Device n of the program is the n-th of the mesh.
    """
    module = text if isinstance(text, Module) else Module(text)
    return timeline(Actions(module, chip, network, dict(axis_sizes)).of, module.entry)
