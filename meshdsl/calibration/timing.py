"""Times of operations, each repeated in a loop of a program that runs on all devices at once.

Virtual devices share the cores of a machine, so the time of one device counts while all do the
same, as they will in a step. The number of turns is an argument of the program: it is compiled once
and runs for as long as a sample should last. A call without turns is subtracted.

Samples of all operations are taken in turns, so that what disturbs the machine for a while
disturbs a sample of each. Several processes take them together, and process 0 decides.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from meshdsl import hosts

MOST_TURNS = 20_000


@dataclass(frozen=True)
class Subject:
    """An operation to be timed.

    Attributes:
      kind: `product`, `layers`, `pass`, `kernel`, `fresh`, or a collective. Of `fresh` a call
        without turns is timed, whose result is a copy of the array in memory of its own.
      name: of the operation among those of its kind; the form of the group for a collective.
      body: what one turn does: from local arrays, the first of which is carried from turn to turn,
        to its next value.
      shapes: of the local arrays.
      dtype: of them.
      mesh: sizes of the axes of the mesh, which the devices fill in their order.
      size: of what is timed: FLOPs of products, kernels of a turn, bytes of others.
      elements: of the largest array of a pass; of operands and results of the products of layers.
      kept: bytes that layers keep for their gradients.
    """

    kind: str
    name: str
    body: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    dtype: Any = jnp.float32
    mesh: Mapping[str, int] = field(default_factory=dict)
    size: float = 0.0
    elements: int = 0
    kept: float = 0.0


@dataclass(frozen=True)
class Spread:
    """Seconds of one turn: the median of the samples, and the quartiles around it."""

    median: float
    low: float
    high: float
    samples: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        if len(samples) == 1:
            return cls(samples[0], samples[0], samples[0], 1)
        low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
        return cls(middle, low, high, len(samples))


class Timer:
    """A subject with its compiled program and its samples.

    Attributes:
      turns: of a sample.
      samples: seconds of one turn in each sample.
      calls: seconds of a call without turns, before each sample.
      one_turn: about how many seconds a turn takes.
    """

    def __init__(
        self,
        subject: Subject,
        devices: Sequence[Any],
        sample: float,
        clock: Callable[[], float] = time.perf_counter,
    ):
        """Compile the program, and find how many turns last `sample` seconds by a clock."""
        self._clock = clock
        self.subject = subject
        self.samples: list[float] = []
        self.calls: list[float] = []
        mesh = _mesh(subject, devices)
        split = NamedSharding(mesh, PartitionSpec(tuple(mesh.axis_names)))
        whole = NamedSharding(mesh, PartitionSpec())
        self._number = partial(_everywhere, sharding=whole)
        first, *rest = [
            _values(mesh.size, shape, subject.dtype, split, _mean(subject, number, shape))
            for number, shape in enumerate(subject.shapes)
        ]
        self._carried, self._rest = first, rest
        looped = jax.shard_map(
            partial(_repeat, subject.body),
            mesh=mesh,
            in_specs=(whole.spec, *[split.spec] * len(subject.shapes)),
            out_specs=split.spec,
        )
        self._fresh = subject.kind == "fresh"
        self._run = jax.jit(looped, donate_argnums=() if self._fresh else 1)
        self._take(1)
        self.turns = 1
        empty, took = self._least(0), self._least(1)
        # A first time is rough, so the number of turns grows until a call lasts long enough.
        while not self._fresh and took - empty < sample / 2 and self.turns < MOST_TURNS:
            wanted = self.turns * sample / max(took - empty, sample / 8)
            self.turns = min(max(int(wanted), 2 * self.turns), MOST_TURNS)
            took = self._least(self.turns)
        self.one_turn = max(took - empty, 0.0) / self.turns

    def sample(self) -> None:
        """Take one more sample."""
        empty = self._take(0)
        self.calls.append(empty)
        if self._fresh:
            self.samples.append(empty)
            return
        # No time is 0, or less: where a call without turns was disturbed, a turn takes next to it.
        self.samples.append(max(self._take(self.turns) - empty, 1e-2 * empty) / self.turns)

    def spread(self) -> Spread:
        """Seconds of one turn."""
        return Spread.of(self.samples)

    def _least(self, turns: int) -> float:
        """Seconds of the least disturbed of three calls with so many turns, in process 0."""
        least = min(self._take(turns) for _ in range(3))
        return hosts.first_does(lambda: least)

    def _take(self, turns: int) -> float:
        """Seconds of a call with so many turns, which all processes begin together."""
        number = self._number(turns)
        if hosts.count() > 1:
            multihost_utils.sync_global_devices("call")
        start = self._clock()
        found = jax.block_until_ready(self._run(number, self._carried, *self._rest))
        took = self._clock() - start
        if not self._fresh:
            self._carried = found
        return took


def _repeat(body: Callable[..., Any], turns: Any, first: Any, *rest: Any) -> Any:
    """`body` on the local arrays, so many times."""
    others = [x[0] for x in rest]
    return lax.fori_loop(0, turns[0], lambda _, x: body(x, *others), first[0])[None]


def _mesh(subject: Subject, devices: Sequence[Any]) -> Mesh:
    sizes = subject.mesh or {"all": len(devices)}
    return Mesh(np.array(devices).reshape(tuple(sizes.values())), tuple(sizes))


def _mean(subject: Subject, number: int, shape: tuple[int, ...]) -> float:
    """The mean of the values of one of the arrays: what is carried stays as large as it is."""
    return 1 / shape[0] if subject.kind == "product" and number else 1.0


def _values(
    count: int, shape: tuple[int, ...], dtype: Any, split: NamedSharding, mean: float
) -> jax.Array:
    """An array of that shape on each device, of random values: equal ones may take less time."""
    drawn = np.random.default_rng(0).random((1, *shape), np.float32) + np.float32(0.5)
    values = (mean * drawn).astype(dtype)
    return jax.make_array_from_callback((count, *shape), split, lambda at: values)


def _everywhere(number: int, sharding: NamedSharding) -> jax.Array:
    value = np.array([number], np.int32)
    return jax.make_array_from_callback((1,), sharding, lambda at: value[at])
