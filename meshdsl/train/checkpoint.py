"""Checkpoints of a run, written by orbax: asynchronous, atomic, the newest few kept.

A checkpoint is a flat dict from tree path to array, so it does not depend on how Python classes nest, together with
the state of the data iterator and a *fingerprint*: the dims of every array. The fingerprint is compared before
anything is restored or written, so a folder that holds another model is refused with one sentence. Arrays are restored
straight into the shardings of the run that asks, which may have another layout and another number of devices.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from meshdsl.dims import show
from meshdsl.errors import MeshDSLError
from meshdsl.tensor import is_tensor


def named(tree: Any) -> dict[str, Any]:
    """The leaves of `tree` by their path, Tensors whole: `params.blocks.mlp.up`."""
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_tensor)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def fingerprint(state: Any) -> dict[str, str]:
    """What each leaf of `state` is, in words: its dims with sizes, and its dtype."""

    def words(leaf: Any) -> str:
        arrays = jax.tree.leaves(leaf)
        if not arrays:  # a Tensor that an optimizer masked out
            return "nothing"
        shape = show(leaf.dims) if is_tensor(leaf) else list(arrays[0].shape)
        stored = list(arrays[0].shape) if is_tensor(leaf) and tuple(arrays[0].shape) != _sizes(leaf) else ""
        return f"{shape} {stored}{arrays[0].dtype}"

    return {name: words(leaf) for name, leaf in named(state).items()}


def _sizes(tensor: Any) -> tuple[int, ...]:
    return tuple(dim.size for dim in tensor.dims)


def first_difference(saved: dict[str, str], wanted: dict[str, str]) -> str:
    """One sentence on the first leaf that is not in both or not equal; empty when there is none."""
    for name in [*wanted, *saved]:
        if saved.get(name) != wanted.get(name):
            return f"`{name}` is {saved.get(name, 'absent')} there and {wanted.get(name, 'absent')} here"
    return ""


class Checkpoints:
    """The checkpoints in a folder.

    Args:
      folder: made when the first checkpoint is written.
      keep: how many to keep, the newest.
    """

    def __init__(self, folder: Path, keep: int):
        self.folder = folder
        self._options = ocp.CheckpointManagerOptions(max_to_keep=keep, create=True)
        self._manager: ocp.CheckpointManager | None = None

    @property
    def latest(self) -> int | None:
        """The step of the newest whole checkpoint, or None."""
        return self._open().latest_step() if self.folder.is_dir() else None

    def check(self, state: Any) -> None:
        """Raise a MeshDSLError if the newest checkpoint is not of a state like `state`, naming the first difference."""
        if self.latest is None:
            return
        saved = self._open().restore(self.latest, args=ocp.args.Composite(fingerprint=ocp.args.JsonRestore()))
        difference = first_difference(saved["fingerprint"], fingerprint(state))
        if difference:
            raise MeshDSLError(f"{self.folder.parent} holds a checkpoint of another model or optimizer: {difference}")

    def save(self, step: int, state: Any, data: dict) -> None:
        """Start writing; returns once the arrays are copied, so that the next step may overwrite them."""
        self._open().save(
            step,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(_plain(state)),
                data=ocp.args.JsonSave(data),
                fingerprint=ocp.args.JsonSave(fingerprint(state)),
            ),
            force=True,
        )

    def restore(self, like: Any) -> tuple[Any, dict]:
        """The newest state, in the shardings of `like`, and the data iterator's state.

        Args:
          like: a state of `ShapeDtypeStruct`s with shardings, or of arrays.
        """
        self.check(like)
        target = {name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding) for name, x in _plain(like).items()}
        found = self._open().restore(
            self.latest,
            args=ocp.args.Composite(state=ocp.args.StandardRestore(target), data=ocp.args.JsonRestore()),
        )
        leaves, structure = jax.tree.flatten(like)
        arrays = [found["state"][name] for name in target]
        keyed = [
            jax.random.wrap_key_data(array) if _is_key(leaf) else array
            for leaf, array in zip(leaves, arrays, strict=True)
        ]
        return jax.tree.unflatten(structure, keyed), found["data"]

    def close(self) -> None:
        """Wait until everything is written."""
        if self._manager:
            self._manager.wait_until_finished()
            self._manager.close()
            self._manager = None

    def _open(self) -> ocp.CheckpointManager:
        if self._manager is None:
            self._manager = ocp.CheckpointManager(self.folder.absolute(), options=self._options)
        return self._manager


def _is_key(leaf: Any) -> bool:
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _plain(state: Any) -> dict[str, Any]:
    """The arrays of `state` by path, random keys as their bits."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): _bits(leaf) if _is_key(leaf) else leaf
        for path, leaf in leaves
    }


def _bits(key: Any) -> Any:
    if isinstance(key, jax.ShapeDtypeStruct):
        bits = jax.eval_shape(jax.random.key_data, key)
        return jax.ShapeDtypeStruct(bits.shape, bits.dtype, sharding=key.sharding)
    return jax.random.key_data(key)
