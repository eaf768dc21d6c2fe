"""Generating: the text that a trained model writes, under any layout, token by token."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import meshdsl as md
from meshdsl.family import Family
from meshdsl.family.by_name import family_name
from meshdsl.family.calls import names_in
from meshdsl.lowering.shardings import shapes_at
from meshdsl.models import generate
from meshdsl.models.generate import Progress, Sampling
from meshdsl.ops.precision.at_rest import AtRest
from meshdsl.tensor import is_tensor
from meshdsl.train.checkpoints import read_params
from meshdsl.train.config import Config
from meshdsl.train.data import task_of
from meshdsl.train.data.tokenizer import Tokenizer
from meshdsl.train.few_bits import CHANNEL, formats_of
from meshdsl.train.folder import RunFolder
from meshdsl.train.job import Job
from meshdsl.train.local import WORKER
from meshdsl.train.memory_order import InBestOrder
from meshdsl.train.precision import cast
from meshdsl.train.trained import name_at


class Opened(NamedTuple):
    """A model that is ready to compute, under a layout on a mesh.

    Attributes:
      family: of the model.
      model: split as `layout` says, in the dtype that it is to compute in.
    """

    family: Family
    model: Any
    layout: md.Layout
    mesh: Mesh

    def lowered(self, fn: Callable) -> Callable:
        """`fn`, lowered by the layout, which may have a rule for the workers of the run."""
        dims = [*names_in(self.family.dims), "batch", WORKER]
        return md.lower(fn, self.layout, self.mesh, dims=dims)

    def whole(self, result: md.Tensor) -> jax.Array:
        """The array of a result, which every device gets; called under `jax.jit`."""
        everywhere = NamedSharding(self.mesh, PartitionSpec())
        return jax.lax.with_sharding_constraint(result.array, everywhere)

    def dim(self, name: str, least: int) -> md.Dim:
        """A dim of at least that size, which divides over all axes that may split it."""
        axes = () if name in self.layout.padded else self.layout.value_axes.get(name, ())
        blocks = self.layout.blocks(md.Dim(name, least), axes, self.mesh.shape)
        return md.Dim(name, -(-least // blocks) * blocks)

    def placed(self, array: np.ndarray, dims: tuple[md.Dim, ...]) -> md.Tensor:
        """`array`, which every process has, split by the law."""
        tensor = md.tensor(jax.ShapeDtypeStruct(array.shape, jnp.int32), dims)
        sharding = md.shardings(tensor, self.layout, self.mesh).array
        return md.tensor(
            jax.make_array_from_callback(array.shape, sharding, lambda index: array[index]), dims
        )

    def placed_texts(
        self, texts: Sequence[Sequence[int]], length: str
    ) -> tuple[md.Tensor, md.Tensor]:
        """The tokens of texts on the devices, [batch, `length`], and how many each has, [batch].

        Both dims are filled up to sizes that divide over the mesh.
        """
        batch, along = self.dim("batch", len(texts)), self.dim(length, max(map(len, texts)))
        tokens, sizes = np.zeros((batch.size, along.size), np.int32), np.ones(batch.size, np.int32)
        for row, text in enumerate(texts):
            tokens[row, : len(text)], sizes[row] = text, len(text)
        return self.placed(tokens, (batch, along)), self.placed(sizes, (batch,))


def text_length(config: Config) -> int:
    """The tokens of the longest text that the model of a run can read."""
    return task_of(config).fields(config, md.Dim("batch", 1))["tokens"].dims[-1].size


def can(config: Config, task: str, *methods: str) -> bool:
    """Whether a run has this task, and its model these methods."""
    if task_of(config).name != task:
        return False
    model = jax.eval_shape(lambda: config.model.init(jax.random.key(0)))
    return all(hasattr(model, method) for method in methods)


def generates(config: Config) -> bool:
    """Whether the model of a run writes text: its task is text, and it has `prefill` and `step`."""
    return can(config, "text", "prefill", "step")


def check_generates(config: Config) -> None:
    """Raise a MeshDSLError where the model of a run does not write text."""
    if not generates(config):
        raise md.MeshDSLError(
            f"model.family={family_name(config.model)} writes no text: that takes the task text, "
            "and a model with `prefill` and `step`, as meshdsl.models.transformer has, or the task "
            "pairs, and a model with `answer`, as meshdsl.models.t5 has"
        )


def sample_text(job: Job, params: Any, tokenizer: Tokenizer) -> str:
    """The configured prompt, and what the model writes after it, under the layout of `job`.

    Of a prompt that is longer than the model, only the beginning is used.
    """
    config, length = job.config, text_length(job.config)
    encoded = [int(token) for token in tokenizer.encode(config.sample.prompt)]
    prompt = encoded[: length - 1] or [tokenizer.separator]
    count = min(config.sample.tokens, length - len(prompt))
    how = Sampling(config.sample.temperature)
    model = in_dtype(params, config.precision.compute)
    opened = Opened(config.model, model, job.layout, job.mesh)
    rows = continuations(opened, [prompt], count, jax.random.key(config.seed), how)
    written = [int(row[0]) for row in rows]
    return printable(tokenizer.decode([*prompt, *written]))


def printable(text: str) -> str:
    """`text` with a mark in place of each character that a terminal would obey, not print."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)


