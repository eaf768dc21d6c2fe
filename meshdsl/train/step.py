"""One step of training as one compiled program: gradients, by the law, and the optimizer's update.

The gradients are lowered. Optax runs outside of the lowering, on global arrays that are split as
the layout splits optimizer state: inside, its sums over a parameter would be sums over one device's
part of it. What it computes for each element needs no communication, and an optimizer may lower
what needs some (see `meshdsl.train.muon`). Where the layout splits
optimizer state further than parameters (ZeRO-1), each updated parameter is gathered once, by the
law. The global norms of gradients and parameters are taken inside the lowering, where their sums
are collectives that are recorded.

Parameters and optimizer state are kept in the dtypes of the precision. The update is computed in
float32, and rounded before parameters are gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax.struct import PyTreeNode
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import meshdsl as md
from meshdsl.dims import Dim
from meshdsl.layout import Layout
from meshdsl.lowering.lower import Lowered, gather_updated
from meshdsl.lowering.shardings import shapes_at, shardings
from meshdsl.lowering.wires import check_summed, wired
from meshdsl.predict.compiler.options import default_options
from meshdsl.program.program import Program
from meshdsl.tensor import Tensor, is_tensor
from meshdsl.train import feedback
from meshdsl.train.adapters import Frozen, Trained
from meshdsl.train.muon import InStacks, Lowering
from meshdsl.train.offload import DEVICE, HOST, check_host_memory, in_memory
from meshdsl.train.optimizer import average_of
from meshdsl.train.precision import LossScale, cast, round_at_random
from meshdsl.train.precision_settings import Precision
from meshdsl.train.step_gradients import DROPPED, loss_and_gradients_of
from meshdsl.train.trained import only, together, without

FLOAT32 = Precision()
_WIRE = "precision.wire"
_ADAPTERS = 1  # folded into the key of the parameters to make that of the adapters


class State(PyTreeNode):
    """Everything that a run carries from step to step.

    Attributes:
      step: how many steps led to this state, int32.
      params: the model, a pytree of parameter Tensors.
      opt_state: what the optimizer keeps.
      key: the random key of the run; each step folds in its number.
      scale: of the loss, where the loss is scaled dynamically.
      adapters: what is trained beside the model, see `meshdsl.train.adapters`.
      dropped: what sums of gradients in few bits have dropped, see `meshdsl.train.feedback`.
      workers: what each worker has of its own, where there are some, see `meshdsl.train.local`.
    """

    step: jax.Array
    params: Any
    opt_state: Any
    key: jax.Array
    scale: LossScale | None = None
    adapters: dict[str, Any] | None = None
    dropped: dict[str, Tensor] | None = None
    workers: State | None = None


class TrainStep:
    """A compiled step of training under a layout.

    Args:
      init: called with a key, returns the parameters: a pytree of parameter Tensors.
      loss: called with the parameters, a dict of batch Tensors and a key, returns the loss, a
        Tensor without dims, and a dict of such Tensors to report.
      tx: an optax transformation.
      frozen: the names of parameters that are not trained. They have no gradient and no optimizer
        state, and `tx` sees None in their place.
      adapters: called with the parameters and a key, returns the adapters that are trained beside
        them. The loss function gets a model that computes with both.
      clip: gradients whose global norm is larger are scaled down to this norm; 0: never.
      microbatches: a dim of the batch Tensors over which gradients are accumulated before they are
        summed over devices.
      dims: dims that the layout may speak of although the step does not touch them.
      precision: the dtypes that parameters and optimizer state are kept in, that the loss function
        gets its parameters in, and that gradients are summed in; and the scale of the loss.
      skip_nonfinite: whether a step whose loss or gradient is NaN or infinite changes nothing but
        the number of the step. With a dynamic loss scale it is so in any case.
      offload: with "optimizer", the optimizer's state waits in the memory of the host. For
        "activations" it is only checked that the devices can: the loss function does it.
      compiler_options: by default those that let collectives run while the chips of the mesh
        compute.
      shapes: those of another step that differs in its layout and its mesh alone; by default they
        are found by a trace.

    Attributes:
      shapes: the state as `ShapeDtypeStruct`s without shardings.
      abstract: the state as `ShapeDtypeStruct`s with shardings; no array is made for it.
      shardings: the sharding of each array of the state.
      compiler_options: the options that the step is compiled with.
      split_of_gradients: the sharding of the gradient of each parameter.

    Raises:
      MeshDSLError: the layout does not fit the parameters, the devices cannot offload, or gradients
        are to be sent in few bits over an axis that the mesh lacks, or in an unknown format.
    """

    def __init__(
        self,
        init: Callable,
        loss: Callable,
        tx: optax.GradientTransformation,
        layout: Layout,
        mesh: Mesh,
        *,
        frozen: Collection[str] = (),
        adapters: Callable | None = None,
        clip: float = 0.0,
        microbatches: Dim | None = None,
        dims: Iterable[Dim | str] = (),
        precision: Precision = FLOAT32,
        skip_nonfinite: bool = False,
        offload: Iterable[str] = (),
        compiler_options: Mapping[str, str] | None = None,
        shapes: State | None = None,
    ):
        dims, offload = list(dims), tuple(offload)
        check_host_memory(mesh, offload)
        of_values = {rule.axis for rule in layout.at("rules")}
        wires = wired(_WIRE, precision.wire, mesh.shape)
        check_summed(_WIRE, wires, of_values)
        self._wires = wires if precision.feedback else ()
        self._init, self._clip, self._frozen = init, clip, frozenset(frozen)
        self._tx = optax.with_extra_args_support(tx)
        self.layout, self.mesh, self.microbatches = layout, mesh, microbatches
        self._precision, self._adapters = precision, adapters
        self._skips = skip_nonfinite or precision.loss_scale == "dynamic"
        inside = feedback.with_senders(layout, wires) if self._wires else layout
        self._gradients = md.lower(
            self._of_model(loss_and_gradients_of(loss, microbatches, precision)),
            inside,
            mesh,
            dims=dims,
            optimizer_argnums=DROPPED,
        )
        found = jax.eval_shape(self._first_state, jax.random.key(0)) if shapes is None else shapes
        self.shapes: State = found
        opt_state = shardings(self.shapes.opt_state, layout, mesh, "optimizer")
        on_host = "optimizer" in offload
        # Where optimizer state that waits on the host is brought for the update.
        self._fetched = in_memory(opt_state, DEVICE) if on_host else None
        self.shardings = self._state_shardings(
            self.shapes, in_memory(opt_state, HOST) if on_host else opt_state
        )
        self.abstract = shapes_at(self.shapes, self.shardings)
        trained, _ = self._parts(self.shapes)
        if self._wires:
            feedback.check(trained, layout, wires, mesh.shape)
        self.split_of_gradients = shardings(trained, layout, mesh, "optimizer")
        parameters = jax.tree.leaves(trained, is_leaf=is_tensor)
        known = {dim.name for parameter in parameters for dim in parameter.dims}
        self._dims = [*dims, *known, *(rule.dim for rule in layout.parsed)]
        self._to_rest = gather_updated(layout, mesh, self._dims)
        self._lowers = isinstance(tx, Lowering)
        self._in_update: list[Lowered] = []  # what the latest trace of an update lowered
        self.compiler_options = (
            default_options(mesh) if compiler_options is None else dict(compiler_options)
        )
        self._make = jax.jit(self._first_state, out_shardings=self.shardings)
        self._step = jax.jit(
            self._one_step,
            donate_argnums=0,
            out_shardings=(self.shardings, self._place_of_metrics()),
            compiler_options=self.compiler_options or None,
        )

    def _state_shardings(self, shapes: State, opt_state: Any) -> State:
        """The sharding of each array of a state, of which those of the optimizer are given."""
        everywhere = NamedSharding(self.mesh, PartitionSpec())
        return shapes.replace(
            step=everywhere,
            params=shardings(shapes.params, self.layout, self.mesh),
            opt_state=opt_state,
            key=everywhere,
            adapters=shardings(shapes.adapters, self.layout, self.mesh),
            scale=jax.tree.map(lambda _: everywhere, shapes.scale),
            dropped=shardings(shapes.dropped, self._gradients.layout, self.mesh, "optimizer"),
        )

    def _of_model(self, loss_and_gradients: Callable) -> Callable:
        """The function that is lowered, as `step_gradients` has it."""
        return loss_and_gradients

    def _place_of_metrics(self) -> Any:
        """The sharding of what a step measures; None: the compiler's."""
        return None

    def init(self, key) -> State:
        """The first state. Each device makes its part, and the values are those of any layout."""
        return self._make(key)

    def lower_init(self, key) -> jax.stages.Lowered:
        """What makes the first state, ready to be compiled ahead of time."""
        return self._make.lower(key)

    def __call__(
        self, state: State, batch: dict[str, Tensor]
    ) -> tuple[State, dict[str, jax.Array]]:
        """Take one step; the memory of `state` is used for the next state, so it is gone.

        Returns:
          The next state, and what the step measured, as arrays without dims: `loss`, what the loss
          function reports, `gradient_norm` (before clipping) and `parameter_norm` (before the
          update), both of what is trained; `loss_scale` where the loss is scaled, and `skipped`
          where steps may be skipped.
        """
        return self._step(state, batch)

    def told(self, measured: Sequence[Mapping[str, jax.Array]]) -> Sequence[dict[str, jax.Array]]:
        """What steps measured, for each as arrays without dims that every process has."""
        return [dict(each) for each in measured]

    def averaged(self, state: State) -> State:
        """`state` with the average of what is trained in its place, split as the parameters are.

        The optimizer has to keep one, see `optimizer.average`.
        """

        def average(state: State) -> tuple[Any, Any]:
            trained, frozen = self._parts(state)
            mean = jax.tree.map(
                lambda x, m: m.astype(x.dtype), trained, average_of(state.opt_state)
            )
            found = self._with_trained(state, mean, frozen)
            return found.params, found.adapters

        shardings = self.shardings.params, self.shardings.adapters
        params, adapters = jax.jit(average, out_shardings=shardings)(state)
        return state.replace(params=params, adapters=adapters)

    def restarted(self, state: State) -> State:
        """`state` with what the optimizer keeps before any step, for the parameters that it has."""
        first = jax.jit(self.first_opt_state, out_shardings=self.shardings.opt_state)
        return state.replace(opt_state=first(state))

    def lower(self, state: State, batch: dict[str, Tensor]):
        """The step, ready to be compiled ahead of time; `self.abstract` will do as the state."""
        return self._step.lower(state, batch)

    def program(self, state: State, batch: dict[str, Tensor]) -> Program:
        """The recorded program of the step: every op with its split, and every collective."""
        traced = jax.jit(lambda *args: self._one_step(*args)).trace(state, batch)
        parts = (self._gradients, *self._in_update, self._to_rest)
        return Program(
            [op for part in parts for op in part.record],
            traced.jaxpr,
            self.layout,
            dict(self.mesh.shape),
            (state, batch),
            (0,),
            frozen=self._without_gradients(state),
            results=traced.out_info,
        )

    def _without_gradients(self, state: State) -> set[str]:
        """The names, in a state, of parameters that a step takes no gradient by."""
        return {f"params.{name}" for name in self._frozen}

    def _run_lowered(self, in_stacks: InStacks, tree: Any) -> Any:
        """Run a part of the optimizer's update, which is recorded."""
        self._in_update.append(in_stacks.lowered(tree, self.layout, self.mesh, self._dims))
        return self._in_update[-1](tree)

    def gradients(self, state: State, batch: dict[str, Tensor]) -> Any:
        """The gradients of a step, split as optimizer state is; to be compiled by the caller."""
        return self._loss_and_gradients_of(state, batch)[2]

    def _loss_and_gradients_of(self, state: State, batch: dict[str, Tensor]) -> Any:
        """The loss, what is reported, the gradients, the global norms, and what is dropped."""
        key, *scale = self._key_and_scale(state)
        if self.microbatches is not None:
            key = Tensor(key, (self.microbatches,))
        trained, frozen = self._parts(state)
        return self._gradients(trained, batch, key, state.dropped or {}, *scale, *frozen)

    def _key_and_scale(self, state: State) -> list[jax.Array]:
        """The random key of a step, or of each microbatch; and the scale of the loss, if any."""
        key, scale = jax.random.fold_in(state.key, state.step), self._scale(state)
        if self.microbatches is not None:
            key = jax.random.split(key, self.microbatches.size)
        return [key] if scale is None else [key, scale]

    def _parts(self, state: State) -> tuple[Any, list[Any]]:
        """What of a state is trained, and, where not all is, a list of the other parts of it."""
        if state.adapters is not None:
            of, scale = state.adapters, state.adapters["scale"]
            trained = Trained(without(state.params, self._frozen), of["a"], of["b"])
            return trained, [Frozen(only(state.params, self._frozen), scale)]
        if not self._frozen:
            return state.params, []
        return without(state.params, self._frozen), [only(state.params, self._frozen)]

    def _with_trained(self, state: State, trained: Any, frozen: list[Any]) -> State:
        """`state` with other values of what is trained, which `_parts` gave with `frozen`."""
        if state.adapters is not None:
            params = together(trained.params, frozen[0].params)
            adapters = {"a": trained.a, "b": trained.b, "scale": frozen[0].scale}
            return state.replace(params=params, adapters=adapters)
        return state.replace(params=together(trained, *frozen) if frozen else trained)

    def _first_state(self, key) -> State:
        for_params, for_steps = jax.random.split(key)
        params, precision = cast(self._init(for_params), self._precision.params), self._precision
        if self._frozen and precision.frozen != "params":
            frozen = cast(only(params, self._frozen), precision.frozen)
            params = together(without(params, self._frozen), frozen)
        scale = LossScale.first() if precision.loss_scale == "dynamic" else None
        adapters = None
        if self._adapters is not None:
            adapters = self._adapters(params, jax.random.fold_in(for_params, _ADAPTERS))
            adapters = cast(adapters, precision.params)
        state = State(jnp.zeros((), jnp.int32), params, None, for_steps, scale, adapters)
        if self._wires:
            trained, _ = self._parts(state)
            dropped = feedback.nothing_dropped(trained, self._wires, self.mesh.shape)
            state = state.replace(dropped=dropped)
        return state.replace(opt_state=self.first_opt_state(state))

    def first_opt_state(self, state: State) -> Any:
        """What the optimizer keeps before any step, for the parameters of `state`."""
        trained, _ = self._parts(state)
        return cast(self._tx.init(cast(trained, jnp.float32)), self._precision.optimizer)

    def _one_step(self, state: State, batch):
        after, metrics = self._after(state, self._loss_and_gradients_of(state, batch))
        trained, frozen = self._parts(after)
        return self._with_trained(after, self._to_rest(trained), frozen), metrics

    def _after(self, state: State, found: Any) -> tuple[State, dict[str, jax.Array]]:
        """The state after a step, of which the gradients are found, and what was measured.

        What is trained is split as optimizer state is, and not gathered yet.
        """
        loss, aux, grads, norms, dropped = found
        scale = self._scale(state)
        trained, frozen = self._parts(state)
        metrics = {"loss": loss.array, **{name: t.array for name, t in {**aux, **norms}.items()}}
        if scale is not None:
            metrics["loss_scale"] = scale
        finite = None
        if self._skips:
            finite = jnp.isfinite(metrics["loss"]) & jnp.isfinite(metrics["gradient_norm"])
            metrics["skipped"] = jnp.where(finite, 0, 1)
        kept = trained, state.opt_state
        trained, opt_state = self._updated(state, kept, grads, metrics, finite)
        scale = state.scale if state.scale is None else state.scale.after(finite)
        after = self._with_trained(state, trained, frozen)
        if state.dropped is not None:
            if finite is not None:
                keep = lambda new, old: jnp.where(finite, new, old)
                dropped = jax.tree.map(keep, dropped, state.dropped)
            after = after.replace(dropped=dropped)
        return after.replace(step=state.step + 1, opt_state=opt_state, scale=scale), metrics

    def _scale(self, state: State):
        """What the loss is multiplied by; None where it is not scaled."""
        if state.scale is not None:
            return state.scale.value
        setting = self._precision.loss_scale
        return None if setting == "none" else jnp.asarray(float(setting), jnp.float32)

    def _as_gradients(self, trained: Any) -> Any:
        """What is trained, split as its gradients are, inside of a jitted function."""
        if not self.mesh.axis_names:  # JAX maps no constraint for a mesh without axes
            return trained
        return jax.lax.with_sharding_constraint(trained, self.split_of_gradients)

    def _updated(self, state: State, old: tuple[Any, Any], grads, metrics, finite):
        """Parameters and optimizer state after the update.

        The parameters are split as optimizer state is, and not gathered yet.

        Args:
          old: the parameters that are trained, and the optimizer state, before it.
          metrics: what was measured: the loss, and the global norm of the gradients.
          finite: whether the loss and the gradients are; where not, parameters and optimizer state
            stay what they were. None: it does not matter.
        """
        if self._clip:
            factor = jnp.minimum(1.0, self._clip / (metrics["gradient_norm"] + 1e-12))
            grads = jax.tree.map(lambda g: g * factor, grads)
        before = self._as_gradients(old[0])
        kept = jax.device_put(old[1], self._fetched) if self._fetched else old[1]
        full = [cast(tree, jnp.float32) for tree in (grads, kept, before)]
        self._in_update.clear()
        how = {"lowered": self._run_lowered} if self._lowers else {}
        updates, opt_state = self._tx.update(*full, value=metrics["loss"], **how)
        params = optax.apply_updates(full[2], updates)
        opt_state = cast(opt_state, self._precision.optimizer)
        if self._precision.stochastic_rounding:
            params = round_at_random(params, state.key, state.step)
            params = self._as_gradients(params)
        else:
            params = cast(params, self._precision.params)
        if finite is not None:
            params, opt_state = jax.tree.map(
                lambda new, old: jnp.where(finite, new, old), (params, opt_state), (before, kept)
            )
        if self._fetched:
            opt_state = jax.device_put(opt_state, self.shardings.opt_state)
        return params, opt_state
