"""Rotary positions (Su et al., 2021).

Each pair of features is turned by an angle that grows with the position, so that the product of a
query and a key depends on how far they are apart.

    rotary = angles(md.iota(length), head_dim)   # two of [length, head_dim / 2]
    attention(x, causal=True, rotary=rotary)
    rotate(x, rotary, head_dim)                  # [batch, length, heads, head_dim] -> the same

A model that was trained on short sequences reads longer ones where its wavelengths are made longer,
in one of the published ways:

    angles(md.iota(length), head_dim, scaling=Llama3Scaling(factor=8, length=8192))

A scaling has a `gain`, the factor of cosine and sine, and `scaled`, which gives the frequencies in
place of those of `base`, one for each pair of features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

import meshdsl as md


@dataclass(frozen=True)
class LinearScaling:
    """All wavelengths are `factor` times as long (Chen et al., 2023)."""

    factor: float
    gain: float = 1.0

    def scaled(self, frequencies: np.ndarray, base: float) -> np.ndarray:
        return frequencies / self.factor


@dataclass(frozen=True)
class Llama3Scaling:
    """Long wavelengths are `factor` times as long, short ones as they were (Llama 3.1).

    Attributes:
      factor: of the wavelengths that fit fewer than `low` times into `length`.
      length: of the sequences that the model was trained on first.
      low, high: wavelengths that fit more than `high` times into `length` stay as they are; those
        between the two are changed gradually.
    """

    factor: float
    length: int
    low: float = 1.0
    high: float = 4.0
    gain: float = 1.0

    def scaled(self, frequencies: np.ndarray, base: float) -> np.ndarray:
        turns = self.length * frequencies / (2 * math.pi)
        kept = np.clip((turns - self.low) / (self.high - self.low), 0, 1)
        return frequencies * (kept + (1 - kept) / self.factor)


@dataclass(frozen=True)
class YarnScaling:
    """As in Llama 3.1, by a line over the pairs of features, with a gain (Peng et al., 2023).

    Attributes:
      factor: of the wavelengths that fit fewer than `slow` times into `length`.
      length: of the sequences that the model was trained on first.
      fast, slow: wavelengths that fit more than `fast` times into `length` stay as they are.
      gain: of cosine and sine.
      whole: the ends of the line are at whole numbers of pairs.
    """

    factor: float
    length: int
    fast: float = 32.0
    slow: float = 1.0
    gain: float = 1.0
    whole: bool = True

    def scaled(self, frequencies: np.ndarray, base: float) -> np.ndarray:
        pairs = len(frequencies)

        def pair_of(turns: float) -> float:
            return pairs * math.log(self.length / (turns * 2 * math.pi)) / math.log(base)

        low, high = pair_of(self.fast), pair_of(self.slow)
        if self.whole:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, 2 * pairs - 1)
        changed = np.clip((np.arange(pairs) - low) / ((high - low) or 0.001), 0, 1)
        return frequencies * (1 - changed + changed / self.factor)


@dataclass(frozen=True)
class LongScaling:
    """LongRoPE (Ding et al., 2024): a factor for each wavelength, others for long texts.

    Attributes:
      short: the factors, one for each pair of features, of texts of at most `length` tokens.
      long: those of longer ones.
      length: of the sequences that the model was trained on first.
      gain: of cosine and sine, for all texts.
    """

    short: tuple[float, ...]
    long: tuple[float, ...]
    length: int
    gain: float = 1.0

    def scaled(self, frequencies: np.ndarray, base: float) -> np.ndarray:
        return self._by(self.short, frequencies)

    def of_text(self, pairs: md.Dim, base: float, reach: int | md.Tensor) -> md.Tensor:
        plain = base ** (-np.arange(pairs.size) / pairs.size)
        near, far = (_frequencies(self._by(each, plain), pairs) for each in (self.short, self.long))
        if isinstance(reach, int):
            return far if reach > self.length else near
        return md.where(md.broadcast(reach > self.length, (*reach.dims, pairs)), far, near)

    def _by(self, factors: tuple[float, ...], frequencies: np.ndarray) -> np.ndarray:
        if len(factors) != len(frequencies):
            raise md.MeshDSLError(
                f"LongScaling: {len(factors)} factors for {len(frequencies)} pairs of features"
            )
        return frequencies / np.asarray(factors)


@dataclass(frozen=True)
class DynamicScaling:
    """A base that grows with texts of more than `length` tokens (NTK-aware, bloc97, 2023).

    Attributes:
      factor: how fast the base grows.
      length: of the sequences that the model was trained on.
    """

    factor: float
    length: int
    gain: float = 1.0

    def scaled(self, frequencies: np.ndarray, base: float) -> np.ndarray:
        return frequencies

    def of_text(self, pairs: md.Dim, base: float, reach: int | md.Tensor) -> md.Tensor:
        if isinstance(reach, int):
            reach = md.tensor(jnp.asarray(reach, jnp.int32), ())
        share = md.maximum(md.cast(reach, jnp.float32) / self.length, 1.0)
        grown = self.factor * share - (self.factor - 1)
        power = 2 * pairs.size / max(2 * pairs.size - 2, 1)
        logarithm = math.log(base) + md.log(grown) * power
        steps = md.cast(md.iota(pairs), jnp.float32) / -pairs.size
        return md.exp(md.einsum(logarithm, steps, out=(*logarithm.dims, pairs)))


Scaling = LinearScaling | Llama3Scaling | YarnScaling | LongScaling | DynamicScaling
# The scalings by which frequencies depend on how long a text is.
BY_TEXT = (LongScaling, DynamicScaling)


def _frequencies(values: np.ndarray, pairs: md.Dim) -> md.Tensor:
    return md.tensor(jnp.asarray(values, jnp.float32), (pairs,))


def angles(
    positions: md.Tensor,
    head_dim: md.Dim,
    base: float = 10000.0,
    *,
    scaling: Scaling | None = None,
    reach: int | md.Tensor | None = None,
) -> tuple[md.Tensor, md.Tensor]:
    """Cosine and sine of every position's angles.

    Args:
      positions: numbers of any dims but `head_dim`, such as `md.iota(length)`.
      head_dim: the features that are turned; a Dim of its name and a smaller size, where only the
        first features of a head are.
      base: of the wavelengths, which go from 2 pi up to 2 pi times the base.
      scaling: how they are changed for longer sequences.
      reach: how many tokens a text has, for scalings that ask for it: a number, or whole numbers
        of some dims, such as batch. Without it texts are short.

    Returns:
      Two tensors with the dims of `positions` and of `reach`, then `head_dim` with half its size:
      one angle for each pair of features.

    Raises:
      MeshDSLError: `head_dim` is odd.
    """
    if head_dim.size % 2:
        raise md.MeshDSLError(
            f"rotary positions turn pairs of features, and {head_dim} is an odd number of them"
        )
    half = md.Dim(head_dim.name, head_dim.size // 2)
    if reach is not None and isinstance(scaling, BY_TEXT):
        frequency = scaling.of_text(half, base, reach)
    elif scaling is None:
        frequency = md.exp(md.cast(md.iota(half), jnp.float32) * (-math.log(base) / half.size))
    else:
        plain = base ** (-np.arange(half.size) / half.size)
        frequency = _frequencies(scaling.scaled(plain, base), half)
    rest = [d for d in frequency.dims if d not in (*positions.dims, half)]
    dims = (*rest, *positions.dims, half)
    turn = md.einsum(md.cast(positions, jnp.float32), frequency, out=dims)
    if scaling is None or scaling.gain == 1:
        return md.cos(turn), md.sin(turn)
    return md.cos(turn) * scaling.gain, md.sin(turn) * scaling.gain


def rotate(x: md.Tensor, turn: tuple[md.Tensor, md.Tensor], head_dim: md.Dim) -> md.Tensor:
    """`x` with each pair of features turned: the same dims.

    A pair is a feature of the first half of `head_dim`, and the same one of the second. Where there
    are fewer angles than pairs, the first features are turned, and the others stay as they are.

    Args:
      x: has the dims of the positions, `head_dim`, and any others.
      turn: what `angles` gives.
    """
    cos, sin = (md.cast(t, x.dtype) for t in turn)
    name = head_dim.name
    turned = 2 * cos.dim(name).size
    if turned < head_dim.size:
        first = md.slice(x, name, 0, turned)
        rest = md.slice(x, name, turned, head_dim.size - turned)
        return md.concat([rotate(first, turn, md.Dim(name, turned)), rest], name)
    # A feature that is not finite makes NaN of all products with its query or key in any case.
    cos, sin = md.concat([cos, cos], name), md.concat([-sin, sin], name)
    return x * cos + md.roll(x, head_dim, head_dim.size // 2, finite=True) * sin
