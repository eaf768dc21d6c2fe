"""Workers that train apart and exchange what they learned now and then: DiLoCo.

`worker` is a dim of parameters, of optimizer state and of the batch, and `worker -> replica` a rule
like any other. A worker's step is that of a `TrainStep`, and all workers together are its map along
`worker`: an `over` of its loss and gradients, and `jax.vmap` of the optimizer's update. Inside of
an `over` the axes of its dim are spent: no collective of a step can run over them, and another rule
that names them skips them.

Every so many steps there is an exchange, see `meshdsl.train.exchange`, and the workers go on from
what the outer optimizer made of the *outer* parameters. These are the parameters of a `State` with
workers: those that are evaluated, sampled and exported, in float32.

Douillard et al., 2023, "DiLoCo: Distributed Low-Communication Training of Language Models".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial, wraps
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
from meshdsl.lowering.shardings import shardings
from meshdsl.lowering.wires import wired
from meshdsl.program.program import Program
from meshdsl.rules import DEFAULTS
from meshdsl.tensor import Tensor, is_tensor
from meshdsl.train.exchange import Exchange, arrived
from meshdsl.train.fragments import fragments_of
from meshdsl.train.local_settings import WIDE
from meshdsl.train.muon import InStacks
from meshdsl.train.precision import cast
from meshdsl.train.step import FLOAT32, State, TrainStep
from meshdsl.train.trained import parameters_by_name, without

WORKER = "worker"


def worker_axes(layout: Layout) -> tuple[str, ...]:
    """The axes that the layout gives to `worker`, major first."""
    return tuple(layout.taken((Dim(WORKER, 1),)))


def layout_of_worker(layout: Layout, worker: Dim, sizes: Mapping[str, int]) -> Layout:
    """The layout of one element of `worker`, whose axes nothing else can have.

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
    return replace(layout, spent=frozenset(axes))


