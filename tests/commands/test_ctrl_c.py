"""Ctrl-C ends every command at any moment, with exit code 130 and one line, and is never lost.

By default the signal comes at a few moments that matter, at each of which the program is made to
wait for it. With HYPOTHESIS_PROFILE=nightly also 40 signals come at random moments of a whole run
of `meshdsl train`, and 20 at those of one in two processes.
"""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.nightly import nightly
from tests.train.common import TINY

INTERRUPTED = "meshdsl: interrupted; nothing more was saved\n"
SMALL = [
    *TINY,
    "schedule.warmup=2",
    "validation.batches=1",
    "sample.tokens=4",
    "checkpoint.keep=2",
    "checkpoint.every=200",
]
# A call that is held prints a line and then stays in C, as a compiler does: for hours, or for so
# many rounds of a hash.
HOLD = """
import hashlib, os, signal, sys, time

def stay(rounds=10**9):
    print("here", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", rounds)

def hold(owner, name, *rounds, call=1):
    whole, calls = getattr(owner, name), iter(range(1, 1000))
    def held(*given, **named):
        if next(calls) == call:
            stay(*rounds)
        return whole(*given, **named)
    setattr(owner, name, held)
"""
IMPORTING = """
class Importing:
    def find_spec(name, path=None, target=None):
        if name == "jax":
            print("here", flush=True)
            time.sleep(60)
sys.meta_path.insert(0, Importing)
"""
READING = """
class Input:
    isatty = lambda: False
    read = lambda: print("here", flush=True) or sys.__stdin__.read()
sys.stdin = Input
"""
WRITING = """
from meshdsl.commands import layouts
size = "transformer", "more than a pipe holds " * 10**5, {"d_model": 1}
layouts.sizes = lambda: print("here", flush=True) or [size]
"""
COMPILING = (
    "from meshdsl.train.training_loop import TrainingLoop; hold(TrainingLoop, '_compiled')\n"
)
IN_A_STEP = "from meshdsl.train.job import Job; hold(Job, 'place', call=3)\n"
IN_THE_LAST = "from meshdsl.train.job import Job; hold(Job, 'place', 4 * 10**6, call=3)\n"
ENDING = "from meshdsl_cli import program; hold(program, '_leave')\n"
START = "import meshdsl_cli; meshdsl_cli.start()\n"


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """A function that starts the program, or code that starts it; training reads a little text."""
    shared = tmp_path_factory.mktemp("shared")
    text = shared / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 200)
    environment = {"JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    kept = {
        "JAX_COMPILATION_CACHE_DIR": str(shared / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }

    def run(program, words, out=None, compiles=True, **how):
        more = ["--data", str(text), "--out", str(out), *SMALL] if out else []
        command = [sys.executable, *program, *words, *more]
        env = os.environ | environment | ({} if compiles else kept)
        how = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE) | how
        return subprocess.Popen(command, env=env, text=True, **how)

    return run


def paused(start, moment, words, out=None):
    """The program, once it has come to the moment."""
    process = start(["-c", HOLD + moment + START], words, out, compiles=False)
    while process.stdout.readline() != "here\n":
        assert process.poll() is None, process.stderr.read()
    return process


def ended(process, seconds=60.0):
    """Wait until a process ends, and only then read: its exit code, stdout and stderr."""
    try:
        code = process.wait(seconds)
    finally:
        process.kill()
    return code, process.stdout.read(), process.stderr.read()


@pytest.mark.parametrize(
    ("moment", "words"),
    [
        (IMPORTING, ["layouts"]),
        pytest.param(READING, ["generate", "runs/a"], marks=pytest.mark.slow),
        pytest.param(WRITING, ["models"], marks=pytest.mark.slow),
        (COMPILING, ["train", "--layout", "single", "--steps", "3"]),
        (ENDING, ["layouts"]),
    ],
    ids=["importing", "reading", "writing", "compiling", "ending"],
)
def test_where_there_is_no_step_to_save_ctrl_c_ends_a_program_at_once(
    start, tmp_path, moment, words
):
    process = paused(start, moment, words, tmp_path / "run" if words[0] == "train" else None)
    process.send_signal(signal.SIGINT)
    code, _, reported = ended(process, 10)
    assert (code, reported) == (130, INTERRUPTED)


@pytest.mark.slow
def test_the_second_ctrl_c_ends_a_step_that_hangs(start, tmp_path):
    process = paused(
        start, IN_A_STEP, ["train", "--layout", "single", "--steps", "5"], tmp_path / "run"
    )
    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)
    process.send_signal(signal.SIGINT)
    code, _, reported = ended(process, 10)
    assert (code, reported) == (130, INTERRUPTED)


def test_ctrl_c_with_the_last_step_is_heard_too(start, tmp_path):
    process = paused(
        start, IN_THE_LAST, ["train", "--layout", "single", "--steps", "3"], tmp_path / "run"
    )
    process.send_signal(signal.SIGINT)
    code, printed, reported = ended(process)
    assert (code, reported) == (
        130,
        "meshdsl: interrupted after step 3, the last one, which is saved\n",
    )
    assert "sample:" not in printed and (tmp_path / "run" / "checkpoints" / "3").is_dir()


@nightly
@pytest.mark.parametrize(("processes", "steps", "signals"), [(1, 4000, 40), (2, 300, 20)])
def test_none_is_lost_at_random_moments(start, tmp_path, processes, steps, signals):
    seed = random.SystemRandom().randrange(1 << 30)
    print(f"seed {seed}")
    draw = random.Random(seed)
    words = ["train", "--layout", "data" if processes > 1 else "single", "--steps", str(steps)]
    words = ["launch", "--processes", str(processes), "--", *words] if processes > 1 else words

    def interrupted(name, after):
        """Whether a run still goes after so many seconds, and whether the signal then ends it."""
        with (tmp_path / "stdout").open("w+") as out, (tmp_path / "stderr").open("w+") as err:
            how = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err}
            process = start(["-m", "meshdsl_cli"], words, tmp_path / name, **how)
            with suppress(subprocess.TimeoutExpired):
                process.wait(after)
            running = process.poll() is None
            process.send_signal(signal.SIGINT)
            code = process.wait(120)
            printed, reported = Path(out.name).read_text(), Path(err.name).read_text()
        print(f"{after:6.2f} s, {running=}: {code=}, {(printed + reported)[-200:]!r}")
        lines = reported.count("\n") + ("\ninterrupted after step" in printed)
        # Python itself, before it comes to the program: a signal may be ahead of every line of it.
        starting = code in (1, -signal.SIGINT) and not printed and "in start" not in reported
        return running, starting or (code, lines) == (130, 1)

    begin = time.monotonic()
    interrupted("whole", 300)
    whole = time.monotonic() - begin
    lost = 0
    for i in range(signals):
        fraction, running = (i + draw.random()) / signals, False
        for again in range(20):
            running, ends = interrupted(f"{i}-{again}", 0.05 + whole * fraction)
            if running:
                break
            whole *= 0.9  # the machine has less to do by now
        lost += not (running and ends)
    assert lost == 0
