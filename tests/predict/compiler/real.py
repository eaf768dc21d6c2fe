"""Compiles small steps with the real TPU compiler, in a process of its own.

Prints the reports as JSON. `python -m tests.predict.compiler.real`.
"""

import json
import sys

import meshdsl as md
from meshdsl.machine import find_target
from meshdsl.predict.compiler.compile import compile_for
from meshdsl.predict.compiler.topology import compile_only, target_devices
from meshdsl.predict.explain import explain
from meshdsl.tools.compiled_text import describe
from meshdsl.train.config import Config
from meshdsl.train.job import Job
from meshdsl.train.settings import override

SETTINGS = [
    "model.layers=2",
    "model.d_model=128",
    "model.heads=2",
    "model.d_ff=128",
    "model.length=128",
    "precision.compute=bfloat16",
    "batch=8",
]
LAYOUT = md.Layout(
    ["batch -> data", "heads?, d_ff, vocab -> model", "length -> model"],
    ["d_model -> data"],
    mesh={"data": "rest", "model": 2},
)
WHOLE = md.Layout(["batch -> data"], ["d_model -> data"], mesh={"data": "rest"})
LARGER = ["model.d_model=1024", "model.d_ff=4096", "batch=64"]
CASES = (
    ("v5p:2x2x1", {}, LAYOUT, []),
    ("v5e:2x2", {}, LAYOUT, []),
    ("v6e:2x2", {"xla_tpu_max_hbm_size_mib": "1"}, LAYOUT, []),
    ("v6e:2x2", {"xla_tpu_no_such_thing": "1"}, LAYOUT, []),
    ("v6e:2x2", {"xla_tpu_scoped_vmem_limit_kib": "many"}, LAYOUT, []),
    ("v5p:4x4x4", {}, WHOLE, LARGER),
)


def main() -> None:
    compile_only()
    for name, given, layout, settings in CASES:
        target = find_target(name)
        job = Job(
            override(Config(), SETTINGS + settings),
            layout,
            md.make_mesh(layout, target_devices(target)),
        )
        program = job.program()
        explanation = explain(
            program, title="tiny", target=target, units=1024, model_flops=(1e9, 1e9)
        )
        try:
            report, executable = compile_for(
                job.lowered,
                program,
                target,
                explanation,
                options=job.step.compiler_options | given,
                given=tuple(given),
                model_flops=(1e9, 1e9),
            )
        except md.MeshDSLError as error:
            print(json.dumps({"error": str(error)}))
            continue
        saved = len(executable.runtime_executable().serialize()) if executable else 0
        print(json.dumps(report.to_dict() | {"saved": saved, "text": describe(report)}))


if __name__ == "__main__":
    sys.exit(main())
