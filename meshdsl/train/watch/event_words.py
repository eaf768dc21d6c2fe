"""Events in words."""

from __future__ import annotations

from collections.abc import Callable

from meshdsl.figures import time_words
from meshdsl.train.watch.events import Event
from meshdsl.train.watch.metrics_file import is_finite


def event_words(event: Event) -> str:
    """What happened, in words: `checkpoint of step 200 (52 ms)`."""
    words = _WORDS.get(event["event"])
    if words:
        return words(event)
    values = [f"{key} {event[key]}" for key in event if key not in ("time", "event")]
    return ", ".join([str(event["event"]), *values])


def _start(event: Event) -> str:
    devices, processes = _int(event, "devices"), _int(event, "processes")
    where = f" on {devices} device{'s' * (devices != 1)}" if devices else ""
    where += f" of {processes} processes" if processes > 1 else ""
    step = _int(event, "step")
    return f"started{where}" + (f", goes on after step {step}" if step else "")


def _trained_again(event: Event) -> str:
    first, last = _int(event, "step") + 1, _int(event, "last")
    which = f"step {last}" if last <= first else f"steps {first} to {last}"
    return f"{which} {'is' if last <= first else 'are'} trained again{_took(event)}"


def _slow(event: Event) -> str:
    hosts = event.get("hosts")
    found = event.get("processes")
    if not isinstance(found, list) or not isinstance(hosts, list) or not found:
        return "no process is slow any more"
    each = (f"process {one} ({host})" for one, host in zip(found, hosts, strict=False))
    return f"slow: {', '.join(each)}"


def _end(event: Event) -> str:
    reason, error = event.get("reason", "ended"), event.get("error")
    return f"ended by {reason}: {error}" if error is not None else f"{reason}"


def _took(event: Event) -> str:
    seconds = event.get("seconds")
    return f" ({time_words(seconds)})" if is_finite(seconds) else ""


def _int(event: Event, key: str) -> int:
    value = event.get(key)
    return int(value) if is_finite(value) else 0


def _first_step(event: Event) -> str:
    seconds = event.get("startup_seconds")
    return "first step" + (f" after {time_words(seconds)}" if is_finite(seconds) else "")


def _phase(event: Event) -> str:
    """As `phase 2 begins: batch=64`; a run that goes back enters a phase without changes."""
    changes = event.get("changes")
    return f"phase {event.get('phase')} begins" + (f": {changes}" if changes else "")


_WORDS: dict[str, Callable[[Event], str]] = {
    "start": _start,
    "first_step": _first_step,
    "lost": _trained_again,
    "rollback": lambda event: f"rolled back to step {_int(event, 'step')}; {_trained_again(event)}",
    "phase": lambda event: _phase(event) + _took(event),
    "checkpoint": lambda event: f"checkpoint of step {_int(event, 'step')}{_took(event)}",
    "slow": _slow,
    "skipped": lambda event: f"step {_int(event, 'step')} changed nothing: it was not finite",
    "gone": lambda event: "gone without a word",
    "end": _end,
}
