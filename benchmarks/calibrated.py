"""Whether a calibrated machine puts layouts into the order that their measured steps have.

    python -m benchmarks.calibrated
    python -m benchmarks.calibrated --hardware mine.toml --rounds 15
    python -m benchmarks.calibrated --network 100

Eight virtual devices of this machine are calibrated. Then steps of training of two small models are
estimated under many layouts and meshes, and run, in turns: the table has the median of the rounds
and its quartiles. Spearman's rank correlation is 1 where both orders are the same. Regret is how
much longer the layout takes that the estimate takes for the fastest than the fastest.

With `--network 100` the same is done for a third model in two processes of four devices, between
which the network lets 100 Mbit/s pass. That takes an administrator (network namespaces).

With `--clock cpu` a second is one in which all cores work for this program. So other programs on
the machine disturb less, but while the devices wait for each other no time passes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from meshdsl import Layout, hosts
from meshdsl.calibration.hardware_file import hardware_file
from meshdsl.calibration.measure import measure
from meshdsl.calibration.subjects import ordered
from meshdsl.commands.analysis import training_analysis
from meshdsl.machine import Target, chips, find_target
from meshdsl.mesh import make_mesh
from meshdsl.predict.compiler.topology import ask_for_virtual
from meshdsl.train.config import Config
from meshdsl.train.job import Job
from meshdsl.train.settings import override

from . import limited_network
from .measure import show

DEVICES = 8
_CLOCKS: dict[str, Callable[[], float]] = {
    "wall": time.perf_counter,
    "cpu": lambda: time.process_time() / (os.cpu_count() or 1),
}

_TRANSFORMER = {
    "model.style": "llama",
    "model.layers": 4,
    "model.d_model": 256,
    "model.heads": 8,
    "model.kv_heads": 8,
    "model.head_dim": 32,
    "model.d_ff": 768,
    "model.vocab": 2048,
    "model.length": 128,
    "batch": 16,
}
_VIT = {
    "model.family": "vit",
    "model.layers": 4,
    "model.d_model": 256,
    "model.heads": 8,
    "model.d_ff": 1024,
    "model.height": 64,
    "model.width": 64,
    "model.patch": 8,
    "model.classes": 128,
    "batch": 32,
}


@dataclass(frozen=True)
class Workload:
    """A step of training, and the ways to lay it out: layout, mesh and `model.remat`."""

    settings: Mapping[str, Any]
    ways: tuple[str, ...]


_MOST = (  # ways that all workloads have
    "data data=8 none",
    "zero1 data=8 none",
    "fsdp data=8 none",
    "fsdp data=8 full",
    "tensor model=8 none",
    "data-tensor data=4,model=2 none",
    "data-tensor data=2,model=4 none",
    "fsdp-tensor data=2,model=4 none",
)
WORKLOADS = {
    "transformer": Workload(
        _TRANSFORMER,
        (
            *_MOST,
            "data data=8 full",
            "tensor model=8 full",
            "fsdp-tensor data=4,model=2 none",
            "fsdp-sequence data=4,model=2 none",
            "fsdp-sequence data=2,model=4 full",
            "context data=4,context=2 none",
            "context data=2,context=4 none",
        ),
    ),
    "vit": Workload(
        _VIT,
        (
            *_MOST,
            "data data=8 full",
            "zero2 data=8 none",
            "fsdp-tensor data=4,model=2 none",
            "hybrid-fsdp replica=2,data=4 none",
        ),
    ),
    "processes": Workload(
        _TRANSFORMER | {"model.d_ff": 512, "model.vocab": 1024, "model.layers": 2},
        (
            *_MOST,
            "hybrid-fsdp replica=2,data=4 none",
            "fsdp-sequence data=2,model=4 none",
            "context data=4,context=2 none",
        ),
    ),
}

_TENSOR = ["heads?, kv_heads?, d_ff -> model", {"rule": "vocab? -> model", "uneven": "pad"}]
_OWN: dict[str, Any] = {"data-tensor": {"rules": ["batch -> data", *_TENSOR]}}


@dataclass
class Case:
    """One way of a workload: its estimate, its compiled step, and the seconds that this takes.

    Attributes:
      parts: seconds that it computes, and that it waits for collectives, as estimated.
    """

    way: str
    estimated: float
    parts: tuple[float, float]
    job: Job
    step: Any = None
    state: Any = None
    seconds: list[float] = field(default_factory=list)

    def prepare(self) -> None:
        """Compile the step, and make its first state."""
        self.step = self.job.lowered.compile()
        self.state = self.job.step.init(jax.random.key(0))
        self.batch = jax.tree.map(
            lambda x: jax.make_array_from_callback(
                x.shape, x.sharding, lambda at: np.zeros(x.shape, x.dtype)[at]
            ),
            self.job.batch,
        )

    def run(self, clock: Callable[[], float]) -> float:
        """Seconds of one step."""
        start = clock()
        self.state, _ = jax.block_until_ready(self.step(self.state, self.batch))
        return clock() - start

    @property
    def off(self) -> float:
        """The estimate relative to the median."""
        return self.estimated / statistics.median(self.seconds) - 1

    def row(self) -> list[str]:
        low, middle, high = (1e3 * q for q in statistics.quantiles(self.seconds, n=4))
        parts = [f"{1e3 * part:.1f}" for part in self.parts]
        measured = [f"{middle:.1f}", f"{low:.1f} to {high:.1f}"]
        return [self.way, f"{1e3 * self.estimated:.1f}", *measured, f"{self.off:+.0%}", *parts]


_HEAD = [
    *("layout", "step ms, explain", "measured", "quartiles", "off by"),
    *("compute ms, explain", "exposed ms, explain"),
]


def prepared(name: str, target: Target, devices: Sequence[Any]) -> list[Case]:
    """The ways of a workload, estimated and compiled."""
    found = []
    for way in WORKLOADS[name].ways:
        layout_name, mesh, remat = way.split()
        sizes = {axis: int(n) for axis, n in (part.split("=") for part in mesh.split(","))}
        config = override(Config(), **WORKLOADS[name].settings | {"model.remat": remat})
        if layout_name in _OWN:
            layout = Layout.from_dict({"mesh": sizes, "layout": _OWN[layout_name]}, name=way)
        else:
            layout = Layout.load(layout_name)
        time = training_analysis(way, config, layout, sizes, target).explain().time
        assert time is not None
        job = Job(config, layout, make_mesh(sizes, devices))
        found.append(Case(way, time.step, (time.compute, time.exposed), job))
        found[-1].prepare()
        print(f"{name}, {way}: estimated {1e3 * time.step:.1f} ms", file=sys.stderr, flush=True)
    return found


def spearman(cases: Sequence[Case]) -> float:
    """The rank correlation of estimates and medians."""
    estimated, measured = (
        np.argsort(np.argsort(values))
        for values in (
            [case.estimated for case in cases],
            [statistics.median(case.seconds) for case in cases],
        )
    )
    return float(np.corrcoef(estimated, measured)[0, 1])


def regret(cases: Sequence[Case]) -> float:
    """How much longer the step takes that was estimated to be the fastest than the fastest."""
    chosen = min(cases, key=lambda case: case.estimated)
    fastest = min(statistics.median(case.seconds) for case in cases)
    return statistics.median(chosen.seconds) / fastest - 1


def calibrated(path: Path, seconds: float, clock: Callable[[], float]) -> None:
    """Calibrate the virtual devices."""
    devices = ordered(jax.devices("cpu"))[:DEVICES]
    measured = measure(devices, seconds, lambda line: print(line, file=sys.stderr), clock=clock)
    if not hosts.first():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(hardware_file("cpu", chips()["cpu"], measured, devices), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS)
    parser.add_argument("--hardware", type=Path, help="a calibrated machine; else it is calibrated")
    parser.add_argument("--seconds", type=float, default=120.0, help="of calibrating")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--clock", choices=_CLOCKS, default="wall")
    parser.add_argument("--network", type=float, metavar="MBITS", help="between two processes")
    for flag in ("--coordinator", "--process-id"):  # of one of the two processes
        parser.add_argument(flag, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.network and given.coordinator is None:
        if why := limited_network.missing():
            sys.exit(f"--network: {why}")
        with limited_network.limited(given.network) as both:
            sys.exit(both.run("benchmarks.calibrated", sys.argv[1:], DEVICES // 2))
    clock, path = _CLOCKS[given.clock], given.hardware
    jax.config.update("jax_platforms", "cpu")
    if given.network:
        hosts.join(given.coordinator, 2, int(given.process_id))
    else:
        ask_for_virtual(DEVICES)
    if path is None:
        path = Path(f"build/calibrated{'-network' * bool(given.network)}.toml")
        calibrated(path, given.seconds, clock)
    hosts.first_does(lambda: None)  # the file is there
    shape = f"{DEVICES // 2}x2" if given.network else str(DEVICES)
    target = find_target(f"cpu:{shape}", hardware=path)
    devices = ordered(jax.devices())[:DEVICES]
    given.workloads = given.workloads or (
        ["processes"] if given.network else ["transformer", "vit"]
    )
    summary = [["workload", "layouts", "Spearman", "regret", "furthest off", "within 30%"]]
    tables = {}
    for name in given.workloads:
        cases = prepared(name, target, devices)
        for turn in range(given.rounds + 1):
            for case in cases:
                took = case.run(clock)
                if turn:
                    case.seconds.append(took)
        cases.sort(key=lambda case: statistics.median(case.seconds))
        tables[name] = [_HEAD, *(case.row() for case in cases)]
        off = [case.off for case in cases]
        near = sum(abs(one) <= 0.3 for one in off)
        furthest = f"{max(off, key=abs):+.0%}"
        order = [f"{spearman(cases):.2f}", f"{regret(cases):.0%}"]
        summary.append([name, str(len(cases)), *order, furthest, f"{near} of {len(cases)}"])
    if not hosts.first():
        return
    show(summary)
    for name, rows in tables.items():
        show(rows, name)


if __name__ == "__main__":
    main()
