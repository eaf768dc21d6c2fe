"""Tensors that published files store in 8 or 4 bits: they are read as bfloat16.

- `fp8` (DeepSeek-V3): a matrix of 8-bit numbers, and a float32 factor for each block of it. They
  are called `NAME` and `NAME_scale_inv`.
- `mxfp4` (gpt-oss; OCP Microscaling Formats, 2023): numbers of 4 bits, two in a byte, and for each
  32 of them a power of 2. They are called `NAME_blocks` and `NAME_scales`. Their last dims are what
  the matrix gives and what it contracts, the other way round than in the tensor `NAME`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from meshdsl.errors import MeshDSLError
from meshdsl.models.families.adapter import QUANTIZATION
from meshdsl.schema import read, table
from meshdsl.train.checkpoints.safetensors_files import TensorFiles
from meshdsl.train.checkpoints.tree_leaves import Leaf

_FACTORS, _BLOCKS, _POWERS = "_scale_inv", "_blocks", "_scales"
_POSITIVE = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_FP4 = np.array((*_POSITIVE, *(-value for value in _POSITIVE)), np.float32)
_GROUP = 32  # numbers of 4 bits with one power of 2
_BIAS = 127  # of the power, as in float32


def opened(path: Path, config: Mapping[str, Any]) -> TensorFiles | QuantizedTensors:
    """The tensors in a folder with this `config.json`.

    Raises:
      MeshDSLError: they cannot be read.
    """
    said = table(None).checked(
        config.get("quantization_config"), "quantization_config", "config.json"
    )
    files = TensorFiles(path)
    return QuantizedTensors(files, said) if said else files


class QuantizedTensors:
    """The tensors of files of which some are quantized, used as `TensorFiles` is.

    Args:
      files: the files.
      said: the `quantization_config` of their `config.json`.

    Raises:
      MeshDSLError: a quantized tensor and its factors do not go together.
    """

    def __init__(self, files: TensorFiles, said: Mapping[str, Any]):
        self.path, self._files = files.path, files
        where = "config.json: quantization_config"
        rows, columns = read(QUANTIZATION, said, where)["weight_block_size"] or (128, 128)
        self._block: tuple[int, int] = rows, columns
        there = files.leaves
        parts = (_FACTORS, _BLOCKS, _POWERS)
        self.leaves = {n: leaf for n, leaf in there.items() if not n.endswith(parts)}
        self._fp8 = [n.removesuffix(_FACTORS) for n in there if n.endswith(_FACTORS)]
        self._fp4 = [n.removesuffix(_BLOCKS) for n in there if n.endswith(_BLOCKS)]
        for name in self._fp8:
            self.leaves[name] = self._of_fp8(name)
        for name in self._fp4:
            self.leaves[name] = self._of_fp4(name)

    def read(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        """The elements of the tensor `name` at `index`; as `TensorFiles.read`."""
        shape = self.leaves[name]["shape"]
        given = (*index, *(slice(None),) * (len(shape) - len(index)))
        bounds = [each.indices(size)[:2] for each, size in zip(given, shape, strict=True)]
        if name in self._fp8:
            return self._read_fp8(name, bounds)
        if name in self._fp4:
            return self._read_fp4(name, bounds)
        return self._files.read(name, index)

    def _of_fp8(self, name: str) -> Leaf:
        shape, factors = self._shape(name), self._shape(name + _FACTORS)
        expected = [-(-size // block) for size, block in zip(shape, self._block, strict=False)]
        if len(shape) != 2 or factors != expected:
            raise self._odd(name, f"{name}{_FACTORS}", expected)
        return _described(shape)

    def _of_fp4(self, name: str) -> Leaf:
        blocks, powers = self._shape(name + _BLOCKS), self._shape(name + _POWERS)
        if len(blocks) < 3 or blocks[-1] * 2 != _GROUP or powers != blocks[:-1]:
            raise self._odd(f"{name}{_BLOCKS}", f"{name}{_POWERS}", blocks[:-1])
        *front, outs, groups, _ = blocks
        return _described([*front, groups * _GROUP, outs])

    def _shape(self, name: str) -> list[int]:
        if name not in self._files.leaves:
            raise MeshDSLError(f"{self.path}: `{name}` is missing")
        return self._files.leaves[name]["shape"]

    def _odd(self, name: str, other: str, expected: list[int]) -> MeshDSLError:
        return MeshDSLError(
            f"{self.path}: `{name}` is {self._shape(name)} and `{other}` {self._shape(other)}, "
            f"which do not go together; expected {expected}"
        )

    def _read_fp8(self, name: str, bounds: list[tuple[int, int]]) -> np.ndarray:
        wide = self._files.read(name, tuple(slice(*each) for each in bounds)).astype(np.float32)
        begun = [(a // n, -(-b // n)) for (a, b), n in zip(bounds, self._block, strict=True)]
        factors = self._files.read(name + _FACTORS, tuple(slice(*each) for each in begun))
        for along, ((a, b), n) in enumerate(zip(bounds, self._block, strict=True)):
            blocks = np.arange(a, b) // n - a // n
            factors = np.take(factors.astype(np.float32), blocks, along)
        return (wide * factors).astype(ml_dtypes.bfloat16)

    def _read_fp4(self, name: str, bounds: list[tuple[int, int]]) -> np.ndarray:
        *front, (a, b), outs = bounds
        groups = a // _GROUP, -(-b // _GROUP)
        index = tuple(slice(*each) for each in (*front, outs, groups))
        packed = self._files.read(name + _BLOCKS, index)
        powers = self._files.read(name + _POWERS, index).astype(np.int32) - _BIAS
        pairs = np.stack([_FP4[packed & 15], _FP4[packed >> 4]], -1)
        wide = np.ldexp(pairs.reshape((*packed.shape[:-1], _GROUP)), powers[..., None])
        first = groups[0] * _GROUP
        wide = wide.reshape((*wide.shape[:-2], -1))[..., a - first : b - first]
        return np.swapaxes(wide, -1, -2).astype(ml_dtypes.bfloat16)


def _described(shape: list[int]) -> Leaf:
    return {"is": f"{shape} bfloat16", "dims": None, "shape": shape, "dtype": "bfloat16"}
