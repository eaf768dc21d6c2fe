"""Reads the collectives that a jaxpr asks for.

A jaxpr inside `shard_map` is the program of one device: its shapes are local, and it names every
collective. `pvary` (`pcast`) only changes what is known about an array and moves nothing.

How often a `while` runs is unknown; it counts as one iteration. Of a `cond` the collectives of all
branches are listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jax.extend import core as jex

from meshdsl.program.collective import Collective, crossed, live_axes

# For each primitive: the operation, and the parameter that names its axes. The `_invariant` forms
# differ only in what is known about their result.
COLLECTIVES = {
    "psum": ("psum", "axes"),
    "psum_invariant": ("psum", "axes"),
    "pmax": ("pmax", "axes"),
    "pmin": ("pmin", "axes"),
    "all_gather": ("all_gather", "axis_name"),
    "all_gather_invariant": ("all_gather", "axis_name"),
    "reduce_scatter": ("psum_scatter", "axis_name"),
    "all_to_all": ("all_to_all", "axis_name"),
    "ppermute": ("ppermute", "axis_name"),
}


def from_jaxpr(closed_jaxpr, axis_sizes: Mapping[str, int]) -> list[Collective]:
    """Lists the collectives of a jaxpr in program order, one for each operand.

    Args:
      closed_jaxpr: what `jax.make_jaxpr(f)(...)` returns.
      axis_sizes: the mesh, `{axis: size}` in its order (`mesh.shape`).
    """
    return list(_walk(closed_jaxpr.jaxpr, axis_sizes, 1, ""))


def _walk(jaxpr, axis_sizes: Mapping[str, int], count: int, scope: str) -> Iterator[Collective]:
    """The collectives of a jaxpr that runs `count` times under the name stack `scope`."""
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        inner = join_scopes(scope, str(eqn.source_info.name_stack))
        if name in COLLECTIVES:
            yield from collectives_of(eqn, axis_sizes, count, join_scopes(inner, name))
            continue
        times = count * eqn.params["length"] if name == "scan" else count
        for sub in sub_jaxprs(eqn.params):
            yield from _walk(sub, axis_sizes, times, join_scopes(inner, name))


def collectives_of(
    eqn, axis_sizes: Mapping[str, int], count: int, scope: str
) -> Iterator[Collective]:
    """The collectives of an equation of `COLLECTIVES`: one for each operand, none over size 1."""
    operation, parameter = COLLECTIVES[eqn.primitive.name]
    names = eqn.params[parameter]
    names = tuple(names) if isinstance(names, (tuple, list)) else (names,)
    axes = (
        crossed(eqn.params["perm"], names, axis_sizes)
        if operation == "ppermute"
        else live_axes(names, axis_sizes)
    )
    if not axes:
        return
    for operand, result in zip(eqn.invars, eqn.outvars, strict=True):
        size = max(v.aval.size * v.aval.dtype.itemsize for v in (operand, result))
        yield Collective(operation, axes, count, size, operand.aval.dtype.name, scope)


def sub_jaxprs(params: Mapping[str, Any]) -> Iterator[Any]:
    """The jaxprs that an equation with these parameters runs.

    The jaxpr of a rule for its transpose is left out, because the equation does not run it.
    """
    for key, value in params.items():
        if key == "transpose":
            continue
        for item in value if isinstance(value, (tuple, list)) else (value,):
            jaxpr = body_of(item)
            if hasattr(jaxpr, "eqns"):
                yield jaxpr


def join_scopes(scope: str, name: str) -> str:
    """The name stack of what stands under `name` inside of `scope`; either may be empty."""
    return f"{scope}/{name}" if scope and name else scope or name


def scan_counts(params: Mapping[str, Any]) -> tuple[int, int]:
    """How many inputs of a scan are constants, and how many are carried from turn to turn."""
    if "num_consts" in params:  # JAX 0.12 has the inputs as a tree instead
        return params["num_consts"], params["num_carry"]
    constants, carry, _ = params["ft_in"].unpack()
    return len(constants), len(carry)


def body_of(jaxpr: Any) -> Any:
    """The open jaxpr in a parameter of an equation, which is a closed one before JAX 0.12."""
    return getattr(jaxpr, "jaxpr", jaxpr)


def variables_of(atoms: Iterable[Any]) -> list[Any]:
    """Those of the operands of an equation, or of the results of a jaxpr, that are no literals."""
    return [v for v in atoms if not isinstance(v, jex.Literal)]


def cut_from(jaxpr: Any, arguments: Iterable, equations: Iterable, results: Iterable) -> Any:
    """Some equations of a jaxpr as a closed one without constants.

    Args:
      arguments: the variables that it takes; all that the equations use and do not define.
      results: what it returns.
    """
    cut = {"constvars": [], "invars": list(arguments), "outvars": list(results)}
    return jex.ClosedJaxpr(jaxpr.replace(**cut, eqns=list(equations)), [])
