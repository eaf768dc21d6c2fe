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
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import accumulate
from typing import NamedTuple

from meshdsl.predict.compiler.collectives import operation_of
from meshdsl.predict.compiler.hlo_text import Instruction, Module
from meshdsl.predict.compiler.parts import collective_inside

# Instructions that run no kernel.
_NOTHING = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all")
_ENDS = ("-done", "-update")  # of what another instruction started
# Of fusions that run beside others the text hides the name, and so that of their kernel.
_HIDDEN = ("fusion-start", "async-start", "call-start")
_COPIES = ("copy", "copy-start")
# Words in the names of a library's kernels, and the word in the `custom_call_target` of its calls.
# The first that fits counts: `cudnn` runs kernels of `gemm` too.
_LIBRARIES = (
    (re.compile(r"cudnn|sdpa|fmha|fprop|dgrad|wgrad"), "cudnn"),
    (re.compile(r"cublas|cutlass|nvjet|gemm|gemv|splitK"), "cublas"),
    (re.compile(r"\bcub::"), "cub_"),
    (re.compile(r"cusolver"), "cusolver"),
    (re.compile(r"fft"), "fft"),
)
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
# How NCCL's kernels call the collectives: `ncclDevKernel_AllGather_RING_LL`.
_COLLECTIVES = {
    "allreduce": ("all-reduce",),
    "allgather": ("all-gather",),
    "reducescatter": ("reduce-scatter",),
    "sendrecv": ("collective-permute", "all-to-all"),
}
# How the names begin of what prepares for the kernels of a call.
_PREPARES = ("memset", "memcpy")

# What a way along the schedule costs, beside 1 for each instruction that it skips.
_AGAIN = 0.5  # one more kernel of the same execution
_UNLIKELY = 1.0  # a kernel of a call of another library
_ODD = 3.0  # a kernel that is no instruction's
_FAR = 10.0  # the most that skipped instructions cost, and how much worse than the best a way is


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
    names = {stream: {kernel.name for kernel in each} for stream, each in streams.items()}
    all_names = set().union(*names.values())
    found: list[Execution] = []
    spans: list[tuple[float, float]] = []  # of the calls, on the main stream
    for stream in sorted(streams, key=lambda stream: len(names[stream]), reverse=True):
        beside = bool(spans)
        fits = _Fits(schedule, module, all_names, beside)
        for first, last, call, step in _Ways(schedule, fits, streams[stream]).best():
            if beside:
                call = _call_of(spans, first.start, 2 * step < len(schedule.steps))
            else:
                begins = spans[call][0] if call < len(spans) else first.start
                spans[call:] = [(begins, last.end)]
            name = schedule.steps[step].name
            found.append(Execution(first.start, last.end, call, name))
    return found


