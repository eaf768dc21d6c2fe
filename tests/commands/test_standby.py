"""Processes that are started ahead wait until they are told to begin."""

import os
import signal
import sys

import pytest

from meshdsl.commands import processes
from meshdsl.commands.processes import Place, launch
from meshdsl.commands.standby import Standbys

CODE = """
import os, time
from meshdsl.hosts.standby import seconds_since_told, wait_until_told
wait_until_told()
me, age = os.environ["MESHDSL_PROCESS_ID"], seconds_since_told()
print(me, os.environ["KIND"], 0 <= age < 60, flush=True)
if me == "3": raise SystemExit(5)
time.sleep(0 if me == "0" else 60)
"""


@pytest.fixture
def standbys(monkeypatch):
    """Two processes that say who they are; process 3 fails."""
    monkeypatch.setattr(processes, "PROGRAM", (sys.executable, "-c"))
    found = Standbys([CODE], [{"KIND": "a"}, {"KIND": "b"}])
    yield found
    found.close()


def waiting(standbys):
    return [each.process for each in standbys._waiting.values()]


def test_those_that_wait_begin_when_they_are_taken_and_are_replaced(standbys, capfd):
    standbys.start()
    before = waiting(standbys)
    assert len(before) == 2
    before[1].send_signal(signal.SIGKILL)  # one dies while it waits, and another takes its place
    before[1].wait()
    taken = standbys.take(0, {"MESHDSL_PROCESS_ID": "0"}, True)
    other = standbys.take(1, {"MESHDSL_PROCESS_ID": "1"}, False)
    assert taken.process is before[0] and other.process is not before[1]
    assert taken.process.wait(30) == 0
    assert capfd.readouterr().out == "0 a True\n"
    while not os.pread(other.log.fileno(), 20, 0):
        assert other.process.poll() is None
    assert os.pread(other.log.fileno(), 20, 0) == b"1 b True\n"
    other.close()  # as where the launcher ends
    other.process.send_signal(signal.SIGKILL)
    assert waiting(standbys) == []


def test_those_that_wait_end_with_their_launcher(standbys):
    standbys.start()
    found = waiting(standbys)
    standbys.close()
    assert [each.wait(30) for each in found] == [0, 0]
    standbys._waiting.clear()


def test_they_are_launched_as_others_are(standbys, capfd):
    outcome = launch(standbys.take, 2, Place("localhost:1234", first=2, total=4))
    assert outcome.code == 5
    said = capfd.readouterr()
    assert said.out == "" and "process 3: 3 b True\n" in said.err
