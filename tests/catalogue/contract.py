"""einsum."""

import meshdsl as md
from tests.catalogue import Case, Entry


def _einsum(draw):
    a, b, c, d = draw.dims("a", "b", "c", "d")
    x, y = draw.tensor(a, b), draw.tensor(b, c)
    return draw.pick(
        Case(lambda x, y: md.einsum(x, y, out=(a, c)), (x, y), (b,)),
        Case(
            lambda x, y, z: md.einsum(x, y, z, md.tensor(2.0, ()), out=(d, a)),
            (x, y, draw.tensor(c, d)),
            (b, c),
        ),
        Case(lambda x, y: md.einsum(x, y, y, out=(b, a)), (x, y), (c,)),
        Case(lambda x: md.einsum(x, out=b), (x,), (a,)),
    )


ENTRIES = [
    Entry(
        "einsum", _einsum, "contracts what it has, in the best order for what it has",
        mesh_tensorflow="EinsumOperation; one dtype, and each dim in two of operands and result",
    ),
]  # fmt: skip
