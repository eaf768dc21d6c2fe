"""What a configuration trains: the model, its optimizer and its step, under one layout on one mesh.

Nothing is allocated here until a state is asked for, so the same object serves to check a layout and to train by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np

import meshdsl as md
from meshdsl.models.transformer import Transformer
from meshdsl.plan.compiled import saved
from meshdsl.plan.program import Program
from meshdsl.train.config import Config, leaves
from meshdsl.train.optimizer import make_optimizer, peak
from meshdsl.train.step import State, TrainStep

_OF_STEP = ("steps", "batch", "microbatches")  # settings that the compiled step depends on, beside those of model and optimizer
Arrays = dict[str, np.ndarray]  # `tokens` and `targets`, each int32 [rows, length]


def _loss(model: Transformer, batch: dict[str, md.Tensor], key: Any) -> tuple[md.Tensor, dict[str, md.Tensor]]:
    key = key.array if isinstance(key, md.Tensor) else key  # each microbatch has a key of its own
    return model.loss(batch["tokens"], batch["targets"], key=key)


class Job:
    """A step of training, and what is needed to feed it.

    Raises:
      MeshDSLError: the layout does not fit the model: a dim that nothing has, or a size that does not divide.
    """

    def __init__(self, config: Config, layout: md.Layout, mesh: jax.sharding.Mesh):
        self.config, self.layout, self.mesh = config, layout, mesh
        self.dims = [*config.model.dims.values(), "batch"]
        microbatches = md.Dim("microbatch", config.microbatches) if config.microbatches > 1 else None
        self.step = TrainStep(
            lambda key: Transformer.init(key, config.model),
            _loss,
            make_optimizer(config.optimizer, config.steps),
            layout,
            mesh,
            clip=config.optimizer.clip,
            microbatches=microbatches,
            dims=self.dims,
        )

    @property
    def rows(self) -> int:
        """Sequences in a microbatch."""
        return self.config.batch // self.config.microbatches

    @property
    def state(self) -> State:
        """The state in the abstract: `ShapeDtypeStruct`s with shardings."""
        return self.step.abstract

    @cached_property
    def batch(self) -> dict[str, md.Tensor]:
        """A training batch in the abstract."""
        shape = (self.config.batch, self.config.model.length)
        tensor = self._named(jax.ShapeDtypeStruct(shape, np.int32), self.step.microbatches)
        sharding = md.shardings(tensor, self.layout, self.mesh)
        tensor = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), tensor, sharding)
        return {"tokens": tensor, "targets": tensor}

    def program(self) -> Program:
        """The record of one step: every op with its split and moves, every collective."""
        return self.step.program(self.state, self.batch)

    @cached_property
    def lowered(self) -> jax.stages.Lowered:
        """The step, ready to be compiled for the mesh."""
        return self.step.lower(self.state, self.batch)

    def save(self, executable: jax.stages.Compiled, path: Path, options: Mapping[str, str]) -> int:
        """Writes the compiled step to a file that `load` reads; returns its bytes. `options`: of the compiler."""
        return saved.save(path, executable, self.lowered, self._made(options))

    def load(self, path: Path) -> Callable:
        """The compiled step in a file, of this configuration, layout and mesh.

        Raises:
          MeshDSLError: the file is of something else, or damaged.
        """
        return saved.load(path, self._made({}), lambda: self.lowered, self.mesh)

    def _made(self, options: Mapping[str, str]) -> saved.Made:
        return saved.Made.of(self.mesh, self._settings, options)

    @property
    def _settings(self) -> dict[str, str]:
        """Everything that the step is made from, as texts."""
        config = replace(self.config, optimizer=replace(self.config.optimizer, learning_rate=peak(self.config.optimizer)))
        of_step = {key: str(value) for key, value in leaves(config) if key in _OF_STEP or key.startswith(("model.", "optimizer."))}
        rules = {f"layout {rule.level} rule {i}": rule.text for i, rule in enumerate(self.layout.parsed, 1)}
        return of_step | rules | {"layout uneven": str([rule.pads for rule in self.layout.parsed])}

    def place(self, arrays: Arrays) -> dict[str, md.Tensor]:
        """A training batch on the devices, split by the law."""
        return self._placed({name: self._named(array, self.step.microbatches) for name, array in arrays.items()})

    def evaluate(self, model: Transformer, batches: Iterable[Arrays]) -> float:
        """The mean cross-entropy in nats per token over `batches` of `rows` sequences, without dropout."""
        losses = []
        for arrays in batches:
            batch = self._placed({name: self._named(array, None) for name, array in arrays.items()})
            losses.append(self._cross_entropy(model, batch).array)
        return float(np.mean(jax.device_get(losses)))

    @cached_property
    def _cross_entropy(self):
        def cross_entropy(model: Transformer, batch: dict[str, md.Tensor]) -> md.Tensor:
            return model.loss(batch["tokens"], batch["targets"])[1]["cross_entropy"]

        return md.lower(cross_entropy, self.layout, self.mesh, dims=self.dims)

    def _named(self, array: Any, microbatches: md.Dim | None) -> md.Tensor:
        """`array` [rows, length] with dims, its rows cut into microbatches where there are any."""
        leading = () if microbatches is None else (microbatches,)
        rows = array.shape[0] // (microbatches.size if microbatches else 1)
        dims = (*leading, md.Dim("batch", rows), md.Dim("length", array.shape[1]))
        shape = [dim.size for dim in dims]
        if isinstance(array, jax.ShapeDtypeStruct):
            return md.tensor(jax.ShapeDtypeStruct(shape, array.dtype), dims)
        return md.tensor(array.reshape(shape), dims)

    def _placed(self, batch: dict[str, md.Tensor]) -> dict[str, md.Tensor]:
        return jax.device_put(batch, md.shardings(batch, self.layout, self.mesh))
