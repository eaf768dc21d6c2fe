"""Prints the table of mutants in docs/verify.md.

python -m tests.proof.table 60
"""

import sys
from collections import Counter

from tests.proof.common import LAYOUTS
from tests.proof.mutants import KINDS
from tests.proof.test_mutants import judged


def main() -> None:
    found: Counter = Counter()
    for name in LAYOUTS:
        found += judged(name, int(sys.argv[1]), seed=0)  # so many for each layout
    print("| mistake | made | refused | proved, and equal in numbers | wrongly proved |")
    print("| --- | ---: | ---: | ---: | ---: |")
    words = "refused", "proved, and equal", "wrongly proved"
    for kind in [*KINDS, "all"]:
        kinds = KINDS if kind == "all" else [kind]
        each = [sum(found[k, word] for k in kinds) for word in words]
        print(f"| {kind} | {sum(each):,} | {' | '.join(f'{n:,}' for n in each)} |")


if __name__ == "__main__":
    main()
