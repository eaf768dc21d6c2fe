"""Kernels are the same by their code and what they close over, so that each is traced once."""

from functools import partial

import numpy as np
import pytest

from meshdsl.lowering.kernels import _comparable, _key_of


def scaled(by):
    return lambda x: x * by


def test_functions_are_the_same_by_their_code_and_what_they_close_over():
    assert _key_of(scaled(2)) == _key_of(scaled(2))
    assert _key_of(scaled(2)) != _key_of(scaled(3))
    assert _key_of(scaled(2)) != _key_of(scaled(2.0))
    assert _key_of(scaled(scaled(2))) == _key_of(scaled(scaled(2)))
    with pytest.raises(TypeError):
        _key_of(scaled({1, 2}))


def test_what_cannot_be_compared_at_little_cost_is_traced_each_time():
    assert _comparable(partial(scaled, np.zeros(4))) == _comparable(partial(scaled, np.zeros(4)))
    assert _comparable(partial(scaled, np.zeros(4))) != _comparable(partial(scaled, np.ones(4)))
    assert _comparable(partial(scaled, np.zeros(4096))) is None
    assert _comparable(partial(scaled(2), 3)) is None  # it has a closure
