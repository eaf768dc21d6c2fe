"""Sliding windows: what convolutions and pooling share.

Output o of a window along a dim looks at the elements `o * stride - low + t * dilation`, for each
tap t of the window; elements outside of the dim are padding. Where the dim is split, a device
fetches the elements that its outputs look at and that it lacks, the halo. The rest is local.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dim, Dims
from meshdsl.errors import MeshDSLError, is_whole, nearest, quote, whole_number
from meshdsl.lowering.device_loop import DeviceLoop

PADDINGS = ("SAME", "VALID")


class Window(NamedTuple):
    """A window that slides along one dim.

    Attributes:
      dim: the dim.
      out: the dim of the outputs, one for each place of the window.
      taps: how many elements the window looks at.
      stride: how far the window moves from one output to the next.
      dilation: the distance between two of its taps.
      low, high: elements of padding before and after the dim.
    """

    dim: Dim
    out: Dim
    taps: int
    stride: int
    dilation: int
    low: int
    high: int

    @property
    def reach(self) -> int:
        """Elements from the first tap to the last, both included."""
        return (self.taps - 1) * self.dilation + 1

    def fetch(self, loop: DeviceLoop, x, at: int, fill=0):
        """The elements that the outputs of this device look at.

        Args:
          x: this device's array, which has the dim at position `at`.
          fill: the elements of padding.

        Returns:
          The elements; and how much padding is still to be put before and after them.
        """
        parts = loop.parts(self.dim)
        if parts == 1:
            # The first windows may lie in padding alone, which `Transposed` has no negative for.
            alone = max(self.low - self.reach + 1, 0)
            return _pad_before(x, at, alone, fill), (self.low - alone, self.high)
        count = loop.size(self.out)
        starts = [j * count * self.stride - self.low for j in range(parts)]
        return loop.fetch(
            x, at, self.dim, starts, (count - 1) * self.stride + self.reach, fill=fill
        ), (0, 0)

    def fetch_outputs(self, loop: DeviceLoop, x, at: int) -> Transposed:
        """The outputs that look at the elements of this device, for a transposed convolution.

        Args:
          x: this device's outputs, which have `out` at position `at`.
        """
        parts, count = loop.parts(self.out), loop.size(self.dim)
        # Where the first window of each part begins, in outputs that are `stride` apart.
        begins = [j * count + self.low - self.reach + 1 for j in range(parts)]
        starts = [-(-b // self.stride) for b in begins]
        if parts == 1:
            starts = [max(starts[0], 0)]
            length = max(self.out.size - starts[0], 1)
        else:
            ends = [(b + count + self.reach - 2) // self.stride for b in begins]
            length = max(1, *(e - s + 1 for s, e in zip(starts, ends, strict=True)))
        leads = [s * self.stride - b for s, b in zip(starts, begins, strict=True)]
        low = min(max(leads), self.reach - 1)
        wanted = max(count - min(leads) + low, 1)
        high = wanted + self.reach - 1 - low - (length - 1) * self.stride - 1
        skip = 0
        if len(set(leads)) > 1:
            part = loop.offset(self.out) // loop.size(self.out)
            skip = jnp.asarray([max(leads) - n for n in leads], jnp.int32)[part]
        return Transposed(
            loop.fetch(x, at, self.out, starts, length), (low, high), max(leads) - low, skip, count
        )

    def real_taps(self) -> np.ndarray:
        """For each output how many of its taps look at elements of the dim."""
        seen = (
            np.arange(self.out.size)[:, None] * self.stride
            - self.low
            + np.arange(self.taps) * self.dilation
        )
        return ((seen >= 0) & (seen < self.dim.size)).sum(1)


class Transposed(NamedTuple):
    """A transposed convolution along one dim: from the outputs of a window back to the elements.

    It is a convolution of stride 1 along the outputs, with the taps in reverse.

    Padding before the first output is never negative, also not in the derivative that JAX finds:
    XLA for CPU, as of jax 0.10, would read memory outside of the array.

    Attributes:
      outputs: the outputs, between which `stride - 1` zeros are to be put.
      padding: how many zeros are to be put before and after the outputs.
      lead: how many zeros are to be put before the result of the convolution.
      skip: how many elements to leave out after that, which may differ from device to device.
      count: how many of the elements that follow are this device's.
    """

    outputs: jax.Array
    padding: tuple[int, int]
    lead: int
    skip: int | jax.Array
    count: int  # pyright: ignore[reportIncompatibleMethodOverride] (of a tuple, which counts)

    def finish(self, x, at: int):
        """This device's elements, from the result of the convolution; the dim lies at `at`."""
        x = _pad_before(x, at, self.lead, 0)
        if isinstance(self.skip, int):
            return lax.slice_in_dim(x, 0, self.count, axis=at)
        return lax.dynamic_slice_in_dim(x, self.skip, self.count, at)


def _pad_before(x, at: int, count: int, fill):
    """`x` with `count` elements of `fill` before those at position `at` of its shape."""
    if not count:
        return x
    return jnp.pad(x, [(count if i == at else 0, 0) for i in range(x.ndim)], constant_values=fill)


