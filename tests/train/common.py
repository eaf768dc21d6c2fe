"""What tests of training share: a small job, and what a run leaves in its folder."""

import json
from pathlib import Path

import jax

import meshdsl as md
from meshdsl.commands.lookup import devices_of_mesh, find_layout
from meshdsl.train.config import Config
from meshdsl.train.job import Job
from meshdsl.train.settings import override

TINY = [
    "model.d_model=16",
    "model.layers=1",
    "model.heads=8",
    "model.d_ff=16",
    "model.length=16",
    "batch=8",
]


def tiny_job(layout: str, *settings: str) -> Job:
    """A job of a tiny model under a shipped layout, with as many devices as that has."""
    found = find_layout(layout)
    mesh = md.make_mesh(found, jax.devices()[: devices_of_mesh(found)])
    return Job(override(Config(), [*TINY, *settings]), found, mesh)


def losses(out: Path) -> list[float]:
    """The losses of a run by step; each step from the first has one record."""
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == list(range(1, len(records) + 1))
    return [record["loss"] for record in records]


def contents(folder: Path) -> dict[str, bytes]:
    """Every file under `folder`, but for the lock that a run holds while it goes on."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "lock"
    }
