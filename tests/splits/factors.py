"""Dims of a given number of elements, drawn by hypothesis."""

from hypothesis import strategies as st

from tests.helpers import dims


@st.composite
def factors(draw, total, names):
    """One to three dims with the first of `names`, of `total` elements together."""
    sizes, left = [], total
    for _ in range(draw(st.integers(0, 2))):
        sizes.append(draw(st.sampled_from([n for n in range(1, left + 1) if left % n == 0])))
        left //= sizes[-1]
    return dims(**dict(zip(names, draw(st.permutations([*sizes, left])), strict=False)))
