"""Convolution over names: an einsum in which windows of a kernel slide along some dims of `x`.

As in an einsum, names say what part a dim plays, and any number of dims may play each:

    of `x` and the result           batch
    of both and not the result      channels in: contracted
    of both and the result          groups: each is convolved by itself (depthwise, where no
                                    channels in are left)
    of the kernel and the result    channels out

All of them may be split. A split spatial dim costs the halo of its windows, sent by `ppermute`,
forward and backward; a halo that is larger than a part comes from further parts. Only the kernel's
own spatial dims are gathered where they are split.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import jax.numpy as jnp
from jax import lax

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dim, Dims
from meshdsl.errors import MeshDSLError, nearest
from meshdsl.lowering.device_loop import DeviceLoop
from meshdsl.lowering.law import apply_op
from meshdsl.ops.arrays import in_order
from meshdsl.ops.declare import Case, Draw, op
from meshdsl.ops.einsum import filled
from meshdsl.ops.sliding_windows import Window, by_dim, windows, windows_of_transpose
from meshdsl.tensor import Tensor

Over = Mapping[Dim | str, Dim | str]
NOTHING: Over = MappingProxyType({})


def _conv_example(conv: Callable, draw: Draw) -> Case:
    a, b, c, d, e = draw.dims("a", "b", "c", "d", "e")
    stride, dilation = draw.pick(1, 2, 3), draw.pick(1, 2)
    call = partial(conv, over={b: d}, out=(..., e), stride=stride, dilation=dilation, into={b: "v"})
    return Case(call, (draw.tensor(a, b, c), draw.tensor(d, c, e)), (b, d))


@op(
    computes="its outputs, of the elements that it has and the halo of their windows; "
    "a kernel split along its windows is gathered",
    moves=("ppermute", "all_gather"),
    mesh_tensorflow="Conv2dOperation, Conv3dOperation; "
    "no split of spatial and kernel dims, no dilation, no groups",
    example=_conv_example,
)
def conv(
    x: Tensor,
    kernel: Tensor,
    over: Over,
    *,
    out,
    stride=1,
    dilation=1,
    padding="SAME",
    into: Over = NOTHING,
    precision=None,
    preferred_element_type=None,
) -> Tensor:
    """The convolution of `x` with `kernel` (which is not flipped, as everywhere in deep learning).

        kernel_of = {height: kernel_height, width: kernel_width}
        conv(image, weight, kernel_of, out=(..., features), stride=2)

    Of n elements along a dim, with a kernel of k, come `(n + low + high - (k - 1) * dilation - 1)
    // stride + 1`, which for "SAME" is n / stride, rounded up.

    Args:
      over: for each spatial dim of `x` the dim of the kernel that slides along it.
      out: dims of the result (or names); shared dims that it lacks are contracted. A spatial dim
        may stand in it as it goes in or as it comes out. `...` stands for the dims of `x` that the
        kernel lacks and `out` does not name.
      stride, dilation: a number, or one for each spatial dim: `{height: 2, width: 1}`.
      padding: "SAME", "VALID", a number of zeros for both sides, a pair (low, high), or one of
        these for each spatial dim.
      into: for a spatial dim its name, or its Dim, in the result. By default it keeps its name, and
        has its new size.
      precision, preferred_element_type: as in `jax.lax.conv_general_dilated`.

    Raises:
      MeshDSLError: a dim is missing, a setting is not legal, or a window is larger than the padded
        dim.
    """
    taps, sizes, every = _taps("conv", x, kernel, over)
    slid = windows("conv", every, sizes, stride, dilation, padding, into)

    def convolve(loop: DeviceLoop, array, weights, **settings):
        pads = []
        for i, w in enumerate(slid, start=1):
            array, pad = w.fetch(loop, array, i)
            pads.append(pad)
        strides = [w.stride for w in slid]
        return _convolve(array, weights, slid, window_strides=strides, padding=pads, **settings)

    settings = {"precision": precision, "preferred_element_type": preferred_element_type}
    return _apply("conv", x, kernel, taps, [w.out for w in slid], out, convolve, settings)


@op(
    computes="its outputs, of the elements that it has and the halo of their windows; "
    "a kernel split along its windows is gathered",
    moves=("ppermute", "all_gather"),
    mesh_tensorflow="Conv2dTransposeOperation, Conv3dTransposeOperation; "
    "no split of spatial and kernel dims, no dilation, no groups",
    example=_conv_example,
)
def conv_transpose(
    x: Tensor,
    kernel: Tensor,
    over: Over,
    *,
    out,
    stride=1,
    dilation=1,
    padding="SAME",
    into: Over = NOTHING,
    precision=None,
    preferred_element_type=None,
) -> Tensor:
    """The transpose of `conv` with the same settings: from what `conv` gives to what it takes.

        kernel_of = {height: kernel_height, width: kernel_width}
        conv_transpose(small, weight, kernel_of, out=(..., channels), stride=2)

    The gradient of a convolution is such a transpose. Element i times tap t is added to element
    `i * stride - low + t * dilation` of the result. PyTorch's `ConvTranspose` means the same by
    `padding`; `jax.lax.conv_transpose` has this as `transpose_kernel=True`. Of n elements along a
    dim, with a kernel of k, come `(n - 1) * stride + (k - 1) * dilation + 1 - low - high`, and for
    "SAME" `n * stride`.

    Args:
      padding: of the convolution that this transposes: here it takes elements away.
      into: as in `conv`. With a stride, a convolution makes n elements of dims of several sizes; a
        Dim says which of them is meant: up to `stride - 1` elements more, or, for "SAME", less
        (PyTorch's `output_padding`).
      The others: as in `conv`.

    Raises:
      MeshDSLError: a dim is missing, a setting is not legal, or nothing is left.
    """
    taps, sizes, every = _taps("conv_transpose", x, kernel, over)
    slid = windows_of_transpose("conv_transpose", every, sizes, stride, dilation, padding, into)

    def convolve(loop: DeviceLoop, array, weights, **settings):
        spread = []
        for i, w in enumerate(slid, start=1):
            spread.append(w.fetch_outputs(loop, array, i))
            array = spread[-1].outputs
        array = _convolve(
            array,
            jnp.flip(weights, range(len(slid))),
            slid,
            window_strides=[1] * len(slid),
            padding=[o.padding for o in spread],
            lhs_dilation=[w.stride for w in slid],
            **settings,
        )
        for i, o in enumerate(spread, start=1):
            array = o.finish(array, i)
        return array

    settings = {"precision": precision, "preferred_element_type": preferred_element_type}
    return _apply("conv_transpose", x, kernel, taps, [w.dim for w in slid], out, convolve, settings)


def _taps(name: str, x: Tensor, kernel: Tensor, over: Over):
    """The kernel's dim that slides along each spatial dim, its size, and all dims of the op."""
    taps = {
        d: dim_algebra.find(f"{name}, kernel", kernel.dims, k)
        for d, k in by_dim(f"{name}, over", over, x.dims).items()
    }
    dim_algebra.distinct(taps.values(), f"{name}, kernel")
    every = dim_algebra.union(name, [x.dims, kernel.dims])
    for d, k in taps.items():
        if d in kernel.dims or k in x.dims:
            raise MeshDSLError(
                f"{name}: {d} of {dim_algebra.show(x.dims)} and {k} of "
                f"{dim_algebra.show(kernel.dims)} are for one operand each"
            )
    if not taps:
        raise MeshDSLError(
            f"{name}: no spatial dim in {dim_algebra.show(x.dims)} is said to meet the kernel; use "
            "`einsum`"
        )
    return taps, {d: k.size for d, k in taps.items()}, every


def _apply(
    name: str,
    x: Tensor,
    kernel: Tensor,
    taps: dict[Dim, Dim],
    become: Sequence[Dim],
    out,
    convolve,
    settings,
) -> Tensor:
    """Apply a convolution, with the dims of both operands merged as `lax` wants them.

    Args:
      taps: for each spatial dim the kernel's dim that slides along it.
      become: what each of these spatial dims is in the result.
      convolve: of `(loop, array, weights, ...)`, where the array has [batch, *spatial, channels]
        and the weights [*taps, channels in, channels out].
      settings: other arguments of `lax.conv_general_dilated`.
    """
    spatial = dict(zip(taps, become, strict=True))
    every = dim_algebra.union(name, [x.dims, kernel.dims])
    out = _out_dims(name, x, kernel, taps, spatial, out)
    batch = tuple(d for d in x.dims if d in out and d not in kernel.dims and d not in spatial)
    groups = tuple(d for d in x.dims if d in out and d in kernel.dims)
    ins = tuple(d for d in x.dims if d not in out and d in kernel.dims)
    outs = tuple(d for d in kernel.dims if d in out and d not in x.dims)

    def local(loop: DeviceLoop, array, weights):
        count = math.prod(loop.size(d) for d in groups)
        array = _merged(array, x.dims, [batch, *[(d,) for d in spatial], groups + ins])
        weights = _merged(
            weights, kernel.dims, [*[(k,) for k in taps.values()], ins, groups + outs]
        )
        array = convolve(loop, array, weights, feature_group_count=count, **settings)
        order = (*batch, *become, *groups, *outs)
        array = array.reshape(
            [array.shape[1 + become.index(d)] if d in become else loop.size(d) for d in order]
        )
        return in_order(array, order, out)

    carried = {new: old for old, new in spatial.items() if new != old}
    return apply_op(
        name,
        local,
        (x, kernel),
        loop=every,
        out=out,
        unsplit=tuple(taps.values()),
        in_order=tuple(taps),
        same_split=tuple(carried.items()),
    )


def _out_dims(name: str, x: Tensor, kernel: Tensor, taps, spatial: dict[Dim, Dim], out) -> Dims:
    """The dims of the result. `spatial` has for each spatial dim what it is in the result."""
    known = (*spatial.values(), *x.dims, *kernel.dims)
    out = dim_algebra.resolve(f"{name}, out", known, out, new=False)
    out = tuple(spatial.get(d, d) if isinstance(d, Dim) else d for d in out)
    rest = [spatial.get(d, d) for d in x.dims if d not in kernel.dims]
    out = dim_algebra.distinct(filled(out, rest), name)
    legal = [
        spatial.get(d, d)
        for d in dim_algebra.union(name, [x.dims, kernel.dims])
        if d not in taps.values()
    ]
    for d in out:
        if d not in legal:
            names = [e.name for e in legal]
            advice = nearest(d.name, names) if d.name not in names else ""
            raise MeshDSLError(
                f"{name}: out has {d}; it may have {dim_algebra.show(legal)}{advice}"
            )
    if lost := [d for d in spatial.values() if d not in out]:
        raise MeshDSLError(
            f"{name}: out lacks {dim_algebra.show(lost)}; spatial dims are not contracted, use "
            "`sum` afterwards"
        )
    return out


def _merged(array, dims: Dims, groups: Sequence[Dims]):
    """`array` with the dims of each group merged into one; dims of no group are summed out."""
    lost = tuple(i for i, d in enumerate(dims) if not any(d in g for g in groups))
    if lost:
        array = jnp.sum(array, lost, dtype=array.dtype)
        dims = tuple(d for i, d in enumerate(dims) if i not in lost)
    sizes = dict(zip(dims, array.shape, strict=True))
    array = jnp.transpose(array, [dims.index(d) for g in groups for d in g])
    return array.reshape([math.prod(sizes[d] for d in g) for g in groups])


def _convolve(array, weights, slid: Sequence[Window], **settings):
    """`lax.conv_general_dilated` of two arrays whose dims `_apply` has merged."""
    n = len(slid)
    numbers = lax.ConvDimensionNumbers(
        lhs_spec=(0, n + 1, *range(1, n + 1)),
        rhs_spec=(n + 1, n, *range(n)),
        out_spec=(0, n + 1, *range(1, n + 1)),
    )
    dtype = jnp.promote_types(array.dtype, weights.dtype)
    return lax.conv_general_dilated(
        array.astype(dtype),
        weights.astype(dtype),
        rhs_dilation=[w.dilation for w in slid],
        dimension_numbers=numbers,
        **settings,
    )
