"""What training makes smaller: cross-entropy, how far a distribution is from the answers."""

from __future__ import annotations

import jax.numpy as jnp

import meshdsl as md


def cross_entropy(logits: md.Tensor, answers: md.Tensor, classes: md.Dim | str) -> md.Tensor:
    """The nats that each answer costs under `softmax(logits, classes)`, in float32.

        nats = cross_entropy(logits, answers, vocab)   # [batch, length, vocab] -> [batch, length]
        loss = md.mean(nats)

    Where the layout splits the classes they stay split: only sums over them travel.

    Args:
      logits: have the classes, the dims of `answers`, and any others.
      answers: whole numbers, indices of the classes. One that is none, such as -1, costs 0.

    Returns:
      The dims of `logits` but for the classes.

    Raises:
      MeshDSLError: `logits` lack the classes, or `answers` are not whole numbers.
    """
    wide = md.cast(logits, jnp.float32)
    classes = wide.dim(classes if isinstance(classes, str) else classes.name)
    chosen = md.sum(md.where(md.one_hot(answers, classes, bool), wide, 0.0), classes)
    known = (answers >= 0) & (answers < classes.size)
    return md.where(known, md.logsumexp(wide, classes) - chosen, 0.0)
