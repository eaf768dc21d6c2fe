"""What was compiled before, so that a run need not compile it again: in a folder, and as a file.

`compile_cache` gives JAX a folder for all programs of a run. `save` and `load` are for one
executable that was compiled for a machine elsewhere.

Such a file begins with a line of JSON that says what the executable was compiled from and for.
Everything in it is compared with the run that wants to load it, and the checksum with the rest of
the file, before that rest is unpickled: an executable that doesn't belong to the run would compute
something else, or nothing. Loading it can run any code, as can loading what is in the folder. So
what belongs to another user or what others may write is not read, unless the caller says that the
file is trusted.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jaxlib.version
from jax.experimental import serialize_executable
from jax.experimental.compilation_cache import compilation_cache

from meshdsl.errors import MeshDSLError
from meshdsl.parsing import parse_json

_FORMAT = "meshdsl executable 1"
_LONGEST = 1 << 20  # bytes of the first line
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_LEAST = 0.3  # seconds that a program took to compile, for JAX to keep it


@contextmanager
def compile_cache(folder: Path, print_line: Callable[[str], None]) -> Iterator[None]:
    """A context in which programs that take a while to compile are kept in `folder`, and found.

    Where the user has given JAX a cache, by `JAX_COMPILATION_CACHE_DIR` say, that one is used, and
    `folder` is left alone. A cache that cannot be used is said in a line, and costs nothing but the
    time to compile.

    Args:
      folder: made where it is missing. Programs for CPUs lie in a folder of their own for each
        kind of CPU, because JAX would give one to another kind, where it may crash.
      print_line: prints a line, in one process.
    """
    # JAX adds its options to `jax.config` when it is imported, which a type checker cannot see.
    given = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    if given is not None:
        yield
        return
    if jax.default_backend() == "cpu":
        folder = folder / f"cpu-{_kind_of_cpu()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        problem = _others_could_write(folder.stat())
    except OSError as error:
        problem = error.strerror or str(error)
    if problem:
        print_line(f"compiled programs are not kept: {folder}: {problem}")
        yield
        return
    option = "jax_persistent_cache_min_compile_time_secs"
    before = getattr(jax.config, option)
    jax.config.update(option, _LEAST)
    compilation_cache.set_cache_dir(str(folder))
    compilation_cache.reset_cache()  # JAX looks only once whether there is one
    try:
        yield
    finally:
        jax.config.update(option, before)
        jax.config.update("jax_compilation_cache_dir", None)
        compilation_cache.reset_cache()


def _kind_of_cpu() -> str:
    """A short text that differs between CPUs that understand different instructions."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    says = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return hashlib.sha256(f"{platform.machine()} {says}".encode()).hexdigest()[:8]


def _others_could_write(found: os.stat_result) -> str:
    """Why somebody else could have written what is found; empty where nobody could."""
    if found.st_uid != os.geteuid():
        return f"belongs to user {found.st_uid}, and this run is of user {os.geteuid()}"
    return "can be written by other users" if found.st_mode & _WRITABLE_BY_OTHERS else ""


@dataclass(frozen=True)
class Provenance:
    """What an executable was compiled from and for.

    Attributes:
      jax, jaxlib: their versions.
      kind: of the devices, such as `TPU v5`.
      host: the kind of processor that a CPU executable belongs to; empty for other devices.
      devices: how many.
      mesh: `{axis: size}`.
      settings: everything that the program was made from: settings of the model and the optimizer,
        rules of the layout.
      options: of the compiler.
    """

    jax: str
    jaxlib: str
    kind: str
    host: str
    devices: int
    mesh: Mapping[str, int]
    settings: Mapping[str, str]
    options: Mapping[str, str]

    @classmethod
    def of(
        cls, mesh: jax.sharding.Mesh, settings: Mapping[str, str], options: Mapping[str, str]
    ) -> Provenance:
        """That of a program compiled here for `mesh`; `settings` and `options` as in the class."""
        device = mesh.devices.flat[0]
        return cls(
            jax=jax.__version__,
            jaxlib=jaxlib.version.__version__,
            kind=device.device_kind,
            host=platform.machine() if device.platform == "cpu" else "",
            devices=mesh.size,
            mesh=dict(mesh.shape),
            settings=dict(settings),
            options=dict(options),
        )


