"""Zigzag order: which blocks each part has, and how they get there."""

import numpy as np
import pytest

from meshdsl.lowering.moves.zigzag import Zigzag
from meshdsl.splits.exchanges import exchanges


def in_zigzag(array, parts: int) -> np.ndarray:
    """The array with the elements of each part one after the other."""
    size = array.size // parts
    runs = [run for part in range(parts) for run in Zigzag().runs(part, parts, size)]
    return np.concatenate([array[start : start + n] for start, n in runs])


@pytest.mark.parametrize("parts", [2, 3, 4, 5, 8, 16])
def test_pieces_bring_parts_from_one_order_to_the_other_and_back(parts):
    natural = np.arange(parts * 6)
    ordered = in_zigzag(natural, parts)
    for now, then, into in ((natural, ordered, True), (ordered, natural, False)):
        now, made = now.reshape(parts, 6), np.full((parts, 6), -1)
        pieces = Zigzag().pieces(parts, 6, into=into)
        for p in pieces:
            sent = now[p.source, p.read : p.read + p.length]
            made[p.target, p.write : p.write + p.length] = sent
        assert np.array_equal(made.ravel(), then)
        travels = exchanges([p for p in pieces if p.source != p.target])
        assert len(travels) <= 2 and all(p.length == 3 for group in travels for p in group)


@pytest.mark.parametrize("outer, inner", [(2, 2), (2, 3), (3, 2), (4, 2)])
def test_parts_of_parts_are_in_zigzag_order_over_both(outer, inner):
    elements = np.arange(2 * outer * inner * 3)
    parts = in_zigzag(elements, outer).reshape(outer, -1)
    nested = np.concatenate([in_zigzag(part, inner) for part in parts])
    assert np.array_equal(nested, in_zigzag(elements, outer * inner))


def test_causal_work_is_equal_in_zigzag_order_and_not_in_natural_order():
    seen = np.arange(1, 65)  # keys that each of 64 queries sees
    assert len(set(in_zigzag(seen, 4).reshape(4, -1).sum(1))) == 1
    assert seen.reshape(4, -1).sum(1).tolist() == [136, 392, 648, 904]
