"""Where the time of a step goes."""

from __future__ import annotations

import time

TRAINING = ("input", "step")  # what counts as training; the rest is done beside it


class Clock:
    """Seconds from one lap to the next, and how many of them the host spent in what."""

    def __init__(self) -> None:
        self._spans: dict[str, _Span] = {}
        self._since = time.perf_counter()

    def spent(self, what: str) -> _Span:
        """A context; the seconds in it count as `what`."""
        if what not in self._spans:
            self._spans[what] = _Span()
        return self._spans[what]

    def lap(self) -> dict[str, float]:
        """Seconds since the last lap: `seconds` in all, `NAME_seconds` in each context, and in none of them `step_seconds`."""
        now = time.perf_counter()
        seconds, self._since = now - self._since, now
        spent = {f"{what}_seconds": span.taken() for what, span in self._spans.items()}
        return {
            "seconds": seconds,
            "step_seconds": max(0.0, seconds - sum(spent.values())),
            **spent,
        }


class _Span:
    __slots__ = ("_seconds", "_since")

    def __init__(self) -> None:
        self._seconds = 0.0

    def taken(self) -> float:
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def __enter__(self) -> None:
        self._since = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        self._seconds += time.perf_counter() - self._since
