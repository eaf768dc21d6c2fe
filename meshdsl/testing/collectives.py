"""The collectives of a lowered function, compared with lines of text and with files."""

from __future__ import annotations

import difflib
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from jax.sharding import AbstractMesh, Mesh

from meshdsl.errors import MeshDSLError, nearest, quote, system_errors_say
from meshdsl.lowering.lower import Lowered
from meshdsl.predict.compiler.collectives import from_hlo
from meshdsl.program.collective import summary
from meshdsl.program.program import Program
from meshdsl.testing.equal import check

UPDATE = "MESHDSL_UPDATE"  # the variable that the option --meshdsl-update of pytest sets
OPERATIONS = ("all_gather", "all_to_all", "pmax", "pmin", "ppermute", "psum", "psum_scatter")
_LINE = re.compile(r"(\w+) over (\w+(?:, ?\w+)*): (\d+)")
_Counts = dict[tuple[str, tuple[str, ...]], int]  # of an operation over axes


def assert_collectives(lowered: Lowered, args: Sequence, expected: str | Iterable[str]) -> None:
    """A lowered function has these collectives for these arguments, and no others.

        assert_collectives(md.lower(loss, layout), (model, batch), "psum over model: 2")

    Args:
      lowered: what `md.lower` returns. It is traced and not run.
      args: its arguments, as a tuple; Tensors of `ShapeDtypeStruct`s will do.
      expected: lines such as `all_gather over data: 3`, in any order: the operation, the axes, and
        how often it runs in one call of the program. Empty where there should be none. Empty lines
        and those that begin with `#` are left out.

    Raises:
      AssertionError: there are others. It shows the lines that differ, those expected with a `-`
        before them and those found with a `+`.
      MeshDSLError: a line reads otherwise, or names an axis that the mesh lacks.
    """
    found = {key: n for key, (n, _) in summary(lowered.program(*args).collectives).items()}
    wanted = _counts(expected, tuple(lowered.mesh.shape))
    if found == wanted:
        return
    lines = []
    for key in sorted({*found, *wanted}):
        if found.get(key) == wanted.get(key):
            lines.append(f"  {_line(key, found[key])}")
        else:
            given = (("-", wanted), ("+", found))
            lines += [f"{sign} {_line(key, each[key])}" for sign, each in given if key in each]
    what = f"the collectives of `{lowered.name}` under {lowered.layout.name} are others"
    raise AssertionError("\n".join([f"{what} (- expected, + found):", *lines]))


def assert_golden(lowered: Lowered, args: Sequence, path: str | Path) -> None:
    """The collectives of a lowered function are those that a text file promises.

    The file has a row for each kind of collective, as `collectives_table` writes it. Keep it with
    the tests: a change of what a model sends shows as a change of the file.

        assert_golden(md.lower(loss, layout), (model, batch), "tests/golden")

    `pytest --meshdsl-update` writes the files anew; so does any other runner of tests with
    `MESHDSL_UPDATE=1` in its environment.

    Args:
      lowered: what `md.lower` returns. It is traced and not run.
      args: its arguments, as a tuple; Tensors of `ShapeDtypeStruct`s will do.
      path: of the file, which ends in `.txt`; or of a folder, where the file is named after the
        function and the layout, such as `loss-fsdp.txt`. The working directory is where a relative
        path begins.

    Raises:
      AssertionError: the file promises others, or there is no file. It shows the rows that differ.
      MeshDSLError: the file can neither be read nor written.
    """
    path = Path(path)
    if path.suffix != ".txt":
        layout = lowered.layout.name.removeprefix("layout ").removesuffix(".toml")
        path /= re.sub(r"[^\w.-]+", "-", f"{lowered.name}-{layout}.txt")
    program = lowered.program(*args)
    sizes = ", ".join(f"{a}={n}" for a, n in program.axis_sizes.items()) or "one device"
    found = (
        f"# The collectives of `{lowered.name}` under {lowered.layout.name}, mesh: {sizes}.\n"
        "# Bytes are of one execution on one device: the larger of what goes in and what comes "
        f"out.\n\n{collectives_table(program)}\n"
    )
    with system_errors_say(f"assert_golden, {path}"):
        there = path.read_text(encoding="utf-8") if path.is_file() else None
        if found == there:
            return
        if os.environ.get(UPDATE):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(found, encoding="utf-8")
            return
    advice = "`pytest --meshdsl-update` writes it"
    if there is None:
        raise AssertionError(f"{path}: there is no such file; {advice}")
    lines = difflib.unified_diff(there.splitlines(), found.splitlines(), n=0, lineterm="")
    shown = [line for line in lines if not line.startswith(("---", "+++", "@@"))]
    what = f"{path} promises other collectives (- promised, + found); {advice}:"
    raise AssertionError("\n".join([what, *shown]))


