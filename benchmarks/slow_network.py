"""How long a step takes across a slow network: sums in each step, FSDP, and workers apart.

    python -m benchmarks.slow_network --networks 2x100 2x100:50 2x20:50 2x20:50:1 4x20:50

A network is PROCESSESxMBITS:DELAY:LOSS: so many processes of this machine in network namespaces,
each of which sends so many Mbit/s at most, packets that are so many milliseconds under way, and
percent that are lost. In each a small transformer trains with one device in each process. That
takes an administrator.

The bytes are those that the kernel counts at the network of process 0: with the headers of packets,
what is sent again, and all else that processes say to each other. What a step should take by the
model of `meshdsl explain` is the time that a worker computes, plus that of the recorded collectives
over a network with this rate and delay.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import numpy as np

from meshdsl import Layout, hosts
from meshdsl.machine import Network
from meshdsl.machine.chips import chips
from meshdsl.machine.target import Target
from meshdsl.mesh import make_mesh
from meshdsl.train.config import Config
from meshdsl.train.job import Job
from meshdsl.train.settings import override

from .limited_network import congestion_controls, limited, missing, sent
from .measure import show

_MODEL = {
    "model.style": "llama",
    "model.layers": 2,
    "model.d_model": 128,
    "model.heads": 4,
    "model.kv_heads": 4,
    "model.head_dim": 32,
    "model.d_ff": 384,
    "model.vocab": 512,
    "model.length": 64,
    "model.remat": "none",
    "batch": 8,
}
_SUMS = {"rules": ["batch -> replica"]}
_WAYS = {  # by their names: the layout, and the numbers of steps between two exchanges
    "data parallelism": (_SUMS, ()),
    "FSDP": (_SUMS | {"parameters": ["d_model -> replica"]}, ()),
    "workers": ({"rules": ["worker -> replica"]}, (10, 50)),
}
_STEPS = 3  # that are measured where all of them send the same


def network_of(text: str) -> tuple[int, float, float, float]:
    """Processes, Mbit/s, seconds of delay and the part that is lost, of a word as 2x20:50:1."""
    processes, _, link = text.partition("x")
    rate, delay, loss = (*map(float, link.split(":")), 0.0, 0.0)[:3]
    return int(processes), rate, delay / 1000, loss / 100


class Run:
    """The step of a way to train, and its exchange, compiled."""

    def __init__(self, way: str, processes: int):
        rules, apart = _WAYS[way]
        settings: dict[str, Any] = {**_MODEL, "local.workers": processes if apart else 0}
        self._sizes = {"replica": processes}
        layout = Layout.from_dict({"mesh": self._sizes, "layout": rules}, name=way)
        mesh = make_mesh(self._sizes, jax.devices())
        self.job = job = Job(override(Config(), **settings), layout, mesh)
        self._step = job.lowered.compile()
        self._exchange = job.local.lower_exchange().compile() if job.local else None
        self._state = job.step.init(jax.random.key(0))
        self._batch = jax.tree.map(
            lambda x: jax.make_array_from_callback(
                x.shape, x.sharding, lambda at: np.zeros(x.shape, x.dtype)[at]
            ),
            job.batch,
        )

    def alone(self) -> float:
        """The seconds of a step and nothing else, of which that of a worker sends nothing."""
        seconds = []
        for _ in range(_STEPS):
            start = time.perf_counter()
            self._state, _ = jax.block_until_ready(self._step(self._state, self._batch))
            seconds.append(time.perf_counter() - start)
        return statistics.median(seconds)

    def take(self, steps: int, every: int) -> list[int]:
        """Take so many steps; returns what had been sent before the first and after each."""
        looks, before, untold = [sent()], None, []
        for number in range(1, steps + 1):
            self._state, measured = self._step(self._state, self._batch)
            untold.append(measured)
            if self._exchange and number % every == 0:
                self._state = self._exchange(self._state)
            if not self._exchange or number % every == 0:
                measured, untold = self.job.step.told(untold), []
            # As in a run: what a step measured is read while the next one is under way.
            jax.block_until_ready(before or measured)
            before = measured
            looks.append(sent())
        jax.block_until_ready(self._state)
        return looks

    def measure(self, every: int) -> dict[str, float]:
        """What a step takes and sends, by the clock and the kernel.

        `between` is what a step sends from which the last exchange is some steps away.
        """
        self.take(every or 1, every)  # for connections that are made when they are first used
        steps = every or _STEPS
        start = time.perf_counter()
        looks = self.take(steps, every)
        seconds = time.perf_counter() - start
        # What the other processes still wait for is sent when they have come to a next step.
        looks += self.take(1, 2)[1:]
        between = statistics.median(b - a for a, b in pairwise(looks))
        size = looks[-1] - looks[0] - between
        return {"seconds": seconds / steps, "sent": size / steps, "between": between}

    def recorded(self, every: int, megabits: float, delay: float) -> dict[str, float]:
        """What a step sends by the record, and how long that takes by the model."""
        links = {"scale_out_bandwidth": megabits * 1e6 / 8, "scale_out_latency": delay}
        cpu = replace(chips()["cpu"], flops=1.0, **links)
        count = self._sizes["replica"]
        network = Network(Target(f"cpu:1x{count}", cpu, (1, count)), self._sizes)
        programs = [(self.job.program(), 1)]
        if self.job.local:
            programs.append((self.job.local.exchange_program(), every))
        size = seconds = 0.0
        for program, times in programs:
            for c in program.collectives:
                what = c.operation, c.axes, c.bytes
                size += c.count * network.sent_between(*what) / times
                seconds += c.count * network.seconds(*what) / times
        return {"recorded": size, "waits": seconds}


def measured(network: str, ways: Sequence[str]) -> list[dict[str, Any]]:
    """What is found of each way to train; called in all processes of the network."""
    processes, megabits, delay, _ = network_of(network)
    runs = {way: Run(way, processes) for way in ways}
    alone = min(run.alone() for run in runs.values())
    return [
        {"network": network, "way": f"{way}, every = {every}" if every else way, "alone": alone}
        | run.measure(every)
        | run.recorded(every, megabits, delay)
        for way, run in runs.items()
        for every in _WAYS[way][1] or (0,)
    ]


def row(found: dict[str, Any]) -> list[str]:
    """A row of the table."""
    processes, megabits, delay, loss = network_of(found["network"])
    link = f"{processes} x {megabits:g} Mbit/s"
    link += f", {1000 * delay:g} ms" * bool(delay) + f", {loss:.0%} lost" * bool(loss)
    return [
        *(link, found["way"], f"{found['seconds']:.2f}", f"{found['alone'] + found['waits']:.2f}"),
        *(f"{found[key] / 1e3:,.1f}" for key in ("sent", "recorded", "between")),
    ]


def in_namespaces(network: str, ways: Sequence[str], congestion: str = "") -> list[dict[str, Any]]:
    """What is found of each way by the processes of a network, which are there for as long.

    Args:
      congestion: one of `congestion_controls`; empty: that of this machine.
    """
    count, megabits, delay, loss = network_of(network)
    with (
        TemporaryDirectory() as folder,
        limited(megabits, count=count, delay=delay, loss=loss, congestion=congestion) as namespaces,
    ):
        file = Path(folder) / "found.json"
        words = ["--networks", network, "--ways", *ways, "--found", str(file)]
        if code := namespaces.run("benchmarks.slow_network", words, devices=1):
            sys.exit(code)
        return json.loads(file.read_text())


_HEAD = ["network", "way", "step s", "estimate s"]
_HEAD += ["sent kB, kernel", "sent kB, record", "most steps send kB"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--networks", nargs="+", default=["2x100:50"])
    parser.add_argument("--ways", nargs="+", choices=_WAYS, default=list(_WAYS))
    parser.add_argument("--congestion", choices=["", *congestion_controls()], default="")
    for flag in ("--coordinator", "--process-id", "--found"):  # of one of the processes
        parser.add_argument(flag, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.coordinator is None:
        if why := missing():
            sys.exit(why)
        found = [
            x
            for network in given.networks
            for x in in_namespaces(network, given.ways, given.congestion)
        ]
        show([_HEAD, *map(row, found)])
        return
    (network,) = given.networks
    jax.config.update("jax_platforms", "cpu")
    hosts.join(given.coordinator, network_of(network)[0], int(given.process_id))
    found = measured(network, given.ways)
    if hosts.first():
        Path(given.found).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
