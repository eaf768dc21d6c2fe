"""`meshdsl rehearse`: what faults and restarts will leave of a run's time, before it costs any."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import fields, replace
from math import prod
from pathlib import Path

from meshdsl.commands.analysis import analyses_of, configured, target_of
from meshdsl.commands.output import check_files
from meshdsl.commands.rehearse_real import rehearse_for_real
from meshdsl.errors import MeshDSLError, either
from meshdsl.extras import check_extra
from meshdsl.figures import byte_words, long_words
from meshdsl.machine import Target
from meshdsl.machine.target import HOST
from meshdsl.predict.compiler.topology import compile_only
from meshdsl.rehearsal.faults import FLAG, Faults, Trace, parse_faults
from meshdsl.rehearsal.options import Rehearsal
from meshdsl.rehearsal.picture import save_rehearsal
from meshdsl.rehearsal.run import Restart, Run, Stretch
from meshdsl.rehearsal.text import describe
from meshdsl.rehearsal.words import parse_pairs, parse_rate, parse_seconds
from meshdsl.tools.analysis import Analysis
from meshdsl.train.checkpoints.copies import TIMES
from meshdsl.train.config import Config
from meshdsl.train.overview import device_bytes, whole_bytes
from meshdsl.train.phases import phases_of
from meshdsl.train.watch.curves_picture import ENDINGS


def rehearse_run(arguments: argparse.Namespace) -> int:
    """Rehearse a run, print the ways to run it side by side, and draw them where that is asked for.

    Raises:
      MeshDSLError: see `analyses_of`; a flag is not of its form or is missing, or faults come
        faster than a restart takes.
    """
    faults = parse_faults(arguments.faults)
    if arguments.real:
        return rehearse_for_real(arguments, faults)
    for name in ("devices", "processes", "scale"):
        if getattr(arguments, name):
            raise MeshDSLError(f"--{name}: goes with --real")
    _check_picture(arguments.out)
    heading, rehearsal = _rehearsal(arguments, faults)
    set_row, rows = rehearsal.as_set(), list(rehearsal.rows())
    if arguments.json:
        steps = [stretch.seconds for stretch in rehearsal.run.stretches]
        options = [row.to_dict() for row in rows]
        print(json.dumps({"step_seconds": steps, "as_set": set_row.to_dict(), "options": options}))
    else:
        print("\n".join([*heading, describe(rehearsal, set_row, rows)]))
    if arguments.out:
        save_rehearsal(rehearsal, set_row, rows, arguments.out)
        print(f"wrote {arguments.out}", file=sys.stderr)
    return 0


def _rehearsal(arguments: argparse.Namespace, faults: Faults) -> tuple[list[str], Rehearsal]:
    """What is run where, in lines, and what its rehearsal needs to know."""
    parts = [field.name for field in fields(Restart)]
    restart = Restart(**parse_pairs("--restart", arguments.restart, parts))
    step = parse_seconds("--step ", arguments.step) if arguments.step else None
    store = parse_rate("--store ", _needed(arguments.store, "--store", "20GB/s"))
    to_host = parse_rate("--to-host ", arguments.to_host)
    spares = _spares(arguments, faults)
    _needed(arguments.target, "--target", "v5p:4x4x4")
    compile_only()
    analyses = analyses_of(arguments, one=["--step"])
    target = target_of(arguments)
    hosts = _hosts(target)
    heading, whole, part = _state(next(iter(analyses.values())), target)
    between = _between(target, to_host)
    rate = min(store, between * target.devices)
    read = hosts * min(whole, part * (target.devices // hosts))
    known = Run(
        stretches=(),
        handover=part / to_host,
        write=whole / rate,
        restore=read / rate,
        copy=part / between,
        fetch=part / between + part / to_host,
        restart=restart,
        hosts=hosts,
        slices=target.slices,
    )
    _check_faults(arguments.faults, faults, known)
    run = replace(known, stretches=tuple(_stretches(arguments, analyses, step)))
    rehearsal = Rehearsal(
        run=run,
        faults=faults,
        traces=tuple(Trace(faults, hosts, arguments.seed + i) for i in range(arguments.traces)),
        chips=target.chips // target.slices,
        set=_as_set(configured(arguments), run),
        spares=spares,
    )
    return heading, rehearsal


def _needed(value: str | None, flag: str, example: str) -> str:
    if value is None:
        raise MeshDSLError(f"{flag}: is needed, for example {flag} {example}")
    return value


def _check_picture(path: Path | None) -> None:
    """Raise a MeshDSLError unless a picture can be written there."""
    if path is None:
        return
    if path.suffix.lower() not in ENDINGS:
        raise MeshDSLError(f"--out {path}: expected a name that ends in {either([*ENDINGS])}")
    check_extra("plot", f"--out {path}")
    check_files(path)


def _hosts(target: Target) -> int:
    """How many hosts the slices or nodes of a target have."""
    chip, chips = target.chip, target.chips // target.slices
    each = prod(HOST) if chip.kind == "tpu" else chip.node or chips
    return target.slices * -(-chips // each)


def _between(target: Target, to_host: float) -> float:
    """Bytes per second that a device can send to other machines."""
    return target.chip.scale_out_bandwidth or to_host


def _stretches(
    arguments: argparse.Namespace, analyses: Mapping[str, Analysis], step: float | None
) -> list[Stretch]:
    """The steps of each phase, with the seconds of one."""
    config = configured(arguments)
    phases = phases_of(replace(config, layout=arguments.layout or config.layout))
    found = []
    for phase in phases:
        if phase.words not in analyses:
            continue
        seconds = step
        if seconds is None:
            time = analyses[phase.words].explain().time
            if time is None:
                raise MeshDSLError(
                    f"--target {arguments.target}: has no figures to estimate a step by; say how "
                    "long one takes, with --step, for example --step 2.4s"
                )
            seconds = time.step
        found.append(Stretch(phase.until - phase.before, seconds))
    return found


def _state(analysis: Analysis, target: Target) -> tuple[list[str], int, int]:
    """What is run where in words, and the bytes of the state: in all, and of one device."""
    job = analysis.on(analysis.mesh)
    whole, part = whole_bytes(job.state), device_bytes(job.state)
    mesh = " ".join(f"{axis}={size}" for axis, size in analysis.sizes.items())
    hosts = _hosts(target)
    lines = [
        analysis.title,
        f"{job.layout.name}, mesh {mesh}, on {target}: {target.chips:,} chips of {hosts:,} "
        f"host{'s' * (hosts > 1)}",
        f"state: {byte_words(whole)}, {byte_words(part)} of it on a device",
    ]
    if hosts > 1:
        copied = byte_words(TIMES * part * (target.devices // hosts))
        lines[-1] += f"; copies take up to {copied} of the memory of a host"
    return lines, whole, part


def _spares(arguments: argparse.Namespace, faults: Faults) -> int:
    if faults.slice_mtbf:
        return 1 if arguments.spares is None else arguments.spares
    if arguments.spares:
        raise MeshDSLError("--spares: stand in for slices that are gone; give a slice_mtbf")
    return 0


def _as_set(config: Config, run: Run) -> tuple[int, ...]:
    """Steps between two checkpoints as the settings have them, of each stretch."""
    by_steps = config.checkpoint.every or config.steps
    minutes = config.checkpoint.minutes
    by_time = run.every(60 * minutes) if minutes else (by_steps,) * len(run.stretches)
    return tuple(min(by_steps, each) for each in by_time)


def _check_faults(text: str, faults: Faults, run: Run) -> None:
    between, restart = faults.mean(run.hosts, run.slices), run.restarting
    if between <= restart:
        raise MeshDSLError(
            f"{FLAG} {text}: a restart takes {long_words(restart)}, and a fault comes every "
            f"{long_words(between)}; such a run hardly comes further"
        )
