"""Optax optimizers by name, with the schedule of the learning rate, and weight decay of matrices.

Other parameters do not decay.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from meshdsl import user_code
from meshdsl.dims import Dim
from meshdsl.errors import MeshDSLError, nearest, quote
from meshdsl.tensor import Tensor, parameter
from meshdsl.train.config import Group, Optimizer
from meshdsl.train.config import Schedule as ScheduleSettings
from meshdsl.train.local_settings import Outer
from meshdsl.train.muon import Lowering, matrices, muon
from meshdsl.train.trained import matched, name_at

# Called with the number of a step, counted from 0; returns the learning rate.
Schedule = Callable[[jax.typing.ArrayLike], jax.typing.ArrayLike]


def _is_tensor(node: Any) -> bool:
    return isinstance(node, Tensor)


def _sgd(rate: Schedule, decay: float, **settings: Any) -> optax.GradientTransformation:
    return optax.chain(
        optax.add_decayed_weights(decay, matrices),
        optax.sgd(rate, **{"momentum": 0.9, "nesterov": True, **settings}),
    )


def _adafactor(rate: Schedule, decay: float, **settings: Any) -> optax.GradientTransformation:
    # Optax's adafactor takes the decay as it is, not times the learning rate. So the decay is
    # chained between the update and the rate, as adamw has it.
    usual = {
        "multiply_by_parameter_scale": False,
        "clipping_threshold": 1.0,
        "min_dim_size_to_factor": 128,
    }
    return optax.chain(
        optax.adafactor(None, **{**usual, **settings}),
        optax.add_decayed_weights(-decay, matrices),
        optax.scale_by_schedule(rate),
    )


def _decaying(make: Callable, **usual: Any) -> Callable[..., optax.GradientTransformation]:
    """An optimizer of optax that decays matrices itself, with other defaults than optax has."""
    return lambda rate, decay, **settings: make(
        rate, **{"weight_decay": decay, "mask": matrices, **usual, **settings}
    )


# By name: the usual peak learning rate, what makes the transformation from a schedule and a weight
# decay, and the function of optax whose arguments are its settings. These have other defaults than
# optax gives them.
TABLE: dict[str, tuple[float, Callable[..., optax.GradientTransformation], Callable]] = {
    "adamw": (1e-3, _decaying(optax.adamw, b2=0.95), optax.adamw),
    "adafactor": (1e-3, _adafactor, optax.adafactor),
    "lion": (3e-4, _decaying(optax.lion), optax.lion),
    "sgd": (1e-1, _sgd, optax.sgd),
    # Updates of this size are as large as adamw's, so that both kinds of parameters share one rate.
    "muon": (1e-3, partial(muon, decays=matrices, consistent_rms=0.2), optax.contrib.muon),
}
_USUAL = 1e-3  # the peak of the learning rate where an optimizer does not say one


def peak(settings: Optimizer) -> float:
    """The peak learning rate: the one that is set, or the optimizer's usual one."""
    if settings.learning_rate:
        return settings.learning_rate
    if settings.name in TABLE:
        return TABLE[settings.name][0]
    said = inspect.signature(_function(settings.name)).parameters.get("learning_rate")
    usual = said.default if said else None
    return float(usual) if isinstance(usual, (int, float)) else _USUAL


def _function(name: str, group: str = "optimizer") -> Callable:
    """The function that makes the optimizer: one of the user's, of optax or of optax.contrib.

    Args:
      group: the settings that name it.

    Raises:
      MeshDSLError: there is none.
    """
    if user_code.is_named(name):
        found = user_code.load(name, f"{group}.name")
        if not callable(found):
            raise MeshDSLError(f"{group}.name={name}: is no function that makes an optimizer")
        return found
    known = optimizers_of_optax()
    if name not in known:
        close = nearest(name, [*TABLE, *known], far="")
        raise MeshDSLError(
            f"{group}.name={name}: expected {', '.join(TABLE)}, another optimizer of optax or "
            f"optax.contrib, or a function of yours as {user_code.EXAMPLES}{close}"
        )
    return known[name]


def optimizers_of_optax() -> dict[str, Callable]:
    """By name the functions of optax and optax.contrib that make an optimizer.

    These are the ones that take a learning rate.
    """
    found = {}
    for module in (optax.contrib, optax):
        for name, each in vars(module).items():
            if name.startswith(("_", "scale_by")) or not inspect.isfunction(each):
                continue
            if "learning_rate" in inspect.signature(each).parameters:
                found[name] = each
    return found


