"""Workers that train apart and exchange what they learned now and then: DiLoCo.

`worker` is a dim of parameters, of optimizer state and of the batch, and `worker -> replica` a rule
like any other. A worker's step is a `TrainStep`: all workers together are its map along `worker`,
so two workers on one device are two slices of its arrays. `worker` stands at the top of every loop
nest of this step, so the axes that its rules take are taken in all of it: no collective of a step
can run over them, and another rule that names them skips them.

Every so many steps there is an exchange. The mean of the workers' parameters is an op of the
language, so by the law it is one sum over the axes of `worker`. How far it lies from the *outer*
parameters is the gradient of the outer optimizer, and the workers go on from what that makes of
them. The parameters of a `State` with workers are the outer ones: those that are evaluated,
sampled and exported, in float32.

Douillard et al., 2023, "DiLoCo: Distributed Low-Communication Training of Language Models".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import meshdsl as md
from meshdsl.dims import Dim
from meshdsl.errors import MeshDSLError
from meshdsl.layout import Layout
from meshdsl.lowering.lower import gather_updated
from meshdsl.lowering.shardings import shardings
from meshdsl.program.program import Program
from meshdsl.rules import DEFAULTS
from meshdsl.tensor import Tensor, is_tensor
from meshdsl.train.precision import cast
from meshdsl.train.step import State, TrainStep
from meshdsl.train.trained import parameters_by_name, without

WORKER = "worker"


def worker_axes(layout: Layout) -> tuple[str, ...]:
    """The axes that the layout gives to `worker`, major first."""
    return tuple(layout.taken((Dim(WORKER, 1),)))


def layout_of_worker(layout: Layout, worker: Dim, sizes: Mapping[str, int]) -> Layout:
    """The layout of a worker's step, which is mapped along the axes of `worker`.

    Raises:
      MeshDSLError: `worker` does not divide over its axes; its rule says more than axes, is not in
        the list `rules`, or stands below another one that takes its axes.
    """
    for number, rule in enumerate(layout.parsed):
        if rule.dim != WORKER:
            continue
        above = [r for r in layout.parsed[:number] if r.axis == rule.axis and r.dim != WORKER]
        if rule.level != "rules":
            raise MeshDSLError(
                f"{rule}: workers are apart in all that they do, so `{WORKER}` is of the list "
                "`rules`"
            )
        if rule.microbatches or any(getattr(rule, key) != word for key, word in DEFAULTS.items()):
            raise MeshDSLError(f"{rule}: a rule of `{WORKER}` says nothing but its axes")
        if above:
            raise MeshDSLError(
                f"{rule}: `{WORKER}` stands in every loop nest of a worker's step, and `"
                f"{above[0].dim}` takes `{rule.axis}` above it, in {above[0]}; move the rule of "
                f"`{WORKER}` above that"
            )
    layout.check_axes(sizes)
    axes = worker_axes(layout)
    if worker.size % prod(sizes[axis] for axis in axes):
        over = " x ".join(f"`{axis}`={sizes[axis]}" for axis in axes)
        raise MeshDSLError(
            f"{layout.taken((worker,))[axes[0]]}: local.workers={worker.size} does not divide over "
            f"{over}"
        )
    return replace(layout, mapped=axes)


class LocalStep(TrainStep):
    """The step of all workers, and their exchange.

    Arguments that are not here are those of a `TrainStep`.

    Args:
      workers: how many.
      outer: the optax transformation of the exchange.
      layout: its rules may give axes to `worker`. Without one all devices have all workers.

    Attributes:
      layout: that of a worker's step.

    Raises:
      MeshDSLError: as a `TrainStep`; or `worker` is a dim of the model, or cannot be split so.
    """

    def __init__(
        self,
        init: Callable,
        loss: Callable,
        tx: optax.GradientTransformation,
        layout: Layout,
        mesh: Mesh,
        *,
        workers: int,
        outer: optax.GradientTransformation,
        dims: Iterable[Dim | str] = (),
        **how: Any,
    ):
        self.worker = Dim(WORKER, workers)
        of_worker = layout_of_worker(layout, self.worker, mesh.shape)
        self._axes = worker_axes(layout)
        self._outer = optax.with_extra_args_support(outer)
        super().__init__(init, loss, tx, of_worker, mesh, dims=[*dims, WORKER], **how)
        trained, _ = self._parts(self.shapes)
        for name, x in parameters_by_name(self.shapes.params).items():
            self._check_parameter(name, x)
        self._split_of_outer = shardings(trained, layout, mesh, "optimizer")
        self._mean = md.lower(self._mean_of_workers, layout, mesh, dims=self._dims)
        self._outer_to_rest = gather_updated(layout, mesh, self._dims)
        self.exchange = jax.jit(
            self._exchanged,
            donate_argnums=0,
            out_shardings=self.shardings,
            compiler_options=self.compiler_options or None,
        )
        everywhere = NamedSharding(mesh, PartitionSpec())
        self._means = jax.jit(
            lambda measured: jax.tree.map(lambda x: x.mean(0), measured), out_shardings=everywhere
        )

    def _check_parameter(self, name: str, x: Tensor) -> None:
        if any(dim.name == WORKER for dim in x.dims):
            raise MeshDSLError(
                f"local.workers: `{name}` has a dim `{WORKER}` of its own; give that another name"
            )
        split = self._whole_layout.at_rest(x.dims, self.mesh.shape, "parameters")
        for dim, axes in split.items():
            if both := [axis for axis in axes if axis in self._axes]:
                rule = self._whole_layout.taken(x.dims, "parameters")[both[0]]
                raise MeshDSLError(
                    f"{rule}: splits `{name}` over `{both[0]}`, by its `{dim.name}`, and each "
                    f"worker along `{both[0]}` has parameters of its own; the list `optimizer` may "
                    "split the state of the outer optimizer so"
                )

    # -- the state -----------------------------------------------------------------------------

    def _first_state(self, key) -> State:
        return self._begun(super()._first_state(key))

    def _begun(self, first: State) -> State:
        """The state before an exchange, of which `first` is that of one worker."""
        trained, frozen = self._parts(first)
        own = self._own(self._with_trained(first, cast(trained, self._precision.params), frozen))
        count = self.worker.size
        spread = jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *x.shape)), own)
        outer = cast(trained, jnp.float32)
        return self._with_trained(first, outer, frozen).replace(
            opt_state=self._outer.init(outer),
            scale=None,
            dropped=None,
            workers=self._in_front(spread),
        )

    def restarted(self, state: State) -> State:
        return jax.jit(self._begun_again, out_shardings=self.shardings)(state)

    def rejoined(self, state: State) -> State:
        """`state` with workers that begin from the outer parameters; its memory is used for that.

        The state of the outer optimizer stays, and that of the inner ones begins again.
        """

        def rejoined(state: State) -> State:
            return self._begun_again(state).replace(opt_state=state.opt_state)

        return jax.jit(rejoined, out_shardings=self.shardings, donate_argnums=0)(state)

    def _begun_again(self, state: State) -> State:
        """As `_begun`, with the outer parameters that a state has."""
        kept = {name: getattr(state, name) for name in ("step", "params", "key", "adapters")}
        first = super()._first_state(state.key).replace(**kept)
        return self._begun(first.replace(opt_state=self.first_opt_state(first)))

    def _own(self, state: State) -> State:
        """What of the state of one worker is its own."""
        own = without(state.params, self._frozen)
        return state.replace(step=None, key=None, params=own, workers=None)

    def _in_front(self, tree: Any) -> Any:
        """`tree` with the dim `worker` in front of the dims of its Tensors."""
        ahead = lambda x: x.replace(dims=(self.worker, *x.dims)) if is_tensor(x) else x
        return jax.tree.map(ahead, tree, is_leaf=is_tensor)

    def _of_one(self, tree: Any) -> Any:
        """`tree` without the dim `worker` of its Tensors, for a map along it."""
        rest = lambda x: x.replace(dims=x.dims[1:]) if is_tensor(x) else x
        return jax.tree.map(rest, tree, is_leaf=is_tensor)

    def _state_shardings(self, shapes: State, opt_state: Any) -> State:
        of_outer = shardings(shapes.opt_state, self._whole_layout, self.mesh, "optimizer")
        one = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), self._of_one(shapes.workers)
        )
        of_one = super()._state_shardings(
            one, shardings(one.opt_state, self.layout, self.mesh, "optimizer")
        )
        workers = jax.tree.map(self._ahead, of_one.replace(step=None, key=None))
        return super()._state_shardings(shapes, of_outer).replace(workers=self._in_front(workers))

    def _ahead(self, of_one: NamedSharding) -> NamedSharding:
        """The sharding of an array of all workers, of which that of one worker has another."""
        return NamedSharding(self.mesh, PartitionSpec(self._axes or None, *of_one.spec))

    def _place_of_metrics(self) -> Any:
        return self._ahead(NamedSharding(self.mesh, PartitionSpec()))

    def _placed(self, tree: Any, places: Any) -> Any:
        """As that of a `TrainStep`, of one worker: in a map the axes of workers stand in front."""
        constrained = jax.lax.with_sharding_constraint

        @jax.custom_batching.custom_vmap
        def at(tree: Any) -> Any:
            return constrained(tree, places)

        @at.def_vmap
        def mapped(_: int, is_mapped: list[Any], tree: Any) -> tuple[Any, Any]:
            ahead = lambda m, place: self._ahead(place) if m else place
            return constrained(tree, jax.tree.map(ahead, is_mapped[0], places)), is_mapped[0]

        return at(tree)

    # -- the step --------------------------------------------------------------------------------

    def _of_each(self, fn: Callable, state: State, batch: dict[str, Tensor]) -> Any:
        """What `fn` gives for the state and the batch of each worker, with `worker` in front."""
        _, frozen = self._parts(state)

        def of_one(own: State, batch: dict[str, Tensor], number) -> Any:
            key = jax.random.fold_in(state.key, number)
            one = own.replace(step=state.step, key=key)
            return fn(self._with_trained(one, self._parts(own)[0], frozen), batch)

        numbers = jnp.arange(self.worker.size)
        return jax.vmap(of_one)(self._of_one(state.workers), self._of_one(batch), numbers)

    def _one_step(self, state: State, batch):
        def one_step(one: State, batch: dict[str, Tensor]) -> tuple[State, dict[str, jax.Array]]:
            after, measured = TrainStep._one_step(self, one, batch)
            return self._own(after), measured

        workers, measured = self._of_each(one_step, state, batch)
        return state.replace(step=state.step + 1, workers=self._in_front(workers)), measured

    def gradients(self, state: State, batch: dict[str, Tensor]) -> Any:
        return self._in_front(self._of_each(super().gradients, state, batch))

    def told(self, measured: Mapping[str, jax.Array]) -> Mapping[str, jax.Array]:
        return self._means(measured)

    def _without_gradients(self, state: State) -> set[str]:
        outer = {"params": state.params, "adapters": state.adapters}
        return set(parameters_by_name(outer))

    # -- the exchange ----------------------------------------------------------------------------

    def _mean_of_workers(self, trained: Any) -> Any:
        """The mean over workers of what is trained, split as the outer optimizer's state is."""

        def mean(x: Tensor) -> Tensor:
            found = md.mean(md.cast(x, jnp.float32), self.worker)
            placement = found.placement and found.placement._replace(level="optimizer")
            return found.replace(role=x.role, placement=placement)

        return jax.tree.map(mean, trained, is_leaf=is_tensor)

    def _exchanged(self, state: State) -> State:
        """The state after an exchange: outer parameters and state, from which all workers go on."""
        assert state.workers is not None
        trained, frozen = self._parts(state)
        of_workers, of_each = self._parts(state.workers)
        mean = self._mean(of_workers)
        before = jax.lax.with_sharding_constraint(trained, self._split_of_outer)
        moved = jax.tree.map(jnp.subtract, before, mean)
        updates, opt_state = self._outer.update(moved, state.opt_state, before)
        # What training moves by signs is state rather than weight, so its mean is all that counts.
        outer = jax.tree.map(
            lambda new, mean: mean if mean.role and mean.role.signs else new,
            optax.apply_updates(before, updates),
            mean,
            is_leaf=is_tensor,
        )
        outer = self._outer_to_rest(outer)
        count = self.worker.size
        spread = jax.tree.map(
            lambda x: jnp.broadcast_to(x, (count, *x.shape)), cast(outer, self._precision.params)
        )
        workers = self._with_trained(state.workers, self._in_front(spread), of_each)
        return self._with_trained(state, outer, frozen).replace(
            opt_state=opt_state, workers=workers
        )

    def exchange_program(self) -> Program:
        """The recorded program of an exchange."""
        traced = jax.jit(lambda state: self._exchanged(state)).trace(self.abstract)
        return Program(
            [*self._mean.record, *self._outer_to_rest.record],
            traced.jaxpr,
            self._whole_layout,
            dict(self.mesh.shape),
            (self.abstract,),
            (0,),
        )
