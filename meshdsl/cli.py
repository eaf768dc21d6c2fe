"""The command line: `meshdsl train` and `meshdsl layouts`.

A mistake of the user is one line on stderr and exit code 2; an interrupted run exits with 130. Modules that load JAX's
companions are imported by the command that needs them, so `meshdsl layouts` answers at once.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import jax

from meshdsl import layouts
from meshdsl.errors import MeshDSLError, nearest
from meshdsl.layout import Layout

_SETTING = re.compile(r"[A-Za-z_][\w.]*=.*", re.DOTALL)
_REST = 8  # virtual devices for a mesh that takes as many as there are


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    # A setting may stand anywhere, also after `--data PATH...`; a path that looks like one is written `./a=b`.
    settings = [word for word in words if _SETTING.fullmatch(word)]
    arguments = _parser().parse_args([word for word in words if not _SETTING.fullmatch(word)])
    try:
        return arguments.command(arguments, settings)
    except MeshDSLError as error:
        print(f"meshdsl {words[0]}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"meshdsl {words[0]}: interrupted; nothing more was saved", file=sys.stderr)
        return 130


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, not {text!r}")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="meshdsl", description="Write a model once, choose in a file how it is split over a mesh.")
    commands = parser.add_subparsers(required=True, metavar="train | layouts")

    train = commands.add_parser(
        "train",
        help="train a transformer on text",
        usage="%(prog)s [--layout FILE|NAME] [--devices N] [--steps N] [--out FOLDER] [--data PATH...] [--resume] "
        "[key=value...]",
        epilog="Any other setting is key=value, for example: model.d_model=256 optimizer.name=lion checkpoint.every=50",
    )
    train.add_argument("--layout", help="a layout file, or the name of a shipped one (see `meshdsl layouts`)")
    train.add_argument(
        "--devices", type=_count, help="so many virtual CPU devices; where there is an accelerator, its first ones"
    )
    train.add_argument("--steps", type=_count, help="how many steps to train")
    train.add_argument("--out", type=Path, help="the folder of the run; by default a new one in runs/")
    train.add_argument("--data", nargs="+", metavar="PATH", dest="data.paths", help="files and folders; by default Python's own library")
    train.add_argument("--resume", action="store_true", help="go on from the newest checkpoint in --out")
    train.set_defaults(command=_train)

    listing = commands.add_parser("layouts", help="list the shipped layouts, or check one")
    listing.set_defaults(command=_list_layouts)
    actions = listing.add_subparsers(metavar="check")
    check = actions.add_parser(
        "check",
        help="check a layout against a model and a number of devices",
        usage="%(prog)s FILE|NAME [--model NAME] [--devices N] [key=value...]",
    )
    check.add_argument("file", help="a layout file, or the name of a shipped one")
    check.add_argument("--model", default="gpt2", help="gpt2 or llama")
    check.add_argument("--devices", type=_count, help="by default what the mesh asks for")
    check.set_defaults(command=_check_layout)
    return parser


# -- train -------------------------------------------------------------------------------------------------------


def _train(arguments: argparse.Namespace, settings: list[str]) -> int:
    from meshdsl.train.config import Config, override
    from meshdsl.train.folder import RunFolder
    from meshdsl.train.loop import train

    if arguments.resume and arguments.out is None:
        raise MeshDSLError("--resume: say which run, with --out FOLDER")
    config = RunFolder(arguments.out).stored_config() if arguments.resume else Config()
    flags = {key: getattr(arguments, key) for key in ("layout", "devices", "steps", "data.paths")}
    config = override(config, settings, **{key: value for key, value in flags.items() if value is not None})
    layout = find_layout(config.layout)
    folder = RunFolder(arguments.out) if arguments.out else RunFolder.unused(Path("runs"), Path(config.layout).stem)
    return train(config, layout, pick_devices(layout, config.devices), folder, resume=arguments.resume)


def pick_devices(layout: Layout, wanted: int) -> list[jax.Device]:
    """The devices to run on: `wanted` of them, or for 0 what the mesh of `layout` asks for.

    Accelerators are used where there are any, all of them by default. Otherwise virtual CPU devices are made, which
    JAX can do until its first computation: no environment variable is needed.

    Raises:
      MeshDSLError: there are fewer devices than wanted.
    """
    count = wanted or devices_of_mesh(layout)
    _make_virtual(count)
    found = jax.devices()
    if found[0].platform != "cpu" and not wanted:
        return found
    return _first(count, found)


def virtual_devices(count: int) -> list[jax.Device]:
    """`count` virtual CPU devices, also where there are accelerators: to plan for a mesh that is not at hand."""
    _make_virtual(count)
    return _first(count, jax.devices("cpu"))


def _make_virtual(count: int) -> None:
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:
        pass  # JAX has made its devices already; whether they are enough is seen from their number


def _first(count: int, found: list[jax.Device]) -> list[jax.Device]:
    if len(found) < count:
        raise MeshDSLError(f"{count} devices are wanted, and there are {len(found)} ({found[0].platform})")
    return found[:count]


def devices_of_mesh(layout: Layout) -> int:
    """How many devices the mesh of `layout` asks for; about 8 where it takes as many as there are."""
    sizes = layout.mesh.values()
    fixed = math.prod(size for size in sizes if size != "rest")
    return math.ceil(_REST / fixed) * fixed if "rest" in sizes else fixed


# -- layouts -----------------------------------------------------------------------------------------------------


def shipped() -> dict[str, Path]:
    """The layout files that come with meshdsl, by name."""
    return {path.stem: path for path in sorted(Path(layouts.__path__[0]).glob("*.toml"))}


def find_layout(text: str) -> Layout:
    """The layout in the file `text`, or the shipped one of that name.

    Raises:
      MeshDSLError: neither exists, or the file is no layout.
    """
    known = shipped()
    if text in known and not Path(text).is_file():
        return Layout.load(known[text])
    if not Path(text).is_file() and not text.endswith(".toml"):
        raise MeshDSLError(f"layout {text}: no such file, and no shipped layout of that name{nearest(text, known)}")
    return Layout.load(text)


def _list_layouts(arguments: argparse.Namespace, settings: list[str]) -> int:
    _refuse(settings)
    width = max(map(len, shipped()))
    for name, path in shipped().items():
        print(f"{name:{width}}  {_summary(path)}")
    return 0


def _summary(path: Path) -> str:
    """The first line of the comment that a layout file begins with."""
    return path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ").strip()


def _check_layout(arguments: argparse.Namespace, settings: list[str]) -> int:
    from meshdsl.mesh import make_mesh
    from meshdsl.train import report
    from meshdsl.train.config import Config, override
    from meshdsl.train.job import Job

    layout = find_layout(arguments.file)
    flags = {"model.style": arguments.model}
    if arguments.devices is not None:
        flags["devices"] = arguments.devices
    config = override(Config(), settings, **flags)
    job = Job(config, layout, make_mesh(layout, virtual_devices(config.devices or devices_of_mesh(layout))))
    print(report.describe(layout, job.mesh, job.state, job.program().collectives))
    return 0


def _refuse(settings: list[str]) -> None:
    if settings:
        raise MeshDSLError(f"`{settings[0]}`: settings belong to `check`")


if __name__ == "__main__":
    sys.exit(main())
