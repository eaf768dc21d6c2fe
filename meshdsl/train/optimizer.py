"""Optax optimizers by name, with one schedule, and weight decay on matrices only.

Which parameters are matrices is not guessed from ranks: a parameter Tensor says which of its dims it contracts
(`role.ins`), so layers that are stacked over a `layers` dim are what they are. Optax's own muon rule (rank 2) would
leave every stacked weight to adam.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import optax
from optax.contrib import MuonDimensionNumbers

from meshdsl.errors import MeshDSLError
from meshdsl.tensor import Tensor
from meshdsl.train.config import Optimizer
from meshdsl.train.config import Schedule as ScheduleSettings

Schedule = Callable[[jax.typing.ArrayLike], jax.typing.ArrayLike]


def is_matrix(parameter: Tensor) -> bool:
    return bool(parameter.role and parameter.role.ins)


def matrices(parameters: Any) -> Any:
    """A tree prefix of `parameters`: whether each Tensor is a matrix."""
    return jax.tree.map(is_matrix, parameters, is_leaf=_is_tensor)


def dimension_numbers(parameters: Any) -> Any:
    """A tree prefix of `parameters`: muon's dimension numbers of each matrix, None elsewhere.

    The dims that a weight contracts are the rows, the dims that it makes the columns; all others are batch dims.
    """

    def numbers(parameter: Tensor) -> MuonDimensionNumbers | None:
        if not is_matrix(parameter):
            return None
        at = {dim.name: index for index, dim in enumerate(parameter.dims)}
        role = parameter.role
        return MuonDimensionNumbers(
            tuple(at[name] for name in role.ins), tuple(at[name] for name in role.outs)
        )

    return jax.tree.map(numbers, parameters, is_leaf=_is_tensor)


def _is_tensor(node: Any) -> bool:
    return isinstance(node, Tensor)


def _sgd(rate: Schedule, decay: float) -> optax.GradientTransformation:
    return optax.chain(
        optax.add_decayed_weights(decay, matrices), optax.sgd(rate, momentum=0.9, nesterov=True)
    )


def _adafactor(rate: Schedule, decay: float) -> optax.GradientTransformation:
    # Optax's adafactor decays by the rate it is given, not times the learning rate: chained as adamw does it instead.
    return optax.chain(
        optax.adafactor(
            None,
            multiply_by_parameter_scale=False,
            clipping_threshold=1.0,
            min_dim_size_to_factor=128,
        ),
        optax.add_decayed_weights(-decay, matrices),
        optax.scale_by_schedule(rate),
    )


# name -> (the usual peak learning rate, the transformation of a schedule and a weight decay)
TABLE: dict[str, tuple[float, Callable[[Schedule, float], optax.GradientTransformation]]] = {
    "adamw": (
        1e-3,
        lambda rate, decay: optax.adamw(rate, b2=0.95, weight_decay=decay, mask=matrices),
    ),
    "adafactor": (1e-3, _adafactor),
    "lion": (3e-4, lambda rate, decay: optax.lion(rate, weight_decay=decay, mask=matrices)),
    "sgd": (1e-1, _sgd),
    "muon": (
        1e-3,
        lambda rate, decay: optax.contrib.muon(
            rate,
            weight_decay=decay,
            adam_weight_decay=0.0,
            muon_weight_dimension_numbers=dimension_numbers,
            consistent_rms=0.2,  # updates of adamw's size, so both kinds of parameters share one learning rate
        ),
    ),
}


def peak(settings: Optimizer) -> float:
    """The peak learning rate: the one that is set, or the optimizer's usual one."""
    usual, _ = _entry(settings.name)
    return settings.learning_rate or usual


def make_schedule(settings: ScheduleSettings, top: float, steps: int) -> Schedule:
    """A linear warmup to the rate `top`, then the shape of `settings` to the end of `steps`; no step has a rate of 0."""
    warmup = min(settings.warmup, steps - 1)
    rise = optax.linear_schedule(top / (warmup + 1), top, warmup)
    return optax.join_schedules(
        [rise, _SHAPES[settings.shape](settings, top, steps - warmup)], [warmup]
    )


def _wsd(settings: ScheduleSettings, top: float, steps: int) -> Schedule:
    falling = max(1, round(settings.decay * steps))
    return optax.linear_schedule(
        top, top * settings.final, falling, transition_begin=steps - falling
    )


# shape -> the schedule after the warmup, over so many steps
_SHAPES: dict[str, Callable[[ScheduleSettings, float, int], Schedule]] = {
    "cosine": lambda settings, top, steps: optax.cosine_decay_schedule(top, steps, settings.final),
    "linear": lambda settings, top, steps: optax.linear_schedule(top, top * settings.final, steps),
    "constant": lambda _, top, __: optax.constant_schedule(top),
    "wsd": _wsd,
}


def make_optimizer(
    settings: Optimizer, schedule: ScheduleSettings, steps: int
) -> optax.GradientTransformation:
    """The optimizer that `settings` name, over a run of `steps`.

    Raises:
        MeshDSLError: unknown name; the text lists the known ones.
    """
    _, make = _entry(settings.name)
    return make(make_schedule(schedule, peak(settings), steps), settings.weight_decay)


def _entry(name: str) -> tuple[float, Callable[[Schedule, float], optax.GradientTransformation]]:
    if name not in TABLE:
        raise MeshDSLError(f"optimizer.name={name}: expected one of {', '.join(TABLE)}")
    return TABLE[name]