def windows(
    name: str, dims: Dims, taps: Mapping[Dim, int], stride, dilation, padding, into
) -> tuple[Window, ...]:
    """For each dim of `taps` the window that slides along it.

    Args:
      dims: all dims of the op.
      stride, dilation: a number, or one for each dim.
      padding: "SAME", "VALID", a number for both sides, a pair (low, high), or one of these for
        each dim.
      into: for a dim its name, or its Dim, in the result.

    Raises:
      MeshDSLError: a setting is not legal, or a window is larger than the padded dim.
    """
    found = []
    for d, n, s, e, p, new in _settings(name, taps, stride, dilation, padding, into):
        reach = (n - 1) * e + 1
        low, high = _padding(name, d, p, d.size, s, reach)
        count = (d.size + low + high - reach) // s + 1
        if count < 1:
            apart = f" taps, {e} apart" if e > 1 else ""
            raise MeshDSLError(
                f"{name}: a window of {n}{apart} is larger than {d} with {low} and {high} around it"
            )
        found.append(Window(d, _renamed(name, dims, d, new, [count]), n, s, e, low, high))
    return tuple(found)


def windows_of_transpose(
    name: str, dims: Dims, taps: Mapping[Dim, int], stride, dilation, padding, into
) -> tuple[Window, ...]:
    """For each dim of `taps` the window whose outputs the dim is.

    Arguments and errors are those of `windows`. With a stride, windows along dims of several sizes
    have this number of outputs. By default the smallest of these sizes is meant, and for "SAME" the
    largest.
    """
    found = []
    for d, n, s, e, p, new in _settings(name, taps, stride, dilation, padding, into):
        reach, most = (n - 1) * e + 1, d.size * s
        if p == "SAME":
            sizes = range(most, most - s, -1)
        else:
            least = most - s + reach - sum(_padding(name, d, p, most, s, reach))
            sizes = range(max(least, 1), least + s)
        if not sizes:
            raise MeshDSLError(
                f"{name}: nothing is left of {d} with a window of {n} and padding {p}"
            )
        dim = _renamed(name, dims, d, new, sizes)
        found.append(Window(dim, d, n, s, e, *_padding(name, d, p, dim.size, s, reach)))
    return tuple(found)


def _settings(name, taps, stride, dilation, padding, into):
    """For each dim of `taps` its taps, stride, dilation, padding and new name."""
    stride, dilation = (
        _each(name, what, given, taps, 1)
        for what, given in (("stride", stride), ("dilation", dilation))
    )
    for what, given in (("window", taps), ("stride", stride), ("dilation", dilation)):
        for d, n in given.items():
            whole_number(f"{name}: the {what} along {d}", n, 1)
    padding = _each(name, "padding", padding, taps, "VALID")
    into = by_dim(f"{name}, into", into, taps)
    return [(d, n, stride[d], dilation[d], padding[d], into.get(d)) for d, n in taps.items()]


def _each(name, what, given, taps, default) -> dict:
    """A setting for each dim of `taps`, from one for all dims or a mapping for some of them."""
    if isinstance(given, Mapping):
        return dict.fromkeys(taps, default) | by_dim(f"{name}, {what}", given, taps)
    return dict.fromkeys(taps, given)


def by_dim(where: str, given: Mapping, known: Iterable[Dim]) -> dict:
    """A mapping from dims, or their names, with each key as the dim of `known` that it means."""
    return dict(zip(dim_algebra.find_all(where, tuple(known), given), given.values(), strict=True))


def _padding(name: str, dim: Dim, padding, size: int, stride: int, reach: int) -> tuple[int, int]:
    """How much padding `size` elements get before and after.

    If "SAME" needs an odd number, one more goes after, as in TensorFlow and JAX.
    """
    if isinstance(padding, str) and padding == "VALID":
        return 0, 0
    if isinstance(padding, str) and padding == "SAME":
        total = max((-(-size // stride) - 1) * stride + reach - size, 0)
        return total // 2, total - total // 2
    if isinstance(padding, str):
        raise MeshDSLError(f"{name}: no padding {padding!r} for {dim}{nearest(padding, PADDINGS)}")
    pair = (padding, padding) if is_whole(padding) else padding
    if (
        not isinstance(pair, (tuple, list))
        or len(pair) != 2
        or not all(is_whole(p) and p >= 0 for p in pair)
    ):
        shown = (
            f"({', '.join(map(quote, pair))})"
            if isinstance(pair, (tuple, list))
            else quote(padding)
        )
        raise MeshDSLError(
            f'{name}: the padding of {dim} is "SAME", "VALID", a number of at least 0 or a pair of '
            f"them, not {shown}; `slice` cuts"
        )
    return tuple(pair)


def _renamed(name: str, dims: Dims, dim: Dim, wanted: Dim | str | None, sizes) -> Dim:
    """The dim of the result that takes the place of `dim`.

    Args:
      wanted: this Dim, or its name; by default the name is that of `dim`.
      sizes: the legal sizes; the first one is the default.
    """
    new = (
        wanted if isinstance(wanted, Dim) else Dim(dim.name if wanted is None else wanted, sizes[0])
    )
    if new.size not in sizes:
        legal = str(sizes[0]) if len(sizes) == 1 else f"{min(sizes)} to {max(sizes)}"
        raise MeshDSLError(f"{name}: of {dim} come {legal} elements, not {new}")
    if new.name != dim.name and new.name in [d.name for d in dims]:
        raise MeshDSLError(
            f"{name}: {dim} cannot become `{new.name}`, which {dim_algebra.show(dims)} has already"
        )
    return new
