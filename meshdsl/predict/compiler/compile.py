"""Compiling a step for a machine that is not at hand, and a report on what the compiler made of it.

Memory is what the compiler counts; `buffers` names the largest arrays, and the estimate fills in
what it leaves unsaid of a program that does not fit. Time is that of the replayed schedule, and
collectives are those in it, matched with the record.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from meshdsl.errors import MeshDSLError
from meshdsl.figures import byte_words
from meshdsl.machine import Network, Target
from meshdsl.machine.timeline import Ran, Timeline
from meshdsl.mesh import slice_parts
from meshdsl.predict.advice import remedies
from meshdsl.predict.compiler.buffers import Buffer, largest_buffers
from meshdsl.predict.compiler.collectives import from_hlo
from meshdsl.predict.compiler.hlo_text import Module
from meshdsl.predict.compiler.match import match
from meshdsl.predict.compiler.out_of_memory import OutOfMemory, parse_oom
from meshdsl.predict.compiler.replay import replay
from meshdsl.predict.compiler.report import ChipMemory, CompiledReport, with_compiled_memory
from meshdsl.predict.compiler.wide_products import wide_products
from meshdsl.predict.explanation import Explanation, TensorView, TimeView
from meshdsl.predict.pipelines import timed
from meshdsl.program.collective import Collective
from meshdsl.program.program import Program
from meshdsl.program.recorder import source_of

LARGEST = 8  # arrays that a report names
_HOSTS = "the hosts exchange what goes over {} from slice to slice: the replay does not time it"


def compile_for(
    lowered: Any,
    program: Program,
    target: Target,
    explanation: Explanation,
    *,
    options: Mapping[str, str],
    given: Iterable[str] = (),
    model_flops: tuple[float, float] | None = None,
) -> tuple[CompiledReport, Any]:
    """Compile a step for `target`.

    Returns the report and the executable, which is None where the program does not fit.

    Args:
      lowered: what `TrainStep.lower` gave for a mesh of the target's devices.
      program: the record of the same step.
      explanation: of the same program on the same target. It tells what the compiler leaves unsaid
        of a program that does not fit.
      options: of the compiler.
      given: the names of those that the user gave.
      model_flops: of the model per device, causal attention counted half, and in full.

    Raises:
      MeshDSLError: the compiler refuses an option, or fails for another reason than memory.
    """
    known = {
        "title": explanation.title,
        "layout": explanation.layout,
        "target": str(target),
        "axes": dict(program.axis_sizes),
        "options": dict(options),
        "given": tuple(given),
        "units": explanation.units,
        "unit": explanation.unit,
    }
    start = time.perf_counter()
    try:
        executable = lowered.compile(compiler_options=dict(options) or None)
    except Exception as error:  # JAX has no class of its own for what a compiler says
        verdict = parse_oom(str(error))
        if verdict is None:
            raise _refusal(error, target, options) from error
        known["compile_seconds"] = time.perf_counter() - start
        return _report_too_large(verdict, program, explanation, known), None
    known["compile_seconds"] = time.perf_counter() - start
    report = _report_compiled(executable, program, target, explanation, model_flops, known)
    return report, executable


def _report_too_large(
    verdict: OutOfMemory, program: Program, explanation: Explanation, known: dict[str, Any]
) -> CompiledReport:
    """The report on a program that does not fit: `known`, and what the compiler says of memory."""
    memory = _memory_too_large(verdict, explanation)
    return CompiledReport(
        **known,
        fits=False,
        verdict=_too_large(memory.needed, verdict.available),
        memory=memory,
        remedies=_remedies(memory, explanation, program),
        pipelines=timed(explanation.pipelines, explanation.ops, None),
    )


def _report_compiled(
    executable: Any,
    program: Program,
    target: Target,
    explanation: Explanation,
    model_flops: tuple[float, float] | None,
    known: dict[str, Any],
) -> CompiledReport:
    """The report on a program that the compiler has compiled: `known`, and what is read off it."""
    text, no_text = _text(executable)
    module = Module(text)
    arrays = tuple(_view(one, program) for one in largest_buffers(module, text, LARGEST))
    memory = _memory(executable.memory_analysis(), arrays, target)
    # Of TPU programs the compiler is the judge; that of GPUs doesn't say.
    fits = None
    if memory.capacity is not None:
        fits = target.chip.kind == "tpu" or memory.needed <= memory.capacity
    replayed, collectives = _collectives(module, program, target)
    between = _between_slices(target, program.axis_sizes)
    found, absent = match(program, collectives, between)
    time = None
    if replayed and model_flops:
        time = TimeView.of(replayed, model_flops, target.chip.flops)
    sent = {axis for collective in program.collectives for axis in collective.axes}
    crossed = ", ".join(axis for axis in between if axis in sent)
    hosts = _HOSTS.format(crossed) if crossed else ""
    return CompiledReport(
        **known,
        fits=fits,
        verdict=_verdict(fits, memory),
        memory=memory,
        collectives=found,
        absent=absent,
        time=time,
        remedies=_remedies(memory, explanation, program) if fits is False else (),
        unread=module.unread.kinds() if text else (),
        notes=tuple(note for note in (no_text, hosts) if note),
        wide=wide_products(module, program),
        pipelines=timed(explanation.pipelines, explanation.ops, time),
    )


def _verdict(fits: bool | None, memory: ChipMemory) -> str:
    needed, capacity = memory.needed, memory.capacity
    if capacity is None:
        return f"compiles: needs {byte_words(needed)} per device"
    if not fits:
        return _too_large(needed, capacity)
    free = capacity - needed
    left = f", {byte_words(free)} free" if free > 0 else ""
    return f"fits: needs {byte_words(needed)} of {byte_words(capacity)} per device{left}"


def _too_large(needed: int, capacity: int) -> str:
    return (
        f"does NOT fit: needs {byte_words(needed)} of {byte_words(capacity)} per device, "
        f"{byte_words(needed - capacity)} too much"
    )


def _refusal(error: Exception, target: Target, options: Mapping[str, str]) -> MeshDSLError:
    """What the compiler refuses, naming the option at fault if its message does."""
    reason = " ".join(str(error).split())
    if "No such compile option" in reason:
        name = reason.rpartition("'")[0].rpartition("'")[2]
        return MeshDSLError(f"option `{name}`: the compiler for {target} has no such option")
    refused = next(
        (f"option `{key}={value}`: " for key, value in options.items() if key in reason), ""
    )
    return MeshDSLError(f"{refused}the compiler for {target} fails: {reason[:400]}")


def _text(executable: Any) -> tuple[str, str]:
    """The program's text; without one an empty text and the reason."""
    try:
        text = executable.as_text()
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:160]
    else:
        if text:
            return text, ""
        reason = "the compiler gives no text"
    pair = 'libtpu and jaxlib may be of different times; pip install "meshdsl[tpu]" brings a pair'
    unknown = "the compiled program cannot be read, so its collectives and time are not known"
    return "", f"{unknown} ({pair}): {reason}"


