"""Runs a program for many devices on one, in numbers: what a proof is held against.

Each array has a position in front for the device. A collective is what it says, on that position;
all else is computed for each device by itself. Nothing here is shared with the proofs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

from meshdsl.program.jaxpr import scan_counts

_SAME = {"pvary", "pcast", "optimization_barrier", "name", "hidden_on_cpu", "stop_gradient"}
_CALLS = {"jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call"}
_CALLS |= {"eval_jaxpr", "remat2", "checkpoint", "linear_call"}


def evaluated(closed_jaxpr: Any, args: Sequence[Any]) -> list[Any]:
    """The results of a program whose `shard_map`s are simulated."""
    return _Run({}).run(closed_jaxpr, list(args))


class _Run:
    """One program.

    Args:
      sizes: of the mesh axes. Without any there is no position for the device.
    """

    def __init__(self, sizes: Mapping[str, int]):
        self._sizes = dict(sizes)
        self._count = math.prod(self._sizes.values())

    def run(self, jaxpr: Any, args: Sequence[Any]) -> list[Any]:
        consts = [self._everywhere(c) for c in getattr(jaxpr, "consts", ())]
        jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
        known: dict[Any, Any] = dict(zip(jaxpr.invars, args, strict=True))
        known.update(zip(jaxpr.constvars, consts, strict=True))
        read = lambda v: self._everywhere(v.val) if isinstance(v, Literal) else known[v]
        for eqn in jaxpr.eqns:
            known.update(
                zip(eqn.outvars, self._results(eqn, list(map(read, eqn.invars))), strict=True)
            )
        return [read(v) for v in jaxpr.outvars]

    def _everywhere(self, x: Any) -> Any:
        x = jnp.asarray(x)
        return jnp.broadcast_to(x, (self._count, *x.shape)) if self._sizes else x

    def _results(self, eqn: Any, values: list[Any]) -> list[Any]:
        name, p = eqn.primitive.name, eqn.params
        if name == "shard_map":
            return self._shard_map(p, values)
        if name in _SAME:
            return values
        if name in _CALLS:
            return self.run(p.get("jaxpr") or p.get("call_jaxpr") or p["callee"], values)
        if name == "scan":
            return self._scan(p, values)
        if name == "cond":
            return self._cond(p, values)
        if hasattr(self, f"_{name}"):
            return getattr(self, f"_{name}")(p, values)
        compute = lambda *each: eqn.primitive.bind(*each, **_local(p))
        found = (
            jax.vmap(compute, axis_size=self._count)(*values) if self._sizes else compute(*values)
        )
        return list(found) if eqn.primitive.multiple_results else [found]

    def _shard_map(self, p: Mapping[str, Any], values: list[Any]) -> list[Any]:
        inner = _Run(dict(p["mesh"].shape) or {"only": 1})
        given = [inner._given_out(x, spec) for x, spec in zip(values, p["in_specs"], strict=True)]
        found = inner.run(p["jaxpr"], given)
        return [inner._put_together(x, spec) for x, spec in zip(found, p["out_specs"], strict=True)]

    def _numbers(self, axes: Sequence[str]) -> np.ndarray:
        """The number of each device along axes, major first."""
        places = np.indices(tuple(self._sizes.values())).reshape(len(self._sizes), -1)
        of = dict(zip(self._sizes, places, strict=True))
        number = np.zeros(self._count, int)
        for axis in axes:
            number = number * self._sizes[axis] + of[axis]
        return number

    def _groups(self, axes: Sequence[str]) -> np.ndarray:
        """A row for each group of devices that differ along `axes` alone, in the order of these."""
        rest = self._numbers([axis for axis in self._sizes if axis not in axes])
        order = np.lexsort((self._numbers(axes), rest))
        return order.reshape(-1, math.prod(self._sizes[axis] for axis in axes))

    def _given_out(self, x: Any, spec: Any) -> Any:
        devices = []
        for device in range(self._count):
            at = []
            for dim, axes in enumerate(map(_names, spec)):
                n = x.shape[dim] // math.prod(self._sizes[a] for a in axes)
                number = int(self._numbers(axes)[device])
                at.append(slice(number * n, (number + 1) * n))
            devices.append(x[tuple(at)])
        return jnp.stack(devices)

    def _put_together(self, x: Any, spec: Any) -> Any:
        named = list(map(_names, spec))
        shape = list(x.shape[1:])
        for dim, axes in enumerate(named):
            shape[dim] *= math.prod(self._sizes[a] for a in axes)
        whole: Any = np.zeros(shape, x.dtype) if x.dtype != jax.dtypes.extended else None
        for device in range(self._count):
            at = []
            for dim, axes in enumerate(named):
                n, number = x.shape[1 + dim], int(self._numbers(axes)[device])
                at.append(slice(number * n, (number + 1) * n))
            whole[tuple(at)] = x[device]
        return jnp.asarray(whole)

    # -- collectives -------------------------------------------------------------------------------

    def _in_groups(self, x: Any, axes: Any, compute: Any) -> Any:
        """What `compute` makes of the arrays of each group of devices: an array for each."""
        found: list[Any] = [None] * self._count
        for group in self._groups(_names(axes)):
            for device, result in zip(group, compute(x[np.asarray(group)]), strict=True):
                found[device] = result
        return jnp.stack(found)

    def _psum(self, p, values):
        total = lambda each: [each.sum(0)] * len(each)
        return [self._in_groups(x, p["axes"], total) for x in values]

    _psum_invariant = _psum

    def _pmax(self, p, values):
        return [self._in_groups(x, p["axes"], lambda e: [e.max(0)] * len(e)) for x in values]

    def _pmin(self, p, values):
        return [self._in_groups(x, p["axes"], lambda e: [e.min(0)] * len(e)) for x in values]

    def _all_gather(self, p, values):
        dim, join = p["all_gather_dimension"], jnp.concatenate if p["tiled"] else jnp.stack
        gather = lambda each: [join(list(each), dim)] * len(each)
        return [self._in_groups(x, p["axis_name"], gather) for x in values]

    _all_gather_invariant = _all_gather

    def _reduce_scatter(self, p, values):
        scatter = lambda each: jnp.split(each.sum(0), len(each), p["scatter_dimension"])
        return [self._in_groups(x, p["axis_name"], scatter) for x in values]

    def _all_to_all(self, p, values):
        def exchange(each):
            pieces = [jnp.split(x, len(each), p["split_axis"]) for x in each]
            return [
                jnp.concatenate(list(got), p["concat_axis"]) for got in zip(*pieces, strict=True)
            ]

        return [self._in_groups(x, p["axis_name"], exchange) for x in values]

    def _ppermute(self, p, values):
        def moved(each):
            found = [jnp.zeros_like(each[0])] * len(each)
            for source, target in p["perm"]:
                found[target] = each[source]
            return found

        return [self._in_groups(x, p["axis_name"], moved) for x in values]

    def _axis_index(self, p, values):
        return [jnp.asarray(self._numbers(_names(p["axis_name"])), jnp.int32)]

    # -- loops -------------------------------------------------------------------------------------

    def _scan(self, p, values):
        consts, carries = scan_counts(p)
        split = consts, consts + carries
        consts, carry, lists = values[: split[0]], values[split[0] : split[1]], values[split[1] :]
        order = range(p["length"])
        made: list[Any] = [None] * p["length"]
        front = 1 if self._sizes else 0
        for i in reversed(order) if p["reverse"] else order:
            each = [jnp.take(x, i, axis=front) if _is_plain(x) else x[:, i] for x in lists]
            found = self.run(p["jaxpr"], [*consts, *carry, *each])
            carry, made[i] = found[:carries], found[carries:]
        return [*carry, *(jnp.stack(list(ys), front) for ys in zip(*made, strict=True))]

    def _cond(self, p, values):
        which, *args = values
        branches = [self.run(branch, args) for branch in p["branches"]]
        if not self._sizes:
            return branches[int(np.clip(which, 0, len(branches) - 1))]
        pick = np.clip(np.asarray(which, int), 0, len(branches) - 1)
        return [
            jnp.stack([cases[pick[d]][d] for d in range(self._count)])
            for cases in zip(*branches, strict=True)
        ]


def _is_plain(x: Any) -> bool:
    return not jnp.issubdtype(x.dtype, jax.dtypes.extended)


def _names(axes: Any) -> tuple[str, ...]:
    return () if axes is None else axes if isinstance(axes, tuple) else (axes,)


def _local(params: Mapping[str, Any]) -> dict[str, Any]:
    return {k: None if k in ("sharding", "out_sharding") else v for k, v in params.items()}
