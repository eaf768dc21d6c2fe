"""The command line: what a user types, what comes back, and with which exit code."""

import json
import subprocess
import sys
import tomllib
from argparse import Namespace
from importlib.metadata import version
from pathlib import Path
from pkgutil import resolve_name

import jax
import pytest

import meshdsl
from meshdsl.commands.execute import execute
from meshdsl.commands.lookup import devices_of_mesh
from meshdsl.layout import Layout
from meshdsl_cli import main
from meshdsl_cli.commands import COMMANDS
from meshdsl_cli.parser import parse
from tests.train.common import TINY, contents

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "text.txt"
    path.write_bytes(b"the quick brown fox jumps over the lazy dog; " * 200)
    return str(path)


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    """The folder of a finished run of three steps."""
    out = tmp_path_factory.mktemp("runs") / "a"
    words = ["train", "--layout", "fsdp", "--steps", "3", "--out", str(out), "--data", data]
    assert main([*words, *TINY, "sample.tokens=0"]) == 0
    return out


def refused(capsys, *words):
    """The one line with which a command is refused."""
    code = main(words)
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("", "meshdsl: the following arguments are required: COMMAND"),
        ("trian", "invalid choice: 'trian'"),
        ("train --steps -1", "--steps: expected a whole number of at least 1, not '-1'"),
        ("train --resume", "--resume: say which run, with --out FOLDER"),
        ("train --resume --out absent", "--resume: there is no run in absent"),
        ("train --devices 64", "64 devices are wanted, and there are 8 (cpu)"),
        (
            "train --data {data} batch=12 model.length=16",
            "`batch`=12 does not divide over `data`=8",
        ),
        (
            "train --data {data} --layout fsdp-tensor --devices 3 model.length=16",
            "2 does not divide 3",
        ),
        (
            "layouts check fsdp --model vit.py",
            "name the class in the file as well: vit.py:MyFamily",
        ),
        ("layouts check fsdp --model gpt3", "no model `gpt3`; did you mean `gpt2`?"),
        ("layouts check tensor --devices 3", "`heads`=8 does not divide over `model`=3"),
        ("layouts steps=3", "meshdsl layouts: `steps=3`: settings belong to `check`"),
        ("models steps=3", "meshdsl models: `steps=3`: `models` has no settings"),
        ("tokenizer train a.txt --vocab 300 --out b.json a=b", "`tokenizer` has no settings"),
        ("plot a=b runs/a", "plot takes no settings; a folder of that name is written ./a=b"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(capsys, monkeypatch, data, words, text):
    assert len(jax.devices()) == 8  # made now, and no more of them later
    monkeypatch.chdir(ROOT)
    assert text in refused(capsys, *words.format(data=data).split())


def test_a_run_leaves_its_configuration_metrics_and_checkpoint(run):
    config = tomllib.loads((run / "config.toml").read_text())
    assert (config["steps"], config["layout"]["name"], config["model"]["d_model"]) == (
        3,
        "layout fsdp.toml",
        16,
    )
    assert config["optimizer"]["learning_rate"] > 0  # the resolved one
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [1, 2, 3]
    keys = {
        "loss",
        "bits_per_byte",
        "tokens_per_second",
        "seconds",
        "learning_rate",
        "gradient_norm",
    }
    assert all(keys <= set(record) for record in records)
    assert "validation_loss" in records[-1]
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["3"]


def test_an_existing_run_is_never_overwritten(run, capsys, data):
    before = contents(run)
    again = ["train", "--out", str(run), "--data", data, *TINY]
    assert "holds a run; go on with it by --resume" in refused(capsys, *again)
    other = ["train", "--out", str(run), "--resume", "--steps", "5", "model.d_model=32"]
    there, here = "[vocab=256, d_model=16] float32 there", "[vocab=256, d_model=32] float32 here"
    assert f"`params.embedding.table` is {there} and {here}" in refused(capsys, *other)
    assert "is at step 3 of 3; set more --steps" in refused(
        capsys, "train", "--out", str(run), "--resume"
    )
    assert main(["train", "--out", str(run), "--resume", "--steps", "5", "seed=1"]) == 2
    assert "this run began with other data: the seed was 0 and is 1" in capsys.readouterr().err
    assert main(["train", "--out", str(run), "--resume", "auto"]) == 0
    assert f"{run} is finished, at step 3 of 3" in capsys.readouterr().out
    assert contents(run) == before


def test_the_versions_are_said_once(capsys):
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert main(["--version"]) == 0
    said = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert said["meshdsl"] == declared and said["jax"] == version("jax")
    assert [name for name in said if name != "libtpu"] == ["meshdsl", "jax", "jaxlib"]
    assert meshdsl.__version__ == declared


def test_layouts_are_listed_with_what_they_are(capsys):
    assert main(["layouts"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(list((ROOT / "layouts").glob("*.toml")))
    assert any(line.startswith("fsdp  ") and "FSDP (ZeRO-3)" in line for line in lines)


def test_a_checked_layout_is_described(capsys):
    assert main(["layouts", "check", "fsdp-tensor", "--model", "llama", "model.layers=1"]) == 0
    out = capsys.readouterr().out
    assert "mesh data=4 model=2 on 8 devices" in out
    assert "mlp.up.weight[layers, d_model_data, d_ff_model]" in out
    assert "psum_scatter  data" in out


@pytest.mark.parametrize(
    ("mesh", "count"),
    [({}, 1), ({"data": 4}, 4), ({"data": "rest"}, 8), ({"data": "rest", "model": 3}, 9)],
)
def test_a_mesh_asks_for_so_many_devices(mesh, count):
    assert devices_of_mesh(Layout(mesh=mesh)) == count


def with_parts(commands):
    for command in commands:
        yield command
        yield from with_parts(command.parts)


def test_every_command_names_a_function_that_exists():
    for command in with_parts(COMMANDS):
        assert callable(resolve_name(command.function)) if command.function else command.parts


def test_help_and_mistakes_in_flags_need_neither_jax_nor_the_library():
    codes = {"--help": 0, "--version": 0, "train --help": 0, "checkpoint export --help": 0}
    codes |= dict.fromkeys(["train --steps -1", "train --bogus", "plot a=b", "compare fsdp"], 2)
    program = f"""
import sys
from meshdsl_cli import main
for words, code in {codes}.items():
    assert main(words.split()) == code, words
assert not [name for name in sys.modules if name.partition(".")[0] in ("jax", "meshdsl")]
"""
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)


def test_the_usage_of_a_command_is_what_its_flags_declare(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["generate", "--help"]) == 0
    assert capsys.readouterr().out.startswith(
        """\
usage: meshdsl generate RUN [--prompt TEXT | --prompts FILE] [--chat]
                        [--tokens N] [--temperature T] [--top-k K] [--top-p P]
                        [--seed N] [--weights FORMAT] [--layout FILE|NAME]
                        [--devices N] [--step N] [--json]
                        [--coordinator HOST:PORT --processes N --process-id I]

Write texts with a trained model.
"""
    )


@pytest.mark.parametrize(
    ("words", "flags", "settings"),
    [
        ("train steps=3 --data a.txt seed=1", {"data": ["a.txt"]}, ["steps=3", "seed=1"]),
        ("explain --mesh data=4 batch=8", {"mesh": "data=4"}, ["batch=8"]),
        ("compile --target cpu:8 --option a=b --option c=d", {"option": ["a=b", "c=d"]}, []),
        ("generate runs/a --prompt --json --prompt x=1", {"prompt": ["--json", "x=1"]}, []),
        (
            "launch --processes 2 -- explain --mesh data=4 batch=8",
            {"words": ["--", "explain", "--mesh=data=4"]},
            ["batch=8"],
        ),
    ],
)
def test_settings_stand_anywhere_but_where_a_flag_takes_any_text(words, flags, settings):
    found = vars(parse(words.split()).arguments)
    assert {name: found[name] for name in flags} == flags
    assert found["settings"] == settings


def prints(arguments):
    """A command that prints so much."""
    print("x" * arguments.size)
    return 0


def fails(arguments):
    raise OSError("of the code")


@pytest.mark.parametrize("size", [1, 100_000], ids=["when it is flushed", "when it is printed"])
def test_an_output_that_cannot_be_written_is_one_line(monkeypatch, capsys, size):
    with open("/dev/full", "w") as full, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", full)
        assert execute("show", f"{__name__}:prints", Namespace(size=size)) == 2
    told = "meshdsl show: the output cannot be written: No space left on device\n"
    assert capsys.readouterr().err == told


def test_an_error_that_has_nothing_to_do_with_the_output_is_not_hidden():
    with pytest.raises(OSError, match="of the code"):
        execute("show", f"{__name__}:fails", Namespace())


def test_a_layout_is_checked_for_devices_that_are_not_there(capsys):
    words = ["layouts", "check", "data", "--devices", "12", "batch=12", "model.layers=1"]
    assert main(words) == 0 and "mesh data=12 on 12 devices" in capsys.readouterr().out


def test_the_program_ends_with_the_code_of_its_command():
    with open("/dev/full", "w") as full:
        for words, out, code in (("--help", None, 0), ("layouts", full, 2)):
            command = [sys.executable, "-m", "meshdsl_cli", words]
            out = out or subprocess.DEVNULL
            done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True)
            assert (done.returncode, done.stderr.count("\n")) == (code, bool(code))
