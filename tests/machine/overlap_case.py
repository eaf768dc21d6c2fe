"""Prints what `benchmarks.overlap` finds in one small program, for each set of options asked.

test_overlap.py runs it in a process of its own.
"""

import json
import sys

from benchmarks.overlap import Compiler
from benchmarks.overlap_cases import Case
from meshdsl.machine import chips
from meshdsl.predict.compiler.topology import compile_only


def main():
    compile_only()
    asked = json.load(sys.stdin)
    compiler = Compiler(chips()[asked["chip"]], [Case(asked["shape"], {"a": 4}, (("a",),))], 512)
    found = {
        names: {one.operation: str(one) for _, ones in compiler.found(names) for one in ones}
        for names in asked["sets"]
    }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
