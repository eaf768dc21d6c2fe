"""Which values are written to memory, and which are computed where they are used."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from meshdsl.estimate.fusion.flat_jaxpr import Node, Value, original


def names(text: str) -> frozenset[str]:
    """The words of `text`."""
    return frozenset(text.split())


ELEMENTWISE = names("""
    abs acos acosh add add_any and asin asinh atan atan2 atanh axis_index broadcast_in_dim cbrt ceil clamp clz complex concatenate conj
    convert_element_type copy cos cosh digamma div dynamic_slice eq erf erf_inv erfc exp exp2 expm1 floor ge gt imag integer_pow iota is_finite
    le lgamma log log1p logistic lt max min mul ne neg nextafter not or pad population_count pow random_bits random_fold_in random_split
    random_seed real reduce_precision rem rev round rsqrt select_n shift_left shift_right_arithmetic shift_right_logical sign sin sinh slice split
    sqrt square sub tan tanh threefry2x32 xor
""")
REDUCTIONS = names(
    "reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or reduce_xor argmax argmin"
)
DOTS = names("dot_general conv_general_dilated")
REORDERS = names(
    "concatenate dynamic_slice pad rev slice split"
)  # element-wise, but not in step with their operand
IN_PLACE = names(
    "dynamic_update_slice scatter scatter-add scatter_add scatter_mul scatter_min scatter_max"
)
PARTS = names("dynamic_slice gather slice")  # take a part of their operand
SMALL = 4096  # bytes, of scalars and the like
_DEAR = names("""
    acos acosh asin asinh atan atan2 atanh cbrt cos cosh digamma erf erf_inv erfc exp exp2 expm1 lgamma log log1p logistic pow random_bits sin sinh
    tan tanh threefry2x32
""")
_KERNELS = 2  # what takes no dear function is computed in up to so many kernels rather than written


def written(
    nodes: list[Node], outputs: Iterable[Value | None], sources: Callable[[Value], frozenset[Value]]
) -> set[Value]:
    """The values of a block that are written to memory.

    Those that something other than element-wise code and products makes or needs, the block's results, and the element-wise ones that several kernels need,
    if to compute them again would read more than to read them.

    Args:
      sources: of a value from outside of the block, what it is computed from, itself where it is written.
    """
    users: dict[Value, list[Node]] = defaultdict(list)
    for node in nodes:
        for value in {original(v) for v in node.inputs if v is not None}:
            users[value].append(node)
    reach, dear = _reach(nodes, sources)
    found = {original(v) for v in outputs if v is not None}
    roots: dict[Value, set] = {}
    for node in reversed(nodes):
        if node.primitive not in ELEMENTWISE:
            found.update(node.outputs)
            continue
        for value in node.outputs:
            into: set = set()
            for user in users[value]:
                if user.primitive in ELEMENTWISE:
                    for result in user.outputs:
                        into |= {result} if result in found else roots[result]
                elif (
                    user.primitive in REDUCTIONS or user.primitive in DOTS or _updates(value, user)
                ):
                    into.add(user)
                elif not _sinks(value, user, reach[value]):
                    found.add(value)
            roots[value] = into
            again = sum(v.bytes for v in reach[value])
            if (
                len(into) > 1
                and (value.bytes <= SMALL or again > 1.1 * value.bytes)
                and (value in dear or len(into) > _KERNELS)
            ):
                found.add(value)
    return found


def _reach(nodes: list[Node], sources) -> tuple[dict[Value, frozenset[Value]], set[Value]]:
    """For element-wise values, what they are computed from if none of them is written; and which of them take a dear function."""
    reach: dict[Value, frozenset[Value]] = {}
    dear: set[Value] = set()
    for node in nodes:
        if node.primitive not in ELEMENTWISE:
            continue
        inputs = [original(v) for v in node.inputs if v is not None]
        found = frozenset().union(*(reach[v] if v in reach else sources(v) for v in inputs))
        costly = node.primitive in _DEAR or any(v in dear for v in inputs)
        for value in node.outputs:
            reach[value] = found
            if costly:
                dear.add(value)
    return reach, dear


def _updates(value: Value, user: Node) -> bool:
    """Whether `value` is what an array is updated with, at a place."""
    return (
        user.primitive == "dynamic_update_slice"
        and user.inputs[0] is not None
        and original(user.inputs[0]) is not value
    )


def _sinks(value: Value, user: Node, reach: frozenset[Value]) -> bool:
    """Whether a loop or branch computes for itself what it is given: broadcasts and masks, made from next to nothing."""
    if not user.blocks or value.bytes <= SMALL or sum(v.bytes for v in reach) * 8 > value.bytes:
        return False
    varying = user.inputs[user.given + user.constants :]
    return all(v is None or original(v) is not value for v in varying)
