"""What the devices ran, read from a trace of JAX's profiler.

A trace has *planes*, these have *lines* of events, and an event that is an execution of an
instruction of a compiled program says so in its `hlo_op`. Where such events stand depends on the
platform:

- On a CPU they stand on the plane of the host, on the lines of the threads that work for the
  devices. Each event says for which device (`device_ordinal`) and for which call of the program
  (`run_id`).
- A TPU has a plane of its own, `/device:TPU:0`. The line `XLA Ops` has what the core does, and
  `Async XLA Ops` what goes on meanwhile; the name of an event is the text of its instruction.
  Events do not say which call they belong to: a call begins with the first instruction of the entry
  computation that the device runs.
- A GPU has a plane of its own too, `/device:GPU:0`, with a line for each stream, `Stream #14(...)`.
  Events are kernels, and which instruction ran them is found in `gpu_kernels`.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax

from meshdsl.errors import MeshDSLError
from meshdsl.predict.compiler.hlo_text import Module
from meshdsl.predict.ledger.gpu_kernels import Kernel, executions

_DEVICE = re.compile(r"/device:(\w+:\d+)")
_INSTRUCTION = re.compile(r"%?([\w.\-]+)(?: = |$)")
_OF_CORE = ("XLA Ops", "Async XLA Ops")


class Event(NamedTuple):
    """One execution of an instruction on a device; times are in nanoseconds."""

    start: float
    end: float
    instruction: str


Call = Mapping[str, list[Event]]  # of one call of the program: for each device what it ran


@dataclass(frozen=True)
class _Found:
    """An event, the call that it says it belongs to, if it does, and its device."""

    device: str
    call: int | None
    event: Event


def check_profiler(what: str) -> None:
    """Check that this JAX can take a trace and read it.

    Args:
      what: who asks, for the error.

    Raises:
      MeshDSLError: it cannot.
    """
    missing = [
        name
        for name in ("start_trace", "stop_trace", "ProfileOptions", "ProfileData")
        if not hasattr(jax.profiler, name)
    ]
    if missing:
        raise MeshDSLError(
            f"{what}: jax {jax.__version__} has no jax.profiler.{missing[0]}, with which a trace "
            "is taken and read"
        )


def start_trace(what: str, folder: Path) -> None:
    """Begin a trace, which JAX writes into `folder` when it ends.

    Raises:
      MeshDSLError: a trace is being taken already.
    """
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # an event for every Python call would slow the host
    try:
        jax.profiler.start_trace(folder, profiler_options=options)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise MeshDSLError(f"{what}: JAX takes no trace: {reason}") from None


@contextmanager
def tracing(what: str, folder: Path) -> Iterator[None]:
    """A context of which JAX writes a trace into `folder`."""
    start_trace(what, folder)
    try:
        yield
    finally:
        jax.profiler.stop_trace()


def read_calls(what: str, folder: Path, module: Module) -> list[Call]:
    """The calls of a compiled program that the trace in `folder` has whole, the earliest first.

    Args:
      what: who asks, for errors.
      module: the program. Events of other programs are left out.

    Raises:
      MeshDSLError: there is no trace, or it has no whole call of the program.
    """
    files = sorted(folder.rglob("*.xplane.pb"))
    if not files:
        raise MeshDSLError(f"{what}: JAX's profiler has written no trace into {folder}")
    return calls_in(what, jax.profiler.ProfileData.from_file(str(files[-1])).planes, module)


def calls_in(what: str, planes: Iterable[Any], module: Module) -> list[Call]:
    """As `read_calls`, of the planes of a trace (`jax.profiler.ProfileData.planes`)."""
    found: dict[str, list[_Found]] = defaultdict(list)
    for plane in planes:
        of_plane = _of_gpu if plane.name.startswith("/device:GPU:") else _of_plane
        for one in of_plane(plane, module):
            found[one.device].append(one)
    calls = {device: _by_call(events, module) for device, events in found.items()}
    whole = _whole_calls(calls, module)
    if not whole:
        raise MeshDSLError(
            f"{what}: the trace is empty: it has no whole call of the program `{module.name}`; "
            "does the profiler work on these devices?"
        )
    return whole


def _of_plane(plane: Any, module: Module) -> Iterator[_Found]:
    """The events of one plane that are executions of instructions of `module`."""
    own = _DEVICE.match(plane.name)
    lines = list(plane.lines)
    if own and any(line.name in _OF_CORE for line in lines):
        lines = [line for line in lines if line.name in _OF_CORE]
    for line in lines:
        for event in line.events:
            named = _INSTRUCTION.match(event.name)
            name = named[1] if named else ""
            if name not in module.instructions and not own:
                continue  # of the many events of a host, these are none; stats take time to read
            stats = {key: value for key, value in event.stats if key is not None}
            name = str(stats.get("hlo_op", name))
            if name not in module.instructions:
                continue
            if stats.get("hlo_module", module.name) != module.name:
                continue
            if own:
                device = own[1]
            elif "hlo_op" in stats and "device_ordinal" in stats:
                device = f"{stats['device_ordinal']}"
            else:
                continue
            times = Event(event.start_ns, event.start_ns + event.duration_ns, name)
            yield _Found(device, stats.get("run_id"), times)


def _of_gpu(plane: Any, module: Module) -> Iterator[_Found]:
    """The events of the plane of a GPU that are kernels of `module`, with their instructions."""
    device, kernels = plane.name.removeprefix("/device:"), []
    for line in plane.lines:
        for event in line.events if line.name.startswith("Stream") else ():
            stats = {key: value for key, value in event.stats if key in ("hlo_op", "hlo_module")}
            if stats.get("hlo_module") == module.name:
                end = event.start_ns + event.duration_ns
                said = str(stats.get("hlo_op", ""))
                kernels.append(Kernel(event.start_ns, end, line.name, event.name, said))
    for start, end, call, instruction in executions(kernels, module):
        yield _Found(device, call, Event(start, end, instruction))


def _by_call(found: list[_Found], module: Module) -> dict[int, list[Event]]:
    """The events of one device, call by call."""
    found.sort(key=lambda one: one.event.start)
    calls: dict[int, list[Event]] = {}
    if all(one.call is not None for one in found):
        for one in found:
            assert one.call is not None
            calls.setdefault(one.call, []).append(one.event)
        return calls
    names = {one.event.instruction for one in found}
    first = next((i.name for i in module.computations[module.entry] if i.name in names), None)
    number = 0
    for one in found:
        number += one.event.instruction == first
        calls.setdefault(number, []).append(one.event)
    calls.pop(0, None)  # the end of a call that began before the trace
    return calls


def _whole_calls(found: Mapping[str, dict[int, list[Event]]], module: Module) -> list[Call]:
    """The calls that all devices have whole, of those that each of them has.

    A call is whole that has all instructions of the entry computation which most have on the
    device; the trace may begin or end in the middle of one. How often loops turn may depend on
    data.
    """
    in_entry = {i.name for i in module.computations[module.entry]}
    whole: dict[str, list[int]] = {}
    for device, calls in found.items():
        once = {n: sum(e.instruction in in_entry for e in calls[n]) for n in calls}
        usual = Counter(once.values()).most_common(1)[0][0] if once else 0
        whole[device] = [n for n, count in once.items() if count >= usual]
    everywhere = set.intersection(*map(set, whole.values())) if whole else set()
    order = [n for n in next(iter(whole.values()), []) if n in everywhere]
    return [{device: found[device][n] for device in found} for n in order]
