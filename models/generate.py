"""Continue texts with a key/value cache, under any layout.

The prompts are read in one pass, then every sequence of the batch gets one token at a time.
Prompts may have different lengths: each stands at the start of its row, and the row goes on after
it. Which token is drawn depends on the key, the row and how many tokens the row has been given,
and not on the other rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax.struct import PyTreeNode

import meshdsl as md
from meshdsl.layers.attended import Cache
from meshdsl.models.transformer import Transformer


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen, see `md.random.categorical`.

    Attributes:
      temperature: the logits are divided by it; 0 takes the likeliest token.
      top_k: only so many of the likeliest tokens can be drawn; 0 for all of them.
      top_p: of these, only the likeliest that have this probability together; 1 for all of them.
      end: the token after which a row is done, or several of them. From then on the first of them
        is repeated. -1 for none.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    end: int | tuple[int, ...] = -1

    @property
    def ends(self) -> tuple[int, ...]:
        """The tokens after which a row is done."""
        return (self.end,) if isinstance(self.end, int) else self.end

    def ended(self, token: md.Tensor) -> md.Tensor:
        """Whether each row is done with its `token`; bools of the same dims."""
        found = token == self.ends[0]
        for end in self.ends[1:]:
            found = found | (token == end)
        return found

    def choose(self, logits: md.Tensor, key, count) -> md.Tensor:
        """A token (batch) by `logits` (batch, vocab), after `count` that were given before."""
        logits = md.transpose(md.cast(logits, jnp.float32), ("batch", "vocab"))
        vocab, key = logits.dim("vocab"), jax.random.fold_in(key, count)
        top_k = min(self.top_k, vocab.size) or None
        return md.random.categorical(
            key, logits, vocab, temperature=self.temperature, top_k=top_k, top_p=self.top_p
        )


class Progress(PyTreeNode):
    """Where every row of a batch is.

    Attributes:
      cache: of each stack of layers.
      token: the latest (batch; int32), which the cache does not have yet.
      position: where it stands in its row (batch; int32).
      done: whether the row has ended (batch; bool).
      count: how many tokens every row has been given.
    """

    cache: tuple[Cache, ...]
    token: md.Tensor
    position: md.Tensor
    done: md.Tensor
    count: jax.Array


def start(
    model: Transformer,
    prompts: md.Tensor,
    sizes: md.Tensor,
    memory: md.Dim,
    key,
    how: Sampling,
    written: int | jax.Array = 0,
) -> Progress:
    """Read the prompts, and choose a first token for each row.

    Args:
      prompts: tokens (batch, length; int32); what a row has beyond its size has no effect.
      sizes: the lengths of the prompts (batch; int32), at least 1.
      memory: as many positions as the longest row can come to have, and at least `length`.
      key: a JAX PRNG key, the same for all tokens.
      written: how many tokens at the end of each prompt every row has been given before.
    """
    logits, cache = model.prefill(prompts, sizes - 1, memory)
    token = how.choose(logits, key, written)
    count = jnp.asarray(written + 1, jnp.int32)
    return Progress(cache, token, sizes + 0, how.ended(token), count)


def turning_point(model: Transformer) -> int | None:
    """The tokens after which a text is long, and is read once more from its beginning.

    None where a model reads short and long texts alike. With `rotary_scaling=longrope` wavelengths
    are others in long texts, for all of their tokens.
    """
    config = getattr(model, "config", None)
    if config is None or getattr(config, "rotary_scaling", "") != "longrope":
        return None
    return config.rotary_length if config.rotary else None


def advance(model: Transformer, before: Progress, key, how: Sampling) -> Progress:
    """Read the latest token of every row, and choose the next one."""
    logits, cache = model.step(before.token, before.cache, before.position)
    token = md.where(before.done, how.ends[0], how.choose(logits, key, before.count))
    return Progress(
        cache, token, before.position + 1, before.done | how.ended(token), before.count + 1
    )


def generate(
    model: Transformer,
    prompts: md.Tensor,
    count: int,
    key,
    how: Sampling = Sampling(),
    sizes: md.Tensor | None = None,
) -> md.Tensor:
    """Continue every row by `count` tokens, all in one program.

    Args:
      prompts, sizes, key: as for `start`; by default every prompt has the whole length.

    Returns:
      The continuations: tokens (batch, written), `written` of size `count`.

    Raises:
      MeshDSLError: the result would be longer than the model's length; or texts of several sizes
        would become long at different times, see `turning_point`.
    """
    batch, length = prompts.dim("batch"), prompts.dim("length")
    if length.size + count > model.config.length:
        raise md.MeshDSLError(
            f"generate: {length.size} tokens of prompt and {count} more exceed the model's "
            f"length={model.config.length}"
        )
    memory, turn = md.Dim("memory", length.size + count), turning_point(model)
    short = count if turn is None else turn + 1 - length.size  # tokens while texts are short
    if not 0 < short < count:
        short = count
    elif sizes is not None:
        raise md.MeshDSLError(
            f"generate: texts of several sizes grow beyond rotary_length={turn}; give prompts of "
            "one size, or use meshdsl.train.sample.continuations"
        )

    def step(progress: Progress, _):
        return advance(model, progress, key, how), progress.token

    def some(prompts: md.Tensor, sizes: md.Tensor | None, count: int, done=None) -> md.Tensor:
        size = prompts.dim("length").size
        if sizes is None:
            sizes = md.tensor(jnp.full(batch.size, size, jnp.int32), (batch,))
        first = start(model, prompts, sizes, memory, key, how, size - length.size)
        if done is not None:
            token = md.where(done, how.ends[0], first.token)
            first = first.replace(token=token, done=done | first.done)
        _, tokens = md.scan(step, first, dim=md.Dim("written", count))
        return md.transpose(tokens, (batch, "written"))

    tokens = some(prompts, sizes, short)
    if short == count:
        return tokens
    so_far = md.concat([prompts, md.rename(tokens, "written", "length")], "length")
    rest = some(so_far, None, count - short, md.any(how.ended(tokens), "written"))
    return md.concat([tokens, rest], "written")
