"""Runs a program for many devices on one, in numbers.

Each array has a position in front for the device. A collective is what it says, on that position;
all else is computed for each device by itself. Numbers of two bytes are computed with four, so that
rounding makes no difference that matters, such as another choice of an expert. Nothing here is
shared with the proofs, which tests hold against it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Literal

from meshdsl.program.jaxpr import scan_counts

_SAME = {"pvary", "pcast", "optimization_barrier", "name", "hidden_on_cpu", "stop_gradient"}
_SAME |= {"sharding_constraint", "reshard", "mesh_cast"}
_CALLS = {"jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call"}
_CALLS |= {"eval_jaxpr", "remat2", "checkpoint", "linear_call", "local_kernel"}
_WIDE = {np.dtype(name): np.dtype("float32") for name in (jnp.bfloat16, jnp.float16)}


def evaluated(closed_jaxpr: Any, args: Sequence[Any]) -> list[Any]:
    """The results of a program whose `shard_map`s are simulated."""
    return _Run({}).run(closed_jaxpr, list(map(_wide, args)))


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
        x = x if hasattr(x, "dtype") else np.asarray(x)
        if not jnp.issubdtype(x.dtype, jax.dtypes.extended):
            x = np.asarray(x)  # a constant of JAX may be bound to the mesh of its program
            x = _wide(jnp.asarray(x))
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
        how = _local(p)
        compute = lambda *each: eqn.primitive.bind(*each, **how)
        if name == "scatter-add":  # whose own program of a sum is for the narrow dtype
            how = {k: v for k, v in how.items() if not k.startswith("update_")}
            compute = lambda *each: lax.scatter_add(*each, **how)
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
        named = [_names(spec[d]) if d < len(spec) else () for d in range(x.ndim - 1)]
        used = [axis for axes in named for axis in axes]
        x = x.reshape(*self._sizes.values(), *x.shape[1:])
        x = x[tuple(slice(None) if axis in used else 0 for axis in self._sizes)]
        left = [axis for axis in self._sizes if axis in used]
        order, shape = [], []
        for d, axes in enumerate(named):
            order += [*map(left.index, axes), len(left) + d]
            shape.append(x.shape[len(left) + d] * math.prod(self._sizes[a] for a in axes))
        return x.transpose(order).reshape(shape)

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
        def sent(each):
            got = [jnp.zeros_like(each[0])] * len(each)
            for source, target in p["perm"]:
                got[target] = each[source]
            return got

        return [self._in_groups(x, p["axis_name"], sent) for x in values]

    def _axis_index(self, p, values):
        return [jnp.asarray(self._numbers(_names(p["axis_name"])), jnp.int32)]

    # -- loops -------------------------------------------------------------------------------------

    def _scan(self, p, values):
        consts, carries = scan_counts(p)
        split, front = consts + carries, 1 if self._sizes else 0
        first, lists = values[consts:split], [jnp.moveaxis(x, front, 0) for x in values[split:]]

        def body(carry, each):
            found = self.run(p["jaxpr"], [*values[:consts], *carry, *each])
            return found[:carries], found[carries:]

        last, made = lax.scan(body, first, lists, length=p["length"], reverse=p["reverse"])
        return [*last, *(jnp.moveaxis(y, 0, front) for y in made)]

    def _while(self, p, values):
        ends = p["cond_nconsts"], p["cond_nconsts"] + p["body_nconsts"]
        of_cond, of_body, first = values[: ends[0]], values[ends[0] : ends[1]], values[ends[1] :]
        more = lambda carry: self.run(p["cond_jaxpr"], [*of_cond, *carry])[0]

        def body(carry):
            goes_on, new = more(carry), self.run(p["body_jaxpr"], [*of_body, *carry])
            shaped = lambda x: goes_on.reshape(goes_on.shape + (1,) * (x.ndim - goes_on.ndim))
            return [jnp.where(shaped(a), a, b) for a, b in zip(new, carry, strict=True)]

        return lax.while_loop(lambda carry: more(carry).any(), body, first)

    def _cond(self, p, values):
        which, *args = values
        branches = [self.run(branch, args) for branch in p["branches"]]
        pick = jnp.clip(which, 0, len(branches) - 1)
        pick = (pick, jnp.arange(self._count)) if self._sizes else pick
        return [jnp.stack(cases)[pick] for cases in zip(*branches, strict=True)]


def _names(axes: Any) -> tuple[str, ...]:
    return () if axes is None else axes if isinstance(axes, tuple) else (axes,)


def _wide(x: Any) -> Any:
    return x.astype(_WIDE[x.dtype]) if x.dtype in _WIDE else x


def _local(params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of an equation, without what they say of a mesh, and with wider dtypes."""
    found = {k: None if k in ("sharding", "out_sharding") else v for k, v in params.items()}
    return {k: _WIDE.get(v, v) if isinstance(v, np.dtype) else v for k, v in found.items()}
