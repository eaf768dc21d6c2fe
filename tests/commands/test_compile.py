"""`meshdsl compile`, from the flags to the executable that a run loads."""

from meshdsl.proof.certificate import Certificate
from meshdsl_cli import main
from tests.train.common import TINY, losses

# A step that no other test compiles: XLA does not save a CPU program that it has loaded.
STEP = [*TINY, "model.heads=2", "steps=3", "schedule.warmup=2"]
RUN = [*STEP, "validation.batches=1", "sample.tokens=2"]


def test_a_run_with_a_saved_executable_is_the_run_without(tmp_path, capsys):
    file, page = tmp_path / "step", tmp_path / "page.html"
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog\n" * 200)
    words = ["compile", "--target", "cpu:8", "--layout", "fsdp", *STEP]
    assert main([*words, "--save", str(file), "--html", str(page)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[1].startswith("layout fsdp.toml, mesh data=8, compiled for cpu:8 in ")
    assert (
        shown[2].startswith("compiles: needs ")
        and "no surprises: a record explains every collective of the compiled program" in shown
    )
    assert "  compiled: no collectives but those of the program that is proved" in shown
    assert Certificate.read(tmp_path / "step.proof.json").proof.proved
    assert "compiled for cpu:8" in page.read_text()
    train = ["train", "--layout", "fsdp", "--devices", "8", "--data", str(text), *RUN]
    assert main([*train, "--out", str(tmp_path / "loaded"), "--executable", str(file)]) == 0
    assert f"the compiled step is that of {file}" in "".join(capsys.readouterr().out.splitlines())
    assert main([*train, "--out", str(tmp_path / "own")]) == 0
    assert losses(tmp_path / "loaded") == losses(tmp_path / "own")
    capsys.readouterr()
    other = [*train, "--out", str(tmp_path / "other"), "--executable", str(file)]
    assert main([*other, "model.d_ff=32"]) == 2
    assert capsys.readouterr().err == (
        f"meshdsl train: executable {file}: was compiled with model.d_ff=16, and this run has "
        "model.d_ff=32\n"
    )
    assert not (tmp_path / "other").exists()


def test_what_cannot_be_compiled_for_is_one_line(capsys):
    assert main(["compile", "--target", "cpu:16", "--layout", "fsdp", *STEP]) == 2
    assert (
        "there are 8 CPU devices, and no more can be made once JAX has begun to compute"
        in capsys.readouterr().err
    )
    words = ["compile", "--target", "cpu:8", "--layout", "fsdp", "--option", "xla_x", *STEP]
    assert main(words) == 2
    assert "option `xla_x`: expected KEY=VALUE" in capsys.readouterr().err
