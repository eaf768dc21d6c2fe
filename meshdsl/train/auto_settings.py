"""Settings of a model that are "auto": the values of the fastest step that fits the memory.

A family declares by its fields which of its settings may be "auto" (`meshdsl.fields.tried`): those
of which no value changes a result, such as `remat`, what is kept for the backward pass. For the
values that a field says are worth a try, the step is traced and estimated as `explain` does it: a
fraction of a second for each, and no compiler. The setting `memory` says how much of a device's
memory may be used. Where that is a share, and nobody knows of how much, as on a CPU, each setting
is the first of its values, and nothing is estimated.

The configuration of a run keeps "auto". So a run that goes on, on another machine or another mesh
say, chooses again: nothing that a run keeps depends on what is chosen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from meshdsl.dims import Dim
from meshdsl.errors import MeshDSLError
from meshdsl.fields import AUTO, tried
from meshdsl.figures import byte_words, flop_words, time_words
from meshdsl.layout import Layout
from meshdsl.machine import Target, chip_of
from meshdsl.machine.target import abstract_mesh_on, target_at_hand
from meshdsl.predict.advice import remedies
from meshdsl.predict.explain import explain
from meshdsl.predict.explanation import Explanation
from meshdsl.train.config import Config, memory_bytes
from meshdsl.train.data import task_of
from meshdsl.train.job import Job

# Up to a hundredth more time is taken for a tenth less memory. Less of a difference than that is
# within what estimates of memory are off by.
_MORE_TIME, _LESS_MEMORY = 1.01, 0.9
_DEFAULT = Config.memory  # a wish, and not a condition as what a user sets

Values = tuple[Any, ...]  # of the settings that are "auto", in the order of the family's fields


class Choice(NamedTuple):
    """What was chosen, if there was anything to choose.

    Attributes:
      config: with a value for each setting of the model that was "auto".
      values: what was chosen, by the name of the setting; empty where nothing was estimated.
      line: why it is that, in one line; empty as `values` is.
    """

    config: Config
    values: Mapping[str, Any] = {}
    line: str = ""

    @property
    def remat(self) -> str:
        """What `remat` was chosen to be; empty where it was not to be chosen."""
        return self.values.get("remat", "")


@dataclass(frozen=True, eq=False)
class _Candidate:
    """What one value for each setting comes to.

    Attributes:
      cost: seconds of a step; FLOPs where the machine has no figures.
      timed: whether it is seconds.
    """

    values: Values
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

    def against(self, other: _Candidate) -> str:
        """What it is worth: `1.80 GiB less for 0.2% more time`."""
        size, cost = self.peak - other.peak, self.cost / other.cost - 1
        more = lambda x: "more" if x > 0 else "less"
        what = "time" if self.timed else "to compute"
        return f"{byte_words(abs(size))} {more(size)} for {abs(cost):.1%} {more(cost)} {what}"


def open_settings(model: Any) -> dict[str, tuple[Any, ...]]:
    """The settings of a model that are "auto", each with the values that are worth a try."""
    each = {field.name: tried(field.metadata) for field in fields(model)}
    return {name: tries for name, tries in each.items() if tries and getattr(model, name) == AUTO}


def choose(
    config: Config,
    layout: Layout,
    sizes: Mapping[str, int],
    target: Target | None,
    capacity: int | None = None,
) -> Choice:
    """The configuration with what makes the fastest step that fits, where its model says "auto".

    Of steps that are as fast within a hundredth it is the one that needs the least memory, if this
    is a tenth less. Where nothing fits the memory that `Config.memory` allows by default, it is
    what needs the least.

    Args:
      sizes: of the mesh axes.
      target: the machine. Without one that has figures, the fastest is what computes the least.
      capacity: bytes of a device's memory, where `target` does not say it.

    Raises:
      MeshDSLError: `memory` is not what it is by default, and nothing fits it, or it is a share of
        a memory of which the size is not known.
    """
    tries = open_settings(config.model)
    if not tries:
        return Choice(config)
    budget = memory_bytes(config.memory, capacity or (target.chip.hbm if target else None) or None)
    if budget is None:
        if config.memory != _DEFAULT:
            raise MeshDSLError(
                f"memory={config.memory} is a share of a device's memory, and how much that is is "
                "not known here; set bytes, such as memory=16GiB, or name a --target"
            )
        return Choice(_with(config, tries, [values[0] for values in tries.values()]))
    found = _estimated(
        list(tries.values()),
        lambda values: _candidate(_with(config, tries, values), layout, sizes, target, values),
        budget,
    )
    best, line = _best(found, list(tries), f"{byte_words(budget)} (memory={config.memory})", budget)
    if best.peak > budget and config.memory != _DEFAULT:
        raise _nothing_fits(_with(config, tries, best.values), layout, sizes, best, budget, tries)
    values = dict(zip(tries, best.values, strict=True))
    return Choice(_with(config, tries, best.values), values, line)


def choose_here(config: Config, layout: Layout, mesh: Mesh) -> Choice:
    """As `choose`, for a mesh of devices that are at hand.

    Raises:
      MeshDSLError: as `choose`.
    """
    if not open_settings(config.model):
        return Choice(config)
    devices = list(mesh.devices.flat)
    try:
        target = target_at_hand(devices)
    except MeshDSLError:
        target = None  # no chip of the hardware table, or a part of a machine
    chip, stats = chip_of(devices[0]), jax.local_devices()[0].memory_stats() or {}
    # Of a GPU JAX takes a part for all that it will allocate, three quarters unless told otherwise.
    whole = chip.hbm if chip and chip.kind != "gpu" else None
    return choose(config, layout, dict(mesh.shape), target, whole or stats.get("bytes_limit"))


def _estimated(
    tries: Sequence[Values], estimate: Callable[[Values], _Candidate], budget: int
) -> list[_Candidate]:
    """Candidates, among them the fastest that fits and all that are faster.

    Each setting is varied alone first, the others at their first values. The differences in cost
    add up, nearly, so combinations are estimated in the order of these sums, until one fits. So do
    the differences in memory, if less nearly: what is by far too large is not estimated.

    Raises:
      MeshDSLError: the first values of all settings make no step. Others that make none are left
        out.
    """
    first = tuple(values[0] for values in tries)
    found = {first: estimate(first)}

    def added(values: Values) -> bool:
        # No step is made where nothing is recomputed and what is kept is to wait on the host, say.
        with suppress(MeshDSLError):
            found[values] = found.get(values) or estimate(values)
        return values in found

    alone: list[dict[Any, _Candidate]] = []
    for place, values in enumerate(tries):
        others = first[:place], first[place + 1 :]
        each = {value: (*others[0], value, *others[1]) for value in values}
        alone.append({value: found[key] for value, key in each.items() if added(key)})

    def expected(figure: str) -> dict[Values, float]:
        base = getattr(found[first], figure)
        return {
            tuple(values): base + sum(getattr(one, figure) - base for one in ones)
            for values, ones in (
                zip(*pairs, strict=True) for pairs in product(*(one.items() for one in alone))
            )
        }

    costs, peaks, enough = expected("cost"), expected("peak"), math.inf
    for values in sorted(costs, key=lambda values: costs[values]):
        if costs[values] > enough:
            break
        if peaks[values] > budget / _LESS_MEMORY and values not in found:
            continue
        if added(values) and found[values].peak <= budget:
            enough = min(enough, _MORE_TIME * found[values].cost)
    return list(found.values())


def _best(
    found: Iterable[_Candidate], names: Sequence[str], allowed: str, budget: int
) -> tuple[_Candidate, str]:
    """The best of the candidates, and why it is that.

    Args:
      names: of the settings.
      allowed: the `budget` in words.
    """
    first, *_ = found
    ranked = sorted(found, key=lambda c: (c.cost, c.peak))
    fitting = [c for c in ranked if c.peak <= budget]
    fastest = fitting[0] if fitting else min(ranked, key=lambda c: (c.peak, c.cost))
    near = [c for c in fitting if c.cost <= _MORE_TIME * fastest.cost]
    least = min(near, key=lambda c: c.peak, default=fastest)
    best = least if least.peak <= _LESS_MEMORY * fastest.peak else fastest

    def called(c: _Candidate) -> str:
        return ", ".join(
            str(value) if name == "remat" else f"{name} {value}"
            for name, value in zip(names, c.values, strict=True)
        )

    chosen = ", ".join(
        f"model.{name}={AUTO}: {value}" for name, value in zip(names, best.values, strict=True)
    )
    parts = [f"{chosen}, estimated peak {byte_words(best.peak)} of {allowed}, {best.words}"]
    parts += [
        f"{best.against(other)} than {called(other)}"
        for other in dict.fromkeys((first, fastest))
        if other is not best
    ]
    faster = ranked[: ranked.index(fastest)]
    if not fitting:
        parts.append("nothing fits, and this needs the least")
    elif faster:
        other = min(faster, key=lambda c: c.peak)
        parts.append(
            f"{called(other)} would be faster, {other.words}, but does not fit: "
            f"{byte_words(other.peak)}"
        )
    else:
        parts.append("nothing is faster" if best is fastest else "nothing else is faster")
    return best, "; ".join(parts)


def _candidate(
    config: Config,
    layout: Layout,
    sizes: Mapping[str, int],
    target: Target | None,
    values: Values,
) -> _Candidate:
    """What a configuration comes to in which the settings have these `values`."""
    mesh: Any = abstract_mesh_on(target, sizes)
    explanation = explain(Job(config, layout, mesh).program(), target=target)
    flops = float(sum(sum(op.flops.values()) for op in explanation.ops))
    time = explanation.time
    return _Candidate(values, explanation, time.step if time else flops, bool(time))


def _with(config: Config, names: Iterable[str], values: Iterable[Any]) -> Config:
    # A family is a dataclass, which its base class cannot say.
    model: Any = config.model
    return replace(config, model=replace(model, **dict(zip(names, values, strict=True))))


def _nothing_fits(
    config: Config,
    layout: Layout,
    sizes: Mapping[str, int],
    least: _Candidate,
    budget: int,
    names: Iterable[str],
) -> MeshDSLError:
    memory = least.explanation.memory
    helpful = [
        *remedies(replace(memory, capacity=budget), least.explanation.ops, sizes),
        *settings_that_save_memory(config, layout, sizes),
    ]
    if (capacity := memory.capacity) and memory.peak <= capacity:
        helpful.insert(0, f"more `memory` of the {byte_words(capacity)} that a device has")
    open_ones = ", ".join(f"model.{name}={AUTO}" for name in names)
    return MeshDSLError(
        f"{open_ones}: nothing fits {byte_words(budget)} (memory={config.memory}), and the least "
        f"has an estimated peak of {byte_words(memory.peak)}; what would help: "
        + "; ".join(helpful)
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
    if batch.size // math.prod(sizes[axis] for axis in axes) % 2 == 0:
        lines.append(
            f"`microbatches={2 * config.microbatches}` runs the batch in parts, one after the other"
        )
    fields = task_of(config).fields(config, Dim("batch", config.batch))
    has_length = any(dim.name == "length" for t in fields.values() for dim in t.dims)
    if has_length and not any(rule.dim == "length" for rule in layout.parsed):
        lines.append("a layout that splits `length`, such as fsdp-sequence, or a shorter --length")
    return lines
