"""Settings of a model that are "auto": the fastest that fits, said in one line."""

import re
from dataclasses import dataclass, replace
from types import SimpleNamespace

import jax
import pytest

import meshdsl as md
from meshdsl.fields import AUTO, bounded, chosen
from meshdsl.layout import Layout
from meshdsl.machine import find_target
from meshdsl.models.transformer import Config as Model
from meshdsl.models.transformer import Transformer
from meshdsl.predict.explanation import MemoryView
from meshdsl.train import auto_settings
from meshdsl.train.auto_settings import choose, choose_here, open_settings
from meshdsl.train.config import Config, memory_bytes
from meshdsl.train.folder import RunFolder
from meshdsl.train.job import Job
from meshdsl.train.settings import override
from meshdsl_cli import main
from tests.train.common import TINY

GIB = 2**30
LAYOUT = Layout(["batch -> data"], mesh={"data": 8}, name="layout data")
# Peak in GiB and seconds of each; `none` writes so much that it is slower than `dots`.
REMATS = {
    "full": (10, 2.7),
    "attention": (14, 2.6),
    "qkv": (26, 2.5),
    "hidden": (47, 2.3),
    "dots": (51, 2.2),
    "gathers": (149, 2.8),
    "none": (157, 2.4),
}
CHUNKS = {0: (0, 0.0), 4096: (-3, 0.01), 2048: (-4, 0.05)}  # beside the figures of `remat`


@pytest.fixture
def estimates(monkeypatch):
    """Estimates from the two tables; gives the settings of each that was asked for."""
    asked = []

    def candidate(config, layout, sizes, target, values):
        (peak, seconds), chunk = REMATS[config.model.remat], config.model.loss_chunk
        less, more = CHUNKS[chunk]
        memory = MemoryView((), 0, (peak + less) * GIB, (), capacity=96 * GIB)
        asked.append((config.model.remat, chunk))
        explanation = SimpleNamespace(memory=memory, ops=())
        return auto_settings._Candidate(values, explanation, seconds + more, True)

    monkeypatch.setattr(auto_settings, "_candidate", candidate)
    return asked


def chosen_for(*settings: str, target: str | None = "v5p:4x4x4", sizes=("batch=8",)):
    config = override(Config(), [*sizes, *settings])
    machine = find_target(target) if target else None
    return choose(config, LAYOUT, {"data": 8}, machine)


@pytest.mark.parametrize(
    "memory, remat",
    [("10GiB", "full"), ("25.9GiB", "attention"), ("50%", "hidden"), ("80%", "dots")],
)
def test_the_fastest_that_fits_is_taken(estimates, memory, remat):
    choice = chosen_for("model.loss_chunk=0", f"memory={memory}")
    assert choice.remat == choice.config.model.remat == remat
    assert len(estimates) == len(REMATS)


@pytest.mark.parametrize(
    "memory, best",
    [
        ("80%", ("dots", 0)),
        ("48.5GiB", ("dots", 4096)),
        ("47.1GiB", ("dots", 2048)),
        ("24GiB", ("qkv", 4096)),
        ("9GiB", ("full", 4096)),
    ],
)
def test_settings_are_chosen_together(estimates, memory, best):
    choice = chosen_for(f"memory={memory}")
    model = choice.config.model
    assert (model.remat, model.loss_chunk) == tuple(choice.values.values()) == best
    assert len(estimates) == len({*estimates}) < len(REMATS) * len(CHUNKS)


def test_a_tenth_of_the_memory_is_worth_a_hundredth_of_the_time(estimates):
    choice = chosen_for("model.remat=full")
    assert choice.line == (
        "model.loss_chunk=auto: 4096, estimated peak 7.00 GiB of 76.59 GiB (memory=80%), step "
        "2.71 s; 3.00 GiB less for 0.4% more time than loss_chunk 0; nothing else is faster"
    )
    # Three of 51 GiB are not a tenth.
    assert chosen_for("model.remat=dots").config.model.loss_chunk == 0


def test_one_line_says_what_was_chosen_what_it_is_worth_and_why_nothing_faster_was(estimates):
    assert chosen_for("memory=32GiB").line == (
        "model.remat=auto: qkv, model.loss_chunk=auto: 4096, estimated peak 23.00 GiB of 32.00 GiB "
        "(memory=32GiB), step 2.51 s; 13.00 GiB more for 7.0% less time than full, loss_chunk 0; "
        "3.00 GiB less for 0.4% more time than qkv, loss_chunk 0; "
        "hidden, loss_chunk 0 would be faster, step 2.3 s, but does not fit: 47.00 GiB"
    )
    assert chosen_for("model.loss_chunk=0").line == (
        "model.remat=auto: dots, estimated peak 51.00 GiB of 76.59 GiB (memory=80%), step 2.2 s; "
        "41.00 GiB more for 18.5% less time than full; nothing is faster"
    )


