"""`lower`: from a function of whole Tensors to one program for every device of a mesh.

The function is traced once, inside one `jax.shard_map`, on the local parts of its arguments.
Arguments arrive split by the law and results leave split by it. `jax.jit` around it makes the
moves of arguments that arrive otherwise. Outside, the parts of every dim are in natural order:
where the layout says another one, arguments are brought to it and results back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.sharding import AbstractMesh, AxisType, Mesh, PartitionSpec

from meshdsl.dims import Dim, listed, show
from meshdsl.errors import LEAKED, MeshDSLError, quote
from meshdsl.layout import Layout
from meshdsl.lowering import collectives, resharding
from meshdsl.lowering.leaf_check import check_parts
from meshdsl.lowering.scope import IN_ORDER, Scope, check_alike, common
from meshdsl.lowering.shardings import level_of, levels_of, partition_spec, shardings
from meshdsl.mesh import device_kind_of, make_mesh, platform_of
from meshdsl.program.program import Program
from meshdsl.splits.changes import Split
from meshdsl.tensor import Placement, Tensor, is_tensor, is_value
from meshdsl.values import check_shape


class Lowered:
    """A function lowered for a mesh under a layout; call it with pytrees of Tensors and arrays.

    Attributes:
      layout, mesh: what it was lowered for.
      name: what the function is called in errors and in tags of its ops.
      donated: the positions of the arguments whose memory is used for results.
    """

    def __init__(
        self,
        fn: Callable,
        layout: Layout,
        mesh: Mesh | AbstractMesh,
        dims: Iterable[Dim | str] = (),
        *,
        optimizer: Iterable[int] = (),
        donate: Iterable[int] = (),
    ):
        layout.check_axes(mesh.shape)
        _check_types(mesh, f"the mesh of {layout.name}")
        self._optimizer, self.donated = frozenset(optimizer), tuple(donate)
        self.layout, self.mesh = layout, mesh
        self._fn = fn
        self.name = "".join(c if c.isalnum() else "_" for c in getattr(fn, "__name__", "fn"))
        self._dims = _names(dims)
        self._scope: Scope | None = None
        self._jit = jax.jit(self._spmd, donate_argnums=self.donated)

    def __repr__(self):
        mesh = ", ".join(f"{a}={n}" for a, n in self.mesh.shape.items()) or "of one device"
        return f"<`{self.name}`, lowered by {self.layout.name} for the mesh {mesh}>"

    def __call__(self, *args):
        if isinstance(self.mesh, AbstractMesh) and not any(
            isinstance(leaf, Tracer) for leaf in jax.tree.leaves(args)
        ):
            raise MeshDSLError(
                f"{self.name}: lowered for a mesh without devices, so it can be planned and not "
                "run; lower it for `make_mesh(layout)`"
            )
        with self._explaining(args, runs=True):
            return self._jit(*args)

    def lower(self, *args):
        """JAX's own ahead-of-time object for these arguments, with `.compile()` and `.as_text()`.

        Arguments of `ShapeDtypeStruct`s will do.
        """
        with self._explaining(args):
            return self._jit.lower(*args)

    def trace(self, *args):
        """JAX's own traced object for these arguments, from a fresh trace: `.jaxpr`, `.lower()`."""
        with self._explaining(args):
            return jax.jit(lambda *args: self._spmd(*args)).trace(*args)

    @contextmanager
    def _explaining(self, args, runs: bool = False):
        """A context in which two errors of JAX become MeshDSLErrors; others stay as they are.

        They are the errors about an argument that is no array, and about a value that was kept from
        the trace of another function.

        Args:
          runs: whether the function is to be run, so that an argument must not be a shape.
        """
        self._check_free(args)
        try:
            yield
        except jax.errors.UnexpectedTracerError as error:
            raise MeshDSLError(f"{self.name}: {LEAKED}") from error
        except (TypeError, OverflowError):
            for path, x in jax.tree_util.tree_leaves_with_path(args, is_leaf=is_tensor):
                shape = isinstance(x.stored if is_tensor(x) else x, jax.ShapeDtypeStruct)
                if is_value(x) or (shape and not runs):
                    continue
                advice = "arguments are pytrees of Tensors, arrays and numbers"
                if shape:
                    advice = "a shape without data; `lower` and `program` take it"
                what = f"{self.name}: `{_path('argument', path)}` is {quote(x)}"
                raise MeshDSLError(f"{what}; {advice}") from None
            raise

    def _check_free(self, args) -> None:
        """Raise a MeshDSLError if an argument is a Tensor of a lowering.

        Lowerings whose arrays JAX has taken out of Tensors are not checked here, but in `_spmd`.
        """
        for x in jax.tree.leaves(args, is_leaf=is_tensor):
            if is_tensor(x) and x.placement is not None and not x.placement.scope.takes_parts:
                raise MeshDSLError(
                    f"{self.name}: an argument belongs to another lowering; call lowered "
                    "functions from outside of it"
                )

    def program(self, *args) -> Program:
        """The program recorded for these arguments: every op, move and collective."""
        return self.trace_program(*args)[1]

    def trace_program(self, *args) -> tuple[Any, Program]:
        """JAX's own traced object for these arguments, and the program recorded in that trace."""
        traced = self.trace(*args)
        return traced, Program(
            self.record,
            traced.jaxpr,
            self.layout,
            dict(self.mesh.shape),
            self.shapes(*args),
            self.donated,
            self._optimizer,
            results=traced.out_info,
        )

    def reference(self, *args) -> Program:
        """The program of one device: the function itself, which is not lowered."""
        jaxpr, results = jax.make_jaxpr(self._fn, return_shape=True)(*self.shapes(*args))
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), results)
        return Program([], jaxpr, Layout(), {}, results=shapes)

    def on(self, mesh: Mesh | AbstractMesh, layout: Layout | None = None) -> Lowered:
        """The same function, lowered for another mesh, under the same layout or another one."""
        return Lowered(
            self._fn,
            layout or self.layout,
            mesh,
            self._dims,
            optimizer=self._optimizer,
            donate=self.donated,
        )

    def with_function(self, change: Callable[[Callable], Callable]) -> Lowered:
        """What `change` makes of the function, lowered for this mesh under this layout."""
        return Lowered(change(self._fn), self.layout, self.mesh, self._dims)

    @property
    def record(self):
        """The ops of the latest trace of this function."""
        if self._scope is None:
            raise MeshDSLError(f"{self.name}: not traced yet; call it, or ask for `program(*args)`")
        return self._scope.recorder.ops

    def _spmd(self, *args):
        around = jax.sharding.get_abstract_mesh()
        _check_types(around, f"{self.name}: the mesh that jax.set_mesh has set")
        if AxisType.Manual in around.axis_types:
            raise MeshDSLError(
                f"{self.name}: is called inside of another lowering; call lowered functions "
                "from outside of it"
            )
        scope = self._scope = Scope(
            self.layout,
            self.mesh.shape,
            self.name,
            platform=platform_of(self.mesh),
            device_kind=device_kind_of(self.mesh),
            leaf=resharding.leaf,
        )
        given = self._given(args, scope)
        arrays = [leaf.array if is_tensor(leaf) else leaf for leaf in given.leaves]
        # Filled in by the trace: the law needs the dims of the results.
        out_specs: list[PartitionSpec] = []
        result: list = []

        def local(*arrays):
            outs, out_tree = self._on_device(given, scope, arrays)
            result[:] = [out_tree, [(t.dims, t.role) if is_tensor(t) else None for t in outs]]
            out_specs[:] = [
                partition_spec(t.placement.axes) if is_tensor(t) else PartitionSpec() for t in outs
            ]
            return [t.array if is_tensor(t) else t for t in outs]

        in_specs = tuple(partition_spec(split) for split in given.splits)
        mapped = jax.shard_map(local, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs)
        inlined = jax.jit(mapped, inline=True)
        closed = inlined.trace(*arrays).jaxpr  # `jit` keeps it for the call that follows
        if scope.takes_parts:
            check_parts(closed, self.mesh.shape, self.name)
        arrays = inlined(*arrays)
        out_tree, kinds = result
        outs = [Tensor(a, *kind) if kind else a for a, kind in zip(arrays, kinds, strict=True)]
        return jax.tree.unflatten(out_tree, outs)

    def _given(self, args, scope: Scope) -> _Given:
        """The arguments, after checking them, with the split that each has."""
        leaves, tree = jax.tree.flatten(args, is_leaf=is_tensor)
        levels = self._levels(args)
        splits = [
            scope.at_rest(t.dims, at) if is_tensor(t) else ()
            for t, at in zip(leaves, levels, strict=True)
        ]
        for leaf, level in zip(leaves, levels, strict=True):
            if is_tensor(leaf):
                _check_whole(leaf, self.name, level)
                scope.recorder.names.update(d.name for d in leaf.dims)
        of_data = [split for split, at in zip(splits, levels, strict=True) if at == "rules"]
        scope.data_axes = frozenset(a for split in of_data for axes in split for a in axes)
        return _Given(leaves, tree, levels, splits)

    def _on_device(self, given: _Given, scope: Scope, arrays) -> tuple[list, Any]:
        """Run the function on what one device has of the arguments.

        Returns:
          The leaves of the result, split by the law, and the structure of the result.
        """
        placed = [
            resharding.entered(
                Tensor(_part(array), t.dims, t.role, Placement(scope, split, (), at))
            )
            if is_tensor(t)
            else array
            for array, t, split, at in zip(
                arrays, given.leaves, given.splits, given.levels, strict=True
            )
        ]
        result = self._fn(*jax.tree.unflatten(given.tree, placed))
        outs, out_tree = jax.tree_util.tree_flatten_with_path(result, is_leaf=is_tensor)
        names = [f"{self.name}: `{_path('result', path)}`" for path, _ in outs]
        outs = [_leave(x, scope, what) for what, (_, x) in zip(names, outs, strict=True)]
        self.layout.check_dims([*scope.recorder.names, *self._dims], f"`{self.name}`")
        return outs, out_tree

    def _levels(self, args) -> list[str]:
        """For each leaf of the arguments the rules that split it; none for a plain array."""
        each = (levels_of(arg, i in self._optimizer) for i, arg in enumerate(args))
        return [level for levels in each for level in levels]

    def shapes(self, *args) -> tuple:
        """The arguments as `ShapeDtypeStruct`s, split as the lowered function takes them.

        These can be given to `lower`.
        """
        levels = ["optimizer" if i in self._optimizer else None for i in range(len(args))]
        pairs = zip(args, levels, strict=True)
        split = tuple(shardings(arg, self.layout, self.mesh, level) for arg, level in pairs)

        def shape(x, sharding):
            return jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x), sharding=sharding)

        return jax.tree.map(shape, args, split)


