"""The network between two processes is cut: both end soon, and nothing is lost.

Each process runs in a network namespace of its own, which takes the rights of an administrator; the
test is skipped where these are missing.
"""

import os
import shutil
import socket
import subprocess
import sys
import time

import pytest

from meshdsl.hosts.heartbeat import MISSED
from meshdsl.train.checkpoints.folders import saved_steps
from meshdsl_cli import main
from tests.train.common import losses
from tests.train.test_kill_matrix import TINY

SPACES = ("meshdsl-a", "meshdsl-b")
ADDRESSES = ("10.77.13.1", "10.77.13.2")
LINKS = ("mdsl-a", "mdsl-b")


# As `meshdsl`, with a sign of life each second instead of every five.
PROGRAM = """
import sys
from meshdsl.hosts import heartbeat
heartbeat._BEAT = 1.0
from meshdsl_cli import main
sys.exit(main(sys.argv[1:]))
"""


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def two_networks():
    """Two network namespaces with a cable between them."""
    if os.geteuid() or not shutil.which("ip"):
        pytest.skip("network namespaces need an administrator, and the program `ip`")
    try:
        try:
            for space in SPACES:
                ip("netns", "add", space)
            cable = ["link", "add", LINKS[0], "netns", SPACES[0], "type", "veth"]
            ip(*cable, "peer", "name", LINKS[1])
            ip("link", "set", LINKS[1], "netns", SPACES[1])
            for space, link, address in zip(SPACES, LINKS, ADDRESSES, strict=True):
                ip("-n", space, "addr", "add", f"{address}/24", "dev", link)
                for each in ("lo", link):
                    ip("-n", space, "link", "set", each, "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces here: {error.stderr.decode().strip()}")
        yield
    finally:
        for space in SPACES:
            subprocess.run(["ip", "netns", "del", space], capture_output=True)


@pytest.mark.slow
def test_a_run_whose_network_is_cut_ends_and_goes_on(two_networks, tmp_path, text):
    settings = ["--data", text, "--layout", "fsdp", *TINY]
    cut = tmp_path / "cut"
    both = []
    for i, (space, address) in enumerate(zip(SPACES, ADDRESSES, strict=True)):
        # Gloo listens where the name of the machine leads.
        hosts = tmp_path / f"hosts{i}"
        hosts.write_text(f"127.0.0.1 localhost\n{address} {socket.gethostname()}\n")
        words = ["train", "--out", str(cut), "--coordinator", f"{ADDRESSES[0]}:1234"]
        words += ["--processes", "2", "--process-id", str(i), *settings, "steps=100000"]
        inside = 'mount --bind "$0" /etc/hosts && exec "$@"'
        command = ["ip", "netns", "exec", space, "sh", "-c", inside, str(hosts)]
        command += [sys.executable, "-c", PROGRAM, *words]
        both.append(
            subprocess.Popen(
                command,
                env={**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        end = time.monotonic() + 240
        while not any(step >= 3 for step in saved_steps(cut / "checkpoints")):
            assert time.monotonic() < end and both[0].poll() is None, both[0].communicate()
            time.sleep(0.1)
        ip("-n", SPACES[0], "link", "set", LINKS[0], "down")
        began = time.monotonic()
        said = [process.communicate(timeout=150)[1] for process in both]
        took = time.monotonic() - began
    finally:
        for process in both:
            process.kill()
    assert took < 60 and [process.returncode for process in both] == [MISSED] * 2, said
    assert "process 0: process 1 has died or cannot be reached" in said[0]
    assert "process 1: process 0 has died or cannot be reached" in said[1]

    done = max(saved_steps(cut / "checkpoints"))
    go_on = ["--devices", "2", f"steps={done + 2}", "schedule.shape=constant"]
    assert main(["train", "--resume", "--out", str(cut), *go_on]) == 0
    assert len(losses(cut)) == done + 2
