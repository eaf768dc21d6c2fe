"""The figures of a TPU's kernels, fitted to what its compiler says of small programs.

    python -m benchmarks.kernel_figures v5e v5p v6e tpu7x --write

For each chip a seed draws single products, and steps of training of two layers on four chips, of
all kinds of models and a few layouts; `--programs` says how many. Each is compiled, and its kernels
are read with their cycles (`compiled_kernels`). From these come:

- `fetched` and `kept`: which arrays the compiler had in fast memory, by their size;
- the rates of element-wise code and reductions, then those of products: least squares of the
  logarithm of the times, in which longer kernels count more, and outliers little;
- `bare_rate` and `reorder_rate`: the medians of conversions and fills, and of copies that put
  another dim into lanes;
- `residuals`: how far the compiler's time is from the estimate, as a standard deviation of the
  logarithm, for programs that were left out of the fit, each fifth in turn; and `step` and
  `layout`, how far the small steps are off beyond what that says.

Bytes and elements of arrays are nearly proportional, so `hbm_efficiency` is drawn to 1. Nothing is
fitted to a whole step. `--write` puts the figures into `meshdsl/machine/hardware.toml`.
A program takes from ten seconds to some minutes to compile, and what the compiler said is kept in
`build/kernel_figures`.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding
from scipy.optimize import least_squares

from meshdsl.errors import MeshDSLError
from meshdsl.machine import Chip, Network, find_target
from meshdsl.machine.chips import TABLE, unit_of
from meshdsl.mesh import make_mesh
from meshdsl.predict.compiler.replay import replay
from meshdsl.predict.compiler.topology import compile_only, target_devices
from meshdsl.predict.time.kernel_time import kernel_seconds
from meshdsl.predict.time.uncertainty import LAYOUT, STEP
from meshdsl.tools.analysis import Analysis

from .compiled_kernels import Seen, bare_instructions, seen_kernels
from .estimate_order import residual
from .kept import compiled
from .measure import show
from .random_workloads import small_step

KEPT = Path(__file__).parents[1] / "build" / "kernel_figures"
TARGETS = {"v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2", "tpu7x": "tpu7x:2x2x1"}
_PRODUCTS = 20  # in one program
_LEAST = 3e-6  # seconds: shorter kernels say little
_FOLDS = 5
_DRAWN = 3  # how much `hbm_efficiency` is drawn to 1, in kernels of 200 us
_OF_PASSES = ("hbm_efficiency", "vector_rate", "array_rate")
_OF_PRODUCTS = (
    "matmul_efficiency",
    "product_latency",
    "result_rate",
    "operand_rate",
    "prologue_rate",
    "epilogue_rate",
)
_FIGURES = (*_OF_PASSES, *_OF_PRODUCTS, "fetched", "kept", "bare_rate", "reorder_rate")


def products(chip: str, number: int) -> Any:
    """A program of single products of matrices, lowered for one device."""
    rng = random.Random(f"products {chip} {number}")
    shapes = []
    while len(shapes) < _PRODUCTS:
        m = 2 ** rng.randint(9, 15)
        k, n = (128 * round(2 ** rng.uniform(0, 7)) for _ in range(2))
        if m * k * n <= 2**40 and m * n <= 2**28:
            shapes.append((m, k, n))

    def program(pairs):
        return [a @ b for a, b in pairs]

    on = SingleDeviceSharding(target_devices(find_target(TARGETS[chip]))[0])
    array = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=on)
    return jax.jit(program).lower([(array(m, k), array(k, n)) for m, k, n in shapes])


def analysis_of(chip: str, number: int) -> Analysis:
    """A step of training of two layers."""
    return small_step(random.Random(f"step {chip} {number}"), TARGETS[chip])


def step(chip: str, number: int) -> Any:
    """A step of training of two layers, lowered."""
    analysis = analysis_of(chip, number)
    assert analysis.target is not None
    mesh = make_mesh(analysis.sizes, target_devices(analysis.target))
    return analysis.on(mesh).lowered


def unfused_figures(name: str, number: int) -> dict[str, float]:
    """`bare_rate` and `reorder_rate`: the medians of the programs, weighted by time."""
    chip, seen = find_target(TARGETS[name]).chip, defaultdict(list)
    for kept in (KEPT / name / f"{k}-{i}.txt" for i in range(number) for k in ("products", "step")):
        if kept.exists() and (text := kept.read_text()):
            for kind, elements, seconds in bare_instructions(text, chip):
                if seconds >= _LEAST:
                    seen[kind].append((elements / seconds, seconds))
    found = {}
    for kind, pairs in seen.items():
        rates, weights = np.array(sorted(pairs)).T
        middle = np.searchsorted(np.cumsum(weights), weights.sum() / 2)
        found[f"{kind}_rate"] = float(rates[middle])
    return found


def read(chip: Chip, number: int) -> list[Seen]:
    """The kernels of so many programs of each kind, compiled or as the compiler said before.

    The options are those of the chip, as in training.
    """
    kinds: dict[str, Callable[[str, int], Any]] = {"products": products, "step": step}
    found = []
    for i in range(number):
        for kind, lower in kinds.items():
            name = f"{kind}-{i}"
            kept = KEPT / chip.name / name
            try:
                got = compiled(kept, partial(lower, chip.name, i), chip.options)
            except MeshDSLError as error:
                print(f"{chip.name} {name}: {error}", file=sys.stderr)
                continue
            if "error" not in got:
                found += seen_kernels(got["text"], name, chip)
            print(f"{chip.name} {name}: {len(found)} kernels", file=sys.stderr, flush=True)
    return found


def memory_figures(seen: Sequence[Seen]) -> dict[str, float]:
    """`fetched` and `kept`: the sizes that explain best which arrays were in fast memory."""
    found = {}
    for name, write in (("fetched", False), ("kept", True)):
        sizes, on_chip = [], []
        for one in seen:
            moves = zip(one.kernel.moves, one.on_chip, one.whole, strict=True)
            for move, fast, whole in moves:
                if move.write is write and whole and move.bytes > 2**17:
                    sizes.append(move.bytes)
                    on_chip.append(fast)
        size, fast = np.array(sizes), np.array(on_chip, float)
        halves = 2**20 * np.geomspace(1, 100, 60)
        missed = [
            np.sum(np.minimum(size, 2e8) * (1 / (1 + (size / half) ** 2) - fast) ** 2)
            for half in halves
        ]
        found[name] = float(halves[int(np.argmin(missed))])
    return found


def fitted(chip: Chip, seen: Sequence[Seen]) -> Chip:
    """The chip with figures that are fitted to the kernels."""
    chip = replace(chip, **memory_figures(seen))
    passes = [one for one in seen if not one.kernel.dots]
    chip = _fit(chip, passes, _OF_PASSES)
    return _fit(chip, [one for one in seen if len(one.kernel.dots) == 1], _OF_PRODUCTS)


def _fit(chip: Chip, seen: Sequence[Seen], names: Sequence[str]) -> Chip:
    """The chip with those figures of `names` that fit the kernels best.

    Rates are fitted as times for an element, so that what does not matter becomes 0.
    """
    seconds = np.array([one.seconds for one in seen])
    weight = np.clip((seconds / 2e-4) ** 0.7, 0.1, 8)
    rates = [name.endswith("rate") for name in names]
    first = np.array([getattr(chip, name) or 1e12 for name in names])
    first = np.where(rates, 1 / first, np.maximum(first, 1e-6))

    def with_figures(scaled: np.ndarray) -> Chip:
        values = scaled * first
        given = {
            name: (1 / v if v > 1e-18 else 0.0) if rate else float(v)
            for name, v, rate in zip(names, values, rates, strict=True)
        }
        return replace(chip, **given)

    def missed(scaled: np.ndarray) -> np.ndarray:
        made = with_figures(scaled)
        by_kernel = weight * np.log([kernel_seconds(s.kernel, made) for s in seen] / seconds)
        return np.append(by_kernel, _DRAWN * np.log(made.hbm_efficiency))

    start = np.ones(len(names))
    best = least_squares(missed, start, bounds=(1e-9, np.inf), loss="soft_l1", f_scale=0.1)
    return with_figures(best.x)


def residuals(chip: Chip, seen: Sequence[Seen]) -> dict[str, tuple[float, int]]:
    """For products and for other kernels: the deviation of what was left out, and how many."""
    missed: dict[str, list[tuple[float, float]]] = {"product": [], "pass": []}
    programs = sorted({one.program for one in seen})
    for fold in range(_FOLDS):
        left_out = set(programs[fold::_FOLDS])
        made = fitted(chip, [one for one in seen if one.program not in left_out])
        for one in seen:
            if one.program in left_out and len(one.kernel.dots) < 2:
                error = np.log(one.seconds / kernel_seconds(one.kernel, made))
                kind = "product" if one.kernel.dots else "pass"
                missed[kind].append((float(np.clip(error, -1, 1)), one.seconds))
    return {
        kind: (float(np.sqrt(np.average(np.square(e), weights=w))), len(e))
        for kind, (e, w) in ((k, np.array(pairs).T) for k, pairs in missed.items())
    }


def residual_of_steps(name: str, chip: Chip, number: int) -> float:
    """How far the small steps are off beyond what the residuals of their pieces say."""
    steps = []
    for i in range(number):
        kept = (KEPT / name / f"step-{i}").with_suffix(".txt")
        if not kept.exists() or not (text := kept.read_text()):
            continue
        analysis = analysis_of(name, i)
        assert analysis.target is not None
        target = replace(analysis.target, chip=chip)
        time = replace(analysis, target=target).explain().time
        assert time is not None and time.estimate is not None
        network = Network(target, analysis.sizes)
        steps.append((replay(text, chip, network, analysis.sizes).step, time.estimate))
    return residual(steps)


def toml(chip: Chip, found: Chip, missed: Mapping[str, tuple[float, int]]) -> dict[str, str]:
    """The lines of the file for each figure, and those of the residuals."""
    number = {name: missed["product" if name in _OF_PRODUCTS else "pass"][1] for name in _FIGURES}
    lines = {}
    for name in _FIGURES:
        unit, scale = ("MiB", 2**20) if name in ("fetched", "kept") else unit_of(name)
        value = getattr(found, name) / scale
        if name.endswith("rate") or name in ("fetched", "kept"):
            value *= chip.devices_per_chip
        if not value or value > 1e5:
            continue
        source = f"benchmarks/kernel_figures.py: fitted to {number[name]} kernels"
        lines[name] = f'{name} = {{ value = {value:.3g}, unit = "{unit}", source = "{source}" }}'
    return lines


def write(chip: str, lines: Mapping[str, str], missed: Mapping[str, tuple[float, int]]) -> None:
    """Puts the figures of a chip into `hardware.toml`."""
    text = TABLE.read_text()
    head, own, rest = re.split(rf"(?m)^(\[{chip}\]\n(?:(?!\[).*\n)*)", text, maxsplit=1)
    for name in set(_FIGURES) - set(lines):  # no limit
        own = re.sub(rf"(?m)^{name} = .*\n", "", own)
    for name, line in lines.items():
        if re.search(rf"(?m)^{name} = ", own):
            own = re.sub(rf"(?m)^{name} = .*$", lambda _, line=line: line, own)
        else:
            own = re.sub(r"(?m)^(kernel_latency = )", lambda m, line=line: f"{line}\n{m[1]}", own)
    for kind, (deviation, _) in missed.items():
        pattern = rf"(?ms)(^\[{chip}\.residuals\]\n(?:(?!\[).)*?^{kind} = )[\d.]+"
        rest = re.sub(pattern, lambda m, d=deviation: f"{m[1]}{d:.2g}", rest)
    TABLE.write_text(head + own + rest)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("chips", nargs="+", choices=TARGETS, metavar="CHIP")
    parser.add_argument("--programs", type=int, default=20, metavar="N", help="of each kind")
    parser.add_argument("--write", action="store_true", help="change hardware.toml")
    given = parser.parse_args()
    compile_only()
    rows = [["chip", "kernels", *_FIGURES, "product", "pass"]]
    for name in given.chips:
        chip = find_target(TARGETS[name]).chip
        seen = [one for one in read(chip, given.programs) if one.seconds >= _LEAST]
        found, missed = fitted(chip, seen), residuals(chip, seen)
        found = replace(found, **unfused_figures(name, given.programs))
        known = {kind: deviation for kind, (deviation, _) in missed.items()}
        found = replace(found, residuals={**chip.residuals, **known})
        of_steps = residual_of_steps(name, found, given.programs)
        missed |= dict.fromkeys((STEP, LAYOUT), (of_steps, given.programs))
        lines = toml(chip, found, missed)
        print("\n".join([f"[{name}]", *lines.values(), json.dumps(missed)]), file=sys.stderr)
        values = [f"{getattr(found, figure):.4g}" for figure in _FIGURES]
        rows.append(
            [
                name,
                str(len(seen)),
                *values,
                *(f"{missed[k][0]:.2g}" for k in ("product", "pass")),
            ]
        )
        if given.write:
            write(name, lines, missed)
    show(rows)


if __name__ == "__main__":
    main()
