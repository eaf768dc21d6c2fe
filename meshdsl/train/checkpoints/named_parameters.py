"""What a manifest says of parameters, of their adapters and of their averages.

The descriptions of what was saved are called `there`, those of the model that reads them `here`.
"""

from __future__ import annotations

from meshdsl.train.checkpoints.manifest import Manifest
from meshdsl.train.checkpoints.tree_leaves import Leaf

PREFIX = "params."  # of the names of parameters in a state
# Of the names of adapters in a state, and the name of what their products are times.
A, B, SCALE = "adapters.a.", "adapters.b.", "adapters.scale"
_AVERAGE = "opt_state.1.ema."  # of the names of averages, see `train.optimizer`


def parameters_of(manifest: Manifest) -> dict[str, Leaf]:
    """The descriptions of the parameters in a manifest, by their names in the model."""
    return {
        name.removeprefix(PREFIX): leaf
        for name, leaf in manifest["state"].items()
        if name.startswith(PREFIX) and "dtype" in leaf
    }


def matching(there: dict[str, Leaf], here: dict[str, Leaf]) -> list[str]:
    """The names that have the same dims on both sides; the same shape where a side has no dims."""
    return [name for name, leaf in here.items() if name in there and _same(there[name], leaf)]


def _same(there: Leaf, here: Leaf) -> bool:
    by = "dims" if there["dims"] and here["dims"] else "shape"
    return there[by] == here[by]


def differences(there: dict[str, Leaf], here: dict[str, Leaf]) -> list[str]:
    """Lines for the user on what does not match: absent, of another shape, and not used."""
    absent = [f"`{name}`" for name in here if name not in there]
    other = [
        f"`{name}` is {there[name]['is']} there and {leaf['is']} here"
        for name, leaf in here.items()
        if name in there and not _same(there[name], leaf)
    ]
    unused = [f"`{name}`" for name in there if name not in here]
    kinds = (
        ("not there: ", ", ", absent),
        ("of another shape: ", "; ", other),
        ("not used: ", ", ", unused),
    )
    return [title + separator.join(names) for title, separator, names in kinds if names]


def adapters_of(manifest: Manifest) -> dict[str, list[list[str]]]:
    """The parameters in a manifest that have an adapter.

    Returns:
      By the name of such a parameter the names of the dims of itself, of `a` and of `b`.
    """
    state = manifest["state"]
    names = [name.removeprefix(A) for name in state if name.startswith(A)]
    return {
        name: [[dim for dim, _ in state[part + name]["dims"]] for part in (PREFIX, A, B)]
        for name in names
    }


def averages_of(manifest: Manifest) -> dict[str, str]:
    """By the name of an array that is trained the name of its average over the steps.

    Empty where the run keeps none.
    """
    names = {name for name in manifest["state"] if name.startswith(_AVERAGE)}
    adapts = bool(adapters_of(manifest))
    found = {}
    for name in manifest["state"]:
        kept = _AVERAGE + name.removeprefix("adapters." if adapts else PREFIX)
        if name.startswith((PREFIX, A, B)) and kept in names:
            found[name] = kept
    return found
