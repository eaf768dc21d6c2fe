"""Python's operators on Tensors: `x + y`, `x < 0`, `-x`.

Importing this file gives them to the class `Tensor`.
"""

from __future__ import annotations

from collections.abc import Callable

from meshdsl.checked import checked
from meshdsl.ops.component import is_number, scale
from meshdsl.ops.functions import FUNCTIONS
from meshdsl.tensor import Tensor


def _binary(name: str, swapped: bool = False) -> Callable:
    """A method of two operands. With `swapped` the Tensor is the second: `2 - x` is `__rsub__`."""
    function = FUNCTIONS[name]

    def method(self, other):
        return function(other, self) if swapped else function(self, other)

    def scaling(self, other):
        if is_number(other) and not (swapped and name == "divide"):
            return scale(self, other, name=name, inverse=name == "divide")
        return function(other, self) if swapped else function(self, other)

    if name not in ("multiply", "divide"):
        return method
    scaling.__name__ = name
    return checked(scaling)


def _not_with_none(comparison: Callable) -> Callable:
    """A comparison that leaves None to Python, by which `t == None` is False."""

    def method(self, other):
        return NotImplemented if other is None else comparison(self, other)

    return method


# What Python calls an operator (without the underscores), and the function that it is.
_OPERATORS = {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "divide",
    "floordiv": "floor_divide",
    "mod": "mod",
    "pow": "power",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
}
_COMPARISONS = {
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "eq": "equal",
    "ne": "not_equal",
}
_UNARY = {"neg": "negative", "abs": "abs", "invert": "bitwise_not"}

for _python, _name in _OPERATORS.items():
    setattr(Tensor, f"__{_python}__", _binary(_name))
    setattr(Tensor, f"__r{_python}__", _binary(_name, swapped=True))
for _python, _name in _COMPARISONS.items():
    setattr(Tensor, f"__{_python}__", _binary(_name))
for _python in ("eq", "ne"):
    setattr(Tensor, f"__{_python}__", _not_with_none(_binary(_COMPARISONS[_python])))
for _python, _name in _UNARY.items():
    setattr(Tensor, f"__{_python}__", FUNCTIONS[_name])
