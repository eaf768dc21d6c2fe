"""Figures as people read them."""

import pytest

from meshdsl.figures import byte_words, columns, flop_words, time_words


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 us"),
        (3.4567e-4, "346 us"),
        (0.00123, "1.23 ms"),
        (0.4567, "456.7 ms"),
        (0.99949, "999.5 ms"),
        (1.0, "1 s"),
        (12.34, "12.3 s"),
        (2180.0, "2,180 s"),
    ],
)
def test_times(seconds, text):
    assert time_words(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 FLOP"),
        (999, "999 FLOP"),
        (1000, "1.0 kFLOP"),
        (1.5e12, "1.5 TFLOP"),
        (3e21, "3000.0 EFLOP"),
    ],
)
def test_flops(count, text):
    assert flop_words(count) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        *((0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB")),
        *((1023.9 * 1024, "1023.9 KiB"), (1023.96 * 1024, "1.0 MiB"), (12_300_000, "11.7 MiB")),
        *((2**30, "1.00 GiB"), (95.74 * 2**30, "95.74 GiB"), (1023.999 * 2**30, "1.00 TiB")),
        (5 * 2**60, "5120.00 PiB"),
    ],
)
def test_sizes_are_in_powers_of_1024(count, text):
    assert byte_words(count) == text


def test_columns_align_and_leave_nothing_behind_the_last_word():
    assert columns([("a", "1"), ("bcd", "22")], right=(1,)) == ["  a     1", "  bcd  22"]
    assert columns([("a", ""), ("bcd", "x")], indent=0) == ["a", "bcd  x"]
