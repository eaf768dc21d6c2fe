"""`model.remat = "auto"`: of what a model may keep for the backward pass, the fastest that fits.

Whatever family has a setting `remat` with "auto" among its values can be given it. For each of the
other values the step is traced and estimated as `explain` does it: a second or so for each, and no
compiler. The setting `memory` says how much of a device's memory may be used.

The configuration of a run keeps "auto". So a run that goes on, on another machine or another mesh
say, chooses again: nothing that a run keeps depends on what is recomputed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from math import prod
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from meshdsl.dims import Dim
from meshdsl.errors import MeshDSLError
from meshdsl.figures import byte_words, flop_words, time_words
from meshdsl.layout import Layout
from meshdsl.machine import Target, chip_of
from meshdsl.machine.target import target_at_hand
from meshdsl.mesh import abstract_mesh
from meshdsl.predict.advice import remedies
from meshdsl.predict.explain import explain
from meshdsl.predict.explanation import Explanation
from meshdsl.train.config import Config, memory_bytes
from meshdsl.train.data import task_of
from meshdsl.train.job import Job

AUTO = "auto"


class Choice(NamedTuple):
    """What was chosen, if there was anything to choose.

    Attributes:
      config: with the choice as its `model.remat`.
      remat: the choice; empty where the configuration names what it wants.
      line: why it is that, in one line; empty as `remat` is.
    """

    config: Config
    remat: str = ""
    line: str = ""


class _Candidate(NamedTuple):
    """What one value of `remat` comes to.

    Attributes:
      place: among the values; the later ones keep more.
      cost: seconds of a step; FLOPs where the machine has no figures.
      timed: whether it is seconds.
    """

    remat: str
    place: int
    explanation: Explanation
    cost: float
    timed: bool

    @property
    def peak(self) -> int:
        return self.explanation.memory.peak

    @property
    def words(self) -> str:
        """What it costs, in words."""
        return f"step {time_words(self.cost)}" if self.timed else flop_words(self.cost)


def choose_remat(
    config: Config,
    layout: Layout,
    sizes: Mapping[str, int],
    target: Target | None,
    capacity: int | None = None,
) -> Choice:
    """The configuration with the fastest `model.remat` that fits, where it says "auto".

    Args:
      sizes: of the mesh axes.
      target: the machine. Without one that has figures, the fastest is what computes the least.
      capacity: bytes of a device's memory, where `target` does not say it.

    Raises:
      MeshDSLError: none fits, or `memory` is a share of a memory of which the size is not known.
    """
    if getattr(config.model, "remat", None) != AUTO:
        return Choice(config)
    if target is not None and target.chip.hbm:
        capacity = target.chip.hbm
    budget = memory_bytes(config.memory, capacity)
    if budget is None:
        raise MeshDSLError(
            f"model.remat=auto: memory={config.memory} is a share of a device's memory, and how "
            "much that is is not known here; set bytes, such as memory=16GiB, or name a --target"
        )
    found = sorted(
        _candidates(config, layout, sizes, target), key=lambda c: (c.cost, c.peak, -c.place)
    )
    allowed = _allowed(config, budget)
    fitting = [candidate for candidate in found if candidate.peak <= budget]
    if not fitting:
        raise _nothing_fits(config, layout, sizes, found, budget)
    best = fitting[0]
    line = (
        f"model.remat=auto: {best.remat}, estimated peak {byte_words(best.peak)} of {allowed}, "
        f"{best.words}; "
    )
    if faster := found[: found.index(best)]:
        least = min(faster, key=lambda candidate: candidate.peak)
        line += (
            f"{least.remat} would be faster, {least.words}, but does not fit: "
            f"{byte_words(least.peak)}"
        )
    else:
        line += "nothing is faster"
    return Choice(_with_remat(config, best.remat), best.remat, line)


def choose_remat_here(config: Config, layout: Layout, mesh: Mesh) -> Choice:
    """As `choose_remat`, for a mesh of devices that are at hand.

    Raises:
      MeshDSLError: as `choose_remat`.
    """
    if getattr(config.model, "remat", None) != AUTO:
        return Choice(config)
    devices = list(mesh.devices.flat)
    try:
        target = target_at_hand(devices)
    except MeshDSLError:
        target = None  # no chip of the hardware table, or a part of a machine
    chip, stats = chip_of(devices[0]), jax.local_devices()[0].memory_stats() or {}
    capacity = chip.hbm if chip and chip.hbm else stats.get("bytes_limit")
    return choose_remat(config, layout, dict(mesh.shape), target, capacity)


def _candidates(
    config: Config, layout: Layout, sizes: Mapping[str, int], target: Target | None
) -> Iterator[_Candidate]:
    """Each value of `remat` with its estimate."""
    mesh: Any = abstract_mesh(dict(sizes), target.chip.kind if target else None)
    (setting,) = (field for field in fields(config.model) if field.name == "remat")  # pyright: ignore[reportArgumentType]
    waits = any(what != "optimizer" for what in config.offload)
    for place, remat in enumerate(setting.metadata["known"]):
        # With nothing recomputed, nothing that is kept can wait on the host.
        if remat == AUTO or (remat == "none" and waits):
            continue
        program = Job(_with_remat(config, remat), layout, mesh).program()
        explanation = explain(program, target=target)
        flops = float(sum(sum(op.flops.values()) for op in explanation.ops))
        time = explanation.time
        yield _Candidate(remat, place, explanation, time.step if time else flops, bool(time))


def _with_remat(config: Config, remat: str) -> Config:
    # A family is a dataclass, which its base class cannot say.
    model: Any = config.model
    return replace(config, model=replace(model, remat=remat))


def _allowed(config: Config, budget: int) -> str:
    """What may be used, in words: `76.59 GiB (memory=80%)`."""
    return f"{byte_words(budget)} (memory={config.memory})"


def _nothing_fits(
    config: Config,
    layout: Layout,
    sizes: Mapping[str, int],
    found: list[_Candidate],
    budget: int,
) -> MeshDSLError:
    least = min(found, key=lambda candidate: candidate.peak).explanation
    helpful = [
        *remedies(replace(least.memory, capacity=budget), least.ops, sizes),
        *settings_that_save_memory(_with_remat(config, "full"), layout, sizes),
    ]
    if (capacity := least.memory.capacity) and least.memory.peak <= capacity:
        helpful.insert(0, f"more `memory` of the {byte_words(capacity)} that a device has")
    return MeshDSLError(
        f"model.remat=auto: nothing fits {_allowed(config, budget)}, and the least has an "
        f"estimated peak of {byte_words(least.memory.peak)}; what would help: " + "; ".join(helpful)
    )


def settings_that_save_memory(
    config: Config, layout: Layout, sizes: Mapping[str, int]
) -> list[str]:
    """One sentence for each setting that would save memory and that the run does not have.

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
