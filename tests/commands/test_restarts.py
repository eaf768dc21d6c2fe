"""`meshdsl launch --restarts`: what died is started again while it makes progress.

`tests/train/test_chaos.py` has real runs, which are killed.
"""

import pytest

from meshdsl.commands.restarts import Outcome, start_again
from meshdsl_cli import main

TRAIN = ["train", "--layout", "data"]


@pytest.fixture
def run(tmp_path, capfd):
    """Runs starts that are described one by one: the checkpoint that they come to, and a code.

    Gives the exit code, the command lines, the waits, and what was printed.
    """

    def run(*starts, restarts=5, words=()):
        seen, waits, left = [], [], list(starts)

        def start(line):
            seen.append(list(line))
            step, code, *told = left.pop(0)
            if step:
                (tmp_path / f"checkpoints/{step}").mkdir(parents=True, exist_ok=True)
            return Outcome(code, bool(told))

        line = [*TRAIN, "--out", str(tmp_path), *words]
        code = start_again(start, line, restarts, waits.append)
        return code, [" ".join(line) for line in seen], waits, capfd.readouterr().err

    return run


def test_what_died_goes_on_until_it_ends_and_waits_where_nothing_was_saved(run):
    code, lines, waits, said = run((2, 137), (0, 75), (4, 1), (0, 1), (6, 0))
    assert code == 0 and waits == [2, 2]
    assert "--resume" not in lines[0]
    assert {line.split(" --layout")[0] for line in lines[1:]} == {"train --resume auto"}
    assert said.splitlines()[:2] == [
        "meshdsl launch: the run died with exit code 137; the newest checkpoint is of step 2; "
        "restart 1 of 5",
        "meshdsl launch: the run died with exit code 75; the newest checkpoint is of step 2; "
        "restart 2 of 5 in 2 s",
    ]


@pytest.mark.parametrize(
    ("starts", "code", "said"),
    [
        (
            [(0, 1), (0, 1)],
            1,
            "the run died with exit code 1; no step is saved; 2 starts in a row made no progress, "
            "so it is given up\n",
        ),
        ([(2, 2)], 2, ""),
        ([(2, 130)], 130, ""),
        ([(2, 143, "told")], 143, ""),
        (
            [(2, 1), (3, 1), (4, 137)],
            137,
            "the run died with exit code 137; the newest checkpoint is of step 4; 2 restarts are "
            "used up\n",
        ),
    ],
    ids=["no progress", "a mistake of the user", "Ctrl-C", "SIGTERM", "no restart left"],
)
def test_it_is_not_started_again_where_that_cannot_help(run, starts, code, said):
    found = run(*starts, restarts=2)
    assert found[0] == code and len(found[1]) == len(starts) and found[3].endswith(said)


@pytest.mark.parametrize("resume", [["--resume"], ["--resume", "auto"], ["--resume=auto"]])
def test_a_command_line_has_one_resume(run, resume):
    lines = run((2, 1), (3, 0), words=[*resume, "steps=3"])[1]
    assert lines[1].count("--resume") == 1 and lines[1].startswith("train --resume auto --layout")
    assert lines[1].endswith("steps=3")


@pytest.mark.parametrize("words", [["layouts"], TRAIN, ["explain", "--out", "x"]])
def test_what_cannot_go_on_is_refused(words, capfd):
    assert main(["launch", "--processes", "1", "--restarts", "1", "--", *words]) == 2
    assert capfd.readouterr().err == (
        "meshdsl launch: --restarts and --elastic are for a run that can go on: train, with --out "
        "FOLDER of its own\n"
    )