class LocalStep(TrainStep):
    """The step of all workers, and their exchange.

    Arguments that are not here are those of a `TrainStep`.

    Args:
      workers: how many.
      outer: the optax transformation of the exchange.
      fragments: how many parts of the model are exchanged at different times.
      own: the share of its own parameters that a worker keeps when an exchange arrives late.
      wire: how the sums of an exchange travel over the axes of `worker`: "float32", or the name of
        a format, see `lowering.wires`.
      layout: its rules may give axes to `worker`. Without one all devices have all workers.

    Attributes:
      split_of_gradients: of one worker.

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
        fragments: int = 1,
        own: float = 0.5,
        wire: str = WIDE,
        dims: Iterable[Dim | str] = (),
        **how: Any,
    ):
        self.worker = Dim(WORKER, workers)
        self._of_worker = layout_of_worker(layout, self.worker, mesh.shape)
        self._axes = worker_axes(layout)
        self._outer, self._own_share = outer, own
        # Where no axis is one of workers, the name is checked all the same.
        of_wire = {} if wire == WIDE else dict.fromkeys(self._axes or (WORKER,), wire)
        self._wire = wired("local.wire", of_wire, {WORKER: 1, **mesh.shape})
        for axis in how.get("precision", FLOAT32).wire:
            if axis in self._axes:
                raise MeshDSLError(
                    f"precision.wire: no gradient is summed over `{axis}`, which is an axis of "
                    f"`{WORKER}`; local.wire is for what the workers exchange"
                )
        super().__init__(init, loss, tx, layout, mesh, dims=[*dims, WORKER], **how)
        trained, _ = self._parts(self.shapes)
        for name, x in parameters_by_name(self.shapes.params).items():
            self._check_parameter(name, x)
        self.split_of_gradients = shardings(trained, self._of_worker, mesh, "optimizer")
        self._outside = Exchange(outer, trained, self.worker, layout, mesh, self._dims, self._wire)
        self._fragments = fragments_of(trained, fragments)
        compiled = partial(
            jax.jit,
            static_argnames="fragment",
            donate_argnums=0,
            compiler_options=self.compiler_options or None,
        )
        self._exchange = compiled(self._exchanged, out_shardings=self.shardings)
        self._arrive = compiled(self._arrived, out_shardings=self.shardings)
        both = self.shardings, self._place_of_metrics()
        self._send = compiled(self._one_step_sending, out_shardings=both)
        everywhere = NamedSharding(mesh, PartitionSpec())
        self._means = jax.jit(_means, out_shardings=everywhere)

    def _check_parameter(self, name: str, x: Tensor) -> None:
        if any(dim.name == WORKER for dim in x.dims):
            raise MeshDSLError(
                f"local.workers: `{name}` has a dim `{WORKER}` of its own; give that another name"
            )
        split = self.layout.at_rest(x.dims, self.mesh.shape, "parameters")
        for dim, axes in split.items():
            if both := [axis for axis in axes if axis in self._axes]:
                rule = self.layout.taken(x.dims, "parameters")[both[0]]
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
        assert shapes.workers is not None
        one = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype),
            self._of_one(shapes.workers.opt_state),
        )
        of_one = shardings(one, self._of_worker, self.mesh, "optimizer")
        of_all = self._in_front(jax.tree.map(self._ahead, of_one))
        workers = super()._state_shardings(shapes.workers, of_all)
        scale = jax.tree.map(self._ahead, workers.scale)
        workers = workers.replace(step=None, key=None, scale=scale)
        return super()._state_shardings(shapes, opt_state).replace(workers=workers)

    def _ahead(self, of_one: NamedSharding) -> NamedSharding:
        """The sharding of an array of all workers, of which that of one worker has another."""
        return NamedSharding(self.mesh, PartitionSpec(self._axes or None, *of_one.spec))

    def _place_of_metrics(self) -> Any:
        return self._ahead(NamedSharding(self.mesh, PartitionSpec()))

    # -- the step --------------------------------------------------------------------------------

    def _of_model(self, loss_and_gradients: Callable) -> Callable:
        @wraps(loss_and_gradients)
        def of_worker(params, batch, key, dropped, *rest):
            key, *rest = [x.array if is_tensor(x) and not x.dims else x for x in (key, *rest)]
            return loss_and_gradients(params, batch, key, dropped, *rest)

        return md.over(WORKER, of_worker)

    def _loss_and_gradients_of(self, state: State, batch: dict[str, Tensor]) -> Any:
        key, *scale = self._of_each(self._key_and_scale, state)
        ahead = () if self.microbatches is None else (self.microbatches,)
        key = Tensor(key, (self.worker, *ahead))
        scale = [Tensor(x, (self.worker,)) for x in scale]
        assert state.workers is not None
        trained, _ = self._parts(state.workers)
        _, frozen = self._parts(state)
        dropped = state.workers.dropped or {}
        return self._gradients(trained, batch, key, dropped, *scale, *frozen)

    def _of_each(self, fn: Callable, state: State, *args: Any) -> Any:
        """What `fn` gives for the state of each worker and its part of `args`: arrays of all."""
        assert state.workers is not None
        _, frozen = self._parts(state)

        def of_one(own: State, number, *args: Any) -> Any:
            key = jax.random.fold_in(state.key, number)
            one = own.replace(step=state.step, key=key)
            return fn(self._with_trained(one, self._parts(own)[0], frozen), *args)

        mapped = jax.vmap(of_one, spmd_axis_name=self._axes or None)
        numbers = jnp.arange(self.worker.size)
        return mapped(self._of_one(state.workers), numbers, *self._of_one(args))

    def _one_step(self, state: State, batch):
        def one_step(one: State, found: Any) -> tuple[State, dict[str, jax.Array]]:
            after, measured = self._after(one, found)
            return self._own(after), measured

        found = self._loss_and_gradients_of(state, batch)
        workers, measured = self._of_each(one_step, state, found)
        workers = self._in_front(workers)
        trained, of_each = self._parts(workers)
        workers = self._with_trained(workers, self._to_rest(trained), of_each)
        return state.replace(step=state.step + 1, workers=workers), measured

    def _run_lowered(self, in_stacks: InStacks, tree: Any) -> Any:
        @jax.custom_batching.custom_vmap
        def run(tree: Any) -> Any:
            return in_stacks.of_one_device(tree)

        @run.def_vmap
        def of_all(_: int, is_mapped: Any, tree: Any) -> tuple[Any, Any]:
            del is_mapped  # all of it is
            lowered = in_stacks.lowered(tree, self._of_worker, self.mesh, self._dims, self.worker)
            self._in_update.append(lowered)
            made = self._of_one(lowered(self._in_front(tree)))
            return made, jax.tree.map(lambda _: True, made)

        return run(tree)

    def told(self, measured: Sequence[Mapping[str, jax.Array]]) -> Sequence[dict[str, jax.Array]]:
        """The means over workers, which wait for each other here."""
        return self._means(measured)

    def _without_gradients(self, state: State) -> set[str]:
        outer = {"params": state.params, "adapters": state.adapters}
        return set(parameters_by_name(outer))

    # -- the exchange ----------------------------------------------------------------------------

    def exchange(self, state: State, fragment: int = 0) -> State:
        """The state after an exchange of a fragment, which all workers wait for.

        The memory of `state` is used for it.
        """
        return self._exchange(state, fragment=fragment)

    def sending(
        self, state: State, batch: dict[str, Tensor], fragment: int
    ) -> tuple[State, dict[str, jax.Array]]:
        """As a step, beside which the workers send a fragment of what they had before it.

        The outer parameters and the outer optimizer's state are those after the exchange; the
        workers have nothing of it before it is made to `arrive`.
        """
        return self._send(state, batch, fragment=fragment)

    def arrive(self, state: State, fragment: int) -> State:
        """The state when what a fragment has become arrives at the workers; nothing is sent.

        The memory of `state` is used for it.
        """
        return self._arrive(state, fragment=fragment)

    def _sent(self, state: State, fragment: int) -> State:
        """The state with outer parameters and an outer optimizer's state after an exchange."""
        assert state.workers is not None
        trained, frozen = self._parts(state)
        of_workers, _ = self._parts(state.workers)
        of = self._fragments[fragment]
        sent = self._outside.sent(of, trained, state.opt_state, of_workers, counts=fragment == 0)
        outer, opt_state = sent
        return self._with_trained(state, outer, frozen).replace(opt_state=opt_state)

    def _arrived(self, state: State, fragment: int, own: float | None = None) -> State:
        assert state.workers is not None
        trained, _ = self._parts(state)
        of_workers, of_each = self._parts(state.workers)
        own, dtype = self._own_share if own is None else own, self._precision.params
        found = arrived(self._fragments[fragment], trained, of_workers, own, dtype)
        return state.replace(workers=self._with_trained(state.workers, found, of_each))

    def _exchanged(self, state: State, fragment: int) -> State:
        return self._arrived(self._sent(state, fragment), fragment, own=0.0)

    def _one_step_sending(self, state: State, batch, fragment: int):
        sent = self._sent(state, fragment)
        after, measured = self._one_step(state, batch)
        with_outer = after.replace(params=sent.params, adapters=sent.adapters)
        return with_outer.replace(opt_state=sent.opt_state), measured

    def lower_exchange(self, fragment: int = 0) -> Any:
        """An exchange, ready to be compiled ahead of time."""
        return self._exchange.lower(self.abstract, fragment=fragment)

    def lower_sending(self, batch: dict[str, Tensor], fragment: int = 0) -> Any:
        """A step beside which a fragment is sent, ready to be compiled ahead of time."""
        return self._send.lower(self.abstract, batch, fragment=fragment)

    def exchange_program(self, fragment: int = 0) -> Program:
        """The recorded program of an exchange of a fragment."""
        traced = jax.jit(lambda state: self._exchanged(state, fragment)).trace(self.abstract)
        return Program(
            self._outside.record,
            traced.jaxpr,
            self.layout,
            dict(self.mesh.shape),
            (self.abstract,),
            (0,),
        )


def _means(measured: Sequence[Mapping[str, jax.Array]]) -> list[dict[str, jax.Array]]:
    """The means of all over workers, in one sum, from what steps measured in each worker."""
    each = jnp.stack([jnp.stack(list(of_step.values())) for of_step in measured])
    means = each.astype(jnp.float32).mean(-1)
    return [dict(zip(one, mean, strict=True)) for one, mean in zip(measured, means, strict=True)]
