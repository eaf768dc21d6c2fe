"""`meshdsl eval`: a run measured by the tasks of lm-evaluation-harness."""

from __future__ import annotations

import argparse
import json
import math
from typing import Any

from meshdsl import hosts
from meshdsl.commands.generate import tokenizer_of
from meshdsl.commands.lookup import pick_devices
from meshdsl.errors import MeshDSLError, system_errors_say
from meshdsl.extras import check_extra
from meshdsl.figures import columns
from meshdsl.mesh import make_mesh
from meshdsl.train.folder import RunFolder
from meshdsl.train.harness import Requests, evaluate
from meshdsl.train.sample import check_generates, open_model
from meshdsl.train.stored_layout import find_layout


def evaluate_run(arguments: argparse.Namespace) -> int:
    """Measure the model of a run by tasks, and print what the harness found.

    Raises:
      MeshDSLError: the harness is not installed or does not know a task; there is no such run,
        checkpoint or layout; or there are fewer devices than wanted.
    """
    check_extra("eval", "meshdsl eval")
    tasks = [name for part in arguments.tasks for name in part.split(",") if name]
    if not tasks:
        raise MeshDSLError("--tasks: name at least one task")
    folder = RunFolder(arguments.run)
    config = folder.config_at(arguments.step)
    check_generates(config)
    if arguments.include is not None and not arguments.include.is_dir():
        raise MeshDSLError(f"--include {arguments.include}: there is no such folder")
    hosts.join(arguments.coordinator, arguments.processes, arguments.process_id)
    layout = find_layout(arguments.layout or config.layout)
    devices = pick_devices(layout, 0 if arguments.layout else config.devices, arguments.devices)
    mesh = make_mesh(layout, devices)
    step, opened = open_model(folder, config, layout, mesh, arguments.step, report=print)
    requests = Requests(config, opened, tokenizer_of(config), arguments.batch)
    found = evaluate(
        requests,
        tasks,
        include=str(arguments.include) if arguments.include else None,
        num_fewshot=arguments.fewshot,
        limit=arguments.limit,
        apply_chat_template=arguments.chat,
        log_samples=False,
    )
    if hosts.first():
        _print(found["results"], step, arguments)
    return 0


def _print(results: dict[str, Any], step: int, arguments: argparse.Namespace) -> None:
    """A line for each number; with `--out` all of it as JSON too."""
    rows = [("task", "measure", "value", "plus or minus")]
    measured: dict[str, dict[str, float]] = {}
    for task, values in results.items():
        for key, value in values.items():
            name, comma, way = key.partition(",")
            if not comma or name.endswith("_stderr") or not isinstance(value, (int, float)):
                continue
            error = values.get(f"{name}_stderr,{way}")
            known = isinstance(error, float) and not math.isnan(error)
            called = name if way == "none" else f"{name} ({way})"
            rows.append((task, called, f"{value:.4f}", f"{error:.4f}" if known else ""))
            measured.setdefault(task, {})[called] = float(value)
    print("\n".join(columns(rows, right=(2, 3), indent=0)))
    if arguments.out is not None:
        text = json.dumps({"run": str(arguments.run), "step": step, "results": measured}, indent=2)
        with system_errors_say(f"--out {arguments.out}"):
            arguments.out.write_text(text + "\n", encoding="utf-8")
