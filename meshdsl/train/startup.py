"""How long a run takes until its first step is done, and what that time goes into."""

from __future__ import annotations

import os
import time
from pathlib import Path

from meshdsl.hosts.standby import seconds_since_told


class Startup:
    """Measures the parts of a start, one after the other.

        startup = Startup(process_age())
        ...
        startup.done("import")
        ...
        startup.done("data")
        startup.values()  # {"startup_seconds": 3.0, "startup_import_seconds": 2.0, ...}

    Args:
      already: seconds that belong to the first part, and were before.

    Attributes:
      began: when the first part began, in seconds since 1970.
    """

    def __init__(self, already: float = 0.0):
        self.began = time.time() - already
        self._since = time.perf_counter() - already
        self._parts: dict[str, float] = {}

    def done(self, part: str) -> None:
        """The time since the last call belongs to `part`, which may be named more than once."""
        now = time.perf_counter()
        self._parts[part] = self._parts.get(part, 0.0) + now - self._since
        self._since = now

    def values(self) -> dict[str, float]:
        """The metrics of the start, in seconds: in all, and for each part in its order."""
        each = {f"startup_{name}_seconds": spent for name, spent in self._parts.items()}
        return {"startup_seconds": sum(self._parts.values()), **each}

    def line(self) -> str:
        """What to print of it: `started in 9.3 s: import 2.1, data 0.4, compile 6.8`."""
        each = ", ".join(f"{name} {spent:.1f}" for name, spent in self._parts.items())
        return f"started in {sum(self._parts.values()):.1f} s: {each}"


def process_age() -> float:
    """Seconds since this process began, or was told to; 0 where the system does not tell."""
    if (told := seconds_since_told()) is not None:
        return told
    try:
        # The fields after the name of the program, which may hold spaces; see `man 5 proc`.
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        up = float(Path("/proc/uptime").read_text(encoding="utf-8").split()[0])
    except (OSError, ValueError, IndexError):
        return 0.0
    return max(0.0, up - int(fields[19]) / os.sysconf("SC_CLK_TCK"))
