"""The examples run, and what they say of their layouts is so."""

import re
import runpy
from functools import cache
from pathlib import Path

import jax
import numpy as np
import pytest

import meshdsl as md
from tests.helpers import only

EXAMPLES = Path(__file__).parents[1] / "examples"
SPLIT = ("batch", "d_ff", "classes")  # by one of the layouts of 02_model.py each


@cache
def example(name: str) -> dict:
    """What an example defines. Each is run as a module only once.

    Each run makes its classes anew, and JAX may take two of one name and shape for the same in a
    cache.
    """
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


def losses(text: str) -> list[float]:
    return [float(x) for x in re.findall(r"loss ([\d.]+)", text)]


def test_an_einsum_moves_something_only_where_the_dim_is_split_that_it_sums_over(capsys):
    example("01_einsum")["main"]()
    moved = re.findall(r"moved: (.*)", capsys.readouterr().out)
    assert moved == ["nothing", "nothing", "psum over devices, 4,096 bytes per device"]


@pytest.mark.parametrize(
    "rules", only([[], ["d_ff -> devices"]], [[], *([f"{dim} -> devices"] for dim in SPLIT)])
)
def test_the_model_learns_the_same_under_every_layout(rules, capsys):
    example("02_model")["main"](rules)
    assert losses(capsys.readouterr().out) == pytest.approx([0.2043, 0.0065, 0.0013], abs=1e-4)


def test_a_step_is_compared_explained_and_compiled(capsys):
    example("03_explain")["main"]([])
    said = capsys.readouterr().out
    assert re.findall(r"^(\w+) +\w+=4 +(yes|no)", said, re.MULTILINE) == [
        ("tensor", "yes"),
        ("fsdp", "yes"),
        ("data", "no"),
    ]
    assert "estimated step" in said and "compiled for cpu:8" in said and "no surprises" in said


def test_a_run_goes_on_under_another_layout_as_if_it_had_not_stopped(tmp_path, capsys):
    example("04_checkpoints")["main"](tmp_path)
    said = capsys.readouterr().out
    assert "steps 11 to 20, with the weight as Tensor[inputs_data, outputs_model]" in said
    pairs = re.findall(r"loss ([\d.]+), and ([\d.]+) without a stop", said)
    assert len(pairs) == 4 and all(a == pytest.approx(b, abs=2e-4) for a, b in np.float64(pairs))


@pytest.mark.slow
def test_two_processes_train_a_family_and_one_goes_on(tmp_path, capfd):
    example("05_two_processes")["main"](tmp_path / "run", steps=4)
    said = capfd.readouterr().out
    assert "mesh data=4 on 4 cpu devices" in said and "mesh data=4 model=2 on 8" in said
    assert "resumed after step 4" in said and "step 6: validation loss" in said


@pytest.mark.slow
def test_a_model_on_two_meshes_learns_and_says_what_went_between_them(capsys):
    example("06_two_meshes")["main"]()
    said = capsys.readouterr().out
    found = losses(said)
    assert found[0] > 2 * found[1] > 4 * found[2]
    there_and_back = 2 * 16 * 64 * 4  # bytes of a microbatch's activations and their cotangents
    assert f"{30 * 4 * there_and_back:,} bytes went from mesh to mesh" in said


@pytest.fixture(scope="module")
def vit():
    """The vision transformer, its model and some of its digits."""
    family = example("vit")["ViT"](layers=2, dropout=0.2)
    rows = example("digits")["digits"]("validation")[:16]
    batch = {
        name: md.tensor(np.stack([row[name] for row in rows]), field.dims)
        for name, field in family.batch(md.Dim("batch", 16)).items()
    }
    return family, jax.jit(family.init)(jax.random.key(0)), batch


@pytest.mark.parametrize(
    ("layout", "dropout"),
    [pytest.param("fsdp", True, marks=pytest.mark.slow), ("tensor", False)],
)
def test_the_vision_transformer_is_the_same_under_every_layout(vit, layout, dropout):
    family, model, batch = vit
    key = jax.random.key(1) if dropout else None

    def loss(model, batch):
        return family.loss(model, batch, key)[0].value

    expected, gradients = jax.jit(md.value_and_grad(loss))(model, batch)
    found = md.Layout.load(layout)
    mesh = md.make_mesh(found, jax.devices()[:4])
    value, split = md.lower(md.value_and_grad(loss), found, mesh, dims=family.dims)(model, batch)
    np.testing.assert_allclose(value.array, expected.array, rtol=1e-5)
    for a, b in zip(jax.tree.leaves(split), jax.tree.leaves(gradients), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_labels_that_fill_up_a_batch_do_not_count(vit):
    family, model, batch = vit
    filled = batch | {"label": md.where(md.iota(batch["label"].dims[0]) < 4, batch["label"], -1)}
    few = {name: md.slice(field, "batch", 0, 4) for name, field in batch.items()}
    loss = jax.jit(lambda model, batch: family.loss(model, batch, None))
    found, expected = (loss(model, each) for each in (filled, few))
    for a, b in ((found[0], expected[0]), (found[1]["accuracy"], expected[1]["accuracy"])):
        assert a.count.item() == b.count.item() == 4
        np.testing.assert_allclose(a.value.item(), b.value.item(), rtol=1e-5)


@pytest.mark.slow
def test_a_module_of_flax_has_the_loss_of_plain_jax(capsys):
    example("from_flax")["main"]()
    ours, plain = re.findall(r"loss ([\d.]+), in plain JAX ([\d.]+)", capsys.readouterr().out)[0]
    assert abs(float(ours) - float(plain)) < 2e-4
