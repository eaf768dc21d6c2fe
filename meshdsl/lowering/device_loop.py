"""A split loop nest as one device sees it: what the local function of an op may ask for.

It may ask which part of a dim this device has, at which index the part begins and which elements
are padding. And it may exchange elements with other devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp

from meshdsl.dims import Dim, Dims, show
from meshdsl.errors import MeshDSLError
from meshdsl.lowering import collectives, window_arrays
from meshdsl.lowering.moves.move import NATURAL, Move, Parts, nbytes
from meshdsl.lowering.moves.turns import needs_all
from meshdsl.lowering.scope import IN_ORDER, Orders, Scope
from meshdsl.program import recorder
from meshdsl.program.collective import crossed
from meshdsl.program.recorder import Op
from meshdsl.splits import windows
from meshdsl.splits.changes import Split

_NO_PARTS: Mapping[Dim, Parts] = MappingProxyType({})


class DeviceLoop:
    """A split loop nest, seen from one device."""

    def __init__(
        self,
        axes: Mapping[Dim, tuple[str, ...]],
        scope: Scope | None = None,
        op: Op | None = None,
        orders: Orders = IN_ORDER,
        in_parts: Mapping[Dim, Parts] = _NO_PARTS,
        result_in_parts: Mapping[Dim, Parts] = _NO_PARTS,
    ):
        self._axes = axes  # of the dims of the loop, and of dims with the same split
        self._orders = orders
        self.scope = scope
        self._op = op
        self._in_parts = in_parts
        self._result_in_parts = result_in_parts
        self.result = self  # a loop in the split of the result, if `choose_splits` chose another

    @property
    def lowered(self) -> bool:
        """Whether this is one device of a lowering; if not, arrays are whole."""
        return self.scope is not None

    @property
    def platform(self) -> str:
        """The platform that the op runs on: "tpu", "gpu" or "cpu"."""
        return jax.default_backend() if self.scope is None else self.scope.platform

    @property
    def device_kind(self) -> str:
        """What JAX calls the devices of a lowering, as "TPU v5"; empty where that is not known."""
        return "" if self.scope is None else self.scope.device_kind

    def note(
        self, kernel: str, needed: float = 1.0, lacks: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Write down which kernel the op has chosen, and the fields of `Op` that go with it."""
        if self._op is not None:
            self._op.kernel, self._op.needed = kernel, needed
            self._op.lacks = tuple(lacks.items())

    @property
    def _of_op(self) -> tuple[Scope, Op]:
        """The scope and the op, which only a loop of a lowering has."""
        assert self.scope is not None and self._op is not None
        return self.scope, self._op

    def _named(self):
        """A context in which JAX tags the operations that it traces with the op."""
        return jax.named_scope(self._of_op[1].tag)

    def axes(self, dims: Dim | Sequence[Dim]) -> tuple[str, ...]:
        """The axes that split `dims`."""
        dims = (dims,) if isinstance(dims, Dim) else dims
        return tuple(a for d in dims for a in self._axes.get(d, ()))

    def split(self, dims: Dims) -> Split:
        """For each of `dims` the axes that split it."""
        return tuple([self._axes.get(d, ()) for d in dims])

    def parts(self, dim: Dim) -> int:
        """Into how many parts `dim` is split."""
        return self.scope.parts(self.axes(dim)) if self.scope else 1

    def size(self, dim: Dim) -> int:
        """The size of the part of `dim` on this device, with `padding`."""
        return self.scope.part(dim, self._axes.get(dim, ())) if self.scope else dim.size

    def padding(self, dim: Dim) -> int:
        """How many elements of padding all parts of `dim` have together.

        The padding has the indices after the last element; which part has it depends on the order.
        """
        return self.size(dim) * self.parts(dim) - dim.size

    def fitting(self, array, dims: Dims, name: str):
        """`array`, after checking that it has the shape of the part of `dims` on this device."""
        if self.scope is None:
            shape = tuple([d.size for d in dims])
        else:
            shape = self.scope.local_shape(dims, self.split(dims))
        if jnp.shape(array) != shape:
            raise MeshDSLError(
                f"{name}: the function gives an array of shape {jnp.shape(array)}; "
                f"the part of {show(dims)} has {shape}"
            )
        return array

    def masked(self, array, dims: Dims, fill):
        """`array`, which has `dims`, with `fill` in its padding; with None, `array` as it is."""
        padded = [d for d in dims if self.padding(d)] if fill is not None else []
        if not padded:
            return array
        return jnp.where(self.inside(dims), array, jnp.asarray(fill, array.dtype))

    def filled(self, array, dim: Dim) -> jax.Array:
        """`array`, with `dim` in front, with copies of its first element in the padding of `dim`.

        A function of one element then does the same on the padding as on a real element: loops end,
        and nothing becomes infinite that would spoil the gradient of a Tensor that all elements
        share. Random keys stay as they are, since any key serves.
        """
        if not self.padding(dim) or jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
            return array
        (start, _), *_ = self.runs(dim)
        first = jnp.where(start == 0, jax.lax.stop_gradient(array[:1]), jnp.zeros((), array.dtype))
        total = self.psum(first.astype(jnp.int32) if array.dtype == bool else first, dim)
        total = collectives.vary(total.astype(array.dtype), collectives.varying(array))
        inside = self.inside((dim,)).reshape(-1, *(1,) * (array.ndim - 1))
        return jnp.where(inside, array, total)

    def inside(self, dims: Dims) -> jax.Array:
        """Which elements of this device's part of `dims` are not padding: booleans.

        Their shape broadcasts against the shape of the part.
        """
        inside = jnp.ones((1,) * len(dims), bool)
        for i, d in enumerate(dims):
            if self.padding(d):
                shape = [-1 if j == i else 1 for j in range(len(dims))]
                inside = inside & self._real(d).reshape(shape)
        return inside

    def _real(self, dim: Dim) -> jax.Array:
        """Which elements of this device's part of a dim are not padding."""
        turn = self.scope.turn_of(self.axes(dim)) if self.scope else None
        if turn is None:
            return self.indices(dim) < dim.size
        numbers = self._first_of_part(dim) + jnp.arange(self.size(dim), dtype=jnp.int32)
        return numbers < dim.size // turn.count

    def offset(self, dim: Dim):
        """The index, in the whole dim, of the first element on this device.

        The op must have asked for the natural order of `dim` (`in_order` of `Nest`).
        """
        self._in_natural_order("offset", dim)
        axes = self.axes(dim)
        if not axes or self.scope is None:
            return 0
        turn, first = self.scope.turn_of(axes), self._first_of_part(dim)
        if turn is None:
            return first
        if turn.block(dim, self.scope) % self.size(dim):
            self._not_in_turns(axes)
        return turn.index_in_whole(first, dim, self.scope)

    def _first_of_part(self, dim: Dim):
        """The index of the first element on this device; in a dim in turns, within the slice."""
        axes = tuple(a for a in self.axes(dim) if self.scope is None or a not in self.scope.turns)
        return collectives.position(axes) * self.size(dim) if axes else 0

    def order(self, dim: Dim) -> Move:
        """The order of the parts of `dim`."""
        return self._orders.get(dim, NATURAL)

    def runs(self, dim: Dim) -> list[tuple[Any, int]]:
        """The runs of consecutive elements of `dim` that this device has.

        It is one run if the parts of the dim are in natural order, and several in other orders.

        Returns:
          For each run the index, in the whole dim, of its first element, which may be traced; and
          how many elements it has, padding included.
        """
        if dim not in self._orders:
            return [(self.offset(dim), self.size(dim))]
        part = collectives.position(self.axes(dim))
        return self.order(dim).runs(part, self.parts(dim), self.size(dim))

    def indices(self, dim: Dim, dtype=jnp.int32) -> jax.Array:
        """The indices, in the whole dim, of the elements on this device; shape [size(dim)]."""
        # Indices are computed as whole numbers: bfloat16, say, would round them.
        exact = dtype if jnp.issubdtype(dtype, jnp.integer) else jnp.int32
        if self.scope is not None and (turn := self.scope.turn_of(self.axes(dim))):
            numbers = self._first_of_part(dim) + jnp.arange(self.size(dim), dtype=jnp.int32)
            return turn.index_in_whole(numbers, dim, self.scope).astype(dtype)
        runs = [
            jnp.arange(size, dtype=exact) + jnp.asarray(start, exact)
            for start, size in self.runs(dim)
        ]
        return (jnp.concatenate(runs) if len(runs) > 1 else runs[0]).astype(dtype)

    def _in_natural_order(self, what: str, dims) -> None:
        """Check that the op has asked for the natural order of `dims`, which `what` needs."""
        for dim in (dims,) if isinstance(dims, Dim) else dims:
            assert dim not in self._orders, (
                f"{self._op and self._op.name}: `{what}` along {dim}, whose parts are in "
                f"{self.order(dim).name} order; name the dim in `in_order`"
            )

    def in_parts(self, dim: Dim) -> Any:
        """The `Parts` of `dim`, if operands with it come part by part; else None.

        They are of the class that the move has for them (`Move.view`), such as `Ring`.
        """
        return self._in_parts.get(dim)

    def result_in_parts(self, dim: Dim) -> Any:
        """The `Parts` of `dim`, if the result is a sum to compute part by part; else None."""
        return self._result_in_parts.get(dim)

    @property
    def aside(self) -> DeviceLoop:
        """The same loop, but its moves are not written down.

        It is for code that JAX may trace more than once. `note_move` writes the moves down, once.
        """
        if self._op is None:
            return self
        parts = self._in_parts, self._result_in_parts
        return DeviceLoop(self._axes, self.scope, self._op.aside(), self._orders, *parts)

    def note_move(self, operation: str, dims, size: int, backward: str = "") -> None:
        """Write down a collective over the axes that split `dims`, of an array of `size` bytes."""
        scope = self.scope
        if scope is not None and (axes := scope.in_mesh_order(self.axes(dims))):
            self._not_in_turns(axes)
            self._record(operation, axes, size, backward)

    def psum(self, x, dims, *, varies: bool = False) -> jax.Array:
        """Sum over the devices that split `dims`.

        Args:
          varies: whether the result meets values that differ between these devices. Then its
            cotangent differs too, and is summed in the backward pass.
        """
        total = self._reduce("psum", collectives.psum, x, dims, backward="psum" if varies else "")
        if not varies or not self.axes(dims):
            return total
        with self._named():
            return collectives.vary(total, self.axes(dims))

    def pmax(self, x, dims) -> jax.Array:
        """Maximum over the devices that split `dims`; has no derivative."""
        return self._reduce("pmax", collectives.pmax, x, dims)

    def pmin(self, x, dims) -> jax.Array:
        """Minimum over the devices that split `dims`; has no derivative."""
        return self._reduce("pmin", collectives.pmin, x, dims)

    def _reduce(self, operation, collective, x, dims, backward=""):
        axes = self.scope.in_mesh_order(self.axes(dims)) if self.scope else ()
        if not axes:
            return x
        self._not_in_turns(axes)
        self._record(operation, axes, nbytes(x), backward)
        with self._named():
            return collective(x, axes)

    def gather(self, x, dims, *, varies: bool = False, in_order: bool = True) -> jax.Array:
        """The arrays `x` of all devices that split `dims`, stacked along a first position.

        They are in the order of the parts of the dims.

        Args:
          varies: as in `psum`.
          in_order: False where the order does not matter. Otherwise the op must have asked for the
            natural order of `dims`.
        """
        if in_order:
            self._in_natural_order("gather", dims)
        axes = self.axes(dims)
        x = jnp.expand_dims(x, 0)
        if not axes:
            return x
        self._not_in_turns(axes)
        self._record(
            "all_gather",
            axes,
            nbytes(x) * self._of_op[0].parts(axes),
            "psum_scatter" if varies else "",
        )
        with self._named():
            return collectives.all_gather(x, axes, 0, varies=varies)

    def all_to_all(self, x, dim: Dim, cut: int, joined: int) -> jax.Array:
        """Cut `x` into pieces along position `cut`, and send one to each device that splits `dim`.

        The pieces that a device receives are joined along position `joined`, in the order of the
        senders' parts. If `dim` lies at `joined`, it is whole afterwards.
        """
        self._in_natural_order("all_to_all", dim)
        axes = self.axes(dim)
        self._not_in_turns(axes)
        self._record("all_to_all", axes, nbytes(x), "all_to_all")
        with self._named():
            return collectives.all_to_all(x, axes, cut, joined)

    def fetch(
        self,
        x,
        at: int,
        dim: Dim,
        starts: Sequence[int],
        length: int,
        *,
        stop: int | None = None,
        fill=0,
    ) -> jax.Array:
        """A window of `dim` for each part: elements `starts[j]` to `starts[j] + length` for part j.

        Only the elements that a device lacks travel, by `ppermute`. Padding of `x` must hold
        `fill` already.

        Args:
          x: this device's part; `dim` lies at position `at`.
          starts: one static index for each of `parts(dim)` parts; may be negative or beyond the
            dim.
          stop: elements from this index on are not needed; by default the end of the dim.
          fill: the value of elements before 0 and from `stop` on.

        Returns:
          The window, with `length` elements at position `at`.
        """
        self._in_natural_order("fetch", dim)
        parts, end = self.parts(dim), dim.size
        if parts == 1:
            return window_arrays.whole(
                x, at, starts[0], length, end if stop is None else min(stop, end), fill
            )
        assert len(starts) == parts
        if stop is None or stop >= end:
            # Padding holds `fill`, and blocks of one size are joined without a mask.
            stop = parts * self.size(dim)
        return self.exchange(
            x, at, dim, windows.pieces(starts, length, self.size(dim), stop), length, fill=fill
        )

    def exchange(
        self, x, at: int, dim: Dim, pieces: Sequence[windows.Piece], length: int, *, fill=0
    ) -> jax.Array:
        """`length` elements at position `at`, put together from `pieces` of the parts of `dim`.

        Elements that no piece covers are `fill`.
        """
        self._in_natural_order("exchange", dim)
        axes = self.axes(dim)
        self._not_in_turns(axes)

        def send(piece, pairs):
            across = crossed(pairs, axes, self._of_op[0].sizes)
            self._record("ppermute", across, nbytes(piece), "ppermute")
            with self._named():
                return collectives.ppermute(piece, axes, pairs)

        return window_arrays.exchanged(
            x, at, axes, self.parts(dim), pieces, length, send, fill=fill
        )

    def _not_in_turns(self, axes: tuple[str, ...]) -> None:
        """Raise a MeshDSLError if one of `axes` stands for turns of a loop, see `moves.turns`."""
        scope, op = self._of_op
        if turns := [axis for axis in axes if axis in scope.turns]:
            rule = next(rule for rule in scope.layout.turns if rule.axis == turns[0])
            raise needs_all(op.name, str(rule), self.scope)

    def _record(self, operation, axes, size, backward):
        scope, op = self._of_op
        if size and scope.parts(axes) > 1:
            dims = ", ".join(f"`{d.name}`" for d, a in self._axes.items() if set(a) & set(axes))
            op.moves.append(
                recorder.Move(operation, axes, size, f"{op.name} along {dims}", backward)
            )