def test_what_is_named_is_taken_as_it_is(estimates):
    config = override(Config(), ["model.remat=qkv", "model.loss_chunk=100"])
    assert choose(config, LAYOUT, {}, None) == (config, {}, "")
    assert not estimates


def test_what_fits_nowhere_is_the_least_or_one_error_where_the_user_has_set_the_memory(
    estimates, monkeypatch
):
    with pytest.raises(md.MeshDSLError) as error:
        chosen_for("memory=5GiB")
    assert str(error.value).startswith(
        "model.remat=auto, model.loss_chunk=auto: nothing fits 5.00 GiB (memory=5GiB), and the "
        "least has an estimated peak of 6.00 GiB; what would help: more `memory` of the 96.00 GiB "
        "that a device has; "
    )
    assert "a layout that splits `length`" in str(error.value)
    for name, (peak, seconds) in REMATS.items():
        monkeypatch.setitem(REMATS, name, (peak + 100, seconds))
    choice = chosen_for()
    assert choice.values == {"remat": "full", "loss_chunk": 2048}
    assert choice.line.endswith(
        "4.00 GiB less for 1.9% more time than full, loss_chunk 0; nothing fits, and this needs "
        "the least"
    )


@pytest.mark.parametrize("target", [None, "cpu:8"])
def test_where_the_memory_is_unknown_nothing_is_estimated(estimates, target):
    choice = chosen_for(target=target)
    assert (choice.config.model.remat, choice.config.model.loss_chunk) == ("full", 0)
    assert not choice.values and not choice.line and not estimates
    with pytest.raises(md.MeshDSLError, match="memory=50% is a share .* such as memory=16GiB"):
        chosen_for("memory=50%", target=target)
    assert chosen_for("memory=32GiB", target=target).remat == "qkv"


def test_values_that_make_no_step_are_left_out(estimates, monkeypatch):
    estimate = auto_settings._candidate

    def candidate(config, *how):
        if config.model.remat == "dots":
            raise md.MeshDSLError("no such step")
        return estimate(config, *how)

    monkeypatch.setattr(auto_settings, "_candidate", candidate)
    assert chosen_for().remat == "hidden"
    monkeypatch.setitem(REMATS, "full", None)
    with pytest.raises(TypeError):
        chosen_for()


def test_a_step_of_a_small_model_is_estimated_for_a_machine():
    sizes = ["model.layers=2", "model.d_model=64", "model.length=128", "batch=512"]
    sizes += ["model.heads=4", "model.d_ff=128", "model.vocab=32768", "model.style=llama"]
    chosen_one = lambda *more: chosen_for(*more, target="v5e:2x4", sizes=sizes)
    known = ["model.remat=full"]
    ample, tight = chosen_one(*known), chosen_one(*known, "memory=700MiB")
    assert ample.values == {"loss_chunk": 0} and tight.values["loss_chunk"] > 0
    assert "would be faster" in tight.line and "but does not fit: " in tight.line


@dataclass(frozen=True)
class Own(md.Family):
    """A family with settings of its own.

    Attributes:
      size: changes results.
      mode: does not.
      block: does not either.
    """

    size: int = bounded(3, least=1)
    mode: str = chosen(AUTO, ("slow", "fast", AUTO))
    block: int | str = bounded(AUTO, least=1, tries=(8, 64))


def test_a_family_says_which_of_its_settings_are_left_open():
    assert open_settings(Own()) == {"mode": ("slow", "fast"), "block": (8, 64)}
    assert open_settings(Own(mode="fast", block=7)) == {}
    with pytest.raises(md.MeshDSLError, match="model: block is at least 1, or auto, not much"):
        Own(block="much")


@pytest.mark.parametrize(
    "text, said",
    [
        ("loss_chunk=lots", "model.loss_chunk=lots: expected a whole number or auto"),
        ("loss_chunk=1.5", "model.loss_chunk=1.5: expected a whole number or auto"),
        ("loss_chunk=-1", "model.loss_chunk=-1: must be at least 0"),
        ("remat=ful", "model.remat=ful: expected full, .* or auto; did you mean `full`?"),
    ],
)
def test_a_value_that_is_no_choice_is_an_error(text, said):
    with pytest.raises(md.MeshDSLError, match=said.replace("?", r"\?")):
        override(Config(), [f"model.{text}"])


def test_the_loss_and_its_gradients_are_the_same_with_every_choice():
    def loss(**choices):
        config = Model(
            style="llama", layers=1, d_model=16, heads=2, length=8, vocab=40, d_ff=32, **choices
        )
        model = Transformer.init(jax.random.key(0), config)
        batch, length = md.Dim("batch", 4), config.dims["length"]
        tokens = md.tensor(jax.random.randint(jax.random.key(1), (4, 8), 0, 40), (batch, length))
        step = jax.jit(jax.value_and_grad(lambda model: model.loss(tokens, tokens)[0].array))
        value, gradients = step(model)
        return float(value), jax.tree.leaves(gradients)

    value, gradients = loss()
    for other in ({"loss_chunk": 0, "remat": "full"}, {"loss_chunk": 5, "remat": "dots"}):
        same, others = loss(**other)
        assert same == pytest.approx(value, rel=1e-6)
        for a, b in zip(gradients, others, strict=True):
            assert abs(a - b).max() < 1e-5