# -- memory ------------------------------------------------------------------------------------


def _memory(stats: Any, arrays: tuple[TensorView, ...], target: Target) -> ChipMemory:
    """The memory of a compiled program.

    Args:
      stats: what JAX's `memory_analysis` gives.
      arrays: the largest.
    """
    arguments, outputs, aliased, temporaries, code = (
        getattr(stats, f"{what}_size_in_bytes")
        for what in ("argument", "output", "alias", "temp", "generated_code")
    )
    peak = getattr(stats, "peak_memory_in_bytes", None)
    return ChipMemory(
        needed=arguments + outputs - aliased + temporaries + code,
        capacity=target.chip.hbm,
        arguments=arguments,
        outputs=outputs,
        aliased=aliased,
        temporaries=temporaries,
        code=code,
        peak=peak if target.chip.kind == "tpu" else None,  # others leave temporaries out
        largest=arrays,
    )


def _memory_too_large(verdict: OutOfMemory, explanation: Explanation) -> ChipMemory:
    """The memory of a program that does not fit; the estimate's where the compiler says nothing."""
    arguments = explanation.memory.arguments if verdict.arguments is None else verdict.arguments
    views = {op.tag: op for op in explanation.ops}
    named = []
    for one in verdict.largest[:LARGEST]:
        op = views.get(one.tag)
        name, source = (op.notation, op.source) if op else (one.label or one.what, "")
        dtype = one.shape.partition("{")[0]
        named.append(TensorView(name, "activation", (), (), dtype, one.bytes, source))
    return ChipMemory(
        needed=verdict.needed,
        capacity=verdict.available,
        arguments=arguments,
        temporaries=verdict.needed - arguments,
        largest=tuple(named) or explanation.memory.largest,
    )


def _remedies(memory: ChipMemory, explanation: Explanation, program: Program) -> tuple[str, ...]:
    compiled = with_compiled_memory(explanation.memory, memory)
    return remedies(compiled, explanation.ops, program.axis_sizes)


def _view(buffer: Buffer, program: Program) -> TensorView:
    """An array of the compiled program, named by the recorded op that makes it."""
    op = program.op_tagged(buffer.tag)
    return TensorView(
        name=str(op) if op else buffer.scope_end or "made by the compiler",
        kind="activation",
        dims=(),
        shape=buffer.array.shape,
        dtype=buffer.array.dtype,
        bytes=buffer.bytes,
        source=source_of(op) if op else "",
    )


# -- time --------------------------------------------------------------------------------------


def _collectives(
    module: Module, program: Program, target: Target
) -> tuple[Timeline | None, Iterable[Collective | Ran]]:
    """The replayed schedule, and the collectives in it; without times where the target has none."""
    if not module.entry:
        return None, ()
    if not target.timed:
        return None, from_hlo(module, program.axis_sizes)
    replayed = replay(module, target.chip, Network(target, program.axis_sizes), program.axis_sizes)
    return replayed, replayed.collectives


def _between_slices(target: Target, axis_sizes: Mapping[str, int]) -> tuple[str, ...]:
    """The axes that go from slice to slice: the most major ones, as `meshdsl.mesh` lays them."""
    parts = slice_parts(tuple(axis_sizes.values()), target.slices)
    return tuple(axis for axis, part in zip(axis_sizes, parts, strict=True) if part > 1)
