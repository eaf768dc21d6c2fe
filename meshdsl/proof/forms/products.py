"""One form for products with exponentials and for weights that add up to one.

Over real numbers, softmax is the same whether or not a maximum is subtracted first, and however
its parts are put together. So exponentials go outwards: a product is written as

    exp(p) * x / (d1 * d2 * ...)

where `x` has no exponential as a factor. `exp(a + b)` is `exp(a) * exp(b)`, an exponential along
which a sum does not go leaves it, those that all terms of a sum have in common are its factor, and
`log(exp(p) * x)` is `p + log(x)`. So what scores are shifted by cancels; only maxima, logarithms
and small constants do (`bounds`), because with anything else floats may overflow.

A division is the operation `over`, with divisors that are known not to be negative. Where one is
zero, the dividend is known to be zero too, and so is the result: the weights of a row that has
none. Only where both are known is a division written like this; any other stays as it is.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from fractions import Fraction
from typing import NamedTuple

from meshdsl.proof.forms.assumed import given
from meshdsl.proof.forms.signs import bounds, positive, unsigned, vanishes
from meshdsl.proof.forms.sums import (
    TOGETHER,
    Pairs,
    elementwise,
    form,
    inwards,
    is_zero,
    linear,
    of_linear,
    summands,
    total,
)
from meshdsl.proof.terms import Terms
from meshdsl.proof.values import Value, alike, arguments_of, made

# In a comparison, a logarithm that is no larger than this is that of zero.
_LEAST = -1e29


class Product(NamedTuple):
    """A product; see the module.

    Attributes:
      factor: `x`; None for 1.
      power: what is added up in `p`.
      divisors: `d1`, `d2`, ...
    """

    factor: Value | None
    power: Pairs
    divisors: list[Value]

    @property
    def plain(self) -> bool:
        return not self.power and not self.divisors


def factors(value: Value) -> Product:
    """A value as a product."""
    op = value.term.op
    if op == "exp" and (power := _power(*arguments_of(value))):
        return Product(None, power, [])
    if op == "mul":
        for one, other in (args := arguments_of(value)), reversed(args):
            if other.term.op == "exp" and (power := _power(*arguments_of(other))):
                return factors(one)._replace(power=power)
    if op == "over":
        factor, *divisors = arguments_of(value)
        one = factor.term.op == "const" and factor.term.params[1] == 1
        return Product(None if one else factor, [], divisors)
    return Product(value, [], [])


def _power(value: Value) -> Pairs | None:
    """What is added up in the argument of an exponential; None if it is not to be taken apart."""
    found = summands(value)
    shifts = [each for number, each in found if number < 0 or each.term.op == "const"]
    return found if all(bounds(each.term) for each in shifts) else None


def product(terms: Terms, *values: Product) -> Value:
    """The value of a product of products."""
    factor = None
    power = [pair for value in values for pair in value.power]
    divisors = [d for value in values for d in value.divisors]
    for value in values:
        factor = _times(terms, factor, value.factor)
    power = summands(linear(terms, power, ()))
    for pair in list(power):
        number, log = pair
        if log.term.op == "log" and abs(number) == 1:  # exp(log(x)) is x
            (x,) = arguments_of(log)
            if number == 1 and unsigned(x.term):
                factor = _times(terms, factor, x)
            elif number == -1 and positive(x.term):
                divisors.append(x)
            else:
                continue
            power.remove(pair)
    if factor is not None and is_zero(factor):
        return factor
    kept = []
    for divisor in divisors:
        rest = _without(terms, factor, divisor)
        if rest is None:
            kept.append(divisor)
        else:
            factor = rest.factor
    if kept:
        kept.sort(key=lambda divisor: divisor.term.number)
        factor = made(terms, "over", (), [factor or _one(terms), *kept], ())
    if not power:
        return factor or _one(terms)
    scale = made(terms, "exp", (), [linear(terms, power, ())], ())
    return scale if factor is None else _raw(terms, factor, scale)


def _one(terms: Terms) -> Value:
    return Value(terms.constant(1.0, "float32"), (), ())


def _raw(terms: Terms, x: Value, y: Value) -> Value:
    return made(terms, "mul", (), sorted([x, y], key=lambda value: value.term.number), ())


def _times(terms: Terms, x: Value | None, y: Value | None) -> Value | None:
    if x is None or y is None:
        return y if x is None else x
    zero = x if is_zero(x) else y
    return zero if is_zero(zero) else _raw(terms, x, y)


def _without(terms: Terms, factor: Value | None, divisor: Value) -> Product | None:
    """`factor` without a divisor that is a factor of it; None if it is none."""
    if factor is None:
        return None
    rest = _found(terms, factor, divisor)
    if rest is None:
        return None
    zero = rest.factor is not None and vanishes(rest.factor, divisor)
    return rest if zero or positive(divisor.term) else None


def _found(terms: Terms, factor: Value, divisor: Value) -> Product | None:
    if alike(factor, divisor):
        return Product(None, [], [])
    if factor.term.op == "cast":
        (inner,) = arguments_of(factor)
        rest = _found(terms, inner, divisor)
        if rest is None or rest.factor is None:
            return None
        cast = elementwise(terms, "cast", factor.term.params[:-2], [rest.factor], ())
        return rest._replace(factor=cast)
    if factor.term.op == "mul":
        for one, other in (args := arguments_of(factor)), reversed(args):
            rest = _found(terms, one, divisor)
            if rest is not None:
                return rest._replace(factor=_times(terms, rest.factor, other))
    return None


@form("mul")
def _mul(terms: Terms, op: str, params: tuple, values: Sequence[Value]) -> Value | None:
    each = [factors(value) for value in values]
    return None if all(one.plain for one in each) else product(terms, *each)


@form("exp")
def _exp(terms: Terms, op: str, params: tuple, values: Sequence[Value]) -> Value | None:
    power = _power(values[0])
    return None if power is None else product(terms, Product(None, power, []))


@form("log")
def _log(terms: Terms, op: str, params: tuple, values: Sequence[Value]) -> Value | None:
    x = factors(values[0])
    if not x.power:
        return None
    log = elementwise(terms, "log", (), [product(terms, x._replace(power=[]))], ())
    return linear(terms, [*x.power, (1, log)] if x.factor or x.divisors else x.power, ())


@form("abs")
def _abs(terms: Terms, op: str, params: tuple, values: Sequence[Value]) -> Value | None:
    return values[0] if not params and unsigned(values[0].term) else None  # integers have params


@form("over")
def _over(terms: Terms, op: str, params: tuple, values: Sequence[Value]) -> Value:
    """`over` of other values than before; a divisor may be known to be zero by now."""
    x, *divisors = values
    if any(map(is_zero, divisors)):
        return Value(terms.constant(0, ""), (), ())
    return product(terms, factors(x), Product(None, [], divisors))


@form("div")
def _div(terms: Terms, op: str, params: tuple, values: Sequence[Value]) -> Value | None:
    """`over`, if the divisor is positive, or where it is zero another number divides a zero."""
    above, below = map(factors, values)
    if values[1].term.op == "const" or below.divisors:
        return None
    if below.factor is not None and not positive(below.factor.term):
        guarded = _guarded(below.factor)
        if guarded is None or guarded.factor is None or above.factor is None:
            return None
        if not vanishes(above.factor, guarded.factor):
            return None
        below = guarded._replace(power=[*guarded.power, *below.power])
    power = [(-number, value) for number, value in below.power]
    divisors = [] if below.factor is None else [below.factor]
    return product(terms, above, Product(None, power, divisors))


def _guarded(value: Value) -> Product | None:
    """`x`, where `value` is `x` if that is larger than zero, and else another number."""
    if value.term.op != "select_n" or len(value.term.args) != 3:
        return None
    which, number, some = arguments_of(value)
    known, found = _some(which), factors(some)
    if known is None or found.factor is None or number.term.op != "const" or is_zero(number):
        return None
    if not isinstance(number.term.params[1], (int, float)):  # as one that is no number
        return None
    return found if alike(found.factor, known) and not found.divisors else None


def _some(which: Value) -> Value | None:
    """`x`, which is never negative, if `which` says that it is larger than zero."""
    if which.term.op != "gt" or which.term.params[:-2]:
        return None
    x, zero = arguments_of(which)
    return x if is_zero(zero) and unsigned(x.term) else None


@form("gt", "ge", "lt", "le", "eq", "ne")
def _compared(terms: Terms, op: str, params: tuple, values: Sequence[Value]) -> Value | None:
    """Of `exp(p) * x` and zero, as of `x`; and of a logarithm and a number that stands for none."""
    x, y = values
    if params or y.term.op != "const":  # the parameters are the dtype of integers
        return None
    if op == "gt" and not is_zero(y):
        return _larger(terms, x, y)
    if op == "gt" and (is_zero(x) or positive(x.term)):
        return _truth(terms, not is_zero(x))
    found = factors(x) if is_zero(y) else Product(x, [], [])
    if not found.power:
        return None
    return elementwise(terms, op, params, [product(terms, found._replace(power=[])), y], ())


def _larger(terms: Terms, x: Value, y: Value) -> Value | None:
    """Whether `x` is larger than a number other than zero."""
    number = y.term.params[1]
    if isinstance(number, str):
        return None
    if x.term.op == "const":
        larger = x.term.params[1]
        return None if isinstance(larger, str) else _truth(terms, larger > number)
    if x.term.op == "select_n" and len(x.term.args) == 3:
        which, *cases = arguments_of(x)
        no, yes = (elementwise(terms, "gt", (), [case, y], ()) for case in cases)
        return _both(terms, which, yes) if no.term.op == "const" and is_zero(no) else None
    return _is_some(terms, x) if number <= _LEAST else None


def _both(terms: Terms, one: Value, other: Value) -> Value:
    return one if alike(one, other) else elementwise(terms, "and", (), [one, other], ())


@form("and")
def _and(terms: Terms, op: str, params: tuple, values: Sequence[Value]) -> Value | None:
    for one, other in values, reversed(values):
        if one.term.op == "const" and isinstance(one.term.params[1], bool):
            return other if one.term.params[1] else one
    return None


def _is_some(terms: Terms, x: Value) -> Value | None:
    """Whether there is something that `x` is the logarithm of, where that is not negative."""
    if x.term.op != "log":
        return None
    (known,) = arguments_of(x)
    zero = Value(terms.constant(0, ""), (), ())
    return elementwise(terms, "gt", (), [known, zero], ()) if unsigned(known.term) else None


@form("is_finite")
def _is_finite(terms: Terms, op: str, params: tuple, values: Sequence[Value]) -> Value | None:
    return _is_some(terms, values[0])


@form("select_n")
def _select(terms: Terms, op: str, params: tuple, values: Sequence[Value]) -> Value | None:
    """Of cases that take for granted what the condition says; factors leave it, if one is zero."""
    which, *cases = values
    if which.term.op == "const" and which.term.params[1] in range(len(cases)):
        return cases[int(which.term.params[1])]
    if len(cases) != 2 or which.term.op == "const":
        return None
    cases = [given(terms, value, which, bool(i)) for i, value in enumerate(cases)]
    if alike(*cases):
        return cases[0]
    for zero, some in cases, reversed(cases):
        if not is_zero(zero):
            continue
        known = _some(which) if zero is cases[0] else None
        if known is not None and vanishes(some, known):
            return some
        found = factors(some)
        if not found.plain:
            one = found.factor or _one(terms)
            args = [one if case is some else zero for case in cases]
            inner = made(terms, op, params, [which, *args], ())
            return product(terms, found._replace(factor=inner))
    changed = any(a is not b for a, b in zip(cases, values[1:], strict=True))
    return made(terms, op, params, [which, *cases], ()) if changed else None


# -- sums ------------------------------------------------------------------------------------------


def _common(terms: Terms, pairs: list[tuple[Fraction, Value]]) -> Value | None:
    """The factors that all terms of a sum have in common, and what divides several of them."""
    each = [factors(value) for _, value in pairs]
    if all(one.plain for one in each):
        return None
    if len(pairs) == 1:
        one = each[0].factor or _one(terms)
        return product(terms, each[0]._replace(factor=linear(terms, [(pairs[0][0], one)], ())))
    power = _shared([one.power for one in each])
    if power:
        less = Product(None, [(-number, value) for number, value in power], [])
        numbers = [number for number, _ in pairs]
        rest = zip(numbers, (product(terms, one, less) for one in each), strict=True)
        return product(terms, factors(linear(terms, rest, ())), Product(None, power, []))
    groups: dict[Hashable, list[tuple[Fraction, Product]]] = {}
    for i, ((number, _), one) in enumerate(zip(pairs, each, strict=True)):
        names = (
            frozenset(map(name_of, one.divisors)),
            frozenset((n, name_of(v)) for n, v in one.power),
        )
        groups.setdefault(names if one.divisors else i, []).append((number, one))
    if len(groups) == len(pairs):
        return None
    found = []
    for members in groups.values():
        inner = [(number, one.factor or _one(terms)) for number, one in members]
        whole = members[0][1]._replace(factor=linear(terms, inner, ()))
        found.append((1, product(terms, whole)))
    return linear(terms, found, ())


def name_of(value: Value) -> Hashable:
    """What is the same of values that are alike."""
    return value.term.number, value.parts


def _shared(powers: Sequence[Pairs]) -> Pairs:
    """What is a summand of all of some sums, times the smallest number that any of them has."""
    numbers = [{name_of(value): number for number, value in power} for power in powers]
    found = []
    for _, value in powers[0]:
        each = [number.get(name_of(value), Fraction(0)) for number in numbers]
        if min(each) > 0 or max(each) < 0:
            found.append((min(each, key=abs), value))
    return found


@inwards("exp", "mul", "over")
def _of_product(terms: Terms, value: Value, labels, sizes) -> Value | None:
    """What does not change along a sum leaves it; and a sum along which all does is taken first."""
    whole = factors(value)
    outer = [*(v for _, v in whole.power), *whole.divisors]
    changing = {label for v in outer for label in v.labels}
    ready = [label for label in labels if label not in changing]
    if ready and len(ready) < len(labels):
        found = total(terms, value, ready, sizes)
        return total(terms, found, set(labels) - {*ready}, sizes)
    leaves = lambda v: v.labels.keys().isdisjoint(labels)
    if not any(map(leaves, outer)):
        return of_linear(terms, value, labels, sizes) if value.term.op == "mul" else None
    inner = Product(
        whole.factor,
        [pair for pair in whole.power if not leaves(pair[1])],
        [divisor for divisor in whole.divisors if not leaves(divisor)],
    )
    power = [pair for pair in whole.power if leaves(pair[1])]
    divisors = [divisor for divisor in whole.divisors if leaves(divisor)]
    summed = factors(total(terms, product(terms, inner), labels, sizes))
    return product(terms, summed, Product(None, power, divisors)).at(value.dims)


def _truth(terms: Terms, which: bool) -> Value:
    return Value(terms.constant(which, bool), (), ())


TOGETHER.append(_common)