@pytest.mark.parametrize("text", ["lots", "0GiB", "120%", "60", "60GB", "-1GiB"])
def test_a_memory_that_is_none_is_an_error(text):
    said = f"memory={text}: expected a share of up to 100%, as 80%, or bytes, as 60GiB"
    with pytest.raises(md.MeshDSLError, match=re.escape(said)):
        override(Config(), [f"memory={text}"])


def test_memory_is_a_share_or_bytes():
    assert memory_bytes("50%", 10 * GIB) == 5 * GIB
    assert memory_bytes("1.5GiB", None) == memory_bytes("1536 MiB", GIB) == 3 * GIB // 2
    assert memory_bytes("50%", None) is None


@pytest.mark.parametrize("kind, memory", [("TPU v5p", "76.59 GiB"), ("NVIDIA H100", "48.00 GiB")])
def test_of_a_gpu_counts_what_jax_may_allocate(estimates, monkeypatch, kind, memory):
    chip = find_target("h100:8" if "H100" in kind else "v5p:2x2x2").chip
    device = SimpleNamespace(memory_stats=lambda: {"bytes_limit": 60 * GIB})
    mesh = SimpleNamespace(devices=SimpleNamespace(flat=[device]), shape={"data": 8})

    def nothing(_):
        raise md.MeshDSLError("no whole machine")

    monkeypatch.setattr(auto_settings, "target_at_hand", nothing)
    monkeypatch.setattr(auto_settings, "chip_of", lambda _: chip)
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    assert f" of {memory} (memory=80%)" in choose_here(Config(), LAYOUT, mesh).line


@pytest.mark.slow  # test_a_run_chooses_again, and what explain prints elsewhere
def test_explain_says_what_was_chosen(capsys):
    small = ["--model", "llama", "model.layers=2", "model.d_model=64", "model.length=32"]
    words = [*small, "--target", "v5e:2x2", "--layout", "fsdp"]
    assert main(["explain", *words, "memory=1GiB"]) == 0
    out = capsys.readouterr().out
    said = r"\nmodel.remat=auto: \w+, model.loss_chunk=auto: \d+, estimated peak [\d.]+ MiB of 1.00"
    assert re.search(said, out)


def test_the_folder_of_a_run_keeps_what_was_written_and_says_what_was_chosen(tmp_path):
    config = override(Config(), ["memory=2GiB"])
    folder = RunFolder(tmp_path)
    folder.write_config(config, "model.remat=auto: qkv, because")
    assert folder.config.read_text().startswith("# model.remat=auto: qkv, because\n")
    stored = folder.stored_config()
    assert (stored.model.remat, stored.model.loss_chunk, stored.memory) == (AUTO, AUTO, "2GiB")
    assert replace(stored, data=config.data) == config


def test_a_step_that_the_compiler_finds_too_large_is_one_error(capsys, monkeypatch, tmp_path, text):
    def refuse(*_):
        raise RuntimeError("required for HLO temporaries (20.00G) exceeds available HBM (15.75G)")

    monkeypatch.setattr(Job, "lowered", SimpleNamespace(compile=refuse))
    words = ["--out", str(tmp_path / "run"), "--data", text, "--layout", "fsdp"]
    assert main(["train", *words, *TINY, "model.remat=dots", "--steps", "2"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "the step does not fit: 20.00 GiB of the 15.75 GiB that a device has" in said
    assert "`model.remat=full` keeps the least" in said and said.endswith("; more devices")


@pytest.mark.slow
def test_a_run_chooses_again_where_it_goes_on(capsys, tmp_path, text):
    words = ["--out", str(tmp_path / "run")]
    tiny = ["model.d_model=16", "model.layers=1", "model.heads=8", "model.length=16", "batch=8"]
    start = ["--data", text, *tiny, "sample.tokens=0", "validation.batches=1", "proof=off"]
    half = ["memory=50%", "--layout", "fsdp", "--steps", "2"]
    assert main(["train", *words, *start, *half]) == 2
    assert "set bytes, such as memory=16GiB" in capsys.readouterr().err.replace("\n", " ")
    more = ["memory=1GiB", "--layout", "fsdp", "--steps", "2"]
    assert main(["train", *words, *start, *more]) == 0
    assert "model.remat=auto: " in capsys.readouterr().out
    assert main(["train", *words, "--resume", "--layout", "single", "--steps", "3"]) == 0
    assert "model.remat=auto: " in capsys.readouterr().out