class _Given(NamedTuple):
    """The leaves and the structure of arguments; for each leaf its level, and its split."""

    leaves: list
    tree: Any
    levels: list[str]
    splits: list[Split]


def lower(
    fn: Callable,
    layout: Layout,
    mesh: Mesh | AbstractMesh | None = None,
    *,
    dims: Iterable[Dim | str] = (),
    optimizer_argnums: int | Iterable[int] = (),
    donate_argnums: int | Iterable[int] = (),
) -> Lowered:
    """Lower a function of Tensors to one program for all devices of `mesh`, split by `layout`.

    Args:
      fn: takes and returns pytrees of Tensors and arrays. Arrays are the same on every device.
      mesh: by default `make_mesh(layout)`.
      dims: dims (or names) that the layout may have rules for although no Tensor in `fn` has them.
        A rule for a dim that nothing has is an error, because it may be misspelt. Where `fn` is
        only a part of the model that the layout is for, `dims` are those of the whole model.
      optimizer_argnums: positions of arguments that hold the state of an optimizer. Their Tensors
        are split by all four lists of the layout, as gradients are (ZeRO-1). What optax keeps is
        known by its classes, so this is for other optimizers.
      donate_argnums: positions of arguments whose memory is used for results, as in `jax.jit`.

    Raises:
      MeshDSLError: the layout names an axis that the mesh lacks; when called: a rule for a dim that
        nothing has, a dim that does not divide over its axes, and every error of the ops in `fn`.
    """
    mesh = make_mesh(layout) if mesh is None else mesh
    state = _positions("optimizer_argnums", optimizer_argnums)
    donated = _positions("donate_argnums", donate_argnums)
    return Lowered(fn, layout, mesh, dims, optimizer=state, donate=donated)