def _call_of(spans: Sequence[tuple[float, float]], start: float, early: bool) -> int:
    """The call that something beside the main stream belongs to.

    Args:
      spans: when the main stream begins and ends each call.
      early: whether it stands in the first half of the program, which decides between two calls.
    """
    begun = bisect_right(spans, (start, start))
    between = not begun or start >= spans[begun - 1][1]
    return min(max(begun - (not (between and early)), 0), len(spans) - 1)


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
            if i.opcode in _NOTHING or i.opcode.endswith(_ENDS):
                continue
            start = len(self.steps)
            condition = i.attribute("condition")
            if condition and "known_trip_count" not in i.attributes:  # else it is not run
                self._add(condition)
            self.steps.append(i)
            if body := i.attribute("body"):
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

    Attributes:
      calls: the steps that may run several kernels of one name.
    """

    def __init__(self, schedule: Schedule, module: Module, names: set[str], beside: bool):
        self._module, self._beside = module, beside
        self.steps = schedule.steps
        self._at: dict[str, list[int]] = defaultdict(list)
        self._named: dict[str, list[int]] = defaultdict(list)
        self._nameless: dict[tuple, list[int]] = defaultdict(list)  # by their code
        codes = set()  # of what has a kernel of its name
        for n, i in enumerate(self.steps):
            self._at[i.name].append(n)
            if i.opcode == "fusion":
                kernels = {re.sub(r"\W", "_", one.name) for one in (i, *self._inside(i))} & names
                for kernel in kernels:
                    self._named[kernel].append(n)
                if kernels:
                    codes.add(self._code(i))
                else:
                    self._nameless[self._code(i)].append(n)
        quiet = (each for code, each in self._nameless.items() if code not in codes)
        self._unknown = dict.fromkeys((n for each in quiet for n in each), 0.0)
        self._unknown |= self._where(lambda i: i.opcode in _HIDDEN)
        self.calls = self._unknown.keys() | self._where(lambda i: i.opcode != "fusion").keys()
        self.of = cache(self._of)

    def _of(self, name: str, said: str) -> Mapping[int, float]:
        """The steps that a kernel may have run for, each with how little it fits: 0 is well.

        Args:
          said: what the trace says of it: an instruction, or a graph.
        """
        if said in self._at:
            return dict.fromkeys(self._at[said], 0.0)
        if name in self._named:
            named = self._named[name]
            alike = [n for one in named for n in self._nameless[self._code(self.steps[one])]]
            return dict.fromkeys((*named, *alike), 0.0)
        lower = name.lower()
        kinds = [kind for word, each in _COLLECTIVES.items() if word in lower for kind in each]
        if kinds or "nccl" in lower:
            return self._where(lambda i: (kind := self._collective(i)) and kind in (kinds or kind))
        if lower.startswith("memset"):
            return self._where(lambda i: i.opcode == "custom-call") | self._unknown
        return self._of_copy() if lower.startswith("memcpy") else self._of_library(name)

    def _of_copy(self) -> dict[int, float]:
        """The steps that copy, or are so simple that they are run as a copy."""
        if self._beside and (begun := self._where(lambda i: i.opcode in (*_HIDDEN, "copy-start"))):
            return begun
        calls = self._where(lambda i: i.opcode == "custom-call", _UNLIKELY)
        sorts = self._where(lambda i: any(one.opcode == "sort" for one in self._inside(i)))
        return calls | sorts | self._where(lambda i: i.opcode in _COPIES) | self._unknown

    def _of_library(self, name: str) -> dict[int, float]:
        """The steps that call a library, and those of which it is not known what they run."""
        targets = {n: target for n, i in enumerate(self.steps) if (target := self._target(i))}
        if written := [n for n in targets if name in self.steps[n].attributes]:
            return dict.fromkeys(written, 0.0)  # a kernel of the user's
        library = next((word for pattern, word in _LIBRARIES if pattern.search(name)), None)
        fitting = [n for n, target in targets.items() if library and library in target.lower()]
        return dict.fromkeys((*targets, *self._unknown), _UNLIKELY) | dict.fromkeys(fitting, 0.0)

    def _where(
        self, wanted: Callable[[Instruction], object], misfit: float = 0.0
    ) -> dict[int, float]:
        return {n: misfit for n, i in enumerate(self.steps) if wanted(i)}

    def _inside(self, i: Instruction) -> list[Instruction]:
        """What a fusion is made of."""
        if i.opcode not in ("fusion", *_HIDDEN):
            return []
        called = self._module.read(i, partial(self._module.called, i), [])
        return [one for name in called for one in self._module.computations[name]]

    def _code(self, i: Instruction) -> tuple:
        """What is the same for fusions that one kernel serves."""
        return (i.type, *((one.opcode, one.type) for one in self._inside(i)))

    def _target(self, i: Instruction) -> str:
        """The libraries' functions that an instruction calls, itself or inside of a fusion."""
        found = (_TARGET.search(one.attributes) for one in (i, *self._inside(i)))
        return " ".join(one[1] for one in found if one)

    def _collective(self, i: Instruction) -> str | None:
        """The collective that an instruction is or starts, by HLO's name."""
        within = partial(collective_inside, self._module, i.computation, i)
        _, found = self._module.read(i, within, ("", None))
        return found and operation_of(found)


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
        (cost, before), least = way, _ODD
        for to, misfit, more, again in self._next(at, kernel.name, kernel.said):
            stays = before is not None and at == to and self._may_stay(to, before.kernel, kernel)
            if stays and before is not None:
                prepared = before.kernel.name.lower().startswith(_PREPARES)
                once_more = 0.0 if prepared and before.kernel.name != kernel.name else _AGAIN
                stays = once_more <= more
                more = min(once_more, more)
            call = before.call + (again and not stays) if before else 0
            least = min(least, misfit + more)
            yield to, _Way(cost + misfit + more, _Place(kernel, call, to, stays, before))
        if least:  # a kernel that fits perfectly is not odd
            yield at, _Way(cost + _ODD, before)

    def _may_stay(self, step: int, last: Kernel, kernel: Kernel) -> bool:
        """Whether a kernel may belong to the same execution as the last one."""
        return kernel.name != last.name or step in self._fits.calls

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
