"""Which dims of an equation's operands and results are the same, by primitive.

Each constraint says that two lists of dims, and so of factors, are one. It has a strength: those of
`FLOW` are taken first, and `CHANCE` last, so that where not all can hold it is the weaker one that
gives way. Of the scores `length x length` the queries then keep the name that the residual stream
has, because that flows through free dims, and the keys are renamed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple

from meshdsl.plain_jax.factors import Node
from meshdsl.plain_jax.indices import SCATTERS, indexing
from meshdsl.plain_jax.primitives import (
    CUMULATIVE,
    ELEMENTWISE,
    EXTREMES,
    MOVES,
    OF_MATRICES,
    OF_VECTORS,
    POOLS,
    REDUCTIONS,
    moved_positions,
)
from meshdsl.plain_jax.program import Equation, Program, Value
from meshdsl.program.jaxpr import scan_counts


class Strength(IntEnum):
    """How early a constraint is taken."""

    FLOW = 0  # what goes through an op: elementwise, free dims
    PARTS = 1  # a dim and its equal parts
    BATCH = 2  # what both operands of a product go through together
    CONTRACTED = 3
    CHANCE = 4  # free dims of both operands of a product that have been found to be one


class Constraint(NamedTuple):
    """Two lists of dims that are one.

    Attributes:
      of: the equation that says so.
      free: whether they are a free dim of a product and that of its result.
    """

    strength: Strength
    a: tuple[Node, ...]
    b: tuple[Node, ...]
    of: Equation
    free: bool = False


class Constraints(list[Constraint]):
    """The constraints of a program, in its order."""

    def add(self, e: Equation, a, b, strength: Strength = Strength.FLOW, *, free=False) -> None:
        """Nodes, or lists of nodes, that are one."""
        a = (a,) if isinstance(a, Node) else tuple(a)
        b = (b,) if isinstance(b, Node) else tuple(b)
        self.append(Constraint(strength, a, b, e, free))

    def pairs(self, e: Equation, a: Sequence[Node], b: Sequence[Node], **how) -> None:
        """Positions that are one, pair by pair, where their sizes agree."""
        for x, y in zip(a, b, strict=False):  # numbers have no dims
            if x.size == y.size != 1:
                self.add(e, x, y, **how)

    def alike(self, e: Equation, values: Iterable[Value], others: Iterable[Value]) -> None:
        """Values that have the same dims as others, one by one."""
        for v, w in zip(values, others, strict=True):
            self.pairs(e, v.nodes, w.nodes)

    def of_program(self, program: Program) -> None:
        """Those of all equations."""
        for e in program.equations:
            self.of_equation(e)

    def of_equation(self, e: Equation) -> None:
        """Those of one equation, and of the bodies that it runs."""
        for body in e.bodies:
            self.of_program(body)
        rule = _own_gradient if "gradient" in e.notes else TABLE.get(e.name)
        if rule is not None:
            rule(self, e)


def groups(a: Sequence[Node], b: Sequence[Node]) -> list[tuple[list[Node], list[Node]]]:
    """Groups of dims of equal product, as small as possible, in order."""
    found, i, j = [], 0, 0
    size = lambda nodes: math.prod(n.size for n in nodes)
    if not size(a):
        return []
    while i < len(a) or j < len(b):
        s, t = i, j
        i, j = min(i + 1, len(a)), min(j + 1, len(b))
        while size(a[s:i]) != size(b[t:j]):
            if (size(a[s:i]) < size(b[t:j]) and i < len(a)) or j == len(b):
                i += 1
            else:
                j += 1
        found.append((list(a[s:i]), list(b[t:j])))
    return found


def without(nodes: Sequence[Node], positions: Sequence[int]) -> list[Node]:
    """The nodes at all other positions."""
    return [n for i, n in enumerate(nodes) if i not in positions]


def _elementwise(c: Constraints, e: Equation) -> None:
    for out in e.outs:
        for v in e.ins:
            if len(v.shape) == len(out.shape):
                c.pairs(e, v.nodes, out.nodes)


def _one_to_one(c: Constraints, e: Equation) -> None:
    """Operands and results by their numbers, and all results alike."""
    for v, out in zip(e.ins, e.outs, strict=False):
        c.pairs(e, v.nodes, out.nodes)
    for out in e.outs[1:]:
        c.pairs(e, e.outs[0].nodes, out.nodes)


def _of_matrices(c: Constraints, e: Equation) -> None:
    """What stands before the matrices; and all of an operand of the shape of a result."""
    of = 1 if e.name in OF_VECTORS else 2
    batch = len(e.ins[0].shape) - of
    for v in (*e.ins, *e.outs[1:]):
        c.pairs(e, v.nodes[:batch], e.outs[0].nodes[:batch])
    for out in e.outs:
        alike = [v for v in e.ins if v.shape == out.shape]
        for v in alike[-1:]:
            c.pairs(e, v.nodes[batch:], out.nodes[batch:])


def _moved(c: Constraints, e: Equation) -> None:
    x, out = e.ins[0].nodes, e.outs[0].nodes
    for i, j in moved_positions(e.name, e.params, len(x)).items():
        c.pairs(e, [x[i]], [out[j]])


def _reshape(c: Constraints, e: Equation) -> None:
    if e.params.get("dimensions") is None:
        for a, b in groups(e.ins[0].nodes, e.outs[0].nodes):
            c.add(e, a, b)


def _reduction(c: Constraints, e: Equation) -> None:
    for out in e.outs:
        if len(out.nodes) == len(e.ins[0].nodes):  # with ones, as of a recognised op
            c.pairs(e, e.ins[0].nodes, out.nodes)
            continue
        c.pairs(e, without(e.ins[0].nodes, e.params["axes"]), out.nodes)


def free_positions(e: Equation) -> tuple[list[int], list[int]]:
    """The free dims of the operands of a product: neither batch dims nor contracted."""
    (left, right), (left_batch, right_batch) = e.params["dimension_numbers"]
    free = lambda v, taken: [i for i in range(len(v.shape)) if i not in taken]
    return free(e.ins[0], (*left, *left_batch)), free(e.ins[1], (*right, *right_batch))


def _product(c: Constraints, e: Equation) -> None:
    (left, right), (left_batch, right_batch) = e.params["dimension_numbers"]
    (x, y), out = e.ins, e.outs[0].nodes
    batch, (x_free, y_free) = len(left_batch), free_positions(e)
    of = lambda v, positions: [v.nodes[i] for i in positions]
    c.pairs(e, of(x, left_batch), out[:batch])
    c.pairs(e, of(y, right_batch), out[:batch], strength=Strength.BATCH)
    c.pairs(e, of(x, x_free), out[batch:], free=True)
    c.pairs(e, of(y, y_free), out[batch + len(x_free) :], free=True)
    c.pairs(e, of(x, left), of(y, right), strength=Strength.CONTRACTED)


def _split(c: Constraints, e: Equation) -> None:
    at, x = e.params["axis"], e.ins[0].nodes
    for out in e.outs:
        c.pairs(e, without(x, [at]), without(out.nodes, [at]))
    if len(set(map(int, e.params["sizes"]))) == 1 and len(e.outs) > 1:
        which = e.notes["which"] = Node(len(e.outs))
        for out in e.outs:
            c.add(e, x[at], (which, out.nodes[at]), Strength.PARTS)


def _concatenate(c: Constraints, e: Equation) -> None:
    at, out = e.params["dimension"], e.outs[0].nodes
    for v in e.ins:
        c.pairs(e, without(v.nodes, [at]), without(out, [at]))
    if len({v.shape[at] for v in e.ins}) == 1 and len(e.ins) > 1:
        which = e.notes["which"] = Node(len(e.ins))
        for v in e.ins:
            c.add(e, (which, v.nodes[at]), out[at], Strength.PARTS)


def _stack(c: Constraints, e: Equation) -> None:
    for v in e.ins:
        c.pairs(e, v.nodes, without(e.outs[0].nodes, [e.params["axis"]]))


def _unstack(c: Constraints, e: Equation) -> None:
    for out in e.outs:
        c.pairs(e, without(e.ins[0].nodes, [e.params["axis"]]), out.nodes)


def _tile(c: Constraints, e: Equation) -> None:
    for a, b, times in zip(e.ins[0].nodes, e.outs[0].nodes, e.params["reps"], strict=True):
        c.pairs(e, [a], [b])
        if times > 1 and a.size > 1:
            c.add(e, b, (Node(times), a), Strength.PARTS)


def _slice(c: Constraints, e: Equation) -> None:
    strides = e.params["strides"]
    for i, (a, b) in enumerate(zip(e.ins[0].nodes, e.outs[0].nodes, strict=True)):
        start = e.params["start_indices"][i]
        if a.size == b.size:
            c.pairs(e, [a], [b])
        elif (strides is not None and strides[i] != 1) or b.size < 2:
            continue
        elif not a.size % b.size and not start % b.size:
            which = Node(a.size // b.size)
            e.notes.setdefault("which", {})[i] = which
            c.add(e, a, (which, b), Strength.PARTS)


def _update(c: Constraints, e: Equation) -> None:
    c.pairs(e, e.ins[0].nodes, e.outs[0].nodes)
    c.pairs(e, e.ins[1].nodes, e.outs[0].nodes)


def _gather(c: Constraints, e: Equation) -> None:
    how, (x, ids), out = indexing(e), e.ins, e.outs[0].nodes
    c.pairs(e, ids.nodes[:-1], [out[i] for i in how.batch])
    for i, j in how.windows.items():
        c.pairs(e, [x.nodes[i]], [out[j]])
    for i, k in how.together.items():
        c.pairs(e, [x.nodes[i]], [ids.nodes[k]], strength=Strength.BATCH)


def _scatter(c: Constraints, e: Equation) -> None:
    how, (x, ids, updates), out = indexing(e), e.ins, e.outs[0].nodes
    c.pairs(e, x.nodes, out)
    c.pairs(e, ids.nodes[:-1], [updates.nodes[i] for i in how.batch])
    for i, j in how.windows.items():
        c.pairs(e, [updates.nodes[j]], [out[i]])
    for i, k in how.together.items():
        c.pairs(e, [x.nodes[i]], [ids.nodes[k]], strength=Strength.BATCH)


def _top_k(c: Constraints, e: Equation) -> None:
    for out in e.outs:
        c.pairs(e, e.ins[0].nodes[:-1], out.nodes[:-1])
    c.pairs(e, e.outs[0].nodes, e.outs[1].nodes)


def _convolution(c: Constraints, e: Equation) -> None:
    how, (x, kernel), out = e.params["dimension_numbers"], e.ins, e.outs[0].nodes
    batch, features = (x.nodes[i] for i in how.lhs_spec[:2])
    made, own = (kernel.nodes[i] for i in how.rhs_spec[:2])
    c.pairs(e, [batch], [out[how.out_spec[0]]])
    c.pairs(e, [made], [out[how.out_spec[1]]])
    for i, j in zip(how.lhs_spec[2:], how.out_spec[2:], strict=True):
        c.pairs(e, [x.nodes[i]], [out[j]])
    of_batch, of_features = e.params["batch_group_count"], e.params["feature_group_count"]
    if of_features == 1:
        c.pairs(e, [features], [own], strength=Strength.CONTRACTED)
    if of_batch * of_features > 1:
        group = Node(of_batch * of_features)
        parts = (batch, out[how.out_spec[0]]) if of_batch > 1 else (features, own)
        c.add(e, parts[0], (group, parts[1]), Strength.PARTS)
        c.add(e, made, (group, Node(made.size // group.size)), Strength.PARTS)


def _ragged_product(c: Constraints, e: Equation) -> None:
    how, (x, y, sizes), out = e.params["ragged_dot_dimension_numbers"], e.ins[:3], e.outs[0].nodes
    (left, right), (left_batch, right_batch) = how.dot_dimension_numbers
    groups = how.rhs_group_dimensions
    counted = [y.nodes[i] for i in groups] or out[:1]
    c.pairs(e, counted, sizes.nodes[-1:])
    first = 0 if groups else 1
    for v, gone in ((x, ()), (y, groups)):
        batch, contracted = (left_batch, left) if v is x else (right_batch, right)
        c.pairs(e, [v.nodes[i] for i in batch], out)
        free = without(v.nodes, (*batch, *contracted, *gone))
        start = len(left_batch) + first
        c.pairs(e, free, out[start:])
        first += len(free)
    c.pairs(
        e, [x.nodes[i] for i in left], [y.nodes[i] for i in right], strength=Strength.CONTRACTED
    )


def _scan(c: Constraints, e: Equation) -> None:
    (body,), (consts, carried) = e.bodies, scan_counts(e.params)
    steps = e.notes["steps"]
    for i, (v, w) in enumerate(zip(e.ins, body.invars, strict=True)):
        if i < consts + carried:
            c.pairs(e, v.nodes, w.nodes)
        else:
            _stacked(c, e, steps, v, w)
    for i, (v, w) in enumerate(zip(e.outs, body.outvars, strict=True)):
        if i < carried:
            c.pairs(e, v.nodes, body.invars[consts + i].nodes)
            c.pairs(e, w.nodes, body.invars[consts + i].nodes)
        else:
            _stacked(c, e, steps, v, w)


def _stacked(c: Constraints, e: Equation, steps: Node, v: Value, w: Value) -> None:
    if v.nodes:
        c.pairs(e, v.nodes[:1], [steps])
        c.pairs(e, v.nodes[1:], w.nodes)


def _while(c: Constraints, e: Equation) -> None:
    of_test, of_body = e.params["cond_nconsts"], e.params["body_nconsts"]
    test, body = e.bodies
    carry = e.ins[of_test + of_body :]
    c.alike(e, e.ins[:of_test], test.invars[:of_test])
    c.alike(e, e.ins[of_test:], body.invars)
    for i, v in enumerate(carry):
        c.pairs(e, test.outvars[0].nodes, body.invars[of_body + i].nodes)
        for w in (e.outs[i], test.invars[of_test + i], body.outvars[i]):
            c.pairs(e, body.invars[of_body + i].nodes, w.nodes)
            c.pairs(e, v.nodes, w.nodes)


def _branches(c: Constraints, e: Equation) -> None:
    for body in e.bodies:
        c.alike(e, (*e.ins[1:], *e.outs), (*body.invars, *body.outvars))


def _own_gradient(c: Constraints, e: Equation) -> None:
    """The rules of a gradient: what they take and give has the dims of what it is the slope of."""
    (forward, backward), rules = e.bodies, e.notes["gradient"]
    count = len(e.outs)
    kept, slopes = backward.invars[: rules.kept], backward.invars[rules.kept :]
    c.alike(e, e.ins, forward.invars)
    c.alike(e, e.outs, forward.outvars[:count])
    c.alike(e, forward.outvars[count:], kept)
    c.alike(e, (e.outs[i] for i in rules.results), slopes)
    c.alike(e, (e.ins[i] for i in rules.operands), backward.outvars)


def _body(c: Constraints, e: Equation) -> None:
    """One body that takes what the equation takes, and gives what it gives."""
    body = e.bodies[0]
    c.alike(e, (*e.ins, *e.outs), (*body.invars, *body.outvars))


TABLE: dict[str, Callable[[Constraints, Equation], None]] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(REDUCTIONS | EXTREMES, _reduction),
    **dict.fromkeys(CUMULATIVE, _one_to_one),
    "custom_jvp_call": _elementwise,
    "optimization_barrier": _one_to_one,
    "bitcast_convert_type": _one_to_one,
    "random_bits": _one_to_one,
    "name": _one_to_one,
    "sharding_constraint": _one_to_one,
    "device_put": _one_to_one,
    "rev": _one_to_one,
    **dict.fromkeys(OF_MATRICES | OF_VECTORS, _of_matrices),
    "sort": _one_to_one,
    "softmax": _one_to_one,
    "log_softmax": _one_to_one,
    "logsumexp": _reduction,
    **dict.fromkeys(MOVES, _moved),
    "reshape": _reshape,
    "dot_general": _product,
    "split": _split,
    "concatenate": _concatenate,
    "stack": _stack,
    "tile": _tile,
    "slice": _slice,
    "unstack": _unstack,
    "dynamic_slice": _one_to_one,
    "dynamic_update_slice": _update,
    "pad": _one_to_one,
    "gather": _gather,
    **dict.fromkeys(SCATTERS, _scatter),
    "top_k": _top_k,
    "conv_general_dilated": _convolution,
    **dict.fromkeys(POOLS, _elementwise),
    "ragged_dot_general": _ragged_product,
    "scan": _scan,
    "while": _while,
    "cond": _branches,
    "checkpoint": _body,
    "remat": _body,
    "remat2": _body,
}
