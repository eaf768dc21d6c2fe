"""The exchange of workers that train apart: the outer optimizer, and what is sent for it.

How far the mean of the workers' parameters lies from the *outer* parameters is the gradient of the
outer optimizer. That mean is an op of the language, so by the law it is one sum over the axes of
`worker`. An exchange is of a fragment (`meshdsl.train.fragments`), and of the outer optimizer's
state only what belongs to the fragment moves on, as if each fragment had an optimizer of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

import meshdsl as md
from meshdsl.dims import Dim
from meshdsl.layout import Layout
from meshdsl.lowering import resharding
from meshdsl.lowering.lower import Lowered, gather_updated
from meshdsl.lowering.shardings import shardings
from meshdsl.lowering.wires import Wired
from meshdsl.program.recorder import Op
from meshdsl.tensor import Tensor, is_tensor
from meshdsl.train.fragments import Fragment
from meshdsl.train.precision import cast
from meshdsl.train.trained import name_at, parameters_by_name

_NO_PARAMETER = ""  # stands for the name where a number of an optimizer is of no parameter


class Exchange:
    """What becomes of outer parameters when workers send a fragment of theirs.

    Args:
      outer: the optimizer.
      trained: the parameters that are trained, as shapes.
      dims: that the layout may speak of.
      wire: the axes of `worker` over which sums are taken in few bits, and how.
    """

    def __init__(
        self,
        outer: optax.GradientTransformation,
        trained: Any,
        worker: Dim,
        layout: Layout,
        mesh: Mesh,
        dims: Iterable[Dim | str],
        wire: Wired = (),
    ):
        self._outer = optax.with_extra_args_support(outer)
        self._worker, self._layout, self._mesh, self._wire = worker, layout, mesh, wire
        self._dims = list(dims)
        self._split = shardings(trained, layout, mesh, "optimizer")
        self._to_rest = gather_updated(layout, mesh, self._dims)
        self._lowered: Lowered | None = None  # of the latest trace of `sent`

    @property
    def record(self) -> list[Op]:
        """The ops of the latest trace of `sent`."""
        assert self._lowered is not None
        return [*self._lowered.record, *self._to_rest.record]

    def sent(
        self, fragment: Fragment, outer: Any, opt_state: Any, of_workers: Any, counts: bool
    ) -> tuple[Any, Any]:
        """Outer parameters and the outer optimizer's state after workers sent a fragment.

        Args:
          of_workers: the parameters of all workers, with `worker` in front.
          counts: whether numbers that are of no parameter, such as a count of updates, move on.
            They do with one of several fragments.
        """

        def moved(outer: dict[str, Tensor], of_workers: dict[str, Tensor]) -> dict[str, Tensor]:
            one = lambda name: self._moved(fragment, name, outer[name], of_workers[name])
            return {name: one(name) for name in outer}

        self._lowered = md.lower(moved, self._layout, self._mesh, dims=self._dims)
        inside = lambda tree: {n: x for n, x in parameters_by_name(tree).items() if n in fragment}
        found = self._lowered(inside(outer), inside(of_workers))

        def gradient(name: str, x: Tensor) -> Tensor:
            if name not in fragment:
                return x.replace(array=jnp.zeros_like(x.array))
            part = fragment[name].spread(found[name].array, x.dims[0].size if x.dims else 1)
            return x.replace(array=part)

        before = jax.lax.with_sharding_constraint(outer, self._split)
        gradients = _by_name(gradient, before)
        updates, after = self._outer.update(gradients, opt_state, before)

        def updated(name: str, old: Tensor, gradient: Tensor, update: Tensor) -> Tensor:
            if name not in fragment:
                return old
            # What training moves by signs is state rather than weight: its mean is all that counts.
            by_mean = old.role and old.role.signs
            change = jnp.negative(gradient.array) if by_mean else update.array
            return old.replace(array=fragment[name].chosen(old.array + change, old.array))

        outer = _by_name(updated, before, gradients, updates)
        names = optax.tree.map_params(
            self._outer,
            lambda _, name: name,
            opt_state,
            _by_name(lambda name, x: x.replace(array=name), before),
            transform_non_params=lambda _: _NO_PARAMETER,
        )

        def kept(name: str, new: jax.Array, old: jax.Array) -> jax.Array:
            if name == _NO_PARAMETER:
                return new if counts else old
            return fragment[name].chosen(new, old) if name in fragment else old

        return self._to_rest(outer), jax.tree.map(kept, names, after, opt_state)

    def _moved(self, fragment: Fragment, name: str, outer: Tensor, own: Tensor) -> Tensor:
        """How far a part of a parameter lies from the mean of the workers; inside of a lowering."""
        before, after = (
            md.cast(fragment[name].of(x, outer.dims[0]) if outer.dims else x, jnp.float32)
            for x in (outer, own)
        )
        found = md.mean(before - after, self._worker)
        where = found.placement
        if where is None:
            return found
        found = found.replace(placement=where._replace(level="optimizer"))
        if not self._wire or len(found.dims) < 2 or (outer.role and outer.role.signs):
            return found
        split = where.scope.at_rest(found.dims, "optimizer")
        return resharding.take_sums(found, "exchange", split=split, wire=self._wire)


def arrived(fragment: Fragment, outer: Any, of_workers: Any, own: float, dtype: str) -> Any:
    """The parameters of all workers when what a fragment has become arrives.

    Args:
      own: the share of a worker's own parameters; the rest is of the outer ones.
      dtype: that of the workers' parameters.
    """

    def mixed(name: str, x: Tensor, outer: Tensor) -> Tensor:
        if name not in fragment:
            return x
        new = jnp.broadcast_to(cast(outer, dtype).array, x.array.shape)
        if own:
            wide = x.array.astype(jnp.float32) * own + outer.array * (1 - own)
            new = wide.astype(x.dtype)
        return x.replace(array=fragment[name].chosen(new, x.array, at=1))

    return _by_name(mixed, of_workers, outer)


def _by_name(fn: Callable, tree: Any, *others: Any) -> Any:
    """`fn(name, x, ...)` of each parameter and its name; the trees are of the same parameters."""
    one = lambda path, *each: fn(name_at(path), *each)
    return jax.tree_util.tree_map_with_path(one, tree, *others, is_leaf=is_tensor)
