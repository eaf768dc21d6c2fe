"""A SLURM cluster of several nodes on this machine, from the packages of Debian."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from contextlib import ExitStack, closing
from pathlib import Path

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "unshare")
_CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmdTimeout=10
KillWait=20
BatchStartTimeout=20
MessageTimeout=10
SchedulerParameters=sched_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
"""
_PARTITIONS = """
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=1 GraceTime=20
PartitionName=urgent Nodes=ALL MaxTime=INFINITE PriorityTier=10
"""


def missing() -> str:
    """Why there can be none here; empty where there can."""
    if os.geteuid():
        return "needs root"
    absent = [name for name in NEEDED if not shutil.which(name)]
    return f"needs {', '.join(absent)}" if absent else ""


class Slurm:
    """The cluster. `sbatch` and the other commands reach it with `environment`.

    Args:
      folder: of all that it keeps.
      nodes: how many there are, `n1` and so on; each has one core of this machine, by its word.
    """

    def __init__(self, folder: Path, nodes: int):
        self.folder = folder
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self.names = [f"n{i + 1}" for i in range(nodes)]
        self._daemons: dict[str, subprocess.Popen] = {}
        self._ports = _free_ports(nodes + 1)

    def start(self) -> None:
        for name in ("state", "spool", *(f"spool/{name}" for name in self.names)):
            (self.folder / name).mkdir(parents=True)
        host = socket.gethostname().partition(".")[0]
        each = [
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=1\n"
            for name, port in zip(self.names, self._ports[1:], strict=True)
        ]
        conf = _CONF.format(host=host, folder=self.folder, ports=self._ports)
        (self.folder / "slurm.conf").write_text(f"{conf}{''.join(each)}{_PARTITIONS}")
        known = Path("/etc/hosts").read_text()
        (self.folder / "hosts").write_text(f"{known}\n127.0.0.1 {' '.join(self.names)}\n")
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        files = [
            f"--{name}-file={self.folder}/munge.{name}" for name in ("key", "pid", "log", "seed")
        ]
        socket_at = f"--socket={self.folder}/munge.socket"
        self._start("munged", "munged", "--foreground", "--force", socket_at, *files)
        while not (self.folder / "munge.socket").exists():
            time.sleep(0.1)
        self._start("slurmctld", "slurmctld", "-D")
        for name in self.names:
            self.add(name)
        while self.run("sinfo", "--noheader", "--states=idle", "--format=%D").strip() != str(
            len(self.names)
        ):
            time.sleep(0.2)

    def add(self, name: str) -> None:
        """Start the daemon of a node."""
        # The nodes find each other by their names, in a view of the file system of their own.
        bind = f"mount --bind {self.folder}/hosts /etc/hosts && exec slurmd -D -N {name}"
        self._start(name, "unshare", "-m", "sh", "-c", bind)

    def lose(self, name: str) -> None:
        """A node is gone, with all that runs on it."""
        self._daemons.pop(name).kill()
        mark = f"SLURMD_NODENAME={name}\0".encode()
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (path / "environ").read_bytes():
                    os.kill(int(path.name), 9)
            except OSError:
                pass
        subprocess.run(["pkill", "-9", "-f", f"slurmstepd.*{name}"], check=False)

    def run(self, *words: str) -> str:
        """What a command of SLURM's prints; empty where it fails."""
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True)
        return done.stdout

    def state(self, job: str) -> str:
        """What a job does: `PENDING`, `RUNNING`, ...; empty where SLURM has forgotten it."""
        shown = self.run("scontrol", "show", "job", job, "--oneliner")
        found = [word for word in shown.split() if word.startswith("JobState=")]
        return found[0].partition("=")[2] if found else ""

    def go_on(self, job: str) -> None:
        """Wait until a job is back in the queue, and let it run at once.

        SLURM would wait two minutes, so that a node has time to clean up.
        """
        self.wait(job, "PENDING")
        self.run("scontrol", "update", f"JobId={job}", "StartTime=now")

    def wait(self, job: str, *states: str, seconds: float = 240.0) -> None:
        """Wait until a job is in one of some states."""
        until = time.monotonic() + seconds
        while (state := self.state(job)) not in states:
            assert time.monotonic() < until, f"job {job}: {state}\n{self.printed(job)}"
            time.sleep(0.3)

    def printed(self, job: str) -> str:
        path = self.folder / f"slurm-{job}.out"
        return path.read_text() if path.exists() else ""

    def close(self) -> None:
        self.run("scancel", "--full", "--signal=KILL", "--user=root")
        for name in self.names:
            if name in self._daemons:
                self.lose(name)
        with ExitStack() as stack:
            for daemon in self._daemons.values():
                stack.callback(daemon.wait)
                stack.callback(daemon.kill)

    def _start(self, name: str, *words: str) -> None:
        with (self.folder / f"{name}.out").open("w") as out:
            self._daemons[name] = subprocess.Popen(
                words, env=self.environment, stdout=out, stderr=out, cwd=self.folder
            )


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(closing(socket.socket())) for _ in range(count)]
        for each in sockets:
            each.bind(("localhost", 0))
        return [each.getsockname()[1] for each in sockets]