def in_dtype(params: Any, dtype: str) -> Any:
    """`params` with all floats in `dtype`; they stay split as they are."""
    return jax.jit(lambda params: cast(params, dtype))(params)


def in_few_bits(model: Any, precision: Any, format: str) -> Any:
    """`model`, with matrices that lie in memory in 8 bits: those that could train in few bits.

    Args:
      precision: the settings of the run; `except` names matrices that stay as they are.
      format: `int8` or `fp8`.

    Raises:
      MeshDSLError: as `formats_of`.
    """
    settings = dataclasses.replace(precision, matmul=format, scales=CHANNEL)
    recipes = formats_of(settings, model).recipes

    def at_rest(path: tuple, weight: Any) -> Any:
        recipe = recipes.get(name_at(path))
        return weight if recipe is None else AtRest.of_weight(weight, recipe)

    return jax.tree_util.tree_map_with_path(at_rest, model, is_leaf=is_tensor)


def open_model(
    folder: RunFolder,
    config: Config,
    layout: md.Layout,
    mesh: Mesh,
    step: int | None,
    report: Callable[[str], Any],
    weights: str | None = None,
) -> tuple[int, Opened]:
    """Read the model of a run from a checkpoint, under any layout.

    Args:
      config: of the run.
      step: of the checkpoint; None for the newest good one.
      report: called with a line on each damaged checkpoint that is passed over.
      weights: the format in which matrices lie in memory, see `in_few_bits`; by default the dtype
        that the run computes in.

    Returns:
      The step of the checkpoint, and the model in the dtype that the run computes in.

    Raises:
      MeshDSLError: there is no such checkpoint, or it is of another model.
    """
    shapes = jax.eval_shape(
        lambda key: cast(config.model.init(key), config.precision.params),
        jax.random.key(0),
    )
    like = shapes_at(shapes, md.shardings(shapes, layout, mesh))
    found, params = read_params(folder.checkpoints, like, step, report=report)
    model = in_dtype(params, config.precision.compute)
    if weights:
        model = jax.jit(partial(in_few_bits, precision=config.precision, format=weights))(model)
    return found, Opened(config.model, model, layout, mesh)


def continuations(
    opened: Opened, prompts: Sequence[Sequence[int]], count: int, key: jax.Array, how: Sampling
) -> Iterator[np.ndarray]:
    """Continue the prompts: yields the next token of each, int32 [prompts], `count` times.

    It ends earlier where all of them have reached the end of their text. With several processes,
    each calls this with the same prompts, and gets all tokens.

    Args:
      prompts: the tokens of each, at least one; with `count` more no longer than the model.
      key: of the random draws.
      how: temperature, which tokens may be drawn, and which one ends a text.
    """
    if count < 1:
        return

    def read(texts: Sequence[Sequence[int]], left: int) -> tuple:
        """What `advance` goes on with, after the texts, which are given `left` tokens more."""
        tokens, sizes = opened.placed_texts(texts, "length")
        most = max(max(map(len, texts)) + left, tokens.dim("length").size)
        memory = opened.dim("memory", most)

        def first(model: Any, prompts: md.Tensor, sizes: md.Tensor, key, written) -> Progress:
            return generate.start(model, prompts, sizes, memory, key, how, written)

        start = jax.jit(_cache_and_rest(first, opened))
        return start(model, tokens, sizes, key, np.int32(count - left))

    def after(model: Any, cache, rest: Progress, key) -> Progress:
        return generate.advance(model, rest.replace(cache=cache), key, how)

    model = opened.model
    advance = InBestOrder(_cache_and_rest(after, opened), model, opened.mesh)
    cache, (rest, token) = read(prompts, count)
    ended = np.zeros(len(prompts), bool)
    turn, texts = generate.turning_point(model), [list(prompt) for prompt in prompts]
    for left in reversed(range(count)):
        shown = token
        turns = turn is not None and any(len(text) == turn for text in texts)
        if left and not turns:  # the devices compute the next token while this one is looked at
            cache, (rest, token) = advance(cache, rest, key)
        row = np.where(ended, how.ends[0], np.asarray(shown)[: len(prompts)]).astype(np.int32)
        yield row
        ended |= np.isin(row, how.ends)
        if ended.all():
            return
        for text, new in zip(texts, row.tolist(), strict=True):
            text.append(new)
        if left and turns:  # some text has become long, and is read anew
            cache, (rest, token) = read(texts, left)


def _cache_and_rest(fn: Callable[..., Progress], opened: Opened) -> Callable:
    """`fn`, lowered, with its `Progress` in two parts.

    They are the cache, which the call for the next token may overwrite; and the rest of it, with
    the tokens as an array that every device has.
    """
    lowered = opened.lowered(fn)

    def step(*args):
        progress = lowered(*args)
        return progress.cache, (progress.replace(cache=None), opened.whole(progress.token))

    return step