def collectives_table(program: Program, call: str = "call") -> str:
    """Each kind of collective of a program: a row for where, which, how often and how much.

    A row says whether it runs once in a call or in each turn of a loop, in which pass, over which
    axes, how often, the bytes of one execution, and the op that wants it.

    Args:
      call: what rows call one run of the program.
    """
    rows = Counter()
    for c in program.collectives:
        op = program.op_of(c)
        if op is None:
            raise AssertionError(f"nothing recorded explains {c}")
        phase = op.name if op.name in ("gradient", "gather_updated") else c.phase
        around = [name.rstrip("s") for name, _ in op.loops]
        times = op.count if around else 1
        if c.count % times:
            around, times = [], 1
        where = f"each {' and '.join(reversed(around)) or call}"
        rows[where, phase, c.operation, ", ".join(c.axes), f"{c.bytes:,}", str(op)] += (
            c.count // times
        )
    if not rows:
        return "no collectives"
    lines = [("where", "pass", "collective", "axis", "count", "bytes", "op")]
    lines += [(*key[:4], str(count), *key[4:]) for key, count in rows.items()]
    widths = [max(len(line[i]) for line in lines) for i in range(7)]
    return "\n".join(
        "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def assert_explained(
    program: Program, compiled: str, mesh: Mesh | AbstractMesh, name: str = "the program"
) -> None:
    """The record explains every collective of a program, and the compiler added none.

    Args:
      compiled: the text of the compiled program.
      name: what an error calls the program.

    Raises:
      AssertionError: no op of the record explains a collective, or the compiler made more of a kind
        than the program has.
    """
    unexplained = [c for c in program.collectives if program.op_of(c) is None]
    check(not unexplained, f"{name}: no op of the record explains {unexplained}")
    asked, made = summary(program.collectives), summary(from_hlo(compiled, dict(mesh.shape)))
    extra = [_line(key, n) for key, (n, _) in made.items() if n > asked.get(key, (0, 0))[0]]
    of = "; ".join(_line(key, n) for key, (n, _) in asked.items()) or "none"
    check(not extra, f"{name}: the compiler made {'; '.join(extra)}, of these: {of}")


def _line(key: tuple[str, tuple[str, ...]], count: int) -> str:
    """`psum over data, model: 2`"""
    return f"{key[0]} over {', '.join(key[1])}: {count}"


def _counts(expected: str | Iterable[str], axes: Sequence[str]) -> _Counts:
    """How often each operation runs over which of the `axes`, as lines of text say it."""
    counts: _Counts = {}
    lines = expected.splitlines() if isinstance(expected, str) else expected
    for line in filter(None, map(str.strip, lines)):
        if line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise MeshDSLError(
                f"assert_collectives: {quote(line)} is no line such as 'psum over model: 2'"
            )
        operation, named = match[1], re.split(", ?", match[2])
        _check("a collective", operation, OPERATIONS, line)
        for axis in named:
            _check("an axis of the mesh", axis, axes, line)
        key = operation, tuple(axis for axis in axes if axis in named)
        counts[key] = counts.get(key, 0) + int(match[3])
    return {key: count for key, count in counts.items() if count}


def _check(what: str, word: str, known: Iterable[str], line: str) -> None:
    if word not in known:
        raise MeshDSLError(
            f"assert_collectives: `{word}` in {quote(line)} is not {what}{nearest(word, known)}"
        )
