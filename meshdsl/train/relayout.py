"""Another layout for a run that goes on: the file `relayout.toml` in its folder.

    layout = "fsdp-tensor"
    model.remat = "full"

A run looks for the file while it trains. It takes what stands there as a phase of its own, which
begins at the next step and may change what a phase may change, but for what depends on where the
phase ends. What the steps of that phase need is prepared and compiled beside those of this one. The
file is then kept as `relayout-STEP.toml`, and whoever goes on with the run reads it there; or as
`relayout-refused.toml`, with the reason, where it does not fit.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count as counter
from pathlib import Path
from typing import Any, NamedTuple

from meshdsl import hosts
from meshdsl.errors import MeshDSLError
from meshdsl.hosts import store
from meshdsl.train.ahead import Ahead
from meshdsl.train.folder import RunFolder
from meshdsl.train.interrupt import RELAYOUT, Stopping
from meshdsl.train.phase_settings import check_relayout
from meshdsl.train.plan import Plan
from meshdsl.train.prepared import Prepared
from meshdsl.train.settings import as_toml, parsed
from meshdsl.train.stored_layout import as_table, find_layout

_LOOK = 1.0  # seconds between two looks for the file
_COMPILING = 7200.0  # seconds until the last process has compiled what it needs
_numbers = counter()  # of the runs in this process: the same in all processes


class _Change(NamedTuple):
    """What a run can change to.

    Attributes:
      table: what changes.
      now: the phase that it was prepared to end.
      later: what comes then, see `Plan.changed`.
    """

    table: Mapping[str, Any]
    now: Prepared
    later: list[Prepared]


class Relayouts:
    """Follows `relayout.toml` in the folder of a run, in a thread of each process.

    Where one is ready, `stop` asks all processes to stop after one and the same step, with the
    reason RELAYOUT; then `change` is to be called.

    Args:
      ahead: compiles what is needed.
      now: called for the phase whose steps are taken at present.
    """

    def __init__(
        self,
        folder: RunFolder,
        plan: Plan,
        ahead: Ahead,
        stop: Stopping,
        now: Callable[[], Prepared],
    ):
        self._folder, self._plan, self._ahead, self._stop, self._now = (
            folder,
            plan,
            ahead,
            stop,
            now,
        )
        self._key = f"relayout/{next(_numbers)}"
        self._ready: _Change | None = None
        self._free, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._follow, name="meshdsl relayout", daemon=True)
        self._thread.start()

    def change(self, now: Prepared, done: int, prove: Callable[..., Any]) -> int:
        """Change what was asked for after `done` steps; all processes do, after the same one.

        Where another phase has begun since it was prepared, and it does not fit that one, or where
        it has to be proved and is not, it is refused, and the run goes on as it is.

        Args:
          now: the phase of those steps.
          prove: called with a phase and with what gives its record, where `proof=require`.

        Returns: the last step of that phase.
        """
        assert self._ready
        (table, of, later), self._ready = self._ready, None
        try:
            later = later if of is now else self._plan.changed(now, table)
            if now.job.config.proof == "require":
                prove(later[0], later[0].job.program)
        except MeshDSLError as error:
            self._refuse(str(error), table)
            done = now.phase.until
        else:
            if hosts.first():
                self._keep(self._folder.relaid(done), table)
            self._plan.change(done, table, later)
        self._stop.go_on()
        self._free.set()
        return done

    def close(self) -> None:
        """Look no more. A file that was not taken yet is left for whoever goes on with the run."""
        self._closing.set()
        self._free.set()
        self._thread.join()

    def _follow(self) -> None:
        with suppress(RuntimeError):  # the store is gone, and JAX ends the process
            for number in counter():
                if not (table := self._next(f"{self._key}/{number}/table")):
                    return
                refused = self._refused(f"{self._key}/{number}", table)
                if refused:
                    self._refuse(refused, table)
                    continue
                if hosts.first():
                    self._stop.ask(RELAYOUT)
                self._free.wait()
                if not self._closing.is_set():
                    self._free.clear()

    def _next(self, key: str) -> dict[str, Any]:
        """The table in the next file that can be read, as soon as it is there; or at last none."""
        if not hosts.first():
            return json.loads(store.wait_for(key))
        table: dict[str, Any] = {}
        while not table and (text := self._written()):
            try:
                table = read_table(text)
            except MeshDSLError as error:
                self._refuse(str(error), text)
        if store.count() > 1:
            store.put(key, json.dumps(table))
        return table

    def _written(self) -> str:
        """The text of the file, once it has not changed between two looks; or at last empty."""
        path, before = self._folder.relayout, None
        while not self._closing.wait(_LOOK):
            try:
                seen = path.read_text(encoding="utf-8", errors="replace")
            except OSError:
                seen = None
            if seen is not None and seen == before:
                return seen or "\n"
            before = seen
        return ""

    def _prepared(self, table: Mapping[str, Any]) -> _Change:
        """Prepare and compile what the steps need that come after a change."""
        now = self._now()
        later = self._plan.changed(now, table)
        _ = later[0].data, later[0].held_out
        self._ahead.begin_phase(now.job, later[0].job, lambda error: None)
        self._ahead.wait(later[0].job)
        return _Change(table, now, later)

    def _refused(self, key: str, table: Mapping[str, Any]) -> str:
        """Why a change is refused, which is the same in all processes; empty where it is not."""
        try:
            self._ready, said = self._prepared(table), ""
        except Exception as error:  # a compiler's too; the run goes on as it is
            said = str(error).splitlines()[0]
        if store.count() == 1:
            return said
        store.put(f"{key}/said/{store.index()}", said)
        store.wait_for_all(f"{key}/all", _COMPILING)
        if store.first():
            store.put(f"{key}/refused", max(store.values_below(f"{key}/said").values()))
        return store.wait_for(f"{key}/refused")

    def _refuse(self, why: str, table: Mapping[str, Any] | str) -> None:
        """Keep the file with the reason why it is refused; process 0 does, and says so."""
        if hosts.first():
            self._plan.print_line(f"relayout.toml is refused: {why}")
            with suppress(MeshDSLError):  # the disk is full, say, which ends the run by itself
                self._keep(self._folder.refused_relayout, table, f"# {why}\n")

    def _keep(self, path: Path, table: Mapping[str, Any] | str, remark: str = "") -> None:
        text = table if isinstance(table, str) else as_toml(table)
        self._folder.write(path, remark + text)
        self._folder.relayout.unlink(missing_ok=True)


def read_table(text: str) -> dict[str, Any]:
    """What a text says that a run should change, with the layout itself in place of its name.

    Raises:
      MeshDSLError: it is not TOML, or changes what a run cannot while it goes on.
    """
    table = parsed(text, Path("relayout.toml"))
    check_relayout(table)
    named = {"layout": as_table(find_layout(table["layout"]))} if "layout" in table else {}
    return table | named