def _positions(what: str, given: int | Iterable[int]) -> tuple[int, ...]:
    found = tuple(given) if isinstance(given, Iterable) else (given,)
    if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in found):
        shown = ", ".join(map(quote, found))
        raise MeshDSLError(f"lower: {what} are positions of arguments, from 0, not {shown}")
    return found


def _check_types(mesh: Mesh | AbstractMesh, what: str) -> None:
    """Raise a MeshDSLError for axes along which JAX itself would say how arrays are split."""
    if AxisType.Explicit in mesh.axis_types:
        explicit = zip(mesh.axis_names, mesh.axis_types, strict=True)
        names = ", ".join(f"`{a}`" for a, kind in explicit if kind is AxisType.Explicit)
        raise MeshDSLError(
            f"{what} has axes of type Explicit, {names}; the layout says how everything is split, "
            "so they are of type AxisType.Auto, as md.make_mesh makes them"
        )


def gather_updated(layout: Layout, mesh: Mesh, dims: Iterable[Dim | str] = ()) -> Lowered:
    """A lowered function that brings updated parameters back to their split at rest (ZeRO-1).

    It takes parameters that are split as the state of the optimizer is.
    """

    def gather_updated(parameters):
        to_rest = lambda t: Tensor(
            t.array, t.dims, t.role, t.placement._replace(level="parameters")
        )
        return jax.tree.map(to_rest, parameters, is_leaf=is_tensor)

    return Lowered(gather_updated, layout, mesh, dims, optimizer=(0,))


