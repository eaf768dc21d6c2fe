"""Text that a trained model writes, under any layout, token by token as it comes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import meshdsl as md
from meshdsl.models import generate
from meshdsl.models.generate import Progress, Sampling
from meshdsl.models.transformer import Transformer
from meshdsl.train.checkpoints import read_params
from meshdsl.train.config import Config
from meshdsl.train.data.tokenizer import Tokenizer
from meshdsl.train.folder import RunFolder
from meshdsl.train.job import Job
from meshdsl.train.precision import cast


def sample_text(job: Job, params: Transformer, tokenizer: Tokenizer) -> str:
    """What the model writes after the configured prompt, the prompt included, under the layout of `job`. A long prompt is cut."""
    config, length = job.config, job.config.model.length
    prompt = [int(token) for token in tokenizer.encode(config.sample.prompt)][: length - 1] or [
        tokenizer.separator
    ]
    count = min(config.sample.tokens, length - len(prompt))
    how = Sampling(config.sample.temperature)
    model = in_dtype(params, config.precision.compute)
    written = [
        int(row[0])
        for row in continuations(
            model, [prompt], count, jax.random.key(config.seed), how, job.layout, job.mesh
        )
    ]
    return printable(tokenizer.decode([*prompt, *written]))


def printable(text: str) -> str:
    """`text` without what a terminal would obey."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)


def in_dtype(params: Any, dtype: str) -> Any:
    """`params` in the dtype that they are used in, split as they are."""
    return jax.jit(lambda params: cast(params, dtype))(params)


def open_model(
    folder: RunFolder,
    config: Config,
    layout: md.Layout,
    mesh: Mesh,
    step: int | None,
    report: Callable[[str], Any],
) -> tuple[int, Transformer]:
    """The model of a run under any layout, in the dtype that the run computes in, and the step of the checkpoint that it is of.

    Args:
      step: of the checkpoint, None for the newest good one.
      report: called with a line on each damaged checkpoint that is passed over.

    Raises:
      MeshDSLError: there is no such checkpoint, or it is of another model.
    """
    shapes = jax.eval_shape(
        lambda key: cast(Transformer.init(key, config.model), config.precision.params),
        jax.random.key(0),
    )
    like = jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
        shapes,
        md.shardings(shapes, layout, mesh),
    )
    found, params = read_params(folder.checkpoints, like, step, report=report)
    return found, in_dtype(params, config.precision.compute)


def continuations(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    count: int,
    key: jax.Array,
    how: Sampling,
    layout: md.Layout,
    mesh: Mesh,
) -> Iterator[np.ndarray]:
    """The next token of every prompt, int32 [prompts], `count` times or until all have ended.

    Every process of a run calls this, with the same prompts, and gets all tokens.

    Args:
      model: split as `layout` says, in the dtype that it is to compute in.
      prompts: tokens of each, at least one; with `count` more no longer than the model.
    """
    if count < 1:
        return
    longest = max(map(len, prompts))
    batch = md.Dim("batch", _fitting(len(prompts), "batch", layout, mesh))
    length = md.Dim("length", _fitting(longest, "length", layout, mesh))
    memory = md.Dim("memory", _fitting(max(longest + count, length.size), "memory", layout, mesh))
    tokens, sizes = np.zeros((batch.size, length.size), np.int32), np.ones(batch.size, np.int32)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)], sizes[row] = prompt, len(prompt)
    everywhere = NamedSharding(mesh, PartitionSpec())
    dims = [*model.config.dims, "batch"]

    def lowered(fn, **how_compiled):
        fn = md.lower(fn, layout, mesh, dims=dims)

        def step(*args):
            progress = fn(*args)
            return (
                progress.cache,
                progress.replace(cache=None),
                jax.lax.with_sharding_constraint(progress.token.array, everywhere),
            )

        return jax.jit(step, **how_compiled)

    def first(model: Transformer, prompts: md.Tensor, sizes: md.Tensor, key) -> Progress:
        return generate.start(model, prompts, sizes, memory, key, how)

    def after(model: Transformer, cache, rest: Progress, key) -> Progress:
        return generate.advance(model, rest.replace(cache=cache), key, how)

    placed = [
        _placed(array, dims, layout, mesh)
        for array, dims in ((tokens, (batch, length)), (sizes, (batch,)))
    ]
    cache, rest, token = lowered(first)(model, *placed, key)
    advance = lowered(after, donate_argnums=1)
    ended = np.zeros(len(prompts), bool)
    for left in reversed(range(count)):
        shown = token
        if left:  # on its way while the token before it is looked at
            cache, rest, token = advance(model, cache, rest, key)
        row = np.asarray(shown)[: len(prompts)]
        yield row
        ended |= row == how.end
        if ended.all():
            return


def _fitting(size: int, dim: str, layout: md.Layout, mesh: Mesh) -> int:
    """The least size from `size` on that divides over all axes that the layout may split `dim` over."""
    parts = (
        1
        if dim in layout.padded
        else math.prod(mesh.shape[axis] for axis in layout.value_axes.get(dim, ()))
    )
    return -(-size // parts) * parts


def _placed(
    array: np.ndarray, dims: tuple[md.Dim, ...], layout: md.Layout, mesh: Mesh
) -> md.Tensor:
    """`array`, which every process has, split by the law."""
    tensor = md.tensor(jax.ShapeDtypeStruct(array.shape, jnp.int32), dims)
    sharding = md.shardings(tensor, layout, mesh).array
    return md.tensor(
        jax.make_array_from_callback(array.shape, sharding, lambda index: array[index]), dims
    )
