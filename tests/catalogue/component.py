"""The component-wise ops: one entry for each function of the tables, by what it takes."""

import meshdsl as md
from meshdsl.ops.functions import FUNCTIONS
from tests.catalogue import Case, Entry

TWO = set(
    "add arctan2 divide equal fmax fmin greater greater_equal heaviside hypot less less_equal logaddexp logaddexp2 maximum "
    "minimum multiply not_equal power float_power subtract".split()
)
DIVIDING = set(
    "floor_divide fmod mod remainder".split()
)  # jump where a quotient is whole, so their operands keep off that
BITS = set("bitwise_and bitwise_or bitwise_xor logical_and logical_or logical_xor".split())
NOT = {"bitwise_not", "logical_not"}
DOMAIN = {"arccosh": (1.1, 2.0)}
MESH_TENSORFLOW = {
    "add": "AddOperation, ScalarAddOperation; never pending", "subtract": "BinaryOpWithBroadcasting",
    "multiply": "EinsumOperation, ScalarMultiplyOperation", "minimum": "MinMaxOperation", "maximum": "MinMaxOperation",
}  # fmt: skip
LOCAL = "the function, of the operands' own parts"


def _example(name):
    fn = FUNCTIONS[name]

    def unary(draw):
        x = draw.tensor(
            *draw.dims("a", "b"),
            low=DOMAIN.get(name, (0.1, 0.9))[0],
            high=DOMAIN.get(name, (0.1, 0.9))[1],
        )
        return Case(fn, (x,))

    def binary(draw):
        a, b = draw.dims("a", "b")
        x, y = draw.tensor(a, b, low=0.1, high=0.9), draw.tensor(b, low=0.1, high=0.9)
        return Case(
            *draw.pick((fn, (x, y)), (lambda x, y: fn(y, x), (x, y)), (lambda x: fn(x, 0.5), (x,)))
        )

    def dividing(draw):
        a, b = draw.dims("a", "b")
        return Case(fn, (draw.tensor(a, b, low=2.1, high=2.9), draw.tensor(b, low=0.95, high=1.0)))

    def bits(draw):
        a, b = draw.dims("a", "b")
        x = draw.integers(a, b, below=9)
        return Case(fn, (x,)) if name in NOT else Case(fn, (x, draw.integers(b, below=9)))

    def where(draw):
        a, b = draw.dims("a", "b")
        return Case(lambda x, y: fn(x > 0.1, x, y), (draw.tensor(a, b), draw.tensor(a)))

    if name == "where":
        return where
    return (
        bits
        if name in BITS | NOT
        else dividing
        if name in DIVIDING
        else binary
        if name in TWO
        else unary
    )


def _entry(name):
    clip = lambda draw: Case(
        lambda x: FUNCTIONS["clip"](x, -0.5, 0.5), (draw.tensor(*draw.dims("a", "b")),)
    )  # noqa: E731
    example = clip if name == "clip" else _example(name)
    known = (
        "SlicewiseOperation; whole operands only"
        if name == "where"
        else MESH_TENSORFLOW.get(
            name, "GenericGradOperation, BinaryOpWithBroadcasting or SlicewiseOperation"
        )
    )
    return Entry(name, example, LOCAL, mesh_tensorflow=known)


def _unary(fn, **how):
    return lambda draw: Case(fn, (draw.tensor(*draw.dims("a", "b"), **how),))


ENTRIES = [
    *(_entry(name) for name in FUNCTIONS),
    Entry(
        "map",
        _unary(lambda x: md.map(lambda a: a * a, x)),
        LOCAL,
        mesh_tensorflow="SlicewiseOperation; gradients by hand",
    ),
    Entry(
        "cast",
        _unary(lambda x: md.cast(x, "bfloat16")),
        LOCAL,
        mesh_tensorflow="SlicewiseOperation",
        gradients=False,
    ),
    Entry("stop_gradient", _unary(md.stop_gradient), LOCAL, mesh_tensorflow="StopGradient"),
]
