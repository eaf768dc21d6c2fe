"""What was found, as text: the dims of arguments, what is renamed where, and what fell back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from meshdsl.dims import Dim
from meshdsl.figures import byte_words, flop_words
from meshdsl.layout import Layout
from meshdsl.lowering.lower import Lowered
from meshdsl.plain_jax import source
from meshdsl.plain_jax.inference import Inference, renamed_at
from meshdsl.plain_jax.program import Program, Value
from meshdsl.predict.repeated_work import repeated_work


def notation(v: Value) -> str:
    """`[d_model=32, (qkv=3 heads=4 head_dim=8)]`: for each position its factors."""
    shown = []
    for dims, size in zip(v.dims, v.shape, strict=True):
        words = [repr(d) for d in dims]
        shown.append(
            words[0] if len(words) == 1 else f"({' '.join(words)})" if words else f"{size}"
        )
    return f"[{', '.join(shown)}]"


def text(
    inference: Inference,
    arguments: Iterable[tuple[str, Value]],
    fallbacks: Iterable[str],
    repeats: Iterable[str],
) -> str:
    """The whole description. What fell back stands first, then what devices repeat."""
    lines = [f"fallback: {said}" for said in fallbacks]
    lines += [f"repeated: {said}" for said in repeats]
    lines += [f"note: {said}" for said in dict.fromkeys(inference.program.remarks)]
    lines += [f"recognised: {said}" for said in recognised(inference.program)]
    rows = [(path, str(v.shape), notation(v)) for path, v in arguments]
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(2)]
    lines += [f"{path:{widths[0]}}  {shape:{widths[1]}}  {dims}" for path, shape, dims in rows]
    lines += renames(inference)
    return "\n".join(lines)


def renames(inference: Inference) -> list[str]:
    """A line for each place where a dim takes another name, and why two given names met."""
    found: dict[str, None] = {}
    for c, x, y in renamed_at(inference):
        where = source.shown(c.of.lines)
        line = f"renamed: `{x.name}` and `{y.name}` at {where}, in `{c.of.name}`"
        if x.given and y.given:
            line += f"; both names are given, by {x.given} and by {y.given}"
        found[line] = None
    return list(found)


def warnings_of(inference: Inference) -> list[str]:
    """A sentence for each two names of the user that turn out to be of one dim."""
    found: dict[tuple[str, str], str] = {}
    for c, x, y in renamed_at(inference):
        if x.given and y.given:
            lines = " and ".join(source.shown((line,)) for line in c.of.lines) or "?"
            found.setdefault(
                (x.name, y.name),
                f"from_jax: `{x.name}`, given by {x.given}, and `{y.name}`, given by {y.given}, "
                f"are one dim in `{c.of.name}` at {lines}; one is renamed there, and where layouts "
                "split them differently data moves: give them one name, if they are meant to be "
                "one",
            )
    return list(found.values())


def recognised(program: Program) -> dict[str, None]:
    """The ops of the language that were found in a program and in its bodies."""
    found: dict[str, None] = {}
    for e in program.equations:
        if e.primitive is None:
            parts = e.notes.get("parts")
            what = e.name if parts is None else parts.described()
            found[f"{what} at {source.shown(e.lines)}"] = None
        for body in e.bodies:
            found |= recognised(body)
    return found


def repeats(fn: Callable, args: Any, layout: Layout, mesh: Any) -> list[str]:
    """What devices repeat in one call of a function under a layout: a sentence for each line.

    Args:
      args: shapes, as Tensors, that the function is traced for.
    """
    rules = {rule.dim for rule in layout.parsed}  # those of a whole step, of which this is a part
    program = Lowered(fn, layout, mesh, [Dim(name, 1) for name in rules]).program(*args)
    return [
        f"{one.source or 'no line'} ({', '.join(one.ops[:3])}), by {one.copies} devices over "
        f"{', '.join(one.axes)}: {flop_words(one.flops)} ({one.share_of_flops:.1%}) and results of "
        f"{byte_words(one.bytes)} ({one.share_of_bytes:.1%})"
        for one in repeated_work(program)
        if one.matters
    ]
