"""Which collectives a TPU's compiler runs while the device computes; compiled without a TPU.

    python -m benchmarks.overlap --chips v5p v6e
    python -m benchmarks.overlap --write

One program is compiled for each chip, set of compiler options and mesh of `CASES`. It has stages,
one after the other: a collective over some axes of the mesh, and a product that does not need it.
The compiler's schedule says what became of the collective: whether the product runs meanwhile, and
whether it runs as itself over all dims of the torus that its axes lie on, along one ring, or as a
sum of the whole array. That depends on the form of the axes (`meshdsl.machine.overlap`).

Of the sets of options that one is chosen under which the device waits least for collectives, and of
equals the one with which the replayed programs take the least time; within 1% the options that the
table has stay. Meshes of which no axis is a whole slice may have further ones. `--write` puts the
options, and what runs how under them, into `meshdsl/machine/hardware.toml`; without it they are
printed.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import meshdsl as md
from meshdsl.machine import Chip, Network, chips
from meshdsl.machine.chips import TABLE
from meshdsl.machine.overlap import FORMS, Overlap
from meshdsl.predict.compiler.hlo_text import Module
from meshdsl.predict.compiler.parts import collective_inside
from meshdsl.predict.compiler.replay import replay
from meshdsl.predict.compiler.topology import compile_only, target_devices

from .kept import compiled
from .measure import show
from .overlap_cases import CASES, COLLECTIVES, GROUPS, SETS, Axes, Case, options_of

EDGE = 2048  # of the products, and of the arrays that collectives move


@dataclass(frozen=True)
class Found:
    """What became of one collective.

    Attributes:
      form: of the axes.
      operation: the collective of the program.
      ran: the one that the compiler made of it; empty where it could not be found.
      beside: whether the device computes meanwhile. Not so of a sum that is spread over fusions:
        it needs one that nothing else is spread over, and in steps of training most find none.
      ring: whether it goes along one ring, though the axes lie on several dims of the torus.
      seconds: on the links, were they over all dims at once.
    """

    form: str
    operation: str
    ran: str
    beside: bool
    ring: bool
    seconds: float = 0.0

    def __str__(self):
        as_what = "" if self.ran == self.operation else f", as {self.ran or '?'}"
        return f"{'beside' if self.beside else 'waits'}{as_what}{', one ring' * self.ring}"


def moved(operation: str, w: jax.Array, axes: Axes, n: int) -> jax.Array:
    """`w` after a collective over `axes`, of `n` devices."""
    if operation == "all_gather":
        return lax.all_gather(w[: w.shape[0] // n], axes, axis=0, tiled=True)
    if operation == "psum_scatter":
        return lax.psum_scatter(w, axes, scatter_dimension=0, tiled=True)
    if operation == "psum":
        return lax.psum(w, axes)
    if operation == "all_to_all":
        return lax.all_to_all(w, axes, 0, 1, tiled=True)
    return lax.ppermute(w, axes, [(i, (i + 1) % n) for i in range(n)])


def lowered(chip: Chip, case: Case, edge: int) -> jax.stages.Lowered:
    """A program with all stages of a case."""
    mesh = md.make_mesh(case.mesh, target_devices(case.target(chip)))

    def device(x, y, w):
        x, y, w = x[0], y[0], w[0]
        for operation, axes in case.stages:
            of = moved(operation, w, axes, math.prod(case.mesh[axis] for axis in axes))
            product = x @ y
            # The next stage needs both. A scatter has one user, as that of a gradient has.
            both = product[:1, :1] * jnp.sum(of, dtype=jnp.float32).astype(w.dtype)
            x, w = product + both, w + both
        return x[None], w[None]

    split = P(tuple(case.mesh))
    array = jax.ShapeDtypeStruct(
        (mesh.size, edge, edge), jnp.bfloat16, sharding=NamedSharding(mesh, split)
    )
    program = jax.shard_map(device, mesh=mesh, in_specs=split, out_specs=split, check_vma=False)
    return jax.jit(program).lower(array, array, array)


def found_in(text: str, chip: Chip, case: Case) -> list[Found]:
    """What became of each collective of a case, in a compiled program."""
    module, network = Module(text), Network(case.target(chip), case.mesh)
    left = list(replay(module, chip, network, case.mesh).collectives)
    found = []
    for operation, axes in case.stages:
        # Padded scatters leave small permutes, which are passed over.
        at = next(
            (
                i
                for i, ran in enumerate(left)
                if ran.collective.axes == axes and ran.collective.operation in (operation, "psum")
            ),
            None,
        )
        form = network.axes(axes).form
        if at is None:
            found.append(Found(form, operation, "", False, False))
            continue
        ran = left[at]
        del left[: at + 1]
        instruction = module.instructions[ran.name]
        _, inside = collective_inside(module, instruction.computation, instruction)
        dims = dims_at_once(f"{inside.attributes if inside else ''} {instruction.attributes}")
        several = max(len(level.parts) for level in network.axes(axes).levels)
        became = ran.collective.operation
        # What is spread over fusions does not say it: then sums alone use all of several dims.
        dims = dims or (several if became == "psum" and form != "part of a block" else 1)
        ring = dims < several and became == operation and operation in _OVER_DIMS
        spread = became == "psum" and instruction.opcode == "fusion"
        beside = ran.asynchronous and not spread
        found.append(Found(form, operation, became, beside, ring, ran.seconds))
    return found


_OVER_DIMS = ("all_gather", "psum_scatter", "psum")
# How many phases, of which each goes along one dim, a collective has: on the sparse cores, and on
# the matrix units'.
_PHASES = (
    re.compile(r'"phase_rings":\[((?:\{[^{}]*\},?)*)\]'),
    re.compile(r"phases:(\d)"),
    re.compile(r'"emitter":"(\d)D'),
)


def dims_at_once(attributes: str) -> int:
    """Over how many dims of the torus a collective goes at once; 0 where that is not said."""
    for pattern in _PHASES:
        if said := pattern.search(attributes):
            return int(said[1]) if said[1].isdigit() else said[1].count('"ring_type"')
    return 0


def table_of(found: Iterable[Found]) -> dict[str, Overlap]:
    """The table of a chip: for each form what holds in half of the cases of it at least."""
    by: defaultdict[tuple[str, str], list[Found]] = defaultdict(list)
    for one in found:
        if one.ran:
            by[one.form, one.operation].append(one)
    lists: dict[str, dict[str, list[str]]] = {form: defaultdict(list) for form in FORMS}
    for (form, operation), ones in by.items():
        sums = sum(one.ran != operation for one in ones)
        rings = sum(one.ring and one.ran == operation for one in ones)
        if 2 * (sums + rings) >= len(ones):
            lists[form]["rings" if rings > sums else "sums"].append(operation)
        if 2 * sum(not one.beside for one in ones) >= len(ones):
            lists[form]["waits"].append(operation)
    return {
        form: Overlap(**{name: tuple(those) for name, those in of.items()})
        for form, of in lists.items()
        if of
    }


def seconds_of(text: str, chip: Chip, case: Case) -> float:
    """Seconds of the program of a case, replayed on a chip."""
    network = Network(case.target(chip), case.mesh)
    return replay(text, chip, network, case.mesh).step


class Refused(Exception):
    """The compiler makes no program with a set of options."""


class Compiler:
    """Compiles the cases of a chip, each with a set of options only once.

    Attributes:
      chip: without a table of its own.
      cases: of it.
      edge: of the products, and of the arrays that collectives move.
      folder: where compiled programs are kept; None for nowhere.
    """

    def __init__(
        self, chip: Chip, cases: Sequence[Case], edge: int = EDGE, folder: Path | None = None
    ):
        self.chip, self.cases, self.edge = replace(chip, overlap={}), cases, edge
        self.folder, self.text = folder, cache(self._text)

    def _text(self, case: int, names: str) -> str:
        one = self.cases[case]
        mesh = "-".join(f"{axis}{n}" for axis, n in one.mesh.items())
        name = "-".join([self.chip.name, one.shape, mesh, str(self.edge), *names.split()])
        kept = self.folder / name if self.folder else None
        got = compiled(kept, partial(lowered, self.chip, one, self.edge), options_of(names))
        if "error" in got:
            raise Refused(f"{self.chip.name}:{one.shape} {mesh}: {got['error']}")
        return got["text"]

    def found(self, names: str, *, whole: bool | None = None) -> list[tuple[Case, list[Found]]]:
        """What became of the collectives of all cases, or of those with or without a whole axis."""
        return [
            (case, found_in(self.text(i, names), self.chip, case))
            for i, case in enumerate(self.cases)
            if whole in (None, case.whole)
        ]

    def seconds(self, names: str, *, whole: bool) -> tuple[float, float]:
        """Of the programs of the cases with, or without, an axis that is a whole slice.

        Returns:
          the seconds of the collectives that the device waits for, and those of the programs.
        """
        all_found = [one for _, found in self.found(names) for one in found]
        chip = replace(self.chip, overlap=table_of(all_found))
        waits = (
            one.seconds
            for _, found in self.found(names, whole=whole)
            for one in found
            if not one.beside
        )
        steps = (
            seconds_of(self.text(i, names), chip, case)
            for i, case in enumerate(self.cases)
            if case.whole == whole
        )
        return math.fsum(waits), math.fsum(steps)


def chosen(seconds: Mapping[str, tuple[float, float]], present: Mapping[str, str]) -> str:
    """The best set of options: the one under which the device waits least, and then the fastest.

    Of those within 1% it is the one that lacks the fewest of the present options, and of such the
    one with the fewest options.

    Args:
      seconds: for each set as of `Compiler.seconds`.
    """
    left = dict(seconds)
    for what in (0, 1):
        least = min(of[what] for of in left.values())
        left = {names: of for names, of in left.items() if of[what] <= 1.01 * least}
    near = [options_of(names) for names in left]
    best = min(near, key=lambda options: (len(present.keys() - options.keys()), len(options)))
    return next(names for names in seconds if options_of(names) == best)


def section(header: str, lines: Iterable[str]) -> str:
    """A table of a TOML file."""
    return "\n".join([f"[{header}]", *lines]) + "\n"


def toml_of(chip: str, whole: str, parts: str, table: Mapping[str, Overlap], versions: str) -> str:
    """The sections of `hardware.toml` for a chip.

    Args:
      whole: the set of options for meshes of which one axis is the whole slice.
      parts: the same for others.
    """
    texts = []
    for header, names in (
        ("options", whole.split()),
        ("options_of_parts", [name for name in parts.split() if name not in whole.split()]),
    ):
        lines = [
            line
            for name in names
            for line in (
                f"# {GROUPS[name][0]}",
                *(f'{k} = "{v}"' for k, v in GROUPS[name][1].items()),
            )
        ]
        texts += [section(f"{chip}.{header}", lines)] if lines else []
    rows = [
        f"# By `python -m benchmarks.overlap --write`, {versions}. What does not stand here",
        "# runs as itself, over all dims of the torus that its axes lie on, beside compute.",
    ]
    for form, runs in table.items():
        lists = (f"{name} = {json.dumps(those)}" for name, those in vars(runs).items() if those)
        rows.append(f'"{form}" = {{ {", ".join(lists)} }}')
    return "\n".join([*texts, section(f"{chip}.overlap", rows)])


def replaced(text: str, chip: str, sections: str) -> str:
    """The text of `hardware.toml` with other sections of options and overlap for a chip."""
    old = re.compile(rf"^\[{chip}\.(options|options_of_parts|overlap)\]\n(?:(?!\[).*\n?)*", re.M)
    without = old.sub("", text)
    own = re.search(rf"^\[{chip}\]\n(?:(?!\[).*\n?)*", without, re.M)
    assert own is not None, chip
    before, after = without[: own.end()].rstrip("\n"), without[own.end() :].lstrip("\n")
    return f"{before}\n\n{sections}" + (f"\n{after}" if after else "")


def of_chip(chip: Chip, sets: Sequence[str], edge: int, folder: Path | None) -> str:
    """Compile the cases of a chip, print what was found, and give its sections of the table."""
    compiler = Compiler(chip, CASES[chip.name], edge, folder)
    head = ["options", "one axis is the slice: ms", "other meshes: ms", "wait", "compile s"]
    rows, by = [head], {}
    for names in sets:
        start = time.perf_counter()
        try:
            compiled_ones = compiler.found(names)
        except Refused as refused:
            print(f"{chip.name}: {names}: refused, {refused}", flush=True)
            rows.append([names, "refused", "", "", ""])
            continue
        taken = time.perf_counter() - start
        by[names] = {whole: compiler.seconds(names, whole=whole) for whole in (True, False)}
        all_found = [one for _, found in compiled_ones for one in found]
        waits = sum(not one.beside for one in all_found)
        times = [f"{1e3 * by[names][whole][1]:.2f}" for whole in (True, False)]
        rows.append([names or "none", *times, f"{waits} of {len(all_found)}", f"{taken:.0f}"])
        print(f"{chip.name}: {'; '.join(rows[-1])}", flush=True)
    whole = chosen({names: seconds[True] for names, seconds in by.items()}, chip.options)
    more = {names: s[False] for names, s in by.items() if set(whole.split()) <= set(names.split())}
    parts = chosen(more, {**chip.options, **chip.options_of_parts})
    title = f"{chip.name}: {whole or 'none'}; without an axis that is the slice {parts or 'none'}"
    show(rows, title)
    best = [*compiler.found(whole, whole=True), *compiler.found(parts, whole=False)]
    show(
        [["mesh", "axes", "form", *COLLECTIVES], *rows_of(chip, best)],
        f"{chip.name}: what runs how",
    )
    table = table_of(one for _, found in best for one in found)
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("jax", "libtpu"))
    return toml_of(chip.name, whole, parts, table, versions)


def rows_of(chip: Chip, best: Iterable[tuple[Case, list[Found]]]) -> Iterator[list[str]]:
    """For each mesh and axes what became of the collectives over them."""
    for case, found in best:
        mesh = " ".join(f"{axis}={n}" for axis, n in case.mesh.items())
        for axes in case.over:
            ones, found = found[: len(COLLECTIVES)], found[len(COLLECTIVES) :]
            yield [
                f"{chip.name}:{case.shape} {mesh}",
                ", ".join(axes),
                ones[0].form,
                *map(str, ones),
            ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chips", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--edge", type=int, default=EDGE, help="of products and arrays")
    parser.add_argument("--keep", type=Path, help="a folder for compiled programs")
    parser.add_argument("--write", action="store_true", help="into hardware.toml")
    given = parser.parse_args()
    compile_only()
    for name in given.chips:
        sections = of_chip(chips()[name], SETS[name], given.edge, given.keep)
        print(f"\n{sections}")
        if given.write:
            TABLE.write_text(replaced(TABLE.read_text("utf-8"), name, sections), "utf-8")


if __name__ == "__main__":
    main()