def save(path: Path, executable: Any, lowered: Any, provenance: Provenance) -> int:
    """Write the executable that `lowered.compile()` gave; returns the bytes of the file.

    Raises:
      MeshDSLError: the file cannot be written, or the compiler of this target gives nothing that
        can be saved.
    """
    try:
        content, _, _ = serialize_executable.serialize(executable)
    except (RuntimeError, ValueError, TypeError) as error:
        raise MeshDSLError(
            f"--save {path}: this executable cannot be saved: {' '.join(str(error).split())[:200]}"
        ) from None
    header = {
        "format": _FORMAT,
        **asdict(provenance),
        "program": _program(lowered),
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    line = json.dumps(header).encode() + b"\n"
    unfinished = path.with_name(path.name + ".unfinished")
    try:
        unfinished.write_bytes(line + content)
        # `load` refuses a file that others may write.
        unfinished.chmod(stat.S_IMODE(unfinished.stat().st_mode) & ~_WRITABLE_BY_OTHERS)
        os.replace(unfinished, path)
    except OSError as error:
        raise MeshDSLError(f"--save {path}: {error.strerror}") from None
    return len(line) + len(content)


def load(
    path: Path,
    wanted: Provenance,
    lower: Callable[[], Any],
    mesh: jax.sharding.Mesh,
    *,
    trusted: bool = False,
) -> Any:
    """The executable in a file that `save` wrote, ready to be called.

    Args:
      wanted: what the run would compile. Everything in the file has to be equal to it, but for
        `options`, which are the file's own.
      lower: gives the run's own step, lowered: it has to be the same program, and the structure of
        its arguments and results is taken from it.
      mesh: the devices to run on.
      trusted: the file is loaded even if it belongs to another user or others may write it.

    Raises:
      MeshDSLError: the file is missing, damaged, or of something else; or others than this user
        could have written it, and it is not trusted.
    """
    header, content = _read(path, trusted)
    _check(path, header, wanted)
    if len(content) != header["bytes"]:
        raise MeshDSLError(
            f"executable {path}: is cut off: it holds {len(content):,} of "
            f"{header['bytes']:,} bytes; compile it again"
        )
    if hashlib.sha256(content).hexdigest() != header["sha256"]:
        raise MeshDSLError(
            f"executable {path}: is damaged: its checksum is not that of its content; "
            "compile it again"
        )
    lowered = lower()
    if header["program"] != _program(lowered):
        raise MeshDSLError(
            f"executable {path}: is of another program, though its settings are the same: "
            "meshdsl, optax or the model has changed since; compile it again"
        )
    try:
        return serialize_executable.deserialize_and_load(
            content, lowered.in_tree, lowered.out_tree, execution_devices=list(mesh.devices.flat)
        )
    except (RuntimeError, ValueError) as error:
        raise MeshDSLError(
            f"executable {path}: JAX cannot load it here: {' '.join(str(error).split())[:200]}"
        ) from None


def _program(lowered: Any) -> str:
    """A digest of a program, the same in every process."""
    return hashlib.sha256(lowered.as_text().encode()).hexdigest()


def _read(path: Path, trusted: bool) -> tuple[dict[str, Any], bytes]:
    """The first line of the file, and the bytes of the rest.

    Raises:
      MeshDSLError: the file cannot be read, others could have written it and it is not trusted, or
        its first line is none that `save` wrote.
    """
    try:
        # A pipe that nobody writes to would be waited for.
        with open(path, "rb", opener=_without_waiting) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise MeshDSLError(f"executable {path}: is no file")
            if (problem := _others_could_write(found)) and not trusted:
                raise MeshDSLError(
                    f"executable {path}: {problem}; loading it can run any code that is in it; "
                    "compile it again, or say --trust-executable"
                )
            line, content = file.readline(_LONGEST), file.read()
    except OSError as error:
        raise MeshDSLError(f"executable {path}: {error.strerror}") from None
    try:
        header = parse_json(line)
    except ValueError:
        header = None
    if (
        not isinstance(header, dict)
        or header.get("format") != _FORMAT
        or not {*Provenance.__dataclass_fields__, "program", "bytes", "sha256"} <= header.keys()
    ):
        raise MeshDSLError(
            f"executable {path}: is no file that `meshdsl compile --save` of this version wrote"
        )
    return header, content


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _check(path: Path, header: Mapping[str, Any], wanted: Provenance) -> None:
    """Refuse a file that was made for something else, by the first difference that matters.

    Raises:
      MeshDSLError: the header differs from `wanted`, in one of `_DIFFERENCES`.
    """
    here = asdict(wanted)
    for key, difference in _DIFFERENCES.items():
        if header[key] != here[key]:
            raise MeshDSLError(f"executable {path}: {difference(header, here)}")


def _versions(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    return (
        f"was compiled with jax {there['jax']} and jaxlib {there['jaxlib']}, "
        f"and this is jax {here['jax']} and jaxlib {here['jaxlib']}; compile it again"
    )


def _machines(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    return f"is for {_machine(there)}, and this run has {_machine(here)}"


def _machine(one: Mapping[str, Any]) -> str:
    host = f" of {one['host']}" if one["host"] else ""
    return f"{one['devices']} {one['kind']} device{'s' * (one['devices'] != 1)}{host}"


def _meshes(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    words = [
        " ".join(f"{axis}={size}" for axis, size in one["mesh"].items()) or "without axes"
        for one in (there, here)
    ]
    return f"is for the mesh {words[0]}, and this run has {words[1]}"


def _settings(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    a, b = there["settings"], here["settings"]
    differing = [key for key in {**a, **b} if a.get(key) != b.get(key)]
    found = ", ".join(f"{key}={a.get(key, 'nothing')}" for key in differing[:4])
    wanted = ", ".join(f"{key}={b.get(key, 'nothing')}" for key in differing[:4])
    return f"was compiled with {found}, and this run has {wanted}"


# What may differ, in the order in which a user can do something about it, and how each is told.
_DIFFERENCES = {
    "jax": _versions,
    "jaxlib": _versions,
    "kind": _machines,
    "host": _machines,
    "devices": _machines,
    "mesh": _meshes,
    "settings": _settings,
}
