"""The op of the record that each instruction of a compiled program belongs to.

Most instructions carry the tag of their op in their name stack, or hold some that do. The others
are of four kinds:

- `loop`: what JAX adds around ops: the slices that a turn of a loop takes, the stacks that it
  leaves, the sums of gradients. They have a name stack without a tag.
- `optimizer`: what runs outside of the lowered function, or beside its ops on the state of an
  optimizer.
- `compiler`: copies and transposes without a name stack, which no code asked for.
- `unknown`: code of the user's that is no op.

Loops' and compilers' instructions serve an op: the nearest one that takes what they make, through
tuples and loops, or else makes what they take.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from meshdsl.predict.compiler.hlo_text import Instruction, Module
from meshdsl.program.collective import phase_in_step
from meshdsl.program.recorder import tag_in

_FAR = 400  # instructions that are looked at in search of an op
# The ends of name stacks of what JAX adds around ops, outside of loops.
_AROUND_OPS = ("broadcast_in_dim", "add_any", "convert_element_type", "pvary")
_AROUND_OPS += ("shard_map", "jit(_spmd)", "jit(local)")
_THROUGH = ("tuple", "get-tuple-element", "while", "call", "conditional", "parameter")


@dataclass(frozen=True)
class Owner:
    """What an instruction belongs to.

    Attributes:
      kind: `op`, `loop`, `optimizer`, `compiler` or `unknown`.
      tag: of the op; of a `loop` and `compiler` that of the op that they serve, if one is found.
      phase: one of `predict.explanation.PHASES`; empty where it is not known.
      words: what is known of it beside that: the end of its name stack, or its opcode.
    """

    kind: str
    tag: str = ""
    phase: str = ""
    words: str = ""


class Owners:
    """Finds the owner of each instruction of a program.

    Args:
      updates: whether the program has the state of an optimizer among its arguments.
    """

    def __init__(self, module: Module, updates: bool):
        self._module, self._updates = module, updates
        self._users: dict[str, list[Instruction]] = defaultdict(list)
        self._callers: dict[str, Instruction] = {}  # for a body of a loop, the loop
        for i in module.instructions.values():
            for name in i.operands:
                self._users[name].append(i)
            if i.opcode == "while" and (body := i.attribute("body")):
                self._callers[body] = i
        self._found: dict[str, Owner] = {}

    def of(self, name: str) -> Owner:
        """The owner of the instruction with this name."""
        if name not in self._found:
            self._found[name] = self._owner(self._module.instructions[name])
        return self._found[name]

    def _owner(self, i: Instruction) -> Owner:
        if (scope := self._tagged_scope(i)) is not None:
            return Owner("op", tag_in(scope) or "", phase_in_step(scope))
        last = i.scope.rpartition("/")[2]
        words = "/".join(i.scope.split("/")[-2:]) if i.scope else i.opcode
        if i.scope and phase_in_step(i.scope) == "optimizer":
            return Owner("optimizer", phase="optimizer", words=words)
        if i.scope and "/while" not in i.scope and last not in _AROUND_OPS:
            kind, phase = ("optimizer",) * 2 if self._updates else ("unknown", "")
            return Owner(kind, phase=phase or phase_in_step(i.scope), words=words)
        owner = Owner("loop" if i.scope else "compiler", words=words)
        near = self._nearest(i)
        if near is None:
            return replace(owner, phase=phase_in_step(i.scope) if i.scope else "")
        phase = phase_in_step(i.scope or near)
        return replace(owner, tag=tag_in(near) or "", phase=phase)

    def _tagged_scope(self, i: Instruction) -> str | None:
        """The name stack with a tag of an instruction, or of what the fusion holds."""
        if tag_in(i.scope):
            return i.scope
        if i.opcode != "fusion":
            return None
        called = self._module.read(i, partial(self._module.called, i), [])
        inside = [one for name in called for one in self._module.computations[name]]
        scopes = [one.scope for one in sorted(inside, key=lambda one: not one.root)]
        return next((scope for scope in scopes if tag_in(scope)), None)

    def _nearest(self, i: Instruction) -> str | None:
        """The tagged name stack of the nearest instruction that takes what `i` makes, or else makes
        what it takes; for a loop, of the first in its body. None where none is near."""
        if i.opcode == "while" and (body := i.attribute("body")):
            inside = self._module.computations.get(body, [])
            return next((s for one in inside if (s := self._tagged_scope(one)) is not None), None)
        for neighbours in (self._takers, self._makers):
            seen: set[tuple[str, int | None]] = {(i.name, None)}
            waiting: deque[tuple[Instruction, int | None]] = deque([(i, None)])
            while waiting and len(seen) < _FAR:
                for one, part in neighbours(*waiting.popleft()):
                    if (one.name, part) in seen:
                        continue
                    if one.opcode not in _THROUGH and (scope := self._tagged_scope(one)):
                        return scope
                    seen.add((one.name, part))
                    waiting.append((one, part))
        return None

    def _takers(self, i: Instruction, part: int | None) -> Iterator[tuple[Instruction, int | None]]:
        """What takes the result of `i`, or the `part` of it, if that is a tuple."""
        for user in self._users[i.name]:
            if user.opcode == "tuple":
                yield user, user.operands.index(i.name)
            elif user.opcode == "get-tuple-element":
                if part is None or self._module.read(user, lambda u=user: u.index, -1) == part:
                    yield user, None
            elif user.opcode == "while":
                body = self._module.computations.get(user.attribute("body") or "", [])
                yield from ((one, part) for one in body if one.opcode == "parameter")
                yield user, part
            elif user.opcode in ("call", "conditional"):
                position = str(user.operands.index(i.name) if user.opcode == "call" else 0)
                for name in self._module.read(user, partial(self._module.called, user), []):
                    for one in self._module.computations[name]:
                        if one.opcode == "parameter" and one.arguments == position:
                            yield one, part
            else:
                yield user, None
        if i.root and (loop := self._callers.get(i.computation)) is not None:
            yield loop, part  # what a turn leaves: after the loop, and in the next turn
            body = self._module.computations[i.computation]
            yield from ((one, part) for one in body if one.opcode == "parameter")

    def _makers(self, i: Instruction, part: int | None) -> Iterator[tuple[Instruction, int | None]]:
        """What makes the operands of `i`, within its computation."""
        instructions = self._module.instructions
        yield from ((instructions[name], None) for name in i.operands if name in instructions)
