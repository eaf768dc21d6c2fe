"""A family of models of plain JAX, by itself and by the commands."""

import json
import runpy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshdsl as md
from meshdsl.family.by_name import find_family
from meshdsl_cli import main
from tests.from_jax import plain
from tests.from_jax.test_from_jax import assert_same
from tests.helpers import distance
from tests.train.common import losses

EXAMPLE = Path(__file__).parents[2] / "examples/from_pypi.py"


@dataclass(frozen=True)
class Gpt(md.JaxFamily):
    """The GPT of these tests."""

    names: ClassVar = {path: n for path, n in plain.GPT_NAMES.items() if "tokens" not in path}
    factors: ClassVar = {"heads": plain.HEADS, "qkv": 3}
    call: ClassVar = {"length_2": "memory"}

    length: int = plain.LENGTH

    def batch(self, rows):
        tokens = md.abstract((rows, md.Dim("length", self.length)), jnp.int32)
        return {"tokens": tokens, "targets": tokens}

    def plain_init(self, key):
        return plain.gpt_init(key, layers=1)

    def plain_loss(self, params, batch, key):
        return plain.gpt_loss(params, **batch), {"rows": jnp.float32(batch["tokens"].shape[0])}


def test_a_family_of_arrays_has_the_parameters_and_the_loss_of_its_tensors():
    family = Gpt()
    model = family.init(jax.random.key(0))
    weight = model["h"][0]["attn"]["c_attn"]["w"]
    assert [d.name for d in weight.dims] == ["d_model", "qkv", "heads", "head_dim"]
    want = plain.gpt_init(jax.random.key(0), layers=1)
    same = jax.tree.map(lambda a, b: bool((a == b).all()), family.unpack(model), want)
    assert jax.tree.all(same)
    for rows in (4, 1):  # others than the family was traced for
        loss, report = jax.eval_shape(
            family.loss, model, family.batch(md.Dim("batch", rows)), jax.random.key(0)
        )
        assert loss.dims == report["rows"].dims == ()
        if rows > 1:
            assert f"[batch={rows}, length=8]" in family.plain.describe()
    assert "renamed: `length` and `memory`" in family.plain.describe()


def test_what_is_missing_of_a_family_of_arrays_is_said():
    class Nothing(md.JaxFamily):
        pass

    with pytest.raises(md.MeshDSLError, match="Nothing has no `plain_init`; see md.JaxFamily"):
        Nothing().init(jax.random.key(0))

    class Functions(Gpt):
        def plain_init(self, key):
            return {"scale": jnp.ones(3), "activation": jax.nn.relu}

    with pytest.raises(md.MeshDSLError, match="made of arrays, and `activation` is"):
        Functions().init(jax.random.key(0))


@pytest.fixture(scope="module")
def package():
    pytest.importorskip("nano_moe", reason="the example needs nano-moe-jax")
    return ["--model", f"{EXAMPLE}:NanoMoE", "model.length=16", "model.layers=1", "batch=8"]


@pytest.mark.slow
def test_a_step_of_another_package_is_proved(package, capsys):
    words = ["verify", "--layout", "fsdp-tensor", "--mesh", "data=2,model=2", *package]
    assert main(words) == 0
    assert "proved: all " in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("compiled_once")
def test_a_model_of_another_package_is_trained_and_goes_on_under_another_layout(package, tmp_path):
    words = [*package, "sample.tokens=0", "checkpoint.every=2", "--data", str(EXAMPLE.parent)]
    whole, halves = str(tmp_path / "whole"), str(tmp_path / "halves")
    train = ["train", *words, "--steps", "4"]
    assert main([*train, "--layout", "fsdp", "--out", whole]) == 0
    assert main([*train, "--layout", "fsdp-tensor", "--out", halves]) == 0
    np.testing.assert_allclose(losses(tmp_path / "halves"), losses(tmp_path / "whole"), rtol=5e-5)
    for out in (whole, halves):
        again = ["train", "--resume", "--out", out, "--layout", "fsdp", "--steps", "5"]
        assert main(again) == 0
    np.testing.assert_allclose(losses(tmp_path / "halves"), losses(tmp_path / "whole"), rtol=5e-5)


@pytest.mark.slow
def test_a_model_of_another_package_is_explained_compiled_and_compared(package, capsys):
    target = ["--layout", "fsdp-tensor", "--target", "v5e:2x4"]
    assert main(["explain", *package, *target, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tokens_per_second"] > 0
    assert main(["explain", *package, *target]) == 0
    said = capsys.readouterr().out
    assert "layers.py:" in said and "model.py:" in said and "heads_model" in said
    assert main(["compile", *package, "--layout", "fsdp-tensor", "--target", "cpu:8"]) == 0
    assert "psum_scatter(data)" in capsys.readouterr().out
    assert main(["compare", "fsdp", "fsdp-tensor", *package, "--target", "v5e:2x4"]) == 0
    assert "data=4 model=2" in capsys.readouterr().out


@pytest.mark.slow
def test_the_loss_of_a_model_of_another_package_is_its_own(package):
    found: Any = find_family(f"{EXAMPLE}:NanoMoE")
    family = found(length=8, d_model=16, layers=1)
    tokens, targets = plain.tokens_and_targets()
    batch = {"tokens": tokens, "targets": targets}
    params = family.plain_init(jax.random.key(0))
    rows, length = md.Dim("batch", 8), md.Dim("length", 8)
    tensors = {name: md.tensor(x, (rows, length)) for name, x in batch.items()}
    for key in (None, jax.random.key(7)):
        want, _ = family.plain_loss(params, batch, key)
        loss, _ = family.loss(family.init(jax.random.key(0)), tensors, key)
        assert distance(np.asarray(loss.array), np.asarray(want)) < 1e-5


@pytest.mark.slow
def test_the_llama_of_flax_equals_itself_and_attends_by_the_op():
    path = str(Path(__file__).parents[2] / "examples" / "flax_llama.py")
    sizes = dict(length=16, vocab=64, d_model=32, layers=2, heads=8, kv_heads=4, head_dim=8)
    family = runpy.run_path(path)["FlaxLlama"](d_ff=48, **sizes)
    tokens = jax.random.randint(jax.random.key(1), (8, 16), 0, 64)

    def loss(params, tokens, targets):
        return family.plain_loss(params, {"tokens": tokens, "targets": targets}, None)

    names = {**family.names, "tokens|targets": "batch length"}
    named = md.from_jax(loss, names, sizes=family.factors, call=family.call, strict=True)
    args = family.plain_init(jax.random.key(0)), tokens, tokens[:, ::-1]
    assert_same(loss, named, args, md.Layout.load("fsdp-sequence"), devices=8)
    text = named.describe()
    assert "recognised: attention (causal)" in text and "recognised: logsumexp" in text
