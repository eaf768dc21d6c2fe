"""Flattens a jaxpr: the equations of one device in program order.

Calls (`jit`, `shard_map`, `checkpoint`, custom derivatives) are walked into, so that only loops and
branches remain as blocks. Shapes are those of one device: local ones inside of a `shard_map`, and
those that `global_arrays` finds outside. What only renames an array (a reshape, a transpose,
`pvary`) is left out: its result is the memory of its operand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jax.extend.core import Literal

from meshdsl.predict.kernels.equations import BARRIER, Block, Equation, Value, view
from meshdsl.predict.kernels.global_arrays import (
    as_global,
    as_local,
    device_value,
    one_part,
    result_parts,
)
from meshdsl.predict.kernels.primitives import names
from meshdsl.program.jaxpr import COLLECTIVES, body_of, join_scopes, scan_counts, sub_jaxprs
from meshdsl.program.program import Program

# The result is the memory of the operand, seen otherwise. A transpose is among them, because a
# compiler takes it into the layout of what uses it.
_RENAMES = names("""
    bitcast_convert_type copy copy_p expand_dims hidden_on_cpu layout_constraint name pbroadcast
    pcast pvary random_unwrap random_wrap reshape sharding_constraint squeeze stop_gradient
    transpose
""")
_LOOPS = names("scan while")
# The jaxprs in their parameters are no programs of their own: the code of one element, say.
_NOT_WALKED = (
    "scatter",
    "reduce",
    "argm",
    "sort",
    "pallas_call",
    "select_and",
    "custom_root",
    "custom_linear",
)


def flatten(program: Program) -> Block:
    """The program as one block. Its inputs are the program's arguments, with their names."""
    jaxpr = program.jaxpr.jaxpr
    inputs = []
    for var, argument in zip(jaxpr.invars, program.arguments, strict=True):
        parts = tuple(
            -(-whole // local) if local else 1
            for whole, local in zip(var.aval.shape, argument.shape, strict=True)
        )
        value = device_value(var.aval, parts)
        value.name = argument.name
        inputs.append(value)
    flattener = _Flattener(program.axis_sizes)
    outputs = flattener.walk(jaxpr, dict(zip(jaxpr.invars, inputs, strict=True)), "", True)
    return Block(inputs, flattener.equations, outputs)


class _Flattener:
    """Collects the equations of one block.

    `is_global` says of a jaxpr whether its arrays are global: it stands outside of a `shard_map`.
    """

    def __init__(self, axis_sizes: Mapping[str, int]):
        self.axis_sizes = axis_sizes
        self.equations: list[Equation] = []

    def walk(
        self, jaxpr, env: dict[Any, Value | None], scope: str, is_global: bool
    ) -> list[Value | None]:
        """Adds the equations of `jaxpr`, and returns its outputs.

        Args:
          env: for each variable its value; those of the inputs at first.
          scope: the name stack around it.
        """
        for var in jaxpr.constvars:
            env.setdefault(var, device_value(var.aval, one_part(var.aval) if is_global else None))
        for eqn in jaxpr.eqns:
            inputs = [None if isinstance(v, Literal) else env[v] for v in eqn.invars]
            inner = join_scopes(scope, str(eqn.source_info.name_stack))
            results = self._results(eqn, inputs, inner, is_global)
            env.update(zip(eqn.outvars, results, strict=True))
        return [None if isinstance(v, Literal) else env[v] for v in jaxpr.outvars]

    def _results(
        self, eqn, inputs: list[Value | None], scope: str, is_global: bool
    ) -> Sequence[Value | None]:
        """Adds one equation, or those of what it calls; returns its results."""
        name = eqn.primitive.name
        if name in _RENAMES or self._moves_nothing(eqn):
            return self._renamed(eqn, inputs, is_global)
        if name == BARRIER:
            return [v if v is None else self._barrier(eqn, v, scope) for v in inputs]
        if name in _LOOPS or name == "cond":
            return self._with_blocks(eqn, inputs, join_scopes(scope, name), is_global)
        if not name.startswith(_NOT_WALKED) and not eqn.params.get("products"):
            for sub in sub_jaxprs(eqn.params):
                if len(sub.invars) == len(inputs) and len(sub.outvars) == len(eqn.outvars):
                    return self._called(eqn, sub, inputs, join_scopes(scope, name), is_global)
        if (
            name == "broadcast_in_dim"
            and inputs[0] is not None
            and eqn.invars[0].aval.size == eqn.outvars[0].aval.size
        ):
            return self._renamed(eqn, inputs, is_global)
        outputs = [
            device_value(v.aval, result_parts(eqn, inputs, v.aval) if is_global else None)
            for v in eqn.outvars
        ]
        self._add(Equation(name, inputs, outputs, scope, eqn))
        return outputs

    def _moves_nothing(self, eqn) -> bool:
        """Whether this is a collective over axes of size 1, or a slice of everything."""
        if eqn.primitive.name == "slice":
            return eqn.invars[0].aval.shape == eqn.outvars[0].aval.shape
        if eqn.primitive.name not in COLLECTIVES:
            return False
        _, parameter = COLLECTIVES[eqn.primitive.name]
        axes = eqn.params[parameter]
        axes = axes if isinstance(axes, (tuple, list)) else (axes,)
        return all(self.axis_sizes.get(axis) == 1 for axis in axes)

    def _renamed(self, eqn, inputs: list[Value | None], is_global: bool) -> Sequence[Value | None]:
        """The operands as the results of an equation that only renames them."""
        first, name = inputs[0], eqn.primitive.name
        if first is None:
            return [None] * len(eqn.outvars)
        if name == "transpose" and _reorders(eqn):
            aval = eqn.outvars[0].aval
            parts = result_parts(eqn, inputs, aval) if is_global else None
            value = view(first, device_value(aval, parts))
            value.transposed = True
            return [value]
        if not is_global:
            return inputs[: len(eqn.outvars)]
        results = []
        for source, var in zip(inputs, eqn.outvars, strict=False):
            if source is None:
                results.append(None)
                continue
            parts = result_parts(eqn, inputs, var.aval)
            if name == "sharding_constraint":
                local = eqn.params["sharding"].shard_shape(var.aval.shape)
                parts = tuple(-(-n // m) for n, m in zip(var.aval.shape, local, strict=True))
            value = device_value(var.aval, parts)
            # A view, because what uses it needs its shape, and lifetimes need the buffer.
            same = (value.shape, value.parts) == (source.shape, source.parts)
            results.append(source if same else view(source, value))
        return results

    def _called(
        self, eqn, sub, inputs: list[Value | None], scope: str, is_global: bool
    ) -> Sequence[Value | None]:
        """Walks into the jaxpr `sub` that an equation calls; returns the results of the call."""
        sub_is_global = is_global and eqn.primitive.name != "shard_map"
        enters_shard_map = is_global and not sub_is_global

        def literal(var) -> Value:
            return device_value(var.aval, one_part(var.aval) if sub_is_global else None)

        operands: dict[Any, Value] = {}
        for var, given in zip(sub.invars, inputs, strict=True):
            value = literal(var) if given is None else given
            operands[var] = as_local(value, var.aval) if enters_shard_map else value
        if eqn.params.get("differentiated") and eqn.params.get("prevent_cse"):
            operands = {var: self._barrier(eqn, v, scope) for var, v in operands.items()}
        env: dict[Any, Value | None] = {**operands}
        results = [
            literal(var) if result is None else result
            for var, result in zip(
                sub.outvars, self.walk(sub, env, scope, sub_is_global), strict=True
            )
        ]
        if enters_shard_map:
            return [
                as_global(result, local.aval, var.aval)
                for result, local, var in zip(results, sub.outvars, eqn.outvars, strict=True)
            ]
        return results

    def _barrier(self, eqn, value: Value, scope: str) -> Value:
        """Puts a barrier behind an array: nothing behind it joins the kernel that makes the array.

        There is one behind what `jax.checkpoint` recomputes from: if the compiler looked through to
        what made the array, it would keep that instead.
        """
        behind = value.copy()
        self._add(Equation(BARRIER, [value], [behind], scope, eqn))
        return behind

    def _with_blocks(
        self, eqn, inputs: list[Value | None], scope: str, is_global: bool
    ) -> Sequence[Value | None]:
        """Adds a loop or a `cond`, with its bodies or branches as blocks; returns its results."""
        name, params = eqn.primitive.name, eqn.params
        if name == "scan":
            bodies, start, (constants, carried) = [params["jaxpr"]], 0, scan_counts(params)
        elif name == "while":
            bodies, start = [params["body_jaxpr"]], params["cond_nconsts"]
            constants, carried = params["body_nconsts"], len(eqn.outvars)
        else:
            bodies, start, constants, carried = params["branches"], 1, len(inputs) - 1, 0
        blocks = [
            self._block(body_of(body), inputs[start:], constants + carried, scope, is_global)
            for body in bodies
        ]
        if name == "while":
            condition = body_of(params["cond_jaxpr"])
            given = inputs[:start] + inputs[start + constants :]
            blocks.append(self._block(condition, given, len(inputs), scope, is_global))
        outputs = []
        for i, (var, made) in enumerate(zip(eqn.outvars, blocks[0].outputs, strict=True)):
            stacked = name == "scan" and i >= carried
            parts = _parts_outside(made, var.aval, stacked) if is_global else None
            outputs.append(device_value(var.aval, parts))
        self._add(Equation(name, inputs, outputs, scope, eqn, blocks, start, constants, carried))
        return outputs

    def _block(
        self, jaxpr, given: list[Value | None], unsliced: int, scope: str, is_global: bool
    ) -> Block:
        """A block that is given the first `unsliced` values as they are, and of the rest slices."""
        inner, inputs = _Flattener(self.axis_sizes), []
        for i, (var, outer) in enumerate(zip(jaxpr.invars, given, strict=True)):
            parts = _parts_inside(outer, var.aval, i >= unsliced) if is_global else None
            inputs.append(device_value(var.aval, parts))
        env = dict(zip(jaxpr.invars, inputs, strict=True))
        outputs = inner.walk(jaxpr, env, scope, is_global)
        return Block(inputs, inner.equations, outputs)

    def _add(self, equation: Equation) -> None:
        for value in equation.outputs:
            value.equation = equation
        self.equations.append(equation)


def _parts_inside(outer: Value | None, aval, sliced: bool) -> tuple[int, ...] | None:
    """The parts of a block's input that is `outer`, or a slice of it along the first dim."""
    if outer is None:
        return one_part(aval)
    return outer.parts[1:] if sliced and outer.parts is not None else outer.parts


def _parts_outside(made: Value | None, aval, stacked: bool) -> tuple[int, ...] | None:
    """The parts of a loop's result: what its body makes, or a stack of what each turn makes."""
    if made is None:
        return one_part(aval)
    return (1, *made.parts) if stacked and made.parts is not None else made.parts


def _reorders(eqn) -> bool:
    """Whether a transpose changes the order of dims larger than 1."""
    moved = [i for i in eqn.params["permutation"] if eqn.invars[0].aval.shape[i] > 1]
    return moved != sorted(moved)
