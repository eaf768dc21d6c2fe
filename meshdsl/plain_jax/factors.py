"""Dims as lists of factors, and what it means that two of them are one.

A position of an array starts as one `Node`. Where a reshape, a slice or a split takes it apart, it
gets *kids*, major first: `c_attn (32, 96)` becomes `[d_model, (qkv heads head_dim)]`. Nodes without
kids are *leaves*. Two leaves that are found to be the same dim are merged, unless both stand in one
tensor already, where names are unique: then they stay two, and one has to be renamed where they
meet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class Node:
    """A dim, or a factor of one.

    Attributes:
      size: its elements.
      name: the one that the user gave it, or that was made up for it; empty before.
      given: what gave it its name, for messages; empty where the user did not.
      parent: the node that it was merged into.
      kids: its factors, major first.
      tensors: the numbers of the tensors that it stands in.
    """

    __slots__ = ("given", "kids", "name", "parent", "size", "tensors")

    def __init__(self, size: int, tensors: Iterable[int] = (), name: str = "", given: str = ""):
        self.size = size
        self.name = name
        self.given = given
        self.parent: Node | None = None
        self.kids: list[Node] = []
        self.tensors = set(tensors)


def root(node: Node) -> Node:
    """The node that stands for all that `node` was merged with."""
    top = node
    while top.parent is not None:
        top = top.parent
    while node is not top:  # shorter the next time
        after = node.parent
        assert after is not None
        node.parent, node = top, after
    return top


def leaves(nodes: Iterable[Node]) -> list[Node]:
    """The factors of the nodes that have more than one element, in order."""
    found = []
    for node in nodes:
        node = root(node)
        if node.kids:
            found += leaves(node.kids)
        elif node.size != 1:
            found.append(node)
    return found


def align(a: Sequence[Node], b: Sequence[Node]) -> bool:
    """Take leaves apart until both lists have factors of the same sizes.

    A leaf that has a name stays whole. Returns whether the lists agree.
    """
    while True:
        left, right = leaves(a), leaves(b)
        pairs = enumerate(zip(left, right, strict=False))
        at = next((i for i, (x, y) in pairs if x.size != y.size), None)
        if at is None:
            return len(left) == len(right)
        big, small = left[at], right[at]
        if big.size < small.size:
            big, small = small, big
        if not small.size or big.size % small.size or big.name:
            return False
        big.kids = [Node(n, big.tensors) for n in (small.size, big.size // small.size)]


def unify(a: Sequence[Node], b: Sequence[Node]) -> bool:
    """Make one of the factors of both lists. Returns whether that was possible for all of them."""
    if not align(a, b):
        return False
    done = True
    for x, y in zip(leaves(a), leaves(b), strict=True):
        x, y = root(x), root(y)  # merged by a pair before it
        if x is not y:
            done = _merge(x, y) and done
    return done


def _merge(x: Node, y: Node) -> bool:
    both_named = x.name and y.name and x.name != y.name
    if both_named or not x.tensors.isdisjoint(y.tensors):
        return False
    if len(x.tensors) < len(y.tensors):
        x, y = y, x
    if y.name and not x.name:
        x.name, x.given = y.name, y.given
    y.parent = x
    x.tensors |= y.tensors
    return True
