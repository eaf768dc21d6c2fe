"""A run that is killed at any moment loses nothing.

One run is killed again and again, by SIGKILL, in steps, while checkpoints are written and while old
ones are removed, and goes on by `--resume auto`: now as one process with two devices, now as two
processes with one each, of which one is killed, or the launcher. Every checkpoint that is there
after a kill is whole, and the losses in the end are, bit for bit, those of a run that nothing
disturbed. So no sample was skipped or repeated: each batch, and the dropout of each step, leaves
its trace in the loss.

Four kills, the same ones each time, where slow tests run; 20 others with
HYPOTHESIS_PROFILE=nightly. By default test_loop ends runs in a process, and test_faults_table has
checkpoints that were cut off.
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from meshdsl.train.checkpoints import folders
from meshdsl.train.checkpoints.saved_arrays import verify
from tests.nightly import NIGHTLY, nightly
from tests.train.common import SHORT, losses

TINY = [*SHORT, "checkpoint.every=1", "checkpoint.keep=2"]
# Two phases end among the kills, so that some come just before, at and after their ends.
PHASES = "phase=[{until=6}, {until=13, batch=16, model.length=8}, {model.remat='full'}]"
KILLS = 20 if NIGHTLY else 4
STEPS = 8 * KILLS
LAUNCHED = ["launch", "--processes", "2", "--"]
MOMENTS = ("writing", "step", "removing", "starting")


def processes_for(number):
    """2, 1, 2, 1 and the next time round 1, 2, 1, 2, so that each moment sees both.

    The first kill is the hardest, one of two while both write.
    """
    return 1 + (number // len(MOMENTS) + number + 1) % 2


def environment(folder):
    """Programs share what was compiled, and the cache of the text, in a folder."""
    return os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XDG_CACHE_HOME": str(folder),
        "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    }


@pytest.fixture(scope="module")
def start(tmp_path_factory, text):
    """Starts `meshdsl train`, or goes on, in a folder."""
    shared = tmp_path_factory.mktemp("shared")

    def run(out, processes, steps, layout="fsdp"):
        words = ["train", "--data", text, "--layout", layout]
        words += ["--resume", "auto", "--out", str(out), *TINY, PHASES, f"steps={steps}"]
        words = [*LAUNCHED, *words] if processes > 1 else [*words, "--devices", "2"]
        with (shared / "printed").open("a") as printed:
            return subprocess.Popen(
                [sys.executable, "-m", "meshdsl_cli", *words],
                env=environment(shared),
                stdout=printed,
                stderr=printed,
            )

    run.printed = shared / "printed"
    return run


@pytest.fixture(scope="module")
def whole(start, tmp_path_factory):
    """The losses of a run that nothing disturbs."""
    out = tmp_path_factory.mktemp("whole") / "run"
    assert start(out, 1, STEPS).wait() == 0, start.printed.read_text()
    return losses(out)


def came(out, moment, after):
    """Whether the moment to kill is there, some steps after the step `after`.

    It is in a step, or at the checkpoint of one.
    """
    try:
        names = os.listdir(out / "checkpoints")
    except FileNotFoundError:
        return False
    newest = max((int(name) for name in names if name.isdecimal()), default=0)
    if moment == "step" or newest >= after + 4:  # what goes by too fast to be seen
        return newest >= after + 1
    return newest >= after and any(
        {"writing": "orbax-checkpoint-tmp", "removing": "leaving"}[moment] in name for name in names
    )


def members(process):
    """The process and its children: those that `launch` started."""
    listed = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [process.pid, *map(int, listed.read_text().split())]


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def kill(process, victim):
    """SIGKILL one of the processes, and wait until all have ended.

    Whether they were running still.
    """
    running = members(process) if process.poll() is None else []
    if not running:
        return False
    os.kill(running[victim % len(running)], signal.SIGKILL)
    process.wait(timeout=120)
    until = time.monotonic() + 120
    while any(map(alive, running[1:])):
        assert time.monotonic() < until, "a process outlives those that it ran with"
        time.sleep(0.01)
    return True


@pytest.mark.slow
@nightly
def test_a_run_that_is_killed_again_and_again_ends_as_if_nothing_had_been(start, whole, tmp_path):
    seed = random.SystemRandom().randrange(1 << 30) if NIGHTLY else 1
    print(f"seed {seed}")
    draw = random.Random(seed)
    out = tmp_path / "killed"
    for number in range(KILLS):
        moment = MOMENTS[number % len(MOMENTS)]
        before = max(folders.saved_steps(out / "checkpoints"), default=0)
        process = start(out, processes_for(number), STEPS)
        if moment == "starting":
            time.sleep(draw.uniform(0, 4))
        else:
            while process.poll() is None and not came(out, moment, before + draw.randrange(2)):
                time.sleep(0.0005)
        time.sleep(draw.choice([0.0, 0.002, 0.02, 0.1]) * draw.random())
        assert kill(process, draw.randrange(3)), start.printed.read_text()
        for step in folders.saved_steps(out / "checkpoints"):
            assert not verify(out / "checkpoints" / str(step)), f"kill {number}, {moment}"
    assert start(out, 1, STEPS).wait() == 0, start.printed.read_text()
    assert losses(out) == whole


@pytest.mark.slow
def test_each_kill_is_followed_by_another_layout_and_number_of_processes(start, whole, tmp_path):
    layouts, out = ("fsdp", "tensor", "sequence"), tmp_path / "killed"
    for number, layout in enumerate(layouts[:-1]):
        before = max(folders.saved_steps(out / "checkpoints"), default=0)
        process = start(out, 1 + number % 2, STEPS, layout)
        moment = ("writing", "removing")[number]
        while process.poll() is None and not came(out, moment, before + 1):
            time.sleep(0.0005)
        assert kill(process, number), start.printed.read_text()
    assert start(out, 2, STEPS, layouts[-1]).wait() == 0, start.printed.read_text()
    assert losses(out) == pytest.approx(whole, rel=1e-5)
