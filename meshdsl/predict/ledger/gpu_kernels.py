"""The instruction of a compiled program that each kernel of a GPU ran for.

A trace of a GPU names kernels. XLA puts most of them into CUDA graphs, and of these the trace does
not say which instruction they belong to. It can be told nearly always:

- A kernel that XLA made has the name of a fusion, with underscores for dots. It serves other
  fusions too, if their code is the same: those that have no kernel of their own name.
- A kernel of a library belongs to a call of this library, NCCL's to a collective of its kind.
- A memset or a copy comes before such a call, or is what a copy or a small fusion runs.

Which of several instructions it is follows from the order: a stream runs its kernels in the order
of the schedule, turn by turn in loops, and one call of the program after the other. So the kernels
of a stream are laid along the schedule such that as few instructions as possible are skipped.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import accumulate
from typing import NamedTuple

from meshdsl.predict.compiler.collectives import operation_of
from meshdsl.predict.compiler.hlo_text import Instruction, Module

# Instructions that run nothing.
_NOTHING = frozenset(
    ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id")
)
# The words in a kernel's name that tell its library, and in `custom_call_target` of the calls of it.
# The first that fits counts.
_LIBRARIES = (
    (re.compile(r"cudnn|sdpa|fmha|fprop|dgrad|wgrad"), "cudnn"),
    (re.compile(r"cublas|cutlass|nvjet|gemm|gemv|splitK"), "cublas"),
    (re.compile(r"\bcub::"), "cub_"),
    (re.compile(r"cusolver"), "cusolver"),
    (re.compile(r"cufft|fft"), "fft"),
)
# How NCCL's kernels call the collectives: `ncclDevKernel_AllGather_RING_LL`.
_COLLECTIVES = {
    "allreduce": ("all-reduce",),
    "allgather": ("all-gather",),
    "reducescatter": ("reduce-scatter",),
    "sendrecv": ("collective-permute", "all-to-all"),
}
_TARGET = re.compile(r'custom_call_target="([^"]*)"')

# What a way along the schedule costs beside the instructions that it skips.
_AGAIN = 0.5  # one more kernel of the same call of a library
_UNLIKELY = 1.0  # a kernel of a call of another library
_ODD = 3.0  # a kernel that is no instruction's
_FAR = 10.0  # the most that skipped instructions cost, and how much worse a way may be

_BEFORE = ("memset", "memcpy")  # begins the name of what prepares for the kernels of a call


class Kernel(NamedTuple):
    """One kernel, or a copy, that a GPU ran; times are in nanoseconds.

    Attributes:
      stream: the name of the line of its stream.
      name: of the kernel.
      said: the instruction that the trace names, or the CUDA graph: `command_buffer_14`.
    """

    start: float
    end: float
    stream: str
    name: str
    said: str


class Execution(NamedTuple):
    """One execution of an instruction, by one kernel or several.

    Attributes:
      call: the number of the call of the program, from 0.
    """

    start: float
    end: float
    call: int
    instruction: str


def executions(kernels: Iterable[Kernel], module: Module) -> list[Execution]:
    """What the instructions of `module` ran on one GPU.

    Args:
      kernels: of this GPU and this program. Those that are no instruction's are left out.
    """
    schedule, streams = Schedule(module), defaultdict(list)
    for kernel in sorted(kernels):
        streams[kernel.stream].append(kernel)
    names = {kernel.name for each in streams.values() for kernel in each}
    found: list[Execution] = []
    starts: list[float] = []  # of the calls, by the busiest stream
    for each in sorted(streams.values(), key=len, reverse=True):
        beside = bool(starts)
        way = _Ways(schedule, _Fits(schedule, module, names, beside), each).best()
        for first, last, call, step in way:
            if not beside and call == len(starts):
                starts.append(first.start)
            number = max(bisect_right(starts, first.start) - 1, 0) if beside else call
            name = schedule.steps[step].name
            found.append(Execution(first.start, last.end, number, name))
    return found


class Schedule:
    """What a program runs, in the order of time.

    Attributes:
      steps: the instructions that may run kernels. A loop stands after its condition.
      loops: the spans of steps of each loop, inner ones first: where its condition begins, its
        body begins, and it ends. The last is the program, since one call follows the other.
    """

    def __init__(self, module: Module):
        self._module = module
        self.steps: list[Instruction] = []
        self.loops: list[tuple[int, int, int]] = []
        self._add(module.entry)
        self.loops.append((0, 0, len(self.steps)))

    def _add(self, computation: str) -> None:
        module = self._module
        for i in module.computations[computation]:
            if i.opcode in _NOTHING or i.opcode.endswith(("-done", "-update")):
                continue
            start = len(self.steps)
            condition = i.attribute("condition")
            if condition and "known_trip_count" not in i.attributes:  # else it is not run
                self._add(condition)
            self.steps.append(i)
            if i.opcode == "while" and (body := i.attribute("body")):
                body_start = len(self.steps)
                self._add(body)
                self.loops.append((start, body_start, len(self.steps)))
            elif i.opcode in ("call", "conditional"):
                for called in module.read(i, partial(module.called, i), []):
                    self._add(called)


class _Fits:
    """Which steps of a schedule a kernel may have run for.

    Args:
      names: of all kernels that ran.
      beside: whether it is about a stream beside the main one, which runs what is asynchronous.
    """

    def __init__(self, schedule: Schedule, module: Module, names: set[str], beside: bool):
        self._module, self._beside = module, beside
        self.steps = schedule.steps
        self._at: dict[str, list[int]] = defaultdict(list)
        self._named: dict[str, list[int]] = defaultdict(list)
        self._alike: dict[tuple, list[int]] = defaultdict(list)  # without a kernel of their name
        own = set()
        for n, i in enumerate(self.steps):
            self._at[i.name].append(n)
            if i.opcode == "fusion":
                kernels = {re.sub(r"\W", "_", one.name) for one in (i, *self._inside(i))} & names
                for kernel in kernels:
                    self._named[kernel].append(n)
                if kernels:
                    own.add(self._code(i))
                else:
                    self._alike[self._code(i)].append(n)
        self._quiet = {n for code, each in self._alike.items() if code not in own for n in each}
        self.calls = {n for n, i in enumerate(self.steps) if i.opcode != "fusion"} | self._quiet
        self.of = cache(self._of)

    def _inside(self, i: Instruction) -> list[Instruction]:
        if i.opcode not in ("fusion", "fusion-start"):
            return []
        called = self._module.read(i, partial(self._module.called, i), [])
        return [one for name in called for one in self._module.computations[name]]

    def _code(self, i: Instruction) -> tuple:
        return (i.type, *((one.opcode, one.type) for one in self._inside(i)))

    def _of(self, name: str, said: str) -> Mapping[int, float]:
        """The steps that a kernel may have run for, each with how little it fits: 0 is well.

        Args:
          said: what the trace says of it: an instruction, or a graph.
        """
        if said in self._at:
            return dict.fromkeys(self._at[said], 0.0)
        if name in self._named:
            steps = self._named[name]
            alike = [n for one in steps for n in self._alike[self._code(self.steps[one])]]
            return dict.fromkeys((*steps, *alike), 0.0)
        lower = name.lower()
        if "nccl" in lower or any(word in lower for word in _COLLECTIVES):
            kinds = [k for word, each in _COLLECTIVES.items() if word in lower for k in each]
            return self._where(lambda i: operation_of(i) in kinds if kinds else operation_of(i))
        if lower.startswith("memset"):
            return self._where(lambda i: i.opcode == "custom-call") | self._copies(fills=True)
        if lower.startswith("memcpy"):
            calls = self._where(lambda i: i.opcode == "custom-call", _UNLIKELY)
            return calls | self._copies()
        return self._of_library(name)

    def _where(self, wanted, misfit: float = 0.0) -> dict[int, float]:
        return {n: misfit for n, i in enumerate(self.steps) if wanted(i)}

    def _copies(self, fills: bool = False) -> dict[int, float]:
        """The steps that are copies, or fusions so simple that they are run as a copy."""
        found = dict.fromkeys(self._quiet, 0.0)
        if not fills:
            found |= self._where(lambda i: i.opcode in ("copy", "copy-start", "fusion-start"))
            sorts = lambda i: any(one.opcode == "sort" for one in self._inside(i))
            found |= self._where(sorts)
        if self._beside:
            found = {n: 0.0 for n in found if self.steps[n].opcode.endswith("-start")} or found
        return found

    def _of_library(self, name: str) -> dict[int, float]:
        calls = [n for n, i in enumerate(self.steps) if _TARGET.search(i.attributes)]
        calls += [n for n in self._quiet if n not in calls]
        text = {n: self.steps[n].attributes for n in calls}
        if written := [n for n in calls if name in text[n]]:
            return dict.fromkeys(written, 0.0)
        library = next((word for pattern, word in _LIBRARIES if pattern.search(name)), None)
        targets = {
            n: " ".join(
                found[1].lower()
                for one in (self.steps[n], *self._inside(self.steps[n]))
                if (found := _TARGET.search(one.attributes))
            )
            for n in calls
        }
        return {n: 0.0 if library and library in targets[n] else _UNLIKELY for n in calls}


class _Ways:
    """Ways along a schedule that explain the kernels of a stream, in the order of time."""

    def __init__(self, schedule: Schedule, fits: _Fits, kernels: Sequence[Kernel]):
        self._loops, self._fits, self._kernels = schedule.loops, fits, kernels
        asked = {(kernel.name, kernel.said) for kernel in kernels}
        used = {n for one in asked for n, misfit in fits.of(*one).items() if not misfit}
        self._before = [0, *accumulate(n in used for n in range(len(schedule.steps)))]
        self._next = cache(self._steps_after)

    def best(self) -> Iterator[tuple[Kernel, Kernel, int, int]]:
        """The way that costs least: for each execution its first and its last kernel, the number
        of the call, and the step."""
        ways = {-1: _Way(0.0, None)}
        for kernel in self._kernels:
            following: dict[int, _Way] = {}
            for at, way in ways.items():
                for to, one in self._onward(at, way, kernel):
                    if to not in following or one.cost < following[to].cost:
                        following[to] = one
            most = min(way.cost for way in following.values()) + _FAR
            ways = {at: way for at, way in following.items() if way.cost < most}
        found, place = [], min(ways.values(), key=lambda way: way.cost).trail
        while place is not None:
            last = place
            while place.stays and place.before is not None:
                place = place.before
            found.append((place.kernel, last.kernel, place.call, place.step))
            place = place.before
        return reversed(found)

    def _onward(self, at: int, way: _Way, kernel: Kernel) -> Iterator[tuple[int, _Way]]:
        """The steps that a kernel may have run for after the step `at`, and the ways there."""
        cost, before, least = *way, _ODD
        for to, misfit, more, again in self._next(at, kernel.name, kernel.said):
            stays = False
            if before and at == to and (kernel.name != before.kernel.name or to in self._fits.calls):
                once_more = self._once_more(before.kernel.name, kernel.name)
                if once_more <= more:
                    more, stays = once_more, True
            call = before.call + (again and not stays) if before else 0
            least = min(least, misfit + more)
            yield to, _Way(cost + misfit + more, _Place(kernel, call, to, stays, before))
        if least:  # else it fits so well that it belongs here
            yield at, _Way(cost + _ODD, before)

    def _once_more(self, last: str, name: str) -> float:
        """What it costs that a kernel belongs to the same execution as the last one."""
        return 0.0 if last.lower().startswith(_BEFORE) and last != name else _AGAIN

    def _steps_after(self, at: int, name: str, said: str) -> list[tuple[int, float, float, bool]]:
        """The steps that a kernel may have run for after the step `at`: how little it fits, what
        the way there costs, and whether that leads to the next call."""
        found = []
        for to, misfit in self._fits.of(name, said).items():
            skipped, again = self._skipped(at, to)
            found.append((to, misfit, min(skipped, _FAR), again))
        return found

    def _skipped(self, at: int, to: int) -> tuple[int, bool]:
        """How many steps are skipped on the way from one step to another, and whether it leads
        to the next call."""
        before = self._before
        if at < 0:
            return before[to], False
        if to > at:
            skipped = before[to] - before[at + 1]
            for start, body, end in self._loops:
                if start <= at < body and end <= to:
                    skipped -= before[end] - before[body]  # a loop may end after its condition
            return skipped, False
        n, (start, _, end) = next(
            (n, loop) for n, loop in enumerate(self._loops) if loop[0] <= to and at < loop[2]
        )
        skipped = before[end] - before[at + 1] + before[to] - before[start]
        return skipped, n == len(self._loops) - 1


class _Way(NamedTuple):
    """A way along a schedule, which ends at a place."""

    cost: float
    trail: _Place | None


class _Place(NamedTuple):
    """A kernel on a way.

    Attributes:
      stays: whether it belongs to the same execution as the kernel before it.
      before: the place of that kernel, from which the way leads here.
    """

    kernel: Kernel
    call: int
    step: int
    stays: bool
    before: _Place | None
