"""What a run needs next, compiled in a thread: while its state is restored, or while steps run.

A step that does not fit the memory of a device is an error that says what would help.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import jax

from meshdsl import hosts
from meshdsl.errors import MeshDSLError
from meshdsl.figures import byte_words
from meshdsl.mesh import platform_of
from meshdsl.predict.compiler.out_of_memory import parse_oom
from meshdsl.train.auto_settings import settings_that_save_memory
from meshdsl.train.job import Job
from meshdsl.train.step import State

T = TypeVar("T")


class Ahead:
    """Compiles the step of a job, and what moves the state of another job to it, in a thread."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "ahead")
        self._steps: dict[Job, Future[Any]] = {}
        self._moves: dict[tuple[Job, Job], Future[Any]] = {}

    def begin(self, job: Job) -> None:
        """Begin to compile the step of a job. All processes call this, in the same order."""
        _ = job.lowered  # traced here, because threads would trace by turns
        self._steps[job] = self._pool.submit(in_turn(job, partial(_compiled, job)))

    def begin_phase(self, old: Job, new: Job, failed: Callable[[Exception], Any]) -> None:
        """Begin to compile what a run needs that goes over from one job to another.

        Args:
          failed: called with what a compiler says that refuses the step, as soon as it does.
        """

        def step() -> tuple[Callable, float]:
            try:
                return _compiled(new)
            except Exception as error:
                failed(error)
                raise

        if (old, new) not in self._moves:
            self._moves[old, new] = self._pool.submit(_move, old, new)
            self._steps[new] = self._pool.submit(step)

    def wait(self, job: Job) -> None:
        """Wait until a step that was begun is compiled; raises what kept it from that."""
        self._steps[job].result()

    def compiled(self, job: Job) -> tuple[Callable, float]:
        """The step of a job, and how many seconds it took to compile it, perhaps before this."""
        if job not in self._steps:
            self.begin(job)
        return self._steps.pop(job).result()

    def moved(self, state: State, old: Job, new: Job) -> State:
        """The state of a job, split as another one splits it, without a way over the host.

        Both have the same devices, and states of the same shapes.
        """
        begun = self._moves.pop((old, new), None)
        return (begun.result() if begun else _move(old, new))(state)

    def close(self) -> None:
        """Wait for what is being compiled, because a program that ends meanwhile may crash."""
        self._pool.shutdown(cancel_futures=True)


def in_turn(job: Job, compile_it: Callable[[], T]) -> Callable[[], T]:
    """What compiles a program of a job, so that others find in the cache what process 0 compiled.

    All processes call this, in the same order. It makes a difference on CPUs: processes often share
    their cores there, which one of them can use for all.
    """
    alike = job.config.compile_cache and platform_of(job.mesh) == "cpu"
    return hosts.after_first(compile_it) if alike else compile_it


def _compiled(job: Job) -> tuple[Callable, float]:
    """The step of a job, and how many seconds it took to compile it.

    Raises:
      MeshDSLError: it does not fit the memory of a device.
    """
    began = time.perf_counter()
    try:
        return job.lowered.compile(), time.perf_counter() - began
    except Exception as error:  # JAX has no class of its own for what a compiler says
        if (verdict := parse_oom(str(error))) is None:
            raise
        helpful = settings_that_save_memory(job.config, job.layout, dict(job.mesh.shape))
        raise MeshDSLError(
            f"the step does not fit: {byte_words(verdict.needed)} of the "
            f"{byte_words(verdict.available)} that a device has; what would help: "
            + "; ".join([*helpful, "more devices"])
        ) from None


def _move(old: Job, new: Job) -> Callable[[State], State]:
    """What moves a state, in which the model has its settings: those of the new job then."""
    shardings = jax.tree.leaves(new.step.shardings)
    move = jax.jit(lambda arrays: arrays, out_shardings=shardings)
    compiled = move.lower(jax.tree.leaves(old.state)).compile()
    return lambda state: jax.tree.unflatten(
        jax.tree.structure(new.state), compiled(jax.tree.leaves(state))
    )
