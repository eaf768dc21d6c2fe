"""How a stub spells the definition of an op."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator

from meshdsl.ops.declare import Declaration

COLUMNS = 100
SPELLING = {  # of an annotation in a stub, where it is another than in the code
    "": "Any",
    "Callable": "Callable[..., Any]",
    "DTypeLike": "Any",
    "Dim | str": "Along[T]",
    "Which": "Which[T]",
    "float | Tensor | jax.Array": "float | Tensor | Array",
}


def definition(d: Declaration) -> str:
    """`def flip(x: T, dim: Along[T]) -> T: ...`: how the op is typed by its signature.

    The first Tensor is the `T` of which dims are dims, and the result too where the op says that it
    has the same dims. An op of a table of `_tables.pyi` gets its decorator instead.
    """
    name, table = d.name.split(".")[-1], "" if d.result == "same" else d.result
    signature = inspect.signature(d.function)
    parts = list(parameters(signature.parameters.values()))
    result = spelled(signature.return_annotation)
    whose = next((i for i, part in enumerate(parts) if part.endswith(": Tensor")), None)
    text = " ".join(parts)
    if table or whose is None:
        parts = [re.sub(r"\[T\]", "[Tensor]", part) for part in parts]
    elif "[T]" in text or d.result == "same":
        parts[whose] = re.sub(r": Tensor$", ": T", parts[whose])
        result = "T" if d.result == "same" else result
    decorator = f"@{table}\n" if table else ""
    return decorator + lines(f"def {name}", parts, f" -> {result}: ...")


def parameters(found: Iterable[inspect.Parameter]) -> Iterator[str]:
    """Parameters of a function as a stub spells them, with a `*` before those by keyword only."""
    star = False
    for p in found:
        if p.kind is p.KEYWORD_ONLY and not star:
            yield "*"
        star = star or p.kind in (p.KEYWORD_ONLY, p.VAR_POSITIONAL)
        yield parameter(p)


def parameter(p: inspect.Parameter) -> str:
    stars = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
    plain = p.default is None or isinstance(p.default, (bool, int, float, str, tuple))
    default = f" = {p.default!r}" if plain else " = ..."
    default = default.replace("'", '"')
    return f"{stars}{p.name}: {spelled(p.annotation)}{'' if p.default is p.empty else default}"


def spelled(annotation) -> str:
    said = "" if annotation is inspect.Signature.empty else str(annotation)
    return SPELLING.get(said, said).replace("Mapping[Dim | str,", "Mapping[Any,")


def lines(start: str, parts: list[str], end: str, columns: int = COLUMNS) -> str:
    """A definition in one line, or in three, or with a line for each parameter: what fits."""
    if len(line := f"{start}({', '.join(parts)}){end}") <= columns:
        return line
    if len(line := f"    {', '.join(parts)}") <= columns:
        return f"{start}(\n{line}\n){end}"
    return f"{start}(\n" + "".join(f"    {part},\n" for part in parts) + f"){end}"
