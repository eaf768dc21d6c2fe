"""`meshdsl checkpoint`: look at the checkpoints of a run, check them, and take parameters out and in. No accelerator is touched."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from meshdsl.errors import MeshDSLError

if TYPE_CHECKING:
    from meshdsl.train.config import Config


def add(commands) -> None:
    parser = commands.add_parser(
        "checkpoint", help="list, show, verify, export or import checkpoints"
    )
    parts = parser.add_subparsers(required=True, metavar="ls|show|verify|export|import")
    run = {"type": Path, "metavar": "RUN", "help": "the folder of a run, or of its checkpoints"}
    step = {
        "type": int,
        "metavar": "N",
        "help": "the checkpoint of this step; by default the newest",
    }

    ls = parts.add_parser(
        "ls", help="step, size and time of each, and whether its files are all there"
    )
    ls.add_argument("run", **run)
    ls.set_defaults(command=_ls)
    show = parts.add_parser("show", help="the arrays of one, with dims, dtype and size")
    show.add_argument("run", **run)
    show.add_argument("--step", **step)
    show.set_defaults(command=_show)
    verify = parts.add_parser(
        "verify",
        help="read every array of every checkpoint; exit code 1 where one is not what was saved",
    )
    verify.add_argument("run", **run)
    verify.set_defaults(command=_verify)
    export = parts.add_parser("export", help="the parameters as safetensors, full tensors")
    export.add_argument("run", **run)
    export.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="a .safetensors file"
    )
    export.add_argument("--step", **step)
    export.add_argument(
        "--limit",
        type=float,
        default=5.0,
        metavar="GB",
        help="larger models become several files and an index (5)",
    )
    export.set_defaults(command=_export)
    take = parts.add_parser(
        "import", help="safetensors as a run that another can begin with by warm_start=RUN"
    )
    take.add_argument(
        "file",
        type=Path,
        metavar="FILE",
        help="a safetensors file, an index, or a folder with either",
    )
    take.add_argument(
        "--like",
        type=Path,
        required=True,
        metavar="RUN|CONFIG",
        help="whose model it is: a run, or a configuration file",
    )
    take.add_argument("--out", type=Path, required=True, metavar="RUN", help="the folder to make")
    take.set_defaults(command=_import)


def _ls(arguments: argparse.Namespace, settings: list[str]) -> int:
    from meshdsl.figures import columns
    from meshdsl.train.checkpoints import folders

    folder = _folder(arguments.run, settings)
    rows = [
        ("step", "size", "written", "whole"),
        *(_row(folder, step) for step in folders.saved_steps(folder)),
    ]
    print("\n".join(columns(rows, right=(0, 1), indent=0)))
    for path in folders.damaged(folder):
        print(f"{path.name}: was damaged, and set aside when the run went on from an older one")
    return 0


def _row(folder: Path, step: int) -> tuple[str, str, str, str]:
    from meshdsl.figures import byte_words
    from meshdsl.train.checkpoints import manifest

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


def _show(arguments: argparse.Namespace, settings: list[str]) -> int:
    from meshdsl.figures import byte_words, columns
    from meshdsl.train.checkpoints import manifest, safetensors_files

    folder = _folder(arguments.run, settings)
    step = _step(folder, arguments.step)
    try:
        found = manifest.read(folder / str(step))
    except manifest.Damaged as damage:
        raise MeshDSLError(
            f"{folder}: the checkpoint of step {step} is damaged: {damage}"
        ) from None
    print(
        f"step {step} of {arguments.run}, written {_time(found)}, {byte_words(manifest.size_in_bytes(found))}\n"
    )
    stored = {name: said for name, said in found["state"].items() if "dtype" in said}
    rows = [
        (
            name,
            said["is"].rpartition(" ")[0],
            said["dtype"],
            byte_words(safetensors_files.size_in_bytes(said)),
        )
        for name, said in stored.items()
    ]
    print("\n".join(columns(rows, right=(3,), indent=0)))
    return 0


def _verify(arguments: argparse.Namespace, settings: list[str]) -> int:
    from meshdsl.train.checkpoints import folders
    from meshdsl.train.checkpoints.saved_arrays import verify

    folder, bad = _folder(arguments.run, settings), 0
    for step in folders.saved_steps(folder):
        damage = verify(folder / str(step))
        if damage and not (folder / str(step)).is_dir():
            continue  # the run, which goes on, has replaced it meanwhile
        print(f"step {step}: {f'damaged: {damage}' if damage else 'good'}")
        bad += bool(damage)
    return 1 if bad else 0


def _export(arguments: argparse.Namespace, settings: list[str]) -> int:
    from meshdsl.train.checkpoints.transfer import export_parameters
    from meshdsl.train.settings import to_toml

    folder = _folder(arguments.run, settings)
    if arguments.out.suffix != ".safetensors":
        raise MeshDSLError(f"--out {arguments.out}: expected a name that ends with .safetensors")
    if arguments.limit <= 0:
        raise MeshDSLError(f"--limit {arguments.limit:g}: must be more than 0")
    config = to_toml(_stored_config(arguments.run))
    for file in export_parameters(
        folder, _step(folder, arguments.step), arguments.out, config, int(arguments.limit * 1e9)
    ):
        print(f"wrote {file}")
    return 0


def _import(arguments: argparse.Namespace, settings: list[str]) -> int:
    from meshdsl.compiled.topology import compile_only
    from meshdsl.train.checkpoints.folders import making
    from meshdsl.train.checkpoints.safetensors_files import TensorFiles
    from meshdsl.train.checkpoints.transfer import import_parameters
    from meshdsl.train.config import Config
    from meshdsl.train.folder import RunFolder
    from meshdsl.train.settings import read

    _refuse(settings)
    compile_only()
    config = (
        _stored_config(arguments.like)
        if arguments.like.is_dir()
        else read(arguments.like, Config())
    )
    files, out = TensorFiles(arguments.file), RunFolder(arguments.out)
    out.refuse_used()
    try:
        with making(out.checkpoints):
            unused = import_parameters(files, _parameters(config), out.checkpoints)
            out.write_config(config)
    except OSError as error:
        raise MeshDSLError(f"--out {out.path}: {error.strerror}") from None
    for line in unused:
        print(line)
    print(f"wrote {out.path}; a run begins with it by warm_start={out.path}")
    return 0


def _parameters(config) -> dict:
    """The parameters of the model that `config` describes, as the manifest of a checkpoint describes them."""
    import jax

    from meshdsl.models.transformer import Transformer
    from meshdsl.train.checkpoints.tree_leaves import describe
    from meshdsl.train.precision import cast

    return describe(
        jax.eval_shape(
            lambda: cast(Transformer.init(jax.random.key(0), config.model), config.precision.params)
        )
    )


def _folder(run: Path, settings: list[str]) -> Path:
    from meshdsl.train.checkpoints.parameters import checkpoints_folder

    _refuse(settings)
    folder = checkpoints_folder(run)
    if folder is None:
        raise MeshDSLError(f"{run}: there are no checkpoints")
    return folder


def _stored_config(run: Path) -> Config:
    """The configuration of a run, which its checkpoints' folder stands for as well."""
    from meshdsl.train.folder import RunFolder

    above = RunFolder(run.absolute().parent)
    inside = run.absolute() == above.checkpoints and not RunFolder(run).config.is_file()
    return (above if inside else RunFolder(run)).stored_config()


def _step(folder: Path, step: int | None) -> int:
    from meshdsl.train.checkpoints import folders

    known = folders.saved_steps(folder)
    if step is not None and step not in known:
        raise MeshDSLError(f"--step {step}: there is no such checkpoint; {folders.in_words(known)}")
    return known[-1] if step is None else step


def _time(found: dict) -> str:
    import time

    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found["time"]))


def _refuse(settings: list[str]) -> None:
    if settings:
        raise MeshDSLError(f"`{settings[0]}`: `checkpoint` has no settings")
