"""Names for every dim of a program, from names for a few: constraints taken by their strength."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping

from meshdsl.dims import Dim
from meshdsl.errors import MeshDSLError, nearest
from meshdsl.plain_jax.constraints import Constraint, Constraints, Strength, free_positions
from meshdsl.plain_jax.factors import Node, align, leaves, root, unify
from meshdsl.plain_jax.names import Pattern, Spec
from meshdsl.plain_jax.program import Program, Variable
from meshdsl.plain_jax.source import shown


class Inference:
    """Gives the variables of a program their dims.

    Attributes:
      program: that program. Afterwards its variables have their `dims`.
      gave_way: the constraints that could not hold, so that something is renamed there.
      made_up: names for dims without one, before `call` gives them others.
      called: those of them that `call` has given others.
      clashed: those for which it has the name of another dim.
    """

    def __init__(self, program: Program, call: Mapping[str, str]):
        self.program = program
        self.gave_way: list[Constraint] = []
        self.made_up: set[str] = set()
        self.called: set[str] = set()
        self.clashed: set[str] = set()
        self._call = dict(call)
        self._named: dict[str, Node] = {}
        self._sizes: dict[str, int] = {}
        self._waiting: list[tuple[Node, tuple[str, ...], str]] = []
        numbers = itertools.count()
        self._variables = list(_variables(program))
        for v in self._variables:
            number = next(numbers)
            v.nodes = tuple(Node(n, (number,)) for n in v.shape)
        self._steps = list(_steps(program))

    def run(self, specs: list[tuple[Variable, Spec, str]], sizes: Mapping[str, int]) -> None:
        """Infer all dims.

        Args:
          specs: names that the user gave: the variable, what stands at its positions, and what a
            message calls it.
          sizes: of names in groups.

        Raises:
          MeshDSLError: names contradict each other or the code.
        """
        known = {n for _, spec, _ in specs for pattern in spec for n in pattern or ()}
        for name in sizes:
            if name not in known:
                raise MeshDSLError(
                    f"from_jax: sizes= has `{name}`, which stands in no pattern"
                    f"{nearest(name, known)}"
                )
        self._sizes.update(sizes)
        for v, spec, what in specs:
            self._learn_sizes(v, spec, what)
        for v, spec, what in specs:
            for node, pattern in zip(v.nodes, spec, strict=True):
                self._name(node, pattern, what)
        constraints = Constraints()
        constraints.of_program(self.program)
        self._solve(constraints)
        for v, spec, what in specs:
            for node, pattern in zip(v.nodes, spec, strict=True):
                self._check_factors(node, pattern, what)
        self._name_waiting()
        self._name_the_rest()
        for v in self._variables:
            v.dims = tuple(tuple(Dim(x.name, x.size) for x in leaves([n])) for n in v.nodes)

    def _learn_sizes(self, v: Variable, spec: Spec, what: str) -> None:
        """The sizes of names that stand alone, or are the only ones in their group without one."""
        for node, pattern in zip(v.nodes, spec, strict=True):
            if pattern is None:
                continue
            unknown = [n for n in pattern if n not in self._sizes]
            known = math.prod(self._sizes[n] for n in pattern if n in self._sizes)
            if len(unknown) == 1 and known and not node.size % known:
                self._sizes[unknown[0]] = node.size // known
            elif not unknown and known != node.size:
                product = " x ".join(f"`{n}`={self._sizes[n]}" for n in pattern)
                raise MeshDSLError(
                    f"from_jax: {what} has a dim of {node.size}, which is not {product}"
                )

    def _name(self, node: Node, pattern: Pattern, what: str) -> None:
        if pattern is None:
            return
        if any(n not in self._sizes for n in pattern):
            self._waiting.append((node, pattern, what))
            return
        sized = [n for n in pattern if self._sizes[n] != 1]
        nodes = [self._node(n, what) for n in sized]
        if math.prod(n.size for n in nodes) != node.size or not unify([node], nodes):
            raise MeshDSLError(
                f"from_jax: {what}: ({' '.join(pattern)}) of {node.size} contradicts other names "
                f"of the same tensor; names are unique in a tensor"
            )

    def _node(self, name: str, what: str) -> Node:
        """The node of a name that the user gave."""
        found = self._named.get(name)
        if found is None:
            found = self._named[name] = Node(self._sizes[name], (), name, what)
        return found

    def _solve(self, constraints: Constraints) -> None:
        chances = []
        for c in sorted(constraints, key=lambda c: c.strength):  # in program order within one
            if c.free and _coincide(c):
                chances.append(c._replace(strength=Strength.CHANCE))
            elif not unify(c.a, c.b):
                self.gave_way.append(c)
        for c in chances:
            if not unify(c.a, c.b):
                self.gave_way.append(c)
        for c in self.gave_way:
            align(c.a, c.b)

    def _check_factors(self, node: Node, pattern: Pattern, what: str) -> None:
        """That the code takes no dim apart into other factors than those that were given for it.

        Factors that it has apart somewhere may be regrouped elsewhere.
        """
        given = leaves([node])
        if pattern is None or len(given) < 2 or not all(x.given for x in given):
            return
        for c in self.gave_way:
            for ours, others in ((leaves(c.a), leaves(c.b)), (leaves(c.b), leaves(c.a))):
                torn = _torn(given, ours, others)
                if torn and not any(_apart(torn, v) for v in self._variables):
                    factors = " x ".join(f"`{x.name}`={x.size}" for x in given)
                    raise MeshDSLError(
                        f"from_jax: {what}: a dim is given as {factors}, and `{c.of.name}` at "
                        f"{shown(c.of.lines)} takes it apart as {[x.size for x in others]}; give "
                        "these sizes, or leave them out of sizes="
                    )

    def _name_waiting(self) -> None:
        """Groups such as `(heads head_dim)` without sizes, by the factors that the code tells."""
        for node, pattern, what in self._waiting:
            found = leaves([node])
            if len(found) != len(pattern):
                factors = [x.size for x in found]
                raise MeshDSLError(
                    f"from_jax: {what} has a dim of {node.size} that is to be "
                    f"({' '.join(pattern)}), of which the code tells the factors {factors}; write "
                    "a name for each of these, or give the sizes with sizes="
                )
            for leaf, name in zip(found, pattern, strict=True):
                if self._sizes.setdefault(name, leaf.size) != leaf.size:
                    raise MeshDSLError(
                        f"from_jax: {what}: `{name}` is {leaf.size} here, and "
                        f"{self._sizes[name]} elsewhere"
                    )
                if leaf.name != name and not unify([leaf], [self._node(name, what)]):
                    raise MeshDSLError(
                        f"from_jax: {what}: `{name}` stands where the code has "
                        f"`{leaf.name or 'another dim'}`"
                    )

    def _name_the_rest(self) -> None:
        """A name for every leaf without: of what it meets where it is renamed, or a number."""
        meets: dict[Node, str] = {}
        for c in self.gave_way:
            a, b = leaves(c.a), leaves(c.b)
            if [x.size for x in a] != [y.size for y in b]:
                continue
            for x, y in (*zip(a, b, strict=True), *zip(b, a, strict=True)):
                if x.name and not y.name:
                    meets.setdefault(y, x.name)
        standing: dict[str, list[Node]] = defaultdict(list)
        every = dict.fromkeys(x for v in self._variables for x in leaves(v.nodes))
        every.update(dict.fromkeys(x for x in leaves(self._steps)))
        for x in every:
            if x.name:
                standing[x.name].append(x)
        for x in every:
            if not x.name:
                x.name = self._free_name(x, meets.get(x), standing)
                standing[x.name].append(x)

    def _free_name(self, x: Node, meets: str | None, standing: dict[str, list[Node]]) -> str:
        """A name that nothing has which stands in a tensor with `x`, or is of another size.

        Copies of a dim in different layers have the same name.
        """
        for number in itertools.count(2 if meets else 1):
            plain = f"{meets}_{number}" if meets else f"dim{x.size}_{number}"
            name = self._call.get(plain, plain)
            others = standing[name]
            free = all(o.size == x.size and o.tensors.isdisjoint(x.tensors) for o in others)
            if free and (meets or not others):
                self.made_up.add(plain)
                self.called |= {plain} & self._call.keys()
                return name
            self.clashed |= {plain} & self._call.keys()
        raise AssertionError


def _coincide(c: Constraint) -> bool:
    """Whether both operands of a product have the same free dim."""
    x_free, y_free = free_positions(c.of)
    x, y = c.of.ins
    left = {id(n) for n in leaves(x.nodes[i] for i in x_free)}
    return any(id(n) in left for n in leaves(y.nodes[i] for i in y_free))


def _torn(given: list[Node], ours: list[Node], others: list[Node]) -> tuple[Node, Node] | None:
    """Two factors of a dim that follow each other, where `others` have another factor across both.

    The elements of `ours` and of `others` are as many. None if there are no two such.
    """
    within = {math.prod(x.size for x in others[k:]) for k in range(len(others) + 1)}
    between = {math.prod(x.size for x in ours[k:]) for k in range(len(ours) + 1)}
    if within <= between or any(x.given for x in others):  # coarser, or named, too
        return None
    for k, (x, y) in enumerate(itertools.pairwise(ours)):
        beside = any(x is a and y is b for a, b in itertools.pairwise(given))
        if beside and math.prod(z.size for z in ours[k + 1 :]) not in within:
            return x, y
    return None


def _apart(pair: tuple[Node, Node], v: Variable) -> bool:
    """Whether two factors stand at different positions of a variable, or only one of them does."""
    at = [[x in found for x in pair] for found in (leaves([n]) for n in v.nodes)]
    return any(one != other for one, other in at)


def _variables(program: Program) -> Iterator[Variable]:
    yield from (v for v, _ in program.constants)
    yield from program.invars
    for e in program.equations:
        yield from e.outs
        for body in e.bodies:
            yield from _variables(body)


def _steps(program: Program) -> Iterator[Node]:
    """A dim for the turns of each scan."""
    for e in program.equations:
        if e.name == "scan":
            e.notes["steps"] = Node(e.params["length"])
            yield e.notes["steps"]
        for body in e.bodies:
            yield from _steps(body)


def renamed_at(inference: Inference) -> Iterator[tuple[Constraint, Node, Node]]:
    """Where factors that are one have two names: the constraint, and the two."""
    for c in inference.gave_way:
        for x, y in zip(leaves(c.a), leaves(c.b), strict=False):
            if root(x) is not root(y) and x.name and y.name:  # else it stands in no tensor
                yield c, x, y