def _made(
    settings: Optimizer | Outer, rate: Schedule, decay: float, group: str = "optimizer"
) -> optax.GradientTransformationExtraArgs | optax.GradientTransformation:
    """The optimizer that `settings` name, with the arguments that they give it.

    Raises:
      MeshDSLError: there is none of the name, it has no such setting, or does not take its value.
    """
    known = TABLE.get(settings.name)
    function = known[2] if known else _function(settings.name, group)
    takes = inspect.signature(function).parameters
    open_ended = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in takes.values())
    given = {key: _as_tuple(value) for key, value in settings.settings.items()}
    for key in given:
        if key not in takes and not open_ended:
            raise MeshDSLError(
                f"{group}.settings.{key}: {settings.name} has no such setting{nearest(key, takes)}"
            )
    if "learning_rate" in given:
        raise MeshDSLError(f"{group}.settings.learning_rate: is set by {group}.learning_rate")
    usual = {"learning_rate": rate, "weight_decay": decay, "mask": matrices}
    usual["weight_decay_mask"] = matrices
    try:
        if known:
            found = known[1](rate, decay, **given)
        else:
            found = function(**{**{k: v for k, v in usual.items() if k in takes}, **given})
    except MeshDSLError:
        raise
    except Exception as error:
        said = " ".join(str(error).split())
        raise MeshDSLError(f"{group}.name={settings.name}: cannot be made: {said}") from error
    if not (hasattr(found, "init") and hasattr(found, "update")):
        raise MeshDSLError(
            f"{group}.name={settings.name}: made no optimizer, but {quote(found)}; a function of "
            "yours returns an optax.GradientTransformation"
        )
    if not known:
        _check_updates(found, settings.name, group)
    return found


def _check_updates(tx: Any, name: str, group: str) -> None:
    """Raise a MeshDSLError if the optimizer needs more than gradients, parameters and the loss.

    An exchange of workers has no loss.
    """
    loss = {"value": jnp.zeros(())} if group == "optimizer" else {}

    def update() -> Any:
        rows, columns = Dim("rows", 2), Dim("columns", 2)
        params: Any = {"weight": parameter(jnp.ones((2, 2)), (rows, columns), ins=rows)}
        return optax.with_extra_args_support(tx).update(params, tx.init(params), params, **loss)

    try:
        jax.eval_shape(update)
    except Exception as error:
        said = " ".join(str(error).split())
        raise MeshDSLError(f"{group}.name={name}: cannot be used in a run: {said}") from error


def _as_tuple(value: Any) -> Any:
    """`value` as optax takes it: lists of TOML are tuples."""
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value


def make_schedule(settings: ScheduleSettings, top: float, steps: int) -> Schedule:
    """A linear warmup to the rate `top`, then the shape of `settings` to the end of `steps`.

    No step has a rate of 0, neither the first nor the last.
    """
    if settings.fall:
        # The rate of the step before the fall is what it falls from.
        before, until, high, low = settings.fall
        length = int(until - before)
        return optax.linear_schedule(top * high, top * low, length, int(before) - 1)
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
    settings: Optimizer,
    schedule: ScheduleSettings,
    steps: int,
    groups: Mapping[str, str] | None = None,
) -> optax.GradientTransformation:
    """The optimizer that `settings` name, over a run of `steps`.

    Args:
      groups: by the name of a parameter the group of settings that it is in, if any.

    Raises:
      MeshDSLError: the name is unknown; the text lists the known ones.
    """
    others = _one_optimizer(settings, schedule, steps)
    if not groups:
        made = _with_average(by_signs(others), settings.average)
        return Lowering(*made) if isinstance(others, Lowering) else made
    by_group = {
        name: _one_optimizer(_of_group(settings, group), schedule, steps)
        for name, group in settings.groups.items()
    }

    def labels(parameters: Any) -> Any:
        return jax.tree_util.tree_map_with_path(
            lambda path, _: groups.get(_name(path), _OTHERS), parameters, is_leaf=_is_tensor
        )

    grouped = optax.multi_transform({**by_group, _OTHERS: others}, labels)
    made = _with_average(by_signs(grouped), settings.average)
    lowers = any(isinstance(tx, Lowering) for tx in (others, *by_group.values()))
    return Lowering(*made) if lowers else made


