"""No program with a mistake in it is proved."""

from collections import Counter

import pytest

from tests.helpers import only
from tests.proof.common import LAYOUTS, computed, on_one_device, program, reference, same
from tests.proof.mutants import mutants


def judged(name: str, count: int, seed: int) -> Counter:
    """How many mutants of each kind are refused; are proved, and equal; are wrongly proved."""
    args, expected = on_one_device()
    right = program(LAYOUTS[name])
    names = [result.name for result in right.results]
    found: Counter = Counter()
    for mutant in mutants(right.jaxpr, count, seed):
        word = "refused"
        if reference().agrees(mutant.program, names).proved:
            equal = same(computed(mutant.program, args), expected)
            word = "proved, and equal" if equal else "wrongly proved"
        found[mutant.kind, word] += 1
    return found


# In zigzag order many are equal, which takes longest to see.
FEW = {"pipeline": 48, "zigzag": 40, "zigzag-turns": 40}
MANY = [(name, FEW.get(name, 200)) for name in LAYOUTS]
CASES = [("fsdp-tensor", 11), ("sequence", 22), *MANY]


@pytest.mark.parametrize(("name", "count"), only(CASES[:1], CASES, slow=CASES[1:2]))
def test_mutants_are_refused_or_equal(name, count):
    found = judged(name, count, seed=0)
    assert not [kind for kind, word in found if word == "wrongly proved"]
    refused = sum(n for (_, word), n in found.items() if word == "refused")
    assert refused > 0.5 * sum(found.values())
    # These change what is computed, whatever the program.
    assert not found["a sum that is not taken", "proved, and equal"]
    assert not found["a sum that is taken twice", "proved, and equal"]