def _check_whole(x: Tensor, name: str, level: str) -> None:
    shape = getattr(x.array, "shape", None)
    if shape is None:
        return
    if level == "optimizer" and tuple(shape) != tuple(d.size for d in x.dims):
        raise MeshDSLError(
            f"{name}: the state of the optimizer has an array of shape {tuple(shape)} for a Tensor "
            f"{show(x.dims)}; an optimizer that keeps other shapes than its parameters (adafactor) "
            "runs outside of the lowering"
        )
    check_shape(f"{name}, an argument", x)


def _part(array):
    """A device's part of an argument.

    An argument without elements is replaced by zeros, which are computed in the program. XLA makes
    constants of such arguments, and then refuses a program that has no other arguments and whose
    results are split.
    """
    if array.size or jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        return array
    return collectives.vary(jnp.zeros(array.shape, array.dtype), collectives.varying(array))


def _names(dims) -> list[str]:
    for d in (dims := listed(dims)):
        if not isinstance(d, (str, Dim)):
            raise MeshDSLError(f"lower: `dims` are Dims, or their names, not {quote(d)}")
    return [d if isinstance(d, str) else d.name for d in dims]


def _path(root: str, path) -> str:
    """`result[0].loss`"""
    return root + jax.tree_util.keystr(path)


def _leave(x, scope: Scope, what: str):
    """A result split by the law, evenly, with a type that varies over no other axes."""
    if not is_value(x):
        raise MeshDSLError(
            f"{what} is {quote(x)}; results are pytrees of Tensors, arrays and numbers"
        )
    if not is_tensor(x):
        check_alike(what, x, scope)
        return x
    if x.placement is not None and x.placement.scope is not scope:
        raise MeshDSLError(
            f"{what} belongs to another lowering, where it was kept; return it from that one and "
            "give it to this one as an argument"
        )
    common(what, [x], scope)
    x = resharding.placed(x, scope, level_of(x))
    at_rest = scope.at_rest(x.dims, x.placement.level)
    x = resharding.take_sums(x, split=at_rest, orders=IN_ORDER)  # as every dim is outside
    loose = collectives.varying(x.array) - {a for axes in x.placement.axes for a in axes}
    assert not loose, f"{x} varies over {loose}"
    return x
