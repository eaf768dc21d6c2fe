"""How long a step takes, and what it sends, where gradients cross a slow network in few bits.

    python -m benchmarks.wire --network 100

Two processes of this machine, between which the network lets so many Mbit/s pass, train a small
transformer. Each has two devices: `data` lies within a process and `replica` between the two. The
bytes are those that the kernel counts at the network of a process. That takes an administrator
(network namespaces).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import jax
import numpy as np

from meshdsl import Layout, hosts
from meshdsl.lowering.wires import WIRES
from meshdsl.mesh import make_mesh
from meshdsl.train.config import Config
from meshdsl.train.job import Job
from meshdsl.train.settings import override

from . import limited_network
from .calibrated import WORKLOADS
from .measure import show

_LAYOUTS = {
    "data": {"rules": ["batch -> replica, data"]},
    "hybrid-fsdp": {"rules": ["batch -> replica, data"], "parameters": ["d_model -> data"]},
    "zero1 over replica": {
        "rules": ["batch -> replica, data"],
        "parameters": ["d_model -> data"],
        "optimizer": ["d_ff, heads, vocab? -> replica"],
    },
}
_SIZES = {"replica": 2, "data": 2}


def recorded(job: Job) -> float:
    """The bytes that a device sends over `replica` in a step, by the record."""
    total = 0.0
    for c in job.program().collectives:
        if "replica" in c.axes:
            part = (_SIZES["replica"] - 1) / _SIZES["replica"]
            total += c.total_bytes * part * (2 if c.operation == "psum" else 1)
    return total


def row(layout: str, wire: str, steps: int) -> list[str]:
    """A row of the table: a run of some steps, whose first is not counted."""
    settings = dict(WORKLOADS["transformer"].settings) | {"model.remat": "none"}
    if wire:
        settings["precision.wire"] = {"replica": wire.removesuffix(", feedback")}
        settings["precision.feedback"] = wire.endswith("feedback")
    found = Layout.from_dict({"mesh": _SIZES, "layout": _LAYOUTS[layout]}, name=layout)
    job = Job(override(Config(), **settings), found, make_mesh(_SIZES, jax.devices()))
    step, state = job.lowered.compile(), job.step.init(jax.random.key(0))
    batch = jax.tree.map(
        lambda x: jax.make_array_from_callback(
            x.shape, x.sharding, lambda at: np.zeros(x.shape, x.dtype)[at]
        ),
        job.batch,
    )
    seconds, before = [], 0
    for number in range(steps + 1):
        start, before = time.perf_counter(), before if number > 1 else limited_network.sent()
        state, measured = jax.block_until_ready(step(state, batch))
        seconds.append(time.perf_counter() - start)
    bytes_each = (limited_network.sent() - before) / steps
    low, middle, high = statistics.quantiles(seconds[1:], n=4)
    assert np.isfinite(float(measured["loss"]))
    return [
        *(layout, wire or "none", f"{middle:.2f}", f"{low:.2f} to {high:.2f}"),
        *(f"{bytes_each / 1e6:.2f}", f"{2 * recorded(job) / 1e6:.2f}"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--network", type=float, metavar="MBITS", default=100.0)
    parser.add_argument("--layouts", nargs="+", choices=_LAYOUTS, default=list(_LAYOUTS))
    parser.add_argument("--steps", type=int, default=10)
    for flag in ("--coordinator", "--process-id"):  # of one of the two processes
        parser.add_argument(flag, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.coordinator is None:
        if why := limited_network.missing():
            sys.exit(f"--network: {why}")
        with limited_network.limited(given.network) as both:
            sys.exit(both.run("benchmarks.wire", sys.argv[1:], 2))
    jax.config.update("jax_platforms", "cpu")
    hosts.join(given.coordinator, 2, int(given.process_id))
    rows = [["layout", "wire", "step s", "quartiles", "sent MB, kernel", "sent MB, record"]]
    for layout in given.layouts:
        wires = ["", *WIRES, "int8, feedback"] if "zero1" not in layout else ["", "int8"]
        for wire in wires:
            rows.append(row(layout, wire, given.steps))
            print(rows[-1], file=sys.stderr, flush=True)
    if hosts.first():
        show(rows)


if __name__ == "__main__":
    main()
