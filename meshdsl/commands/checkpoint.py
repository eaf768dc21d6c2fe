"""`meshdsl checkpoint`: look at the checkpoints of a run, check them, take parameters out and in.

No accelerator is touched.
"""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path
from typing import Any

import jax

from meshdsl.errors import MeshDSLError, system_errors_say
from meshdsl.figures import byte_words, columns
from meshdsl.predict.compiler.topology import compile_only
from meshdsl.train.checkpoints import folders, manifest, safetensors_files
from meshdsl.train.checkpoints.folders import making
from meshdsl.train.checkpoints.parameters import checkpoints_folder
from meshdsl.train.checkpoints.safetensors_files import TensorFiles
from meshdsl.train.checkpoints.saved_arrays import verify
from meshdsl.train.checkpoints.transfer import export_parameters, import_parameters
from meshdsl.train.checkpoints.tree_leaves import describe
from meshdsl.train.config import Config
from meshdsl.train.folder import RunFolder
from meshdsl.train.precision import cast
from meshdsl.train.settings import read, to_toml


def list_checkpoints(arguments: argparse.Namespace) -> int:
    """`ls`: print step, size and time of each checkpoint, and whether its files are all there."""
    folder = checkpoints_of(arguments.run)
    head = ("step", "size", "written", "whole")
    rows = [head, *(_row(folder, step) for step in folders.saved_steps(folder))]
    print("\n".join(columns(rows, right=(0, 1), indent=0)))
    for path in folders.damaged(folder):
        print(
            f"{path.name}: {_size(path)}, was damaged, and set aside when the run went on from an "
            "older one"
        )
    return 0


def remove_damaged(arguments: argparse.Namespace) -> int:
    """`prune`: remove damaged checkpoints that were set aside, and print what was removed."""
    folder = checkpoints_of(arguments.run)
    for path in folders.damaged(folder):
        size = _size(path)
        with system_errors_say(f"{path}: cannot be removed"):
            shutil.rmtree(path)
        print(f"removed {path.name}, {size}")
    return 0


def show_checkpoint(arguments: argparse.Namespace) -> int:
    """`show`: print the arrays of a checkpoint, with dims, dtype and size."""
    folder = checkpoints_of(arguments.run)
    step = saved_step(folder, arguments.step)
    try:
        found = manifest.read(folder / str(step))
    except manifest.Damaged as damage:
        raise MeshDSLError(
            f"{folder}: the checkpoint of step {step} is damaged: {damage}"
        ) from None
    size = byte_words(manifest.size_in_bytes(found))
    print(f"step {step} of {arguments.run}, written {_time(found)}, {size}\n")
    rows = []
    for name, said in found["state"].items():
        if "dtype" in said:
            dims = said["is"].rpartition(" ")[0]
            rows.append(
                (name, dims, said["dtype"], byte_words(safetensors_files.size_in_bytes(said)))
            )
    print("\n".join(columns(rows, right=(3,), indent=0)))
    return 0


def verify_checkpoints(arguments: argparse.Namespace) -> int:
    """`verify`: read every array of every checkpoint, and print what is damaged.

    The exit code is 1 where something is.
    """
    folder, damaged = checkpoints_of(arguments.run), False
    for step in folders.saved_steps(folder):
        damage = verify(folder / str(step))
        if damage and not (folder / str(step)).is_dir():
            continue  # the run, which goes on, has replaced it meanwhile
        print(f"step {step}: {f'damaged: {damage}' if damage else 'good'}")
        damaged = damaged or bool(damage)
    return 1 if damaged else 0


def export_safetensors(arguments: argparse.Namespace) -> int:
    """`export`: write the parameters of a checkpoint as safetensors, each tensor unsplit."""
    folder = checkpoints_of(arguments.run)
    if arguments.out.suffix != ".safetensors":
        raise MeshDSLError(f"--out {arguments.out}: expected a name that ends with .safetensors")
    if arguments.limit <= 0:
        raise MeshDSLError(f"--limit {arguments.limit:g}: must be more than 0")
    step, limit = saved_step(folder, arguments.step), int(arguments.limit * 1e9)
    config = to_toml(folder_of(arguments.run).config_at(step))
    for file in export_parameters(
        folder, step, arguments.out, config, limit, average=arguments.average
    ):
        print(f"wrote {file}")
    return 0


def import_safetensors(arguments: argparse.Namespace) -> int:
    """`import`: make a run of safetensors, with which another can begin by `warm_start=RUN`."""
    compile_only()
    like = arguments.like
    config = folder_of(like).stored_config() if like.is_dir() else read(like, Config())
    files, out = TensorFiles(arguments.file), RunFolder(arguments.out)
    out.refuse_used()
    with system_errors_say(f"--out {out.path}"), making(out.checkpoints):
        unused = import_parameters(files, described_parameters(config), out.checkpoints)
        out.write_config(config)
    for line in unused:
        print(line)
    print(f"wrote {out.path}; a run begins with it by warm_start={out.path}")
    return 0


def _row(folder: Path, step: int) -> tuple[str, str, str, str]:
    """The row of a checkpoint in the table of `ls`."""
    try:
        found = manifest.read(folder / str(step))
    except manifest.Damaged as damage:
        return str(step), "", "", f"no: {damage}"
    about = (str(step), byte_words(manifest.size_in_bytes(found)), _time(found))
    try:
        manifest.check_files(folder / str(step), found)
    except manifest.Damaged as damage:
        return *about, f"no: {damage}"
    return *about, "yes" if found["whole_state"] else "yes, parameters only"


def described_parameters(config: Config) -> dict[str, Any]:
    """The parameters of the configured model, as the manifest of a checkpoint describes them."""

    def init() -> Any:
        return cast(config.model.init(jax.random.key(0)), config.precision.params)

    return describe(jax.eval_shape(init))


def checkpoints_of(run: Path) -> Path:
    """The folder with the checkpoints of a run."""
    folder = checkpoints_folder(run)
    if folder is None:
        raise MeshDSLError(f"{run}: there are no checkpoints")
    return folder


def folder_of(run: Path) -> RunFolder:
    """The folder of a run, which the folder of its checkpoints stands for as well."""
    above = RunFolder(run.absolute().parent)
    inside = run.absolute() == above.checkpoints and not RunFolder(run).config.is_file()
    return above if inside else RunFolder(run)


def saved_step(folder: Path, step: int | None) -> int:
    """The step of the checkpoint that the user asks for, by default the newest."""
    known = folders.saved_steps(folder)
    if step is not None and step not in known:
        raise MeshDSLError(f"--step {step}: there is no such checkpoint; {folders.in_words(known)}")
    return known[-1] if step is None else step


def _size(folder: Path) -> str:
    """How large the files in a folder are."""
    return byte_words(sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()))


def _time(found: dict[str, Any]) -> str:
    """When a checkpoint was written."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found["time"]))
