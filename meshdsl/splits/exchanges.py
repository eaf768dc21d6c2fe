"""Exchanges: the pieces that travel, in groups that one `ppermute` each carries.

In an exchange a part sends at most one piece and receives at most one.

All pieces of a round are sent as long as the longest of them, so pieces are cut where that saves
something. Together the rounds are as long as what the busiest part sends or receives: no schedule
is shorter. (Preemptive open-shop scheduling: T. Gonzalez and S. Sahni, "Open shop scheduling to
minimize finish time", Journal of the ACM 23, 1976.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from meshdsl.splits.windows import Piece

Node = tuple[str, int]  # a part that sends or receives, or one that rests
Edge = tuple[Node, Node]


def exchanges(found: Sequence[Piece]) -> list[list[Piece]]:
    """The pieces, some of them cut, in groups of equally long ones that one exchange carries.

    A part that has less to do than the busiest may rest for as long as it has less. With the
    rests everyone has equally much to do, so there is always a round in which everyone works or
    rests; it lasts as long as the longest such round can. Of the pieces that could go, those that
    travel equally far go together.
    """
    waiting: dict[Edge, list[Piece]] = {}
    sends: Counter[int] = Counter()
    receives: Counter[int] = Counter()
    far = Counter(p.source - p.target for p in found)
    for piece in sorted(
        found, key=lambda p: (-far[p.source - p.target], p.source - p.target, p.source, -p.length)
    ):
        waiting.setdefault((("send", piece.source), ("receive", piece.target)), []).append(piece)
        sends[piece.source] += piece.length
        receives[piece.target] += piece.length
    busiest = max([*sends.values(), *receives.values()], default=0)
    rests = {(("send", s), ("rest", s)): busiest - n for s, n in sends.items()}
    rests |= {(("rest", t), ("receive", t)): busiest - n for t, n in receives.items()}
    rests |= {
        (("rest", t), ("rest", s)): sum(p.length for p in some)
        for ((_, s), (_, t)), some in waiting.items()
    }

    groups = []
    while waiting:
        lengths = {edge: some[0].length for edge, some in waiting.items()} | {
            edge: n for edge, n in rests.items() if n
        }
        chosen = _longest_round(lengths)
        length = min(lengths[edge] for edge in chosen)
        groups.append(
            [waiting[edge][0]._replace(length=length) for edge in waiting if edge in chosen]
        )
        for edge in chosen:
            if edge in rests:
                rests[edge] -= length
                continue
            piece = waiting[edge].pop(0)
            if piece.length > length:
                rest = piece._replace(
                    read=piece.read + length,
                    write=piece.write + length,
                    length=piece.length - length,
                )
                waiting[edge].insert(0, rest)
            if not waiting[edge]:
                del waiting[edge]
    return groups


def at_home(found: Sequence[Piece]) -> list[list[Piece]]:
    """Pieces that stay where they are, in groups in which no part has two."""
    groups: list[list[Piece]] = []
    have: Counter[int] = Counter()
    for piece in found:
        if have[piece.source] == len(groups):
            groups.append([])
        groups[have[piece.source]].append(piece)
        have[piece.source] += 1
    return groups


def _longest_round(lengths: Mapping[Edge, int]) -> set[Edge]:
    """Edges that take every node once, of which the shortest is as long as can be."""
    nodes = len({one for one, _ in lengths})
    for least in sorted(set(lengths.values()), reverse=True):
        chosen = _matching([edge for edge, length in lengths.items() if length >= least])
        if len(chosen) == nodes:
            return chosen
    raise AssertionError(lengths)


def _matching(edges: Sequence[Edge]) -> set[Edge]:
    """As many edges as possible of which no two share a node; earlier ones are preferred."""
    others: dict[Node, list[Node]] = {}
    for one, other in edges:
        others.setdefault(one, []).append(other)
    of_one: dict[Node, Node] = {}
    of_other: dict[Node, Node] = {}
    for one, other in edges:
        if one not in of_one and other not in of_other:
            of_one[one], of_other[other] = other, one
    for start in others:
        if start in of_one:
            continue
        came, queue = {}, [start]  # for each node on the other side, from where it was reached
        end = None
        for one in queue:
            for other in others[one]:
                if other not in came:
                    came[other] = one
                    queue.append(of_other[other]) if other in of_other else None
                    end = end or (other if other not in of_other else None)
            if end:
                break
        while end:
            one = came[end]
            of_other[end], of_one[one], end = one, end, of_one.get(one)
    return set(of_one.items())
