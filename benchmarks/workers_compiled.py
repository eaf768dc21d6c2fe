"""What the compiler for TPUs makes of workers that train apart, on slices with a slow network.

    python -m benchmarks.workers_compiled --keep build/workers model.remat=full

Compiled are a step of the workers, and a step beside which a fragment of the model is sent. Of both
the schedule is replayed (`meshdsl.predict.compiler.replay`): no TPU is needed, and nothing is
measured on one. For each program it prints what the hosts of the slices exchange, how long this
takes on the network alone, and how long a device waits for it. A step has nothing there.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from meshdsl.commands.analysis import training_analysis
from meshdsl.commands.settings import model_values
from meshdsl.layout import Layout
from meshdsl.machine import Network, find_target
from meshdsl.mesh import make_mesh
from meshdsl.predict.compiler.hlo_text import Module
from meshdsl.predict.compiler.options import default_options
from meshdsl.predict.compiler.replay import EXCHANGE, EXCHANGES, replay
from meshdsl.predict.compiler.topology import compile_only, target_devices
from meshdsl.train.auto_settings import choose
from meshdsl.train.config import Config
from meshdsl.train.settings import override

from .kept import compiled
from .measure import show

_SLICES = 2


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="llama3-8b")
    parser.add_argument("--target", default="v6e:16x16", help="one of the two slices")
    parser.add_argument("--rows", type=int, default=1, help="of a batch on each chip")
    parser.add_argument("--fragments", type=int, default=8)
    parser.add_argument("--keep", type=Path, help="folder of the compiled programs")
    parser.add_argument("settings", nargs="*", help="others of the run: local.wire=int8")
    given = parser.parse_args()
    compile_only()
    target = find_target(given.target, slices=_SLICES)
    sizes = {"replica": _SLICES, "data": target.devices // _SLICES}
    layout = Layout.from_dict(
        {
            "mesh": {"data": sizes["data"], "dcn": {"replica": _SLICES}},
            "layout": {
                "rules": ["worker -> replica", "batch -> data"],
                "parameters": ["d_model -> data"],
            },
        },
        name="workers",
    )
    values = model_values(given.model) | {
        "batch": given.rows * target.devices,
        "local.workers": _SLICES,
        "local.every": 100,
        "local.fragments": given.fragments,
        "local.delay": 5,
        "local.wire": "int8",
        "precision.compute": "bfloat16",
    }
    config = override(Config(), given.settings, **values)
    choice = choose(config, layout, sizes, target)
    analysis = training_analysis("workers", choice.config, layout, sizes, target, choice)
    job = analysis.on(mesh := make_mesh(sizes, target_devices(target)))
    options = default_options(mesh, target.chip)
    network = Network(target, sizes)
    print(choice.line, *analysis.sends(None), sep="\n", flush=True)
    programs = {
        "a step": lambda: job.lowered,
        "a step that sends": lambda: job.local.lower_sending(job.batch, 0),
    }
    rows = [["program", "step ms", "hosts exchange", "MB", "alone ms", "waits for it ms"]]
    for name, lower in programs.items():
        path = given.keep and given.keep / f"{given.target}-{name}".replace(" ", "-")
        said = compiled(path, lower, options)
        if "error" in said:
            rows.append([name, said["error"][:60], *["-"] * 4])
            continue
        module = Module(said["text"])
        timeline = replay(module, target.chip, network, sizes)
        over_slices = [ran for ran in timeline.collectives if "replica" in ran.collective.axes]
        assert not over_slices, over_slices  # the compiler leaves these to the hosts
        sends = [i for i in module.instructions.values() if i.opcode == "send"]
        found = [(kind[1], i) for i in sends if (kind := EXCHANGE.search(i.attributes))]
        counts = Counter(EXCHANGES[kind] for kind, _ in found)
        alone = (network.between_slices(EXCHANGES[k], i.results[0].bytes) for k, i in found)
        waits = timeline.exposed - sum(ran.exposed for ran in timeline.collectives)
        rows.append(
            [
                name,
                f"{1e3 * timeline.step:,.1f}",
                ", ".join(f"{operation} {n} x" for operation, n in counts.items()) or "nothing",
                f"{sum(i.results[0].bytes for _, i in found) / 1e6:.1f}",
                f"{1e3 * sum(alone):.2f}",
                f"{1e3 * waits:.2f}",
            ]
        )
        print(rows[-1], flush=True)
    show(rows)


if __name__ == "__main__":
    main()
