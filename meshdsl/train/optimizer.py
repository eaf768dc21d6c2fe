"""Optax optimizers by name, with the schedule of the learning rate, and weight decay of matrices.

Other parameters do not decay. Which parameters are matrices is not guessed from their ranks: a
parameter Tensor says which of its dims it contracts (`role.ins`), so a weight that is stacked over
a `layers` dim is still known to be a matrix. Optax's own rule for muon (rank 2) would leave every
stacked weight to adam.
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

# Called with the number of a step, counted from 0; returns the learning rate.
Schedule = Callable[[jax.typing.ArrayLike], jax.typing.ArrayLike]


def is_matrix(parameter: Tensor) -> bool:
    """Whether the parameter is one that an einsum contracts with its input."""
    return bool(parameter.role and parameter.role.ins)


def matrices(parameters: Any) -> Any:
    """A tree prefix of `parameters`: whether each Tensor is a matrix."""
    return jax.tree.map(is_matrix, parameters, is_leaf=_is_tensor)


def dimension_numbers(parameters: Any) -> Any:
    """A tree prefix of `parameters`: muon's dimension numbers of each matrix, else None.

    The dims that a weight contracts are its rows, the dims that it makes are its columns, and all
    others are batch dims.
    """

    def numbers(parameter: Tensor) -> MuonDimensionNumbers | None:
        if not is_matrix(parameter):
            return None
        position = {dim.name: index for index, dim in enumerate(parameter.dims)}
        role = parameter.role
        return MuonDimensionNumbers(
            tuple(position[name] for name in role.ins), tuple(position[name] for name in role.outs)
        )

    return jax.tree.map(numbers, parameters, is_leaf=_is_tensor)


def _is_tensor(node: Any) -> bool:
    return isinstance(node, Tensor)


def _sgd(rate: Schedule, decay: float) -> optax.GradientTransformation:
    return optax.chain(
        optax.add_decayed_weights(decay, matrices), optax.sgd(rate, momentum=0.9, nesterov=True)
    )


def _adafactor(rate: Schedule, decay: float) -> optax.GradientTransformation:
    # Optax's adafactor takes the decay as it is, not times the learning rate. So the decay is
    # chained between the update and the rate, as adamw has it.
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


# By name: the usual peak learning rate, and what makes the transformation from a schedule and a
# weight decay. The names are those of `config.OPTIMIZERS`.
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
            # Updates have the size of adamw's, so both kinds of parameters share one learning rate.
            consistent_rms=0.2,
        ),
    ),
}


def peak(settings: Optimizer) -> float:
    """The peak learning rate: the one that is set, or the optimizer's usual one."""
    usual, _ = _entry(settings.name)
    return settings.learning_rate or usual


def make_schedule(settings: ScheduleSettings, top: float, steps: int) -> Schedule:
    """A linear warmup to the rate `top`, then the shape of `settings` to the end of `steps`.

    No step has a rate of 0, neither the first nor the last.
    """
    warmup = min(settings.warmup, steps - 1)
    rise = optax.linear_schedule(top / (warmup + 1), top, warmup)
    return optax.join_schedules(
        [rise, _SHAPES[settings.shape](settings, top, steps - warmup)], [warmup]
    )


def _wsd(settings: ScheduleSettings, top: float, steps: int) -> Schedule:
    """Warmup-stable-decay (Hu et al., 2024): stay at `top`, then fall linearly at the end."""
    falling = max(1, round(settings.decay * steps))
    return optax.linear_schedule(
        top, top * settings.final, falling, transition_begin=steps - falling
    )


# By the name of the shape: what makes the schedule after the warmup, from the settings, the rate at
# the peak and the number of steps that are left. The names are those of `config.Schedule.shape`.
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
      MeshDSLError: the name is unknown; the text lists the known ones.
    """
    _, make = _entry(settings.name)
    return make(make_schedule(schedule, peak(settings), steps), settings.weight_decay)


def _entry(name: str) -> tuple[float, Callable[[Schedule, float], optax.GradientTransformation]]:
    if name not in TABLE:
        raise MeshDSLError(f"optimizer.name={name}: expected one of {', '.join(TABLE)}")
    return TABLE[name]
