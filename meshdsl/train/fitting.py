"""`fit`: train a model from Python as `meshdsl train` does from the command line."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax

import meshdsl as md
from meshdsl.errors import quote
from meshdsl.train.adapters import merged
from meshdsl.train.checkpoints import Checkpoints
from meshdsl.train.config import Config
from meshdsl.train.folder import RunFolder
from meshdsl.train.job import Job
from meshdsl.train.phases import with_stored_layouts
from meshdsl.train.step import State
from meshdsl.train.stored_layout import as_table, find_layout
from meshdsl.train.training_run import run


class Fitted(NamedTuple):
    """What a run of training has made.

    Attributes:
      model: the trained model, a pytree of parameters, split by the layout; adapters are added to
        its weights.
      state: all of the run's state: the model, what the optimizer keeps, the step.
      folder: with the run's configuration, metrics and checkpoints; `meshdsl train --resume` and
        the commands that read a run take it.
      job: the step of training, with the layout and the mesh. Where settings of the family were
        "auto", its configuration and the model have the values that were chosen.
      ending: what ended the run before its last step, "interrupted" or "preempted"; or None.
    """

    model: Any
    state: State
    folder: Path
    job: Job
    ending: str | None


def fit(
    family: md.Family,
    config: Config | None = None,
    layout: md.Layout | str | Path = "data",
    *,
    folder: str | Path | None = None,
    # JAX's types declare the class jax.Device as a variable.
    devices: list[jax.Device] | None = None,  # pyright: ignore[reportInvalidTypeForm]
    resume: bool = False,
) -> Fitted:
    """Train a model of `family` under a layout: what `meshdsl train` does, with the same folder.

        fitted = fit(ViT(layers=2), Config(steps=100, batch=64), "fsdp", folder="runs/vit")
        logits = md.lower(forward, fitted.job.layout, fitted.job.mesh)(fitted.model, images)

    With several processes each calls it, with the same arguments.

    Args:
      family: the settings of the model.
      config: all other settings, such as `Config(data=Data(sources=...))`; its `model` and `layout`
        are replaced by the other arguments.
      layout: a layout, or a file of one, or the name of a shipped one.
      folder: of the run; by default a new one in `runs/`.
      devices: to train on; by default as `md.make_mesh` chooses them.
      resume: go on with the run in `folder` from its newest checkpoint, or begin it, where there
        is none yet. The settings are those given here.

    Raises:
      MeshDSLError: the data, layout, devices, model or folder cannot be used. Nothing has been
        written then.
    """
    if not isinstance(family, md.Family):
        raise md.MeshDSLError(f"fit: a family is an instance of md.Family, not {quote(family)}")
    config = Config() if config is None else config
    if not isinstance(config, Config):
        raise md.MeshDSLError(f"fit: the settings are a Config, not {quote(config)}")
    found = layout if isinstance(layout, md.Layout) else find_layout(str(layout))
    config = with_stored_layouts(replace(config, model=family, layout=as_table(found)))
    devices = list(md.make_mesh(found).devices.flat) if devices is None else devices
    where = RunFolder.unused(found) if folder is None else RunFolder(Path(folder))
    again = resume and where.config.is_file()
    ended = run(config, devices, where, resume=again, again=again)
    state = ended.state
    if state is None:
        with closing(Checkpoints(where.checkpoints, forgets="dropped")) as checkpoints:
            state, *_ = checkpoints.restore(ended.job.state)
    return Fitted(merged(state.params, state.adapters), state, where.path, ended.job, ended.ending)
