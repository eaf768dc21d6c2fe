"""Models of any family by the commands alone: the shipped ones, and one that stands outside."""

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from meshdsl_cli import main
from tests.train.common import TINY

pytestmark = [
    pytest.mark.usefixtures("compiled_once"),
    pytest.mark.skipif(not find_spec("sklearn"), reason="needs the digits of scikit-learn"),
]
EXAMPLES = Path(__file__).parents[2] / "examples"
DIGITS = f"data.sources.digits.dataset={EXAMPLES / 'digits.py'}:digits"
# For each family: what picks it and its data, its layout, and another one to go on under.
FAMILIES = {
    "transformer": (
        [*TINY, "sample.tokens=0", "--data", str(EXAMPLES)],
        "fsdp",
        "fsdp-tensor",
    ),
    "unet": (
        ["--model", "unet", "model.levels=1", "model.channels=4", "batch=32", DIGITS],
        "data",
        "spatial",
    ),
    "vit": (
        ["--model", f"{EXAMPLES / 'vit.py'}:ViT", "model.layers=1", "batch=32", DIGITS],
        "fsdp",
        "fsdp-tensor",
    ),
}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    return request.param


def of_families(quick: str, *slow: str):
    """A test for each of these families, of which the first is quick.

    The transformer has tests of its own.
    """
    cases = [quick, *(pytest.param(name, marks=pytest.mark.slow) for name in slow)]
    return pytest.mark.parametrize("family", cases, indirect=True, scope="module")


@pytest.fixture(scope="module")
def whole(family, compiled_once, tmp_path_factory):
    """The folder of a run that nothing disturbs."""
    words, layout, _ = FAMILIES[family]
    out = tmp_path_factory.mktemp("runs") / family
    assert main(["train", "--layout", layout, "--steps", "6", "--out", str(out), *words]) == 0
    return out


@of_families("vit", "unet")
def test_a_run_is_measured_in_images_and_validated(family, whole):
    record = json.loads((whole / "metrics.jsonl").read_text().splitlines()[-1])
    assert record["images"] > 0 and record["images_per_second"] > 0
    assert np.isfinite(record["validation_loss"])
    assert "validation_perplexity" not in record
    assert ("validation_accuracy" in record) == (family == "vit")


@of_families("unet")
def test_a_step_is_explained_checked_and_compared_for_a_machine(family, capsys):
    words = _without_data(FAMILIES[family][0])
    _, layout, other = FAMILIES[family]
    target = ["--target", "v5e:2x4"]
    assert main(["explain", "--layout", layout, *target, "--json", *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["mfu"] > 0 and found["images_per_second"] > 0
    assert main(["layouts", "check", other, *words]) == 0
    assert "collectives of one step" in capsys.readouterr().out
    assert main(["compare", layout, other, *target, *words, "model.remat=full"]) == 0
    table = capsys.readouterr().out
    assert layout in table and other in table and "estimate" in table and "compiler" not in table


@of_families("unet")  # the one with convolutions
def test_a_step_is_compiled_for_a_cpu(family, capsys):
    words = _without_data(FAMILIES[family][0])
    assert main(["compile", "--layout", FAMILIES[family][1], "--target", "cpu:8", *words]) == 0
    assert "no surprises" in capsys.readouterr().out


@pytest.mark.slow
@of_families("unet")
def test_a_step_is_compiled_for_a_tpu(family, capsys):
    pytest.importorskip("libtpu")
    words = _without_data(FAMILIES[family][0])
    assert main(["compile", "--layout", FAMILIES[family][2], "--target", "v5e:2x4", *words]) == 0
    assert "no surprises" in capsys.readouterr().out


@of_families("vit")
def test_only_a_model_of_text_writes(family, whole, capsys):
    assert main(["generate", str(whole), "--prompt", "a", "--tokens", "3"]) == 2
    assert "writes no text: that takes the task text" in capsys.readouterr().err


def test_the_settings_of_a_family_are_printed_with_what_they_are(family, capsys):
    words, *_ = FAMILIES[family]
    assert main(["train", "--print-config", *words]) == 0
    said = capsys.readouterr().out
    assert "\n[model]\n" in said and "# The family of models" in said
    if family == "vit":
        assert f'family = "{EXAMPLES / "vit.py"}:ViT"' in said
        assert "# Height and width of the patches that an image is cut into." in said


def _without_data(words: list[str]) -> list[str]:
    """The words that pick a model, without those that only training takes."""
    at = words.index("--data") if "--data" in words else len(words)
    return words[:at]