def make_outer(settings: Outer) -> optax.GradientTransformation:
    """The optimizer of the exchange between workers that `settings` name.

    Raises:
      MeshDSLError: the name is unknown; or it needs the loss, or a lowering of its own.
    """
    rate = optax.constant_schedule(settings.learning_rate)
    found = _made(settings, rate, 0.0, "local.outer")
    if isinstance(found, Lowering):
        raise MeshDSLError(f"local.outer.name={settings.name}: is not there yet for workers")
    return found


def by_signs(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """`optimizer`, but for parameters that move by the signs of their gradients.

    A parameter whose role has `signs`, such as the offsets of a router of experts, is moved by that
    much against the sign of its gradient, less the mean of the moves along its last dim. So what is
    added to all offsets alike, which chooses nothing, stays 0. The optimizer gets zeros for it.
    """

    inner = optax.with_extra_args_support(optimizer)

    def update(updates, state, params=None, **extra):
        gradients = updates
        without = lambda g: jax.tree.map(jnp.zeros_like, g) if _signs(g) else g
        left = jax.tree.map(without, gradients, is_leaf=_is_tensor)
        updates, state = inner.update(left, state, params, **extra)
        moved = lambda g, update: _moves(g) if _signs(g) else update
        return jax.tree.map(moved, gradients, updates, is_leaf=_is_tensor), state

    return optax.GradientTransformationExtraArgs(optimizer.init, update)


def _signs(x: Any) -> float:
    return x.role.signs if _is_tensor(x) and x.role else 0.0


def _moves(gradient: Tensor) -> Tensor:
    def centred(array):
        signs = jnp.sign(array)
        return (signs.mean(-1, keepdims=True) - signs) * _signs(gradient)

    return jax.tree.map(centred, gradient)


def _with_average(
    optimizer: optax.GradientTransformation, decay: float
) -> optax.GradientTransformation:
    """`optimizer`, which also keeps an average of the parameters where `decay` is not 0.

    It is the `ema` of the second of two states, the one of an `optax.EmaState`.
    """
    if not decay:
        return optimizer

    def init(params: Any) -> optax.EmaState:
        return optax.EmaState(jnp.zeros((), jnp.int32), jax.tree.map(jnp.asarray, params))

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        # In the first steps the average is over fewer steps than the decay would have it.
        count = state.count + 1
        old = jnp.minimum(decay, count / (count + 9.0))
        average = jax.tree.map(
            lambda kept, x, u: old * kept + (1 - old) * (x + u), state.ema, params, updates
        )
        return updates, optax.EmaState(count, average)

    return optax.chain(optimizer, optax.GradientTransformation(init, update))


def average_of(opt_state: Any) -> Any:
    """The average of what is trained, in the state of an optimizer that keeps one."""
    return opt_state[1].ema


def _name(path: tuple) -> str:
    """The name of what is trained at a path; where there are adapters, the model is in `params`."""
    return name_at(path).removeprefix("params.")


_OTHERS = ""  # the label of parameters that are in no group


def _one_optimizer(
    settings: Optimizer, schedule: ScheduleSettings, steps: int
) -> optax.GradientTransformation:
    """The optimizer that `settings` name, for all parameters alike."""
    return _made(settings, make_schedule(schedule, peak(settings), steps), settings.weight_decay)


def _of_group(settings: Optimizer, group: Group) -> Optimizer:
    """The settings of a group: its own, and otherwise those of all."""
    other = group.name and group.name != settings.name
    return replace(
        settings,
        name=group.name or settings.name,
        settings=group.settings or ({} if other else settings.settings),
        learning_rate=group.learning_rate or (0.0 if other else settings.learning_rate),
        weight_decay=settings.weight_decay if group.weight_decay < 0 else group.weight_decay,
    )


def groups_of(settings: Optimizer, names: Iterable[str]) -> dict[str, str]:
    """By the name of each parameter that is in a group, the name of the group.

    Args:
      names: of the parameters that are trained.

    Raises:
      MeshDSLError: a group has no patterns, a pattern matches nothing, or a parameter is in two
        groups.
    """
    found: dict[str, str] = {}
    for group, each in settings.groups.items():
        where = f"optimizer.groups.{group}.parameters"
        if not each.parameters:
            raise MeshDSLError(f"{where}: name at least one pattern of parameters")
        for name in matched(each.parameters, names, where):
            if name in found:
                raise MeshDSLError(f"{where}: `{name}` is in the group {found[name]} too")
            found[name] = group
    return found
