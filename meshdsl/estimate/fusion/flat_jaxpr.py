"""A jaxpr without its nesting: the equations of one device in program order, loops and branches alone kept as blocks.

Calls (`jit`, `shard_map`, `checkpoint`, custom derivatives) are walked into. Shapes are local: those inside a `shard_map` as they stand; outside,
where arrays are global, each dim is divided as the shardings of arguments, results of a `shard_map` and `sharding_constraint`s say, and as
element-wise code passes them on. What only renames an array (a reshape, a transpose, `pvary`) is left out: its result is the same value.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax

from meshdsl.record.jaxpr import COLLECTIVES, body_of, join_scopes, scan_counts, sub_jaxprs
from meshdsl.record.program import Program

# Their result is the memory of their operand, seen otherwise. A transpose is one: the layout of what it feeds takes it in.
_RENAMES = frozenset(
    "bitcast_convert_type copy copy_p expand_dims hidden_on_cpu name optimization_barrier"
    " pbroadcast pcast pvary random_unwrap random_wrap reshape sharding_constraint squeeze stop_gradient"
    " transpose".split()
)
_LOOPS = {"scan", "while"}
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


_numbers = itertools.count()
BARRIER = "optimization_barrier"  # the primitive of nodes that stand for one


@dataclass(eq=False)
class Value:
    """An array of one device.

    Attributes:
      parts: of a global array, into how many parts each of its dims is cut; None inside a `shard_map`.
      of: the value whose memory this is, seen with other dims; None for one that has its own.
      turned: it is that memory with its dims in another order.
      host: it stands in the memory of the host.
    """

    shape: tuple[int, ...]
    dtype: str
    bytes: int
    parts: tuple[int, ...] | None = None
    of: Value | None = None
    turned: bool = False
    host: bool = False
    node: Node | None = None
    name: str = ""
    number: int = field(
        default_factory=lambda: next(_numbers)
    )  # in the order in which values are made

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(eq=False)
class Node:
    """An equation.

    Attributes:
      inputs: None for a literal.
      blocks: the body of a loop, and the condition of a `while` after it; or the branches of a `cond`.
      given: where in `inputs` those of the body or the branches begin; of these, `constants` are used as they are, `carried` go from turn to turn, and
        the rest are stacks of which each turn has a slice.
    """

    primitive: str
    inputs: list[Value | None]
    outputs: list[Value]
    scope: str
    eqn: Any
    blocks: list[Block] = field(default_factory=list)
    given: int = 0
    constants: int = 0
    carried: int = 0


@dataclass(eq=False)
class Block:
    inputs: list[Value]
    nodes: list[Node]
    outputs: list[Value | None]


def flatten(program: Program) -> Block:
    """The program as one block; its inputs are the program's arguments, with their names."""
    jaxpr = program.jaxpr.jaxpr
    inputs = []
    for var, argument in zip(jaxpr.invars, program.arguments, strict=True):
        parts = tuple(
            -(-whole // local) if local else 1
            for whole, local in zip(var.aval.shape, argument.shape, strict=True)
        )
        value = _value(var.aval, parts)
        value.name = argument.name
        inputs.append(value)
    flat = _Flat(program.axis_sizes)
    env = dict(zip(jaxpr.invars, inputs, strict=True))
    outputs = flat.walk(jaxpr, env, "", True)
    return Block(inputs, flat.nodes, outputs)


class _Flat:
    """Nodes of one block while they are collected."""

    def __init__(self, axis_sizes: Mapping[str, int]):
        self.axis_sizes = axis_sizes
        self.nodes: list[Node] = []

    def walk(self, jaxpr, env: dict[Any, Value], scope: str, whole: bool) -> list[Value | None]:
        """Adds the equations of `jaxpr`; `env` holds its inputs. `whole`: arrays are global. Gives its outputs."""
        for var in jaxpr.constvars:
            env.setdefault(var, _value(var.aval, _uncut(var.aval) if whole else None))
        for eqn in jaxpr.eqns:
            name = eqn.primitive.name
            inputs = [
                None if isinstance(v, jax.extend.core.Literal) else env[v] for v in eqn.invars
            ]
            inner = join_scopes(scope, str(eqn.source_info.name_stack))
            results = self._equation(eqn, name, inputs, inner, whole)
            env.update(zip(eqn.outvars, results, strict=True))
        return [None if isinstance(v, jax.extend.core.Literal) else env[v] for v in jaxpr.outvars]

    def _equation(self, eqn, name: str, inputs, scope: str, whole: bool) -> Sequence[Value | None]:
        if name in _RENAMES or self._moves_nothing(eqn, name):
            return self._renamed(eqn, name, inputs, whole)
        if name in _LOOPS or name == "cond":
            return self._blocks(eqn, name, inputs, join_scopes(scope, name), whole)
        if not name.startswith(_NOT_WALKED):
            for sub in sub_jaxprs(eqn.params):
                if len(sub.invars) == len(inputs) and len(sub.outvars) == len(eqn.outvars):
                    return self._call(eqn, name, sub, inputs, join_scopes(scope, name), whole)
        if (
            name == "broadcast_in_dim"
            and inputs[0] is not None
            and eqn.invars[0].aval.size == eqn.outvars[0].aval.size
        ):
            return self._renamed(eqn, name, inputs, whole)
        outputs = [
            _value(v.aval, _parts(eqn, inputs, v.aval) if whole else None) for v in eqn.outvars
        ]
        self._add(Node(name, inputs, outputs, scope, eqn))
        return outputs

    def _moves_nothing(self, eqn, name: str) -> bool:
        """Whether this is a collective over axes of size 1."""
        if name not in COLLECTIVES:
            return False
        axes = eqn.params[COLLECTIVES[name][1]]
        return all(
            self.axis_sizes.get(axis) == 1
            for axis in (axes if isinstance(axes, (tuple, list)) else (axes,))
        )

    def _renamed(self, eqn, name: str, inputs, whole: bool):
        if inputs[0] is None:
            return [None] * len(eqn.outvars)
        if name == "transpose" and _turns(eqn):
            value = _view(
                inputs[0],
                _value(
                    eqn.outvars[0].aval, _parts(eqn, inputs, eqn.outvars[0].aval) if whole else None
                ),
            )
            value.turned = True
            return [value]
        if not whole:
            return inputs[: len(eqn.outvars)]
        results = []
        for source, var in zip(inputs, eqn.outvars, strict=False):
            if source is None:
                results.append(None)
                continue
            parts = _parts(eqn, inputs, var.aval)
            if name == "sharding_constraint":
                local = eqn.params["sharding"].shard_shape(var.aval.shape)
                parts = tuple(-(-n // m) for n, m in zip(var.aval.shape, local, strict=True))
            value = _value(var.aval, parts)
            # The same memory, seen with other dims: consumers need the local shape, liveness the buffer.
            results.append(
                source
                if (value.shape, value.parts) == (source.shape, source.parts)
                else _view(source, value)
            )
        return results

    def _call(self, eqn, name: str, sub, inputs, scope: str, whole: bool):
        inside = whole and name != "shard_map"
        env = {}
        for var, value in zip(sub.invars, inputs, strict=True):
            if value is None:
                value = _value(var.aval, _uncut(var.aval) if inside else None)
            env[var] = _local(value, var.aval) if whole and not inside else value
        if eqn.params.get("differentiated") and eqn.params.get("prevent_cse"):
            for var in sub.invars:
                env[var] = self._barrier(eqn, env[var], scope)
        results = self.walk(sub, env, scope, inside)
        results = [
            _value(v.aval, _uncut(v.aval) if inside else None) if r is None else r
            for v, r in zip(sub.outvars, results, strict=True)
        ]
        if whole and not inside:
            return [_global(r, v.aval) for r, v in zip(results, eqn.outvars, strict=True)]
        return results

    def _barrier(self, eqn, value: Value, scope: str) -> Value:
        """What `jax.checkpoint` recomputes from: the compiler must not see through to what made it."""
        behind = dataclasses.replace(value, of=None, turned=False, number=next(_numbers))
        self._add(Node(BARRIER, [value], [behind], scope, eqn))
        return behind

    def _blocks(self, eqn, name: str, inputs, scope: str, whole: bool):
        params = eqn.params
        if name == "scan":
            bodies, given, (constants, carried) = [params["jaxpr"]], 0, scan_counts(params)
        elif name == "while":
            bodies, given, constants, carried = (
                [params["body_jaxpr"]],
                params["cond_nconsts"],
                params["body_nconsts"],
                len(eqn.outvars),
            )
        else:
            bodies, given, constants, carried = params["branches"], 1, len(inputs) - 1, 0
        blocks = [
            self._block(body_of(body), inputs[given:], constants + carried, scope, whole)
            for body in bodies
        ]
        if name == "while":
            blocks.append(
                self._block(
                    body_of(params["cond_jaxpr"]),
                    inputs[:given] + inputs[given + constants :],
                    len(inputs),
                    scope,
                    whole,
                )
            )
        outputs = []
        for i, (var, made) in enumerate(zip(eqn.outvars, blocks[0].outputs, strict=True)):
            parts = None
            if whole:
                stacked = name == "scan" and i >= carried
                parts = (
                    _uncut(var.aval)
                    if made is None
                    else (1, *made.parts)
                    if stacked
                    else made.parts
                )
            outputs.append(_value(var.aval, parts))
        self._add(Node(name, inputs, outputs, scope, eqn, blocks, given, constants, carried))
        return outputs

    def _block(self, jaxpr, given, unsliced: int, scope: str, whole: bool) -> Block:
        inner, own = _Flat(self.axis_sizes), []
        for i, (var, outer) in enumerate(zip(jaxpr.invars, given, strict=True)):
            parts = None
            if whole:
                parts = (
                    _uncut(var.aval)
                    if outer is None
                    else outer.parts[1:]
                    if i >= unsliced
                    else outer.parts
                )
            own.append(_value(var.aval, parts))
        outputs = inner.walk(jaxpr, dict(zip(jaxpr.invars, own, strict=True)), scope, whole)
        return Block(own, inner.nodes, outputs)

    def _add(self, node: Node) -> None:
        for value in node.outputs:
            value.node = node
        self.nodes.append(node)


def original(value: Value) -> Value:
    """The value whose memory this is."""
    return value.of or value


def _view(source: Value, value: Value) -> Value:
    value.of, value.turned = original(source), source.turned
    return value


def _turns(eqn) -> bool:
    """Whether a transpose changes the order of dims larger than 1."""
    moved = [i for i in eqn.params["permutation"] if eqn.invars[0].aval.shape[i] > 1]
    return moved != sorted(moved)


def _value(aval, parts) -> Value:
    shape = (
        aval.shape
        if parts is None
        else tuple(-(-n // p) for n, p in zip(aval.shape, parts, strict=True))
    )
    size = math.prod(shape)
    host = getattr(aval, "memory_space", None) == jax.memory.Space.Host
    if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended):  # random keys: so many words each
        return Value(
            (*shape, aval.dtype.itemsize // 4), "uint32", size * aval.dtype.itemsize, parts
        )
    return Value(tuple(shape), aval.dtype.name, size * aval.dtype.itemsize, parts, host=host)


def _local(value: Value, aval) -> Value:
    return _view(value, _value(aval, None))


def _global(value: Value, aval) -> Value:
    parts = tuple(-(-n // m) if m else 1 for n, m in zip(aval.shape, value.shape, strict=False))
    return _view(value, _value(aval, parts))


def _uncut(aval) -> tuple[int, ...]:
    return (1,) * len(aval.shape)


def _parts(eqn, inputs: Sequence[Value | None], out) -> tuple[int, ...]:
    """How a global result is cut, from how the operands are."""
    name, cuts = (
        eqn.primitive.name,
        [
            (v.aval.shape, i.parts)
            for v, i in zip(eqn.invars, inputs, strict=True)
            if i is not None and i.parts is not None
        ],
    )
    same = [parts for shape, parts in cuts if shape == out.shape]
    if same and name not in ("transpose", "dot_general"):
        return max(same, key=math.prod)
    if not cuts:
        return _uncut(out)
    (shape, parts), *_ = cuts
    if name == "transpose":
        return tuple(parts[i] for i in eqn.params["permutation"])
    if name == "broadcast_in_dim":
        found = dict(zip(eqn.params["broadcast_dimensions"], parts, strict=True))
        return tuple(found.get(i, 1) if out.shape[i] > 1 else 1 for i in range(len(out.shape)))
    if name.startswith(("reduce_", "squeeze", "argm")):
        gone = eqn.params.get("axes", eqn.params.get("dimensions", ()))
        return tuple(p for i, p in enumerate(parts) if i not in {a % len(shape) for a in gone})
    if name == "dot_general" and len(cuts) == 2:
        (lc, rc), (lb, rb) = eqn.params["dimension_numbers"]
        (_, lp), (_, rp) = cuts
        kept = (
            [lp[i] for i in lb]
            + [p for i, p in enumerate(lp) if i not in (*lc, *lb)]
            + [p for i, p in enumerate(rp) if i not in (*rc, *rb)]
        )
        return tuple(kept)
    return _uncut(out)
