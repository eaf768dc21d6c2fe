"""Answering: what a model of pairs of texts writes when it is given the first, under any layout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

import meshdsl as md
from meshdsl.models.generate import Sampling
from meshdsl.train.config import Config
from meshdsl.train.data import task_of
from meshdsl.train.sample import Opened, can


def answers_prompts(config: Config) -> bool:
    """Whether the model of a run answers texts: its task is pairs of texts, and it has `answer`."""
    return can(config, "pairs", "answer")


def lengths(config: Config) -> tuple[int, int]:
    """The most tokens of a first text and of a second one."""
    fields = task_of(config).fields(config, md.Dim("batch", 1))
    second = fields.get("tokens", fields.get("target"))
    first = fields["source"].dims[-1].size
    return first, first if second is None else second.dims[-1].size


def answers(
    opened: Opened, prompts: Sequence[Sequence[int]], count: int, key: jax.Array, how: Sampling
) -> Iterator[np.ndarray]:
    """Answer the prompts: yields the next token of each answer, int32 [prompts], `count` times.

    It ends earlier where all answers have ended. With several processes, each calls this with the
    same prompts, and gets all tokens. The arguments are those of `sample.continuations`.
    """
    tokens, sizes = opened.placed_texts(prompts, "source")

    def write(model: Any, texts: md.Tensor, sizes: md.Tensor, key) -> md.Tensor:
        seen = md.broadcast(md.iota(texts.dim("source")), texts.dims) < sizes
        return model.answer(texts, count, key, how, seen)

    lowered = opened.lowered(write)
    whole = jax.jit(lambda *given: opened.whole(lowered(*given)))
    found = np.asarray(whole(opened.model, tokens, sizes, key))
    ended = np.zeros(len(prompts), bool)
    for row in found.T[:, : len(prompts)]:
        yield row
        ended |= np.isin(row, how.ends)
        if ended.all():
            return
