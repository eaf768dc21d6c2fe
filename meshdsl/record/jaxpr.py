"""The collectives that a jaxpr asks for.

A jaxpr inside `shard_map` is the program of one device, so its shapes are local and what it says is exact: nothing is
moved that it doesn't name. `pvary` (`pcast`) only changes what is known about an array and moves nothing.

A `while` of unknown length counts as one iteration, and every branch of a `cond` is listed.
"""

from collections.abc import Iterator, Mapping

from meshdsl.record.collective import Collective, crossed, live_axes

# A primitive's name: the operation, and the parameter that names its axes. The `_invariant` forms differ only in what is
# known of their result.
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
    """Lists the collectives of a jaxpr in program order; one with several operands is one per operand.

    closed_jaxpr: what `jax.make_jaxpr(f)(...)` returns.
    axis_sizes: the mesh, `{axis: size}` in its order (`mesh.shape`).
    """
    return list(_walk(closed_jaxpr.jaxpr, axis_sizes, 1, ""))


def _walk(jaxpr, axis_sizes, count, scope) -> Iterator[Collective]:
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        inner = join(scope, str(eqn.source_info.name_stack))
        if name in COLLECTIVES:
            yield from collectives_of(eqn, axis_sizes, count, join(inner, name))
            continue
        times = count * eqn.params["length"] if name == "scan" else count
        for sub in sub_jaxprs(eqn.params):
            yield from _walk(sub, axis_sizes, times, join(inner, name))


def collectives_of(
    eqn, axis_sizes: Mapping[str, int], count: int, scope: str
) -> Iterator[Collective]:
    """What one equation moves: a collective for each operand, none over axes of size 1."""
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


def sub_jaxprs(params) -> Iterator:
    """The jaxprs that an equation runs. A rule for its transpose is not run."""
    for key, value in params.items():
        if key == "transpose":
            continue
        for item in value if isinstance(value, (tuple, list)) else (value,):
            jaxpr = body_of(item)
            if hasattr(jaxpr, "eqns"):
                yield jaxpr


def join(scope: str, name: str) -> str:
    """The name stack `scope`, with `name` inside of it."""
    return f"{scope}/{name}" if scope and name else scope or name


def scan_counts(params) -> tuple[int, int]:
    """How many of a scan's inputs are constants, and how many the carry. JAX 0.12 keeps them as a tree."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    constants, carry, _ = params["ft_in"].unpack()
    return len(constants), len(carry)


def body_of(jaxpr):
    """The jaxpr in a parameter of an equation, closed (before JAX 0.12) or not."""
    return getattr(jaxpr, "jaxpr", jaxpr)
