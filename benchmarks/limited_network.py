"""Network namespaces of this machine, between which the network is slow, late and lossy.

The rate is that of the kernel, by `tc`. Delay and loss are those of a thread of this program, which
stands where the kernel's bridge would: the qdisc `netem` is not in every kernel.
"""

import fcntl
import os
import random
import select
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

_LINK = "slow"  # in each namespace, its end of the network
_OURS = f"meshdsl-{os.getpid()}"  # in the names of what other programs of this machine see
_BRIDGE = f"{_OURS}-bridge"  # a namespace too
# Of Linux: the request that makes a device of which a program reads the packets, without a header.
_SET_DEVICE, _PACKETS = 0x400454CA, 0x1001
_DESTINATION = 19  # of a packet of IPv4, the last byte of the address that it is sent to


def missing() -> str:
    """Why there can be no such network here; empty where there can."""
    if os.geteuid():
        return "network namespaces need an administrator"
    lacking = [name for name in ("ip", "tc") if not shutil.which(name)]
    return f"the programs {' and '.join(lacking)} are not installed" if lacking else ""


def congestion_controls() -> list[str]:
    """How TCP may react to loss in a namespace of this machine: reno, and perhaps bbr or cubic."""
    return Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control").read_text().split()


def sent() -> int:
    """The bytes that this process and the others of its namespace have sent so far, by the kernel.

    With the headers of their packets, as they leave, so with what is sent again.
    """
    lines = Path("/proc/self/net/dev").read_text().splitlines()[2:]
    counts = {name.strip(): rest.split() for name, _, rest in (x.partition(":") for x in lines)}
    return sum(int(count[8]) for name, count in counts.items() if name != "lo")


@dataclass(frozen=True)
class SlowNetwork:
    """The namespaces, while they are there.

    Attributes:
      count: how many.
      folder: has for each of them the file that is `/etc/hosts` there.
    """

    count: int
    folder: Path

    @property
    def coordinator(self) -> str:
        """Where process 0 may listen."""
        return f"{self.address(0)}:1234"

    def address(self, i: int) -> str:
        """By which the other namespaces reach namespace `i`."""
        return _address(i)

    def command(self, i: int, words: Sequence[str]) -> list[str]:
        """The command line that runs `words` in namespace `i`."""
        inside = 'mount --bind "$0" /etc/hosts && exec "$@"'
        hosts = str(self.folder / f"hosts{i}")
        return ["ip", "netns", "exec", _space(i), "sh", "-c", inside, hosts, *words]

    def cut(self, i: int) -> None:
        """Let nothing more into namespace `i`, or out of it."""
        _run("ip", "-n", _space(i), "link", "set", _LINK, "down")

    def mend(self, i: int) -> None:
        """Undo `cut`."""
        _run("ip", "-n", _space(i), "link", "set", _LINK, "up")

    def run(self, module: str, words: Sequence[str], devices: int) -> int:
        """Run a module in all namespaces, each with so many devices.

        The words are followed by `--coordinator` and `--process-id`.

        Returns: the exit code of process 0, whose output is shown.
        """
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices)}
        started = []
        for i in range(self.count):
            program = [sys.executable, "-m", module, *words]
            program += ["--coordinator", self.coordinator, "--process-id", str(i)]
            started.append(subprocess.Popen(self.command(i, program), env=environment))
        try:
            first, *_ = [process.wait() for process in started]
            return first
        finally:
            for process in started:
                process.kill()


@contextmanager
def limited(
    megabits: float,
    *,
    count: int = 2,
    delay: float = 0.0,
    loss: float = 0.0,
    congestion: str = "",
) -> Iterator[SlowNetwork]:
    """So many namespaces are there within this context.

    Args:
      megabits: Mbit/s that each sends at most; 0: as many as this machine can.
      delay: seconds that a packet is under way.
      loss: the part of all packets that never arrive.
      congestion: one of `congestion_controls`; empty: that of this machine.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        for space in (*map(_space, range(count)), _BRIDGE):
            _run("ip", "netns", "add", space)
            delete = ["ip", "netns", "del", space]
            stack.callback(subprocess.run, delete, capture_output=True, check=False)
        if delay or loss:
            ends = [_packets(i) for i in range(count)]
            stack.enter_context(_carried(ends, delay, loss))
        else:
            _join_by_bridge(count)
        for i in range(count):
            # Gloo listens where the name of the machine leads.
            names = f"127.0.0.1 localhost\n{_address(i)} {socket.gethostname()}\n"
            (folder / f"hosts{i}").write_text(names)
            _run("ip", "-n", _space(i), "addr", "add", f"{_address(i)}/24", "dev", _LINK)
            for each in ("lo", _LINK):
                _run("ip", "-n", _space(i), "link", "set", each, "up")
            if megabits:
                rate = ("rate", f"{megabits:g}mbit", "burst", "64kb", "latency", "200ms")
                _run("tc", "-n", _space(i), "qdisc", "add", "dev", _LINK, "root", "tbf", *rate)
            if congestion:
                setting = f"echo {congestion} > /proc/sys/net/ipv4/tcp_congestion_control"
                _run("ip", "netns", "exec", _space(i), "sh", "-c", setting)
        yield SlowNetwork(count, folder)


def _join_by_bridge(count: int) -> None:
    _run("ip", "-n", _BRIDGE, "link", "add", "bridge", "type", "bridge")
    _run("ip", "-n", _BRIDGE, "link", "set", "bridge", "up")
    for i in range(count):
        cable = ("link", "add", _LINK, "netns", _space(i), "type", "veth")
        _run("ip", *cable, "peer", "name", f"to{i}", "netns", _BRIDGE)
        _run("ip", "-n", _BRIDGE, "link", "set", f"to{i}", "master", "bridge", "up")


def _packets(i: int) -> int:
    """Make the device of namespace `i`; returns the file that its packets are read from."""
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    device = f"{os.getpid()}-{i}"
    fcntl.ioctl(file, _SET_DEVICE, struct.pack("16sH22x", device.encode(), _PACKETS))
    _run("ip", "link", "set", device, "netns", _space(i), "name", _LINK, "txqueuelen", "10000")
    return file


@contextmanager
def _carried(ends: Sequence[int], delay: float, loss: float) -> Iterator[None]:
    """A context in which a thread carries the packets of all ends to where they are sent."""
    wait, over = os.pipe()
    thread = threading.Thread(target=_carry, args=(ends, delay, loss, wait))
    thread.start()
    try:
        yield
    finally:
        os.close(over)
        thread.join()
        for file in (*ends, wait):
            os.close(file)


def _carry(ends: Sequence[int], delay: float, loss: float, over: int) -> None:
    """Carry packets until the pipe `over` is closed."""
    under_way: deque[tuple[float, int, bytes]] = deque()
    draw = random.Random(0)
    while True:
        while under_way and under_way[0][0] <= time.monotonic():
            _, end, packet = under_way.popleft()
            with suppress(OSError):  # the device is down
                os.write(end, packet)
        left = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
        ready, _, _ = select.select([*ends, over], (), (), left)
        if over in ready:
            return
        for file in ready:
            packet = os.read(file, 2**16)
            ours = packet[0] >> 4 == 4 and 0 < packet[_DESTINATION] <= len(ends)
            if ours and draw.random() >= loss:
                at = time.monotonic() + delay
                under_way.append((at, ends[packet[_DESTINATION] - 1], packet))


def _space(i: int) -> str:
    return f"{_OURS}-{i}"


def _address(i: int) -> str:
    return f"10.77.14.{i + 1}"


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)
