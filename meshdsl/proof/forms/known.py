"""Numbers that are known before a program runs: of devices along an axis, of rounds, or constants.

They are whole numbers of 32 bits, and truth values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from meshdsl.proof.labels import Label, Major, Minor, Part, Sent, axis_of
from meshdsl.proof.values import Value, arguments_of


def _divided(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a - np.fmod(a, b)) // b


# Of integers and truth values.
OF_NUMBERS: dict[str, Callable] = {
    "abs": np.abs,
    "add": np.add,
    "and": np.bitwise_and,
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    "div": _divided,
    "eq": np.equal,
    "ge": np.greater_equal,
    "gt": np.greater,
    "integer_div": _divided,
    "le": np.less_equal,
    "lt": np.less,
    "max": np.maximum,
    "min": np.minimum,
    "mul": np.multiply,
    "ne": np.not_equal,
    "neg": np.negative,
    "not": np.invert,
    "or": np.bitwise_or,
    "rem": np.fmod,
    "select_n": lambda which, *cases: np.choose(which.astype(int), cases),
    "sign": np.sign,
    "sub": np.subtract,
    "xor": np.bitwise_xor,
}


def computed(op: str, args: Sequence[np.ndarray]) -> np.ndarray | None:
    """What an operation makes of numbers that are known; None if that is not known."""
    by_zero = op in ("div", "integer_div", "rem") and (args[1] == 0).any()
    if op not in OF_NUMBERS or by_zero or (op == "select_n" and args[0].dtype != bool):
        return None
    return OF_NUMBERS[op](*args)


def is_number(aval: Any) -> bool:
    return aval.shape == () and aval.dtype in (np.int32, np.bool_)


def numbers_of(value: Value, places: Mapping[Label | None, int], rank: int) -> np.ndarray | None:
    """The numbers that a value consists of, if they are known.

    Args:
      value: of a dtype of int32 or bool.
      places: for each label that it may have, the dim of the result.
      rank: of the result.
    """
    op, params = value.term.op, value.term.params
    if not {axis_of(label) or label for label in value.labels} <= places.keys():
        return None
    if op == "const":
        number = params[1]
        return np.array(number).reshape([1] * rank) if isinstance(number, (bool, int)) else None
    if op in ("iota", "array") and len(value.parts) == 1:
        (parts,) = value.parts
        if any(isinstance(part.label, (Major, Minor, type(None))) for part in parts):
            return None
        found = np.zeros([1] * rank, int)
        for i, (size, label) in enumerate(parts):
            at = places[axis_of(label) or label]
            index = np.array(label.table) if isinstance(label, Sent) else np.arange(size)
            step = math.prod(part.size for part in parts[i + 1 :])
            found = found + step * index.reshape([-1 if d == at else 1 for d in range(rank)])
        if op == "iota":
            return found
        known = params[0] in ("int32", "bool")
        return np.frombuffer(params[-1], params[0])[found] if known else None
    args: list[Any] = [numbers_of(arg, places, rank) for arg in arguments_of(value)]
    if not args or any(arg is None for arg in args):
        return None
    if op == "sum" and all(factor.denominator == 1 for factor in params[0]):
        pairs = zip(params[0], args, strict=True)
        found = np.asarray(sum(int(factor) * arg for factor, arg in pairs))
    else:  # an operation on integers of another dtype has that among its parameters
        found = computed(op, args) if params[:-2] in ((), ("int32",)) else None
    return found if found is not None and np.abs(found.astype(int)).max() < 2**31 else None


def numbers_along(value: Value, axis: Part) -> np.ndarray | None:
    """The number of each device along an axis, or of each index of another part, if it is known."""
    if axis.label is None:
        return None
    found = numbers_of(value, {axis.label: 0}, 1)
    return None if found is None else np.broadcast_to(found, axis.size)
