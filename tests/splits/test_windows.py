"""Windows: what numpy's indexing gives, by no more bytes than must travel."""

from collections import Counter

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshdsl import Layout, make_mesh
from meshdsl.lowering.device_loop import DeviceLoop
from meshdsl.lowering.scope import Scope
from meshdsl.lowering.shardings import partition_spec
from meshdsl.splits.exchanges import exchanges
from meshdsl.splits.windows import Piece, pieces
from tests.helpers import dims

LENGTHS = st.integers(0, 7)
PIECES = st.builds(Piece, st.integers(0, 5), st.integers(0, 5), LENGTHS, LENGTHS, st.integers(1, 9))


def expected(whole, start, length, stop, fill=-1):
    """Elements from `start` to `start + length`; `fill` before the first and from `stop` on."""
    at = np.arange(start, start + length)
    return np.where((at >= 0) & (at < stop), whole[np.clip(at, 0, len(whole) - 1)], fill)


def elements(pieces):
    return Counter(
        (p.source, p.target, p.read + i, p.write + i) for p in pieces for i in range(p.length)
    )


@given(st.lists(PIECES, max_size=12))
def test_rounds_carry_every_element_once_and_are_as_short_as_any(found):
    groups = exchanges(found)
    assert elements(p for group in groups for p in group) == elements(found)
    for group in groups:
        assert len({p.source for p in group}) == len({p.target for p in group}) == len(group)
        assert len({p.length for p in group}) == 1
    sends, receives = Counter(), Counter()
    for p in found:
        sends[p.source] += p.length
        receives[p.target] += p.length
    assert sum(group[0].length for group in groups) == max(
        [*sends.values(), *receives.values()], default=0
    )


def test_windows_one_block_apart_are_a_round_for_each_side():
    """A halo, and a shift of whole blocks and a bit: every part is served alike."""
    halo = pieces([j * 8 - 2 for j in range(64)], 11, 8, 64 * 8)
    groups = exchanges([p for p in halo if p.source != p.target])
    assert sorted(
        (len(group), group[0].length, group[0].target - group[0].source) for group in groups
    ) == [(63, 1, -1), (63, 2, 1)]
    assert [
        len(group) for group in exchanges(pieces([j * 8 - 13 for j in range(64)], 8, 8, 64 * 8))
    ] == [62, 63]


MESHES = [
    ({"m": 4}, ("m",)),
    ({"m": 2, "n": 3}, ("m", "n")),
    ({"m": 2, "n": 3}, ("n", "m")),
    ({"m": 3, "l": 1, "n": 2}, ("n", "l")),
    ({"m": 1}, ("m",)),
]


def fetched(axes, mesh, whole, size, starts, length, stop, fill=-1):
    """Each part's window, in order of the parts, of a dim in padded blocks.

    And the moves that were recorded.
    """
    layout = Layout(mesh=mesh)
    devices, scope = make_mesh(layout), Scope(layout, mesh, "test")
    (dim,) = dims(x=size)
    op = scope.recorder.begin("fetch", (dim,), (axes,))
    loop = DeviceLoop({dim: axes}, scope, op)
    fetch = lambda x: loop.fetch(x, 1, dim, starts, length, stop=stop, fill=fill)
    spec = partition_spec(((), axes))
    found = jax.jit(jax.shard_map(fetch, mesh=devices, in_specs=spec, out_specs=spec))(whole)
    return np.asarray(found).reshape(len(whole), -1, length).swapaxes(0, 1), op.moves


@given(st.sampled_from(MESHES), st.data())
def test_a_fetched_window_is_that_of_numpy(mesh, data):
    sizes, axes = mesh
    parts = int(np.prod([sizes[a] for a in axes]))
    size = data.draw(st.integers(1, 4 * parts))
    block = -(-size // parts)
    starts = data.draw(st.lists(st.integers(-size - 2, size + 2), min_size=parts, max_size=parts))
    length, stop = data.draw(st.integers(1, size + 3)), data.draw(st.integers(0, size))
    whole = np.arange(2 * parts * block, dtype=np.int32).reshape(2, -1)
    whole[:, size:] = -1  # padding holds `fill`
    found, _ = fetched(axes, sizes, whole, size, starts, length, stop)
    for j, start in enumerate(starts):
        assert np.array_equal(found[j], [expected(row, start, length, stop) for row in whole])


@pytest.mark.parametrize("by", [1, 3, 4, 7, 9, -2, -6])
def test_a_shift_moves_no_more_than_each_device_lacks(by):
    parts, block = 4, 4
    whole = np.arange(3 * parts * block, dtype=np.int32).reshape(3, -1)
    _, moves = fetched(
        ("m",),
        {"m": parts},
        whole,
        parts * block,
        [j * block - by for j in range(parts)],
        block,
        parts * block,
    )
    lacking = [
        sum(
            not 0 <= i - j * block < block and 0 <= i < parts * block
            for i in range(j * block - by, (j + 1) * block - by)
        )
        for j in range(parts)
    ]
    assert {m.operation for m in moves} == {"ppermute"}
    assert sum(m.bytes for m in moves) == max(lacking) * 3 * 4
