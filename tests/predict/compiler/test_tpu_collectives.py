"""The TPU compiler runs the collectives that `explain` shows, for every shipped layout.

Compared are operation, axes, count, bytes and dtype.

Forward, backward and optimizer together: where the compiler combines collectives they share one
name, so one cannot tell of which pass each was. What it does otherwise than it is told is listed
below, to the byte, with its reason. `tests/models/test_golden.py` does the same on CPU devices.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest

from meshdsl.program import Collective
from tests.helpers import only
from tests.models.common import LAYOUTS, STAGES
from tests.predict.compiler.tpu_compiler import asked

pytestmark = pytest.mark.skipif(find_spec("libtpu") is None, reason="libtpu is not installed")
ROOT = Path(__file__).parents[3]
Fact = tuple[str, tuple[str, ...], int, str]


def summed(axis: str, counts: dict[int, int], dtype: str = "float32") -> Counter[Fact]:
    """Reduce-scatters that the compiler writes as all-reduces of the full size.

    Each device takes its part of the sum. `counts` are `{bytes: how many}`.
    """
    change: Counter[Fact] = Counter()
    for size, count in counts.items():
        change["psum_scatter", (axis,), size, dtype] -= count
        change["psum", (axis,), size, dtype] += count
    return change


def not_gathered(axis: str, count: int, size: int) -> Counter[Fact]:
    """The gradients of a mean are constants, and constants are not gathered."""
    return Counter({("all_gather", (axis,), size, "float32"): -count})


SCALES = summed("data", {4096: 5})  # the gradients of the scales of norms
EACH = [SCALES, summed("data", {4194304: 12, 8388608: 4})]  # those of every weight where it is made
# (chip, layout) -> what the compiler does otherwise. On v5p every reduce-scatter over an axis that
# spans the whole torus is an all-reduce.
DIFFERENCES = {
    ("v5p", "zero1"): [summed("data", {4096: 1, 8192: 2, 4194304: 2, 8388608: 5, 16777216: 2})],
    ("v5p", "zero2"): EACH,
    ("v5p", "fsdp-once"): EACH,
    ("v5p", "fsdp"): EACH,
    ("v5p", "hybrid-fsdp"): [SCALES],
    ("v5p", "sequence"): [
        not_gathered("model", 2, 8192),
        summed("model", {8192: 1}),
        summed("model", {4194304: 12}, "bfloat16"),
    ],
    ("v5p", "fsdp-tensor"): [SCALES],
    ("v5p", "fsdp-sequence"): [SCALES, not_gathered("model", 2, 2048), summed("model", {2048: 1})],
    ("v6e", "zero1"): [summed("data", {4096: 1, 8192: 2, 8388608: 2})],
    ("v6e", "zero2"): [SCALES],
    ("v6e", "fsdp-once"): [SCALES],
    ("v6e", "fsdp"): [SCALES],
    ("v6e", "hybrid-fsdp"): [SCALES],
    ("v6e", "sequence"): [not_gathered("model", 2, 8192), summed("model", {8192: 1})],
    ("v6e", "fsdp-tensor"): [SCALES],
    ("v6e", "fsdp-sequence"): [SCALES, not_gathered("model", 2, 2048), summed("model", {2048: 1})],
}
EVERY = (*LAYOUTS, *STAGES, "spatial")
SLOW = [(target, "fsdp-sequence") for target in ("v5p:2x2x2", "v6e:2x4")]
ALL = [(target, name) for target in ("v5p:2x2x2", "v6e:2x4") for name in EVERY]


@pytest.fixture(scope="module")
def compiler():
    """`compiler(target, layout)`: the collectives of the compiled train step."""
    command = [sys.executable, "-m", "tests.predict.compiler.tpu_compiler"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:

        def compiled(*wanted: str) -> list[Collective]:
            process.stdin.write(json.dumps(wanted) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
            assert answer, "the compiler ended; what it said is above"
            return [
                Collective(operation, tuple(axes), *rest)
                for operation, axes, *rest in json.loads(answer)
            ]

        yield compiled


def facts(collectives) -> Counter[Fact]:
    found: Counter[Fact] = Counter()
    for c in collectives:
        found[c.operation, c.axes, c.bytes, c.dtype] += c.count
    return found


NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"


@pytest.mark.parametrize(
    "target, layout", only([("v5p:2x2x2", "fsdp-sequence")], ALL if NIGHTLY else SLOW)
)
def test_the_compiled_step_runs_what_explain_shows(target, layout, compiler):
    expected = facts(asked(layout))
    for change in DIFFERENCES.get((target.partition(":")[0], layout), []):
        expected.update(change)
    assert facts(compiler(target, layout)) == Counter(
        {fact: count for fact, count in expected.items() if count}
    )
