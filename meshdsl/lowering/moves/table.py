"""The table of moves: what `move` and `order` of a rule may name, each in a line.

Turns of a loop are not in it. No word of a rule names them: one with `microbatches` makes a `Turn`
of `moves.turns` for each pipeline, which carries the number of the turn.
"""

from __future__ import annotations

from meshdsl.dims import Dim
from meshdsl.lowering.moves.exchange import Exchange
from meshdsl.lowering.moves.gather import GATHER
from meshdsl.lowering.moves.move import NATURAL, Move, Stays
from meshdsl.lowering.moves.ring import ByRing
from meshdsl.lowering.moves.zigzag import Zigzag
from meshdsl.rules import ATTRIBUTES
from meshdsl.tensor import Tensor

TABLE: tuple[Move, ...] = (  # the default of an attribute stands first
    GATHER,
    ByRing(),
    Exchange(),
    NATURAL,
    Zigzag(),
)

for _move in TABLE:  # what a layout may say: it is parsed, and its errors list what is legal
    ATTRIBUTES[_move.attribute][_move.name] = _move


def staying(operand: Tensor, other: Tensor, dim: Dim) -> tuple[Stays, ...]:
    """The dims of `operand` that rules keep in parts while `other` is looked up along `dim` in it.

    It is for an op that can look elements up in a part alone, and has part of the result then.
    """
    if operand.placement is None or not operand.placement.scope.layout.by_parts:
        return ()
    return next((found for move in TABLE if (found := move.staying(operand, other, dim))), ())
