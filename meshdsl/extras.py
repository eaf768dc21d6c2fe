"""Packages that only a part of meshdsl needs, and the one error where such a package is missing.

The language, `explain`, `compile` and `compare` need JAX, flax, optax, einops and NumPy. Everything
else comes with an extra, such as `pip install "meshdsl[train]"`, and is imported where it is used:

    with extra("train"):
        import grain

So everything can be imported without any extra, and starts without what it does not use.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from meshdsl.errors import MeshDSLError

EXTRAS = {
    "train": (
        *("grain", "orbax", "rich", "safetensors", "tensorstore", "tokenizers", "tomli_w"),
        *("fsspec", "pyarrow"),
    ),
    "images": ("PIL",),
    "plot": ("matplotlib",),
    "tensorboard": ("tensorboardX",),
    "wandb": ("wandb",),
    "mlflow": ("mlflow",),
    "chat": ("jinja2",),
    "eval": ("lm_eval",),
    "zst": ("zstandard",),
    "hub": ("huggingface_hub",),
}
"""The packages of each extra that are imported in this way."""


@contextmanager
def extra(name: str, needed_by: str = "") -> Iterator[None]:
    """A context in which packages of an extra are imported.

    Args:
      name: of the extra, as in `pip install "meshdsl[train]"`.
      needed_by: what needs them, for the error: a setting or a flag, such as `log.wandb`.

    Raises:
      MeshDSLError: one of them is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise _missing((error.name or "").split(".")[0], name, needed_by) from None


def check_extra(name: str, needed_by: str = "") -> None:
    """Raise a MeshDSLError unless all packages of an extra are installed.

    What takes long calls this before it begins. The arguments are those of `extra`.
    """
    for package in EXTRAS[name]:
        try:
            found = find_spec(package)
        except (ModuleNotFoundError, ValueError):  # what hides a module may raise either
            found = None
        if found is None:
            raise _missing(package, name, needed_by)


def _missing(package: str, name: str, needed_by: str) -> MeshDSLError:
    who = f"{needed_by}: needs" if needed_by else "this needs"
    return MeshDSLError(
        f'{who} {package}, which is not installed; pip install "meshdsl[{name}]" brings it'
    )
