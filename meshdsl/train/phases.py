"""The phases of a run: what changes after which step.

    [[phase]]
    until = 90_000

    [[phase]]
    until = 100_000
    batch = 64
    model.length = 131_072
    layout = "context-ring"
    optimizer.learning_rate = { decay_to = 1e-6 }

A phase has the settings of the one before it, but for those that it names. It is one run all the
same: state goes on, data go on, and steps are counted through. A run whose layout is changed while
it goes on has one phase more from that step on, see `meshdsl.train.relayout`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from meshdsl.errors import MeshDSLError
from meshdsl.train.config import Config
from meshdsl.train.elastic_settings import with_layouts
from meshdsl.train.optimizer import make_schedule, peak
from meshdsl.train.phase_settings import UNTIL, check_changes
from meshdsl.train.settings import leaves, override
from meshdsl.train.stored_layout import as_table, find_layout

_RATE, _DECAY = "learning_rate", "decay_to"
# The number of a step, and what changes after it: a table as that of a phase, without `until`.
Relayout = tuple[int, Mapping[str, Any]]


@dataclass(frozen=True)
class Phase:
    """Steps of a run that have the same settings.

    Attributes:
      number: counted from 1.
      count: how many phases the run has.
      before: the steps before its first one.
      until: its last step, counted from 1.
      config: its settings. `steps` are those of the whole run.
      changes: what it changes, as `batch=64`, one line each.
    """

    number: int
    count: int
    before: int
    until: int
    config: Config
    changes: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """As `phase 2, steps 90,001 to 100,000: batch=64, model.length=131072`."""
        said = f": {', '.join(self.changes)}" if self.changes else ""
        return f"phase {self.number}, steps {self.before + 1:,} to {self.until:,}{said}"


def phases_of(config: Config, relayouts: Iterable[Relayout] = ()) -> tuple[Phase, ...]:
    """The phases of a run; one, if its settings name none.

    Args:
      relayouts: what was changed while the run went on, in the order of steps. What each of them
        changes holds for later phases too, as far as those say nothing else.

    Raises:
      MeshDSLError: a phase sets what is no setting, or what is one for the whole run; or what it
        sets is not legal.
    """
    now, before, found = replace(config, phase=()), 0, []
    for number, table in enumerate(config.phase or ({},), 1):
        until = table.get(UNTIL, config.steps)
        old = now
        try:
            check_changes(table)
            now = _changed(now, table, before, until)
        except MeshDSLError as error:
            raise MeshDSLError(f"phase {number}: {error}") from None
        found.append(Phase(0, 0, before, until, now, tuple(_differences(old, now))))
        for step, change in relayouts:
            if before <= step < until:
                found[-1:] = _relaid(found[-1], step, change)
                now = found[-1].config
        before = until
    return tuple(replace(each, number=i, count=len(found)) for i, each in enumerate(found, 1))


def _relaid(phase: Phase, step: int, table: Mapping[str, Any]) -> list[Phase]:
    """A phase that has other settings after a step: as two, or as one if that is its beginning."""
    config = _changed(phase.config, table, phase.before, phase.until)
    later = replace(phase, before=step, config=config)
    if step == phase.before:
        return [replace(later, changes=(*phase.changes, *_differences(phase.config, config)))]
    changes = tuple(_differences(phase.config, config))
    return [replace(phase, until=step), replace(later, changes=changes)]


def phase_after(phases: Sequence[Phase], done: int) -> Phase:
    """The phase of the step after `done` steps; the last one after the last step."""
    return next((phase for phase in phases if done < phase.until), phases[-1])


def with_stored_layouts(config: Config) -> Config:
    """`config` with tables in place of the names of layouts, so that a run needs no other file.

    Raises:
      MeshDSLError: there is no such layout.
    """
    phases = []
    for number, phase in enumerate(config.phase, 1):
        try:
            stored = {"layout": as_table(find_layout(phase["layout"]))} if "layout" in phase else {}
        except MeshDSLError as error:
            raise MeshDSLError(f"phase {number}: {error}") from None
        phases.append({**phase, **stored})
    layout, elastic = as_table(find_layout(config.layout)), with_layouts(config.elastic)
    return replace(config, layout=layout, phase=tuple(phases), elastic=elastic)


def _changed(config: Config, table: Mapping[str, Any], before: int, until: int) -> Config:
    """The settings of a phase: those of the one before it, with its changes."""
    values = {key: value for key, value in table.items() if key != UNTIL}
    unknown = values.get("data", {}).get("sources", {}).keys() - config.data.sources.keys()
    if unknown:
        raise MeshDSLError(f"there is no dataset `{min(unknown)}`")
    optimizer = dict(values.get("optimizer", {}))
    rate = optimizer.get(_RATE)
    if isinstance(rate, Mapping):
        del optimizer[_RATE]
        fall = _fall(config, rate, before, until)
        values |= {"optimizer": optimizer, "schedule": {**values.get("schedule", {}), "fall": fall}}
    elif rate is not None and config.schedule.fall:
        values["schedule"] = {"fall": [], **values.get("schedule", {})}
    return override(config, **values)


def _fall(config: Config, rate: Mapping[str, Any], before: int, until: int) -> list[float]:
    """The setting `schedule.fall` for a learning rate that falls to what a phase says."""
    wanted: Any = rate.get(_DECAY)
    if rate.keys() != {_DECAY} or type(wanted) not in (int, float) or wanted < 0:
        raise MeshDSLError(
            "optimizer.learning_rate: expected a number, or { decay_to = NUMBER }, to which the "
            "rate falls until the end of the phase"
        )
    if not before:
        raise MeshDSLError("optimizer.learning_rate: the first phase has no rate to fall from")
    top = peak(config.optimizer)
    last = np.asarray(make_schedule(config.schedule, top, config.steps)(before - 1)).item()
    return [before, until, last / top, wanted / top]


def _differences(old: Config, new: Config) -> Iterator[str]:
    """What is other than before, as `batch=64`."""
    if new.layout != old.layout:
        yield f"layout={find_layout(new.layout).name.removeprefix('layout ')}"
    before = dict(leaves(replace(old, layout="")))
    for key, value in leaves(replace(new, layout="")):
        if before.get(key) == value:
            continue
        if key == "schedule.fall" and value:
            yield f"the learning rate falls to {value[-1] * peak(new.optimizer):g}"
        elif key != "schedule.fall":
            yield f"{key}={value}"
