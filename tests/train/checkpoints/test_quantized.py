"""Tensors of 8 and 4 bits in published files are read as what they stand for."""

import json

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from meshdsl.commands.checkpoint import described_parameters
from meshdsl.errors import MeshDSLError
from meshdsl.models.places import places
from meshdsl.models.published import config_of
from meshdsl.train.checkpoints.quantized import opened
from meshdsl.train.config import Config
from meshdsl.train.settings import override
from tests.models import test_published as published

RANDOM = np.random.default_rng(0)
FP8 = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [4, 8]}}
FP4 = {"quantization_config": {"quant_method": "mxfp4"}}
VALUES = (0, 0.5, 1, 1.5, 2, 3, 4, 6)  # of three bits; the fourth is the sign


def fp8(rows, columns):
    """A matrix in 8 bits, the factors of its blocks, and what both stand for."""
    stored = RANDOM.normal(size=(rows, columns)).astype(ml_dtypes.float8_e4m3fn)
    factors = RANDOM.uniform(0.5, 2, (-(-rows // 4), -(-columns // 8))).astype(np.float32)
    each = np.kron(factors, np.ones((4, 8), np.float32))[:rows, :columns]
    return stored, factors, (stored.astype(np.float32) * each).astype(ml_dtypes.bfloat16)


def fp4(experts, outs, groups):
    """Blocks of 4 bits, their powers of 2, and [experts, ins, outs] that both stand for."""
    blocks = RANDOM.integers(0, 256, (experts, outs, groups, 16), np.uint8)
    powers = RANDOM.integers(124, 130, (experts, outs, groups), np.uint8)
    wide = np.zeros((experts, groups * 32, outs), np.float32)
    for e, o, g, i in np.ndindex(*blocks.shape):
        for half, bits in enumerate((blocks[e, o, g, i] % 16, blocks[e, o, g, i] // 16)):
            value = VALUES[bits % 8] * (-1 if bits >= 8 else 1)
            wide[e, g * 32 + 2 * i + half, o] = value * 2.0 ** (int(powers[e, o, g]) - 127)
    return blocks, powers, wide.astype(ml_dtypes.bfloat16)


def test_any_part_is_what_it_stands_for(tmp_path):
    stored, factors, eight = fp8(10, 20)
    blocks, powers, four = fp4(3, 6, 2)
    tensors = {"a.weight": stored, "a.weight_scale_inv": factors, "b_blocks": blocks}
    save_file({**tensors, "b_scales": powers}, tmp_path / "model.safetensors")
    files = opened(tmp_path, FP8)
    assert {name: leaf["shape"] for name, leaf in files.leaves.items()} == {
        "a.weight": [10, 20],
        "b": [3, 64, 6],
    }
    for _ in range(30):
        for name, whole in (("a.weight", eight), ("b", four)):
            begin = [RANDOM.integers(size) for size in whole.shape]
            ends = zip(begin, whole.shape, strict=True)
            index = tuple(slice(b, RANDOM.integers(b + 1, size + 1)) for b, size in ends)
            part = files.read(name, index)
            assert part.dtype == whole.dtype and np.array_equal(part, whole[index])


@pytest.mark.slow
def test_four_bits_are_those_of_transformers(tmp_path):
    torch = pytest.importorskip("torch")
    mxfp4 = pytest.importorskip("transformers.integrations.mxfp4")
    blocks, powers, four = fp4(2, 6, 3)
    theirs = mxfp4.convert_moe_packed_tensors(*map(torch.tensor, (blocks, powers)))
    assert np.array_equal(theirs.float().numpy(), four.astype(np.float32))


@pytest.mark.parametrize(
    "tensors, said",
    [
        ({"a_scale_inv": np.zeros((1, 1), np.float32)}, "`a` is missing"),
        (
            {"a": np.zeros((10, 20), np.uint8), "a_scale_inv": np.zeros((2, 3), np.float32)},
            r"`a` is \[10, 20\] and `a_scale_inv` \[2, 3\], which do not go together; "
            r"expected \[3, 3\]",
        ),
        (
            {"a_blocks": np.zeros((2, 4, 3, 16), np.uint8), "a_scales": np.zeros((2, 4), np.uint8)},
            r"`a_blocks` is \[2, 4, 3, 16\] and `a_scales` \[2, 4\]",
        ),
        ({"a_blocks": np.zeros((2, 4, 3, 16), np.uint8)}, "`a_scales` is missing"),
    ],
)
def test_parts_that_do_not_go_together_are_refused(tensors, said, tmp_path):
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(MeshDSLError, match=said):
        opened(tmp_path, FP8)


SMALL = {"layers": 2, "d_model": 32, "heads": 2, "head_dim": 6, "vocab": 16, "length": 32}
SMALL |= {"experts": 3, "experts_used": 2}
LATENT = {"latent": 16, "query_latent": 8, "turned": 4, "experts_shared": 32, "d_ff": 32}
LATENT |= {"router_scores": "sigmoid", "router_offset": True, "dense_layers": 1, "dense_d_ff": 40}
LATENT |= {"experts": 4, "router_groups": 2}


@pytest.mark.slow
@pytest.mark.parametrize(
    "style, other, how", [("gpt_oss", {"d_ff": 32}, FP4), ("deepseek_v3", LATENT, FP8)]
)
def test_a_quantized_model_is_imported(style, other, how, tmp_path):
    sizes = {"style": style, **SMALL, **other}
    config = override(Config(), (), **{f"model.{name}": value for name, value in sizes.items()})
    like = described_parameters(config)
    found = places(style, {name: tuple(leaf["shape"]) for name, leaf in like.items()})
    tensors, expected = {}, {}
    for name, place in found.items():
        for numbers in np.ndindex(*like[name]["shape"][: place.numbered]):
            tensor, shape = place.tensor(numbers), place.shape
            if tensor in expected:
                continue
            if how is FP4 and len(shape) == 3:
                blocks, powers, expected[tensor] = fp4(shape[0], shape[2], shape[1] // 32)
                tensors |= {f"{tensor}_blocks": blocks, f"{tensor}_scales": powers}
            elif how is FP8 and len(shape) == 2 and "_proj" in tensor:
                stored, factors, expected[tensor] = fp8(*shape)
                tensors |= {tensor: stored, f"{tensor}_scale_inv": factors}
            else:
                expected[tensor] = RANDOM.normal(size=shape).astype(np.float32)
                tensors[tensor] = expected[tensor]
    for folder, some, also in (("there", tensors, how), ("plain", expected, {})):
        (tmp_path / folder).mkdir()
        save_file(some, tmp_path / folder / "model.safetensors")
        said = json.dumps({**config_of(config.model), **also})
        (tmp_path / folder / "config.json").write_text(said)
        published.command("import", "hf", tmp_path / folder, "--out", tmp_path / f"run {folder}")
    rows = np.arange(8).reshape(1, 8)
    one, other = (published.opened(tmp_path / f"run {folder}") for folder in ("there", "plain"))
    assert np.array_equal(published.ours(one, rows), published.ours(other, rows))
