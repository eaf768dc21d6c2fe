"""One step of training as one compiled program: gradients, by the law, and the optimizer's update.

The gradients are lowered. Optax runs outside of the lowering, on global arrays that are split as
the layout splits optimizer state: inside, its sums over a parameter would be sums over one device's
part of it. What it computes for each element needs no communication. Where the layout splits
optimizer state further than parameters (ZeRO-1), each updated parameter is gathered once, by the
law. The global norms of gradients and parameters are taken inside the lowering, where their sums
are collectives that are recorded.

Parameters and optimizer state are kept in the dtypes of the precision. The update is computed in
float32, and rounded before parameters are gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax.struct import PyTreeNode
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import meshdsl as md
from meshdsl.compiled.options import default_options
from meshdsl.dims import Dim
from meshdsl.layout import Layout
from meshdsl.lowering.local_types import LocalTypes
from meshdsl.lowering.lower import gather_updated
from meshdsl.lowering.shardings import shardings
from meshdsl.ops.global_norm import global_norms
from meshdsl.record.program import Program
from meshdsl.record.recorder import Op
from meshdsl.tensor import Tensor, abstract, is_tensor
from meshdsl.train.config import Precision
from meshdsl.train.offload import DEVICE, HOST, check_host_memory, in_memory
from meshdsl.train.precision import LossScale, cast, round_at_random

FLOAT32 = Precision()


class State(PyTreeNode):
    """Everything that a run carries from step to step.

    Attributes:
      step: how many steps led to this state, int32.
      params: the model, a pytree of parameter Tensors.
      opt_state: what the optimizer keeps.
      key: the random key of the run; each step folds in its number.
      scale: of the loss, where the loss is scaled dynamically.
    """

    step: jax.Array
    params: Any
    opt_state: PyTreeNode
    key: jax.Array
    scale: LossScale | None = None


class TrainStep:
    """A compiled step of training under a layout.

    Args:
      init: called with a key, returns the parameters: a pytree of parameter Tensors.
      loss: called with the parameters, a dict of batch Tensors and a key, returns the loss, a
        Tensor without dims, and a dict of such Tensors to report.
      tx: an optax transformation.
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

    Attributes:
      abstract: the state as `ShapeDtypeStruct`s with shardings; no array is made for it.
      shardings: the sharding of each array of the state.
      compiler_options: the options that the step is compiled with.

    Raises:
      MeshDSLError: the layout does not fit the parameters, or the devices cannot offload.
    """

    def __init__(
        self,
        init: Callable,
        loss: Callable,
        tx: optax.GradientTransformation,
        layout: Layout,
        mesh: Mesh,
        *,
        clip: float = 0.0,
        microbatches: Dim | None = None,
        dims: Iterable[Dim | str] = (),
        precision: Precision = FLOAT32,
        skip_nonfinite: bool = False,
        offload: Iterable[str] = (),
        compiler_options: Mapping[str, str] | None = None,
    ):
        dims, offload = list(dims), tuple(offload)
        check_host_memory(mesh, offload)
        self._init, self._tx, self._clip = init, tx, clip
        self.layout, self.mesh, self.microbatches = layout, mesh, microbatches
        self._precision = precision
        self._skips = skip_nonfinite or precision.loss_scale == "dynamic"
        self._gradients = md.lower(
            _loss_and_gradients(loss, microbatches, precision), layout, mesh, dims=dims
        )
        shapes = jax.eval_shape(self._first_state, jax.random.key(0))
        opt_state = shardings(shapes.opt_state, layout, mesh, "optimizer")
        on_host = "optimizer" in offload
        # Where optimizer state that waits on the host is brought for the update.
        self._fetched = in_memory(opt_state, DEVICE) if on_host else None
        self.shardings = self._state_shardings(
            shapes, in_memory(opt_state, HOST) if on_host else opt_state
        )
        self.abstract = jax.tree.map(
            lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
            shapes,
            self.shardings,
        )
        self._updating = shardings(shapes.params, layout, mesh, "optimizer")
        parameters = jax.tree.leaves(shapes.params, is_leaf=is_tensor)
        known = {dim.name for parameter in parameters for dim in parameter.dims}
        self._to_rest = gather_updated(
            layout, mesh, [*dims, *known, *(rule.dim for rule in layout.parsed)]
        )
        self.compiler_options = (
            default_options(mesh) if compiler_options is None else dict(compiler_options)
        )
        self._step = jax.jit(
            self._one_step,
            donate_argnums=0,
            out_shardings=(self.shardings, None),
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
            scale=jax.tree.map(lambda _: everywhere, shapes.scale),
        )

    def init(self, key) -> State:
        """The first state. Each device makes its part, and the values are those of any layout."""
        return jax.jit(self._first_state, out_shardings=self.shardings)(key)

    def __call__(
        self, state: State, batch: dict[str, Tensor]
    ) -> tuple[State, dict[str, jax.Array]]:
        """Take one step; the memory of `state` is used for the next state, so it is gone.

        Returns:
          The next state, and what the step measured, as arrays without dims: `loss`, what the loss
          function reports, `gradient_norm` (before clipping) and `parameter_norm` (before the
          update); `loss_scale` where the loss is scaled, and `skipped` where steps may be skipped.
        """
        return self._step(state, batch)

    def lower(self, state: State, batch: dict[str, Tensor]):
        """The step, ready to be compiled ahead of time; `self.abstract` will do as the state."""
        return self._step.lower(state, batch)

    def program(self, state: State, batch: dict[str, Tensor]) -> Program:
        """The recorded program of the step: every op with its split, and every collective."""
        traced = jax.jit(lambda *args: self._one_step(*args)).trace(state, batch)
        return Program(
            [*self._gradients.record, *self._to_rest.record],
            traced.jaxpr,
            self.layout,
            dict(self.mesh.shape),
            (state, batch),
            (0,),
        )

    def record_from_types(self, types: LocalTypes, state: State, batch) -> list[Op]:
        """The ops of `program`, without a trace; see `Lowered.record_from_types`."""
        key = jax.ShapeDtypeStruct((), state.key.dtype)
        if self.microbatches is not None:
            key = abstract((self.microbatches,), key.dtype)
        scaled = self._precision.loss_scale != "none"
        scale = [jax.ShapeDtypeStruct((), jnp.float32)] if scaled else []
        of_gradients = self._gradients.record_from_types(types, state.params, batch, key, *scale)
        return [*of_gradients, *self._to_rest.record_from_types(types, state.params)]

    def _first_state(self, key) -> State:
        for_params, for_steps = jax.random.split(key)
        params = cast(self._init(for_params), self._precision.params)
        opt_state = cast(self._tx.init(cast(params, jnp.float32)), self._precision.optimizer)
        scale = LossScale.first() if self._precision.loss_scale == "dynamic" else None
        return State(jnp.zeros((), jnp.int32), params, opt_state, for_steps, scale)

    def _one_step(self, state: State, batch):
        key = jax.random.fold_in(state.key, state.step)
        if self.microbatches is not None:
            key = Tensor(jax.random.split(key, self.microbatches.size), (self.microbatches,))
        scale = self._scale(state)
        loss, aux, grads, norms = self._gradients(
            state.params, batch, key, *([] if scale is None else [scale])
        )
        metrics = {"loss": loss.array, **{name: t.array for name, t in {**aux, **norms}.items()}}
        if scale is not None:
            metrics["loss_scale"] = scale
        finite = None
        if self._skips:
            finite = jnp.isfinite(metrics["loss"]) & jnp.isfinite(metrics["gradient_norm"])
            metrics["skipped"] = jnp.where(finite, 0, 1)
        params, opt_state = self._updated(state, grads, metrics["gradient_norm"], finite)
        scale = state.scale if state.scale is None else state.scale.after(finite)
        return State(state.step + 1, self._to_rest(params), opt_state, state.key, scale), metrics

    def _scale(self, state: State):
        """What the loss is multiplied by; None where it is not scaled."""
        if state.scale is not None:
            return state.scale.value
        setting = self._precision.loss_scale
        return None if setting == "none" else jnp.asarray(float(setting), jnp.float32)

    def _updated(self, state: State, grads, norm, finite):
        """Parameters and optimizer state after the update.

        The parameters are split as optimizer state is, and not gathered yet.

        Args:
          norm: the global norm of the gradients.
          finite: whether the loss and the gradients are; where not, parameters and optimizer state
            stay what they were. None: it does not matter.
        """
        if self._clip:
            factor = jnp.minimum(1.0, self._clip / (norm + 1e-12))
            grads = jax.tree.map(lambda g: g * factor, grads)
        before = jax.lax.with_sharding_constraint(state.params, self._updating)
        kept = jax.device_put(state.opt_state, self._fetched) if self._fetched else state.opt_state
        full = [cast(tree, jnp.float32) for tree in (grads, kept, before)]
        updates, opt_state = self._tx.update(*full)
        params = optax.apply_updates(full[2], updates)
        opt_state = cast(opt_state, self._precision.optimizer)
        if self._precision.stochastic_rounding:
            params = jax.lax.with_sharding_constraint(
                round_at_random(params, state.key, state.step), self._updating
            )
        else:
            params = cast(params, self._precision.params)
        if finite is not None:
            params, opt_state = jax.tree.map(
                lambda new, old: jnp.where(finite, new, old), (params, opt_state), (before, kept)
            )
        if self._fetched:
            opt_state = jax.device_put(opt_state, self.shardings.opt_state)
        return params, opt_state


def _loss_and_gradients(loss: Callable, microbatches: Dim | None, precision: Precision) -> Callable:
    """The function that is lowered: loss, gradients and their norms.

    It is called with parameters, a batch, a key and, where the loss is scaled, the scale.
    """
    how = {"accumulate": microbatches, "compute": precision.compute, "reduce": precision.reduce}

    def scaled(params, batch, key, scale):
        value, aux = loss(params, batch, key)
        return md.cast(value, jnp.float32) * scale, aux

    def loss_and_gradients(params, batch, key, *scale):
        scale = [md.tensor(s, ()) for s in scale]
        of = md.value_and_grad(scaled if scale else loss, has_aux=True, **how)
        (value, aux), grads = of(params, batch, key, *scale)
        with jax.named_scope("gradient"):  # so the norms count as a part of the backward pass
            for s in scale:
                value, grads = jax.tree.map(lambda x, s=s.array: x / s, (value, grads))
            gradient, parameter = global_norms(grads, params)
        return value, aux, grads, {"gradient_norm": gradient, "parameter_norm": parameter}

    return loss_and_gradients
