"""Pipelines as text: what `explain` and `compile` print of them, and the column of `compare`."""

from dataclasses import replace

from meshdsl.tools.compare import Row, table
from meshdsl.tools.explanation_text import describe
from tests.tools.sample import piped, sample

TEXT = """\
pipeline over `model`: 4 stages, 8 microbatches, 2 rounds, transformer.py:324 stack.py:104
  layers                      30 layers, 8 on each stage in 2 chunks of 4, with padding of 2
  bubble                      a stage waits for 3 of 19 ticks (15.8%), 300 ms (50.0%) of the step
  a tick takes                21.05 ms forward, 78.95 ms backward
  parameters at rest          1.00 GiB of its stage
  kept for the backward pass  4.75 GiB, 256.0 MiB of each tick
  the microbatch on which each stage works, with a letter for the round; the backward pass goes \
from right to left
    tick      0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15 16 17 18
    stage 0  0a 1a 2a 3a 0b 1b 2b 3b 4a 5a 6a 7a 4b 5b 6b 7b  .  .  .
    stage 1   . 0a 1a 2a 3a 0b 1b 2b 3b 4a 5a 6a 7a 4b 5b 6b 7b  .  .
    stage 2   .  . 0a 1a 2a 3a 0b 1b 2b 3b 4a 5a 6a 7a 4b 5b 6b 7b  .
    stage 3   .  .  . 0a 1a 2a 3a 0b 1b 2b 3b 4a 5a 6a 7a 4b 5b 6b 7b

pipeline over `model`: 4 stages, 8 microbatches, run 3 times a step, transformer.py:324 stack.py:104
  layers              30 layers, 8 on each stage, with padding of 2
  bubble              a stage waits for 3 of 11 ticks (27.3%)
  parameters at rest  1.00 GiB of all 30 layers: where they do not divide over the stages, they \
are not split over them
"""


def timed():
    whole = piped()
    assert whole.time is not None
    return replace(whole, time=replace(whole.time, step=0.6))


def test_a_pipeline_tells_its_bubble_its_memory_and_its_schedule():
    text = describe(timed())
    assert TEXT in text
    line = "pipeline over `model`: 4 stages, 8 microbatches, 2 rounds; a stage waits for 3 of 19"
    assert line in text.partition("axes:")[0]
    assert "pipeline" not in describe(sample())


def test_a_wide_schedule_is_cut_off():
    whole = piped()
    wide = replace(whole.pipelines[0], microbatches=64, ticks=131)
    lines = describe(replace(whole, pipelines=(wide,))).splitlines()
    rows = [line for line in lines if line.startswith(("    tick ", "    stage "))]
    assert len(rows) == 5 and all(line.endswith(" ...") for line in rows)
    assert max(map(len, rows)) <= 100


def test_compare_has_a_column_for_the_bubble_where_a_layout_has_one():
    rows = [Row.of("plain", {"data": 16}, sample()), Row.of("piped", {"data": 16}, timed())]
    head, plain, pipe = table([*rows, Row("mine", "", error="no dim")]).splitlines()[:3]
    assert [" bubble " in head, " none " in plain, " 50% " in pipe] == [True] * 3
    assert "bubble" not in table(rows[:1])
    untimed = replace(timed(), time=None)
    assert Row.of("piped", {}, untimed).bubble == 3 / 11
