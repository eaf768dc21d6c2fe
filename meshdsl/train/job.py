"""What a configuration trains: the model, its optimizer and its step, under one layout on one mesh.

Nothing is allocated until a state is asked for. So the same object serves to check a layout, to
explain or compile a step for devices that are not at hand, and to train.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

import meshdsl as md
from meshdsl.family.calls import accepted, first_model, loss_and_report, names_in
from meshdsl.lowering.shardings import shapes_at
from meshdsl.mesh import abstract_mesh, platform_of
from meshdsl.predict.compiler import executables
from meshdsl.predict.kernels.kernel_graph import kernel_graph
from meshdsl.predict.time.model_flops import counted_flops
from meshdsl.program.program import Program
from meshdsl.train.adapters import RANK, adapted_names, first_adapters
from meshdsl.train.config import Config
from meshdsl.train.data import task_of
from meshdsl.train.data.device_batches import put_on_devices
from meshdsl.train.few_bits import formats_of, in_few_bits
from meshdsl.train.local import WORKER, LocalStep
from meshdsl.train.optimizer import groups_of, make_optimizer, make_outer, peak
from meshdsl.train.settings import leaves
from meshdsl.train.step import State, TrainStep
from meshdsl.train.trained import matched, parameters_by_name

# The settings that the compiled step depends on: some by name, and groups of them.
_OF_STEP = (
    *("steps", "batch", "microbatches", "offload", "frozen"),
    *("guard.nonfinite", "data.separate"),
)
_GROUPS_OF_STEP = ("model.", "optimizer.", "lora.", "schedule.", "precision.", "local.")
# What one process reads of a batch, by the names in `Job.batch`: [rows, ...] each.
Arrays = dict[str, np.ndarray]


class Job:
    """A step of training, and what is needed to feed it.

    Attributes:
      step: the model's `TrainStep`.
      dims: the dims that a layout for this model may speak of.
      frozen: the names of the parameters that are not trained.
      formats: how the matrices are multiplied that are multiplied in few bits.

    Raises:
      MeshDSLError: a pattern of parameters matches none, or nothing is trained; the layout does
        not fit the model: it names a dim that nothing has, or splits a size that does not divide.
    """

    def __init__(
        self,
        config: Config,
        layout: md.Layout,
        mesh: jax.sharding.Mesh,
        *,
        shapes: State | None = None,
    ):
        self.config, self.layout, self.mesh = config, layout, mesh
        self.dims = [*names_in(config.model.dims), "batch"]
        offloaded = tuple(what for what in config.offload if what != "optimizer")
        # What the precision and the memory of the run ask of the loss function.
        self.how = accepted(
            config.model,
            {"output": config.precision.output, "offload": offloaded},
            {"output": "float32", "offload": ()},
        )
        microbatches = (
            md.Dim("microbatch", config.microbatches) if config.microbatches > 1 else None
        )
        self.frozen, groups, adapted_ones = _kinds_of_parameters(config)
        adapters = None
        if adapted_ones:
            self.dims.append(RANK)
            adapters = partial(first_adapters, config.lora, adapted_ones)
        kind: Callable[..., TrainStep] = TrainStep
        for rule in layout.parsed:
            if rule.dim == WORKER and not (rule.optional or config.local.workers):
                raise md.MeshDSLError(f"{rule}: there are no workers; set local.workers")
        if config.local.workers:
            self.dims.append(WORKER)
            outer = make_outer(config.local.outer)
            local = config.local
            kind = partial(
                LocalStep,
                workers=local.workers,
                outer=outer,
                fragments=local.fragments,
                own=local.own,
                wire=local.wire,
            )
        self.step = kind(
            lambda key: first_model(config.model, key),
            self._loss,
            make_optimizer(config.optimizer, config.schedule, config.steps, groups),
            layout,
            mesh,
            frozen=self.frozen,
            adapters=adapters,
            clip=config.optimizer.clip,
            microbatches=microbatches,
            dims=self.dims,
            precision=config.precision,
            skip_nonfinite=config.guard.nonfinite == "skip",
            offload=config.offload,
            shapes=shapes,
        )
        self.formats = formats_of(config.precision, self.step.shapes.params)

    def _loss(
        self, model: Any, batch: dict[str, md.Tensor], key: Any
    ) -> tuple[md.Tensor, dict[str, md.Tensor]]:
        if isinstance(key, md.Tensor):  # with microbatches, each of which has a key of its own
            key = key.array
        model = in_few_bits(model, self.formats, key)
        return loss_and_report(self.config.model, model, batch, key, self.how)

    @property
    def rows(self) -> int:
        """Rows in a microbatch, of all workers together."""
        return self.config.batch // self.config.microbatches

    @property
    def state(self) -> State:
        """The state as `ShapeDtypeStruct`s with shardings, without arrays."""
        return self.step.abstract

    @cached_property
    def batch(self) -> dict[str, md.Tensor]:
        """A training batch without arrays: Tensors of `ShapeDtypeStruct`s with shardings."""
        workers = self.config.local.workers
        leading = (md.Dim(WORKER, workers) if workers else None, self.step.microbatches)
        each = self.rows // (workers or 1)
        return self._abstract_batch([dim for dim in leading if dim is not None], each)

    @cached_property
    def held_out(self) -> dict[str, md.Tensor]:
        """A batch of validation without arrays, of as many rows as a microbatch has."""
        return self._abstract_batch([], self.rows)

    def _abstract_batch(self, leading: list[md.Dim], rows: int) -> dict[str, md.Tensor]:
        fields = task_of(self.config).fields(self.config, md.Dim("batch", rows))
        whole = {
            name: md.abstract((*leading, *field.dims), field.dtype)
            for name, field in fields.items()
        }
        return shapes_at(whole, md.shardings(whole, self.layout, self.mesh))

    def place(self, arrays: Arrays) -> dict[str, md.Tensor]:
        """A training batch on the devices, split by the law, from the rows of this process."""
        return put_on_devices(arrays, self.batch)

    @property
    def local(self) -> LocalStep | None:
        """The step, where it is one of workers that exchange what they learned."""
        return self.step if isinstance(self.step, LocalStep) else None

    def program(self) -> Program:
        """The recorded program of one step: every op with its split, and every collective."""
        return self.step.program(self.state, self.batch)

    def reference(self) -> Program:
        """The recorded program of the same step on one device."""
        one: Any = abstract_mesh({}, "cpu")
        return Job(self.config, md.Layout(), one).program()

    @cached_property
    def step_flops(self) -> tuple[float, float]:
        """FLOPs of the model in one step: with causal attention counted half, and in full.

        Where the family does not state them, or not all parameters have gradients, they are counted
        in the recorded step. Both counts are the same then, because a record does not know what is
        causal.
        """
        stated = self.config.model.step_flops(self.config.batch)
        if stated is not None and not self.frozen:
            return stated
        program = self.program()
        flops = counted_flops(kernel_graph(program), program) * self.mesh.size
        return flops, flops

    @cached_property
    def lowered(self) -> jax.stages.Lowered:
        """The step, ready to be compiled for the mesh."""
        return self.step.lower(self.state, self.batch)

    def save(self, executable: jax.stages.Compiled, path: Path, options: Mapping[str, str]) -> int:
        """Write the compiled step to a file that `load` reads.

        Args:
          options: those that the compiler got.

        Returns:
          The size of the file in bytes.
        """
        return executables.save(path, executable, self.lowered, self._made(options))

    def load(self, path: Path, *, trusted: bool = False) -> Callable:
        """Read the compiled step from a file that `save` wrote.

        Args:
          trusted: read it even if others than this user could have written it.

        Raises:
          MeshDSLError: the file is damaged, is of another configuration, layout or mesh, or is
            neither trusted nor this user's alone.
        """
        return executables.load(
            path, self._made({}), lambda: self.lowered, self.mesh, trusted=trusted
        )

    def _made(self, options: Mapping[str, str]) -> executables.Provenance:
        return executables.Provenance.of(self.mesh, self._settings, options)

    @property
    def made_from(self) -> dict[str, str]:
        """All that the step is made from, the mesh and its platform too, as texts by name."""
        sizes = {f"mesh {axis}": str(size) for axis, size in dict(self.mesh.shape).items()}
        return {**self._settings, **sizes, "platform": platform_of(self.mesh)}

    @property
    def _settings(self) -> dict[str, str]:
        """All settings that the step is made from, those of the layout too, as texts by name."""
        config = replace(
            self.config,
            optimizer=replace(self.config.optimizer, learning_rate=peak(self.config.optimizer)),
        )
        of_step = {
            key: str(value)
            for key, value in leaves(config)
            if key in _OF_STEP or key.startswith(_GROUPS_OF_STEP)
        }
        rules = {
            f"layout {rule.level} {i}": rule.text for i, rule in enumerate(self.layout.parsed, 1)
        }
        return {
            **of_step,
            **rules,
            "layout uneven": str([rule.pads for rule in self.layout.parsed]),
            "layout gather": self.layout.gather,
        }


def _kinds_of_parameters(
    config: Config,
) -> tuple[frozenset[str], dict[str, str], frozenset[str]]:
    """The names of the parameters that are not trained, the groups of the others, and the names of
    those that have an adapter.

    Raises:
      MeshDSLError: a pattern matches none, or nothing is trained.
    """
    nothing: frozenset[str] = frozenset()
    if not (config.frozen or config.optimizer.groups or config.lora.parameters):
        return nothing, {}, nothing
    model = jax.eval_shape(lambda key: first_model(config.model, key), jax.random.key(0))
    names = list(parameters_by_name(model))
    with_adapter = adapted_names(config.lora, model)
    patterns = ("*", *config.frozen) if with_adapter else config.frozen
    frozen = matched(patterns, names, "frozen")
    trained = [name for name in names if name not in frozen]
    if not trained and not with_adapter:
        raise md.MeshDSLError("frozen: no parameter is left to be trained")
    if twice := sorted(with_adapter.intersection(trained)):
        raise md.MeshDSLError(
            f"lora.parameters: `{twice[0]}` has an adapter, and `frozen` takes it out, so it is "
            "trained itself; choose one of both"
        )
    if with_adapter:
        trained += [f"{part}.{name}" for part in "ab" for name in sorted(with_adapter)]
    return frozen, groups_of(config.optimizer, trained), with_adapter
