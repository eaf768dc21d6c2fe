"""One step of training: gradients lowered by the law, the optimizer on whole arrays, all in one compiled program.

Optax runs outside of the lowering, on global arrays that are split as the layout splits optimizer state. Inside, its
sums over a parameter would be sums over one device's part of it. What it computes for each element needs no
communication; where the layout splits optimizer state further than parameters (ZeRO-1), each updated parameter is
gathered once, by the law. The global norm of the gradients is taken in the lowering for the same reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import jax
import jax.numpy as jnp
import optax
from flax.struct import PyTreeNode
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import meshdsl as md
from meshdsl.dims import Dim
from meshdsl.layout import Layout
from meshdsl.lowering.spmd import gather_updated, shardings
from meshdsl.plan.compiled.options import default_options
from meshdsl.plan.program import Program
from meshdsl.tensor import Tensor, is_tensor


class State(PyTreeNode):
    """Everything that a run carries from step to step."""

    step: jax.Array
    params: PyTreeNode
    opt_state: PyTreeNode
    key: jax.Array


class TrainStep:
    """A compiled step of training under a layout.

    Args:
      init: called with a key, makes the parameters: a pytree of parameter Tensors.
      loss: called with the parameters, a dict of batch Tensors and a key, gives a Tensor without dims and a dict of such.
      tx: an optax transformation.
      clip: the gradients are scaled down to this global norm where theirs is larger; 0 for never.
      microbatches: a dim of the batch Tensors over which gradients are accumulated before they are summed over devices.
      dims: dims that the layout may speak of although the step does not touch them.
      compiler_options: by default those that let collectives run while the chips of the mesh compute.

    Attributes:
      abstract: the state as `ShapeDtypeStruct`s with shardings, without any array having been made.
      shardings: the sharding of each array of the state.
      compiler_options: those that it is compiled with.
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
        compiler_options: Mapping[str, str] | None = None,
    ):
        dims = list(dims)
        self._init, self._tx, self._clip = init, tx, clip
        self.layout, self.mesh, self.microbatches = layout, mesh, microbatches
        gradients = md.value_and_grad(loss, has_aux=True, accumulate=microbatches)

        def loss_and_gradients(params, batch, key):
            (value, aux), grads = gradients(params, batch, key)
            with jax.named_scope("gradient"):  # after the backward pass, and counted with it
                norm = global_norm(grads)
            return value, aux, grads, norm

        self._gradients = md.lower(loss_and_gradients, layout, mesh, dims=dims)
        shapes = jax.eval_shape(self._start, jax.random.key(0))
        self.shardings = State(
            step=NamedSharding(mesh, PartitionSpec()),
            params=shardings(shapes.params, layout, mesh),
            opt_state=shardings(shapes.opt_state, layout, mesh, "optimizer"),
            key=NamedSharding(mesh, PartitionSpec()),
        )
        self.abstract = jax.tree.map(
            lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), shapes, self.shardings
        )
        self._updating = shardings(shapes.params, layout, mesh, "optimizer")
        known = {d.name for t in jax.tree.leaves(self.abstract.params, is_leaf=is_tensor) for d in t.dims}
        self._to_rest = gather_updated(layout, mesh, [*dims, *known, *(r.dim for r in layout.parsed)])
        self.compiler_options = default_options(mesh) if compiler_options is None else dict(compiler_options)
        self._step = jax.jit(
            self._one_step, donate_argnums=0, out_shardings=(self.shardings, None), compiler_options=self.compiler_options or None
        )

    def init(self, key) -> State:
        """The first state; every array is made where it belongs, and is the same under every layout."""
        return jax.jit(self._start, out_shardings=self.shardings)(key)

    def __call__(self, state: State, batch: dict[str, Tensor]) -> tuple[State, dict[str, jax.Array]]:
        """The next state, and scalars: `loss`, what the loss function reports, and `gradient_norm` (before clipping)."""
        return self._step(state, batch)

    def lower(self, state: State, batch: dict[str, Tensor]):
        """JAX's ahead-of-time object for the step; `self.abstract` will do as the state."""
        return self._step.lower(state, batch)

    def program(self, state: State, batch: dict[str, Tensor]) -> Program:
        """The recorded program of the step, with every collective of it."""
        from meshdsl.plan.explain.drawn import DrawnProgram  # who only trains should not wait for it

        traced = jax.jit(lambda *args: self._one_step(*args)).trace(state, batch)
        return DrawnProgram([*self._gradients.record, *self._to_rest.record], traced.jaxpr, self.layout, dict(self.mesh.shape), (state, batch), (0,))

    def _start(self, key) -> State:
        for_params, for_steps = jax.random.split(key)
        params = self._init(for_params)
        return State(jnp.zeros((), jnp.int32), params, self._tx.init(params), for_steps)

    def _one_step(self, state: State, batch):
        key = jax.random.fold_in(state.key, state.step)
        if self.microbatches is not None:
            key = Tensor(jax.random.split(key, self.microbatches.size), (self.microbatches,))
        loss, aux, grads, norm = self._gradients(state.params, batch, key)
        if self._clip:
            factor = jnp.minimum(1.0, self._clip / (norm.array + 1e-12))
            grads = jax.tree.map(lambda g: g * factor, grads)
        before = jax.lax.with_sharding_constraint(state.params, self._updating)
        updates, opt_state = self._tx.update(grads, state.opt_state, before)
        params = self._to_rest(optax.apply_updates(before, updates))
        metrics = {"loss": loss.array, **{name: t.array for name, t in aux.items()}, "gradient_norm": norm.array}
        return State(state.step + 1, params, opt_state, state.key), metrics


def global_norm(tree) -> Tensor:
    """The root of the sum of squares of all Tensors in `tree`. Sums that wait for the same axes are taken together."""
    waiting: dict[tuple[str, ...], Tensor] = {}
    for t in jax.tree.leaves(tree, is_leaf=is_tensor):
        power = md.sum(md.square(md.cast(t, jnp.float32)))
        so_far = waiting.get(power.pending)
        waiting[power.pending] = power if so_far is None else so_far + power
    first, *others = waiting.values()
    for other in others:
        first = first + other
    return md.sqrt(first)
