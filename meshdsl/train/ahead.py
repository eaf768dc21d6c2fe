"""What the next phase of a run needs, compiled while the steps of this one run."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax

from meshdsl.train.job import Job
from meshdsl.train.step import State


class Ahead:
    """Compiles the step of a job, and what moves the state of another job to it, in a thread."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "ahead")
        self._steps: dict[Job, Future[Any]] = {}
        self._moves: dict[tuple[Job, Job], Future[Any]] = {}

    def begin(self, old: Job, new: Job, failed: Callable[[Exception], Any]) -> None:
        """Begin to compile what a run needs that goes over from one job to another.

        Args:
          failed: called with what a compiler says that refuses the step, as soon as it does.
        """

        def step() -> Callable:
            try:
                return new.lowered.compile()
            except Exception as error:
                failed(error)
                raise

        if (old, new) not in self._moves:
            self._moves[old, new] = self._pool.submit(_move, old, new)
            self._steps[new] = self._pool.submit(step)

    def compiled(self, job: Job) -> Callable:
        """The step of a job, which may be compiled already."""
        begun = self._steps.pop(job, None)
        return begun.result() if begun else job.lowered.compile()

    def moved(self, state: State, old: Job, new: Job) -> State:
        """The state of a job, split as another one splits it, without a way over the host.

        Both have the same devices, and states of the same shapes.
        """
        begun = self._moves.pop((old, new), None)
        return (begun.result() if begun else _move(old, new))(state)

    def close(self) -> None:
        """Wait for what is being compiled, because a program that ends meanwhile may crash."""
        self._pool.shutdown(cancel_futures=True)


def _move(old: Job, new: Job) -> Callable[[State], State]:
    """What moves a state, in which the model has its settings: those of the new job then."""
    shardings = jax.tree.leaves(new.step.shardings)
    move = jax.jit(lambda arrays: arrays, out_shardings=shardings)
    compiled = move.lower(jax.tree.leaves(old.state)).compile()
    return lambda state: jax.tree.unflatten(
        jax.tree.structure(new.state), compiled(jax.tree.leaves(state))
    )
