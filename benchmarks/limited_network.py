"""Two network namespaces of this machine, between which the network lets so much pass."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

ADDRESSES = ("10.77.14.1", "10.77.14.2")
_SPACES = ("meshdsl-slow-a", "meshdsl-slow-b")
_LINKS = ("mdsl-slow-a", "mdsl-slow-b")


def missing() -> str:
    """Why there can be no such network here; empty where there can."""
    if os.geteuid():
        return "network namespaces need an administrator"
    lacking = [name for name in ("ip", "tc") if not shutil.which(name)]
    return f"the programs {' and '.join(lacking)} are not installed" if lacking else ""


@contextmanager
def limited(megabits: float) -> Iterator[None]:
    """The namespaces are there within this context; each sends at most so many Mbit/s."""

    def run(*words: str) -> None:
        subprocess.run(words, check=True, capture_output=True)

    try:
        for space in _SPACES:
            run("ip", "netns", "add", space)
        cable = ("ip", "link", "add", _LINKS[0], "netns", _SPACES[0], "type", "veth")
        run(*cable, "peer", "name", _LINKS[1], "netns", _SPACES[1])
        rate = ("rate", f"{megabits:g}mbit", "burst", "64kb", "latency", "200ms")
        for space, link, address in zip(_SPACES, _LINKS, ADDRESSES, strict=True):
            run("ip", "-n", space, "addr", "add", f"{address}/24", "dev", link)
            for each in ("lo", link):
                run("ip", "-n", space, "link", "set", each, "up")
            run("tc", "-n", space, "qdisc", "add", "dev", link, "root", "tbf", *rate)
        yield
    finally:
        for space in _SPACES:
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)


def run_in_both(module: str, words: Sequence[str], devices: int) -> int:
    """Run a module in both namespaces, each with so many devices.

    The words are followed by `--coordinator`, where process 0 listens, and `--process-id`.

    Returns: the exit code of process 0, whose output is shown.
    """
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices)}
    with TemporaryDirectory() as folder:
        both = []
        for i, (space, address) in enumerate(zip(_SPACES, ADDRESSES, strict=True)):
            # Gloo listens where the name of the machine leads.
            names = Path(folder) / f"hosts{i}"
            names.write_text(f"127.0.0.1 localhost\n{address} {socket.gethostname()}\n")
            inside = 'mount --bind "$0" /etc/hosts && exec "$@"'
            command = ["ip", "netns", "exec", space, "sh", "-c", inside, str(names)]
            command += [sys.executable, "-m", module, *words]
            command += ["--coordinator", f"{ADDRESSES[0]}:1234", "--process-id", str(i)]
            both.append(subprocess.Popen(command, env=environment))
        try:
            first, _ = (process.wait() for process in both)
            return first
        finally:
            for process in both:
                process.kill()
