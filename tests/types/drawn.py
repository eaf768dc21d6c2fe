"""Random expressions over tensors and dims, of which a type checker knows some and some not."""

import random

import jax
import jax.numpy as jnp

import meshdsl as md

NAMES = "abcde"
COUNT = 250


class _Draw:
    """Expressions as text.

    A tensor `t_ab` has dims a and b and a type that says so; `u_ab` is a plain Tensor; `d_a` and
    `e_a` are dims alike.
    """

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.tensors: set[str] = set()

    def names(self, most: int = 4) -> list[str]:
        return self.random.sample(NAMES, self.random.randint(0, most))

    def near(self, names: list[str]) -> list[str]:
        """Names that mostly go with these."""
        kept = self.random.sample(names, self.random.randint(len(names) // 2, len(names)))
        more = self.random.sample(NAMES, 1) if self.random.random() < 0.3 else []
        return kept + [n for n in more if n not in kept]

    def tensor(self, names: list[str]) -> str:
        self.tensors.add(name := f"{'u' if self.random.random() < 0.15 else 't'}_{''.join(names)}")
        return name

    def dim(self, name: str) -> str:
        kind = self.random.random()
        return f"e_{name}" if kind < 0.1 else f'"{name}"' if kind < 0.2 else f"d_{name}"

    def proper(self, name: str) -> str:
        return f"{'e' if self.random.random() < 0.1 else 'd'}_{name}"

    def dims(self, names: list[str], element=None) -> str:
        kind = self.random.random()
        inner = ", ".join((element or self.proper)(n) for n in names)
        if kind < 0.05:
            return f"[{inner}]"
        if kind < 0.1:
            self.tensors.add(plain := f"u_{''.join(names)}")
            return f"(*{plain}.dims,)"
        return f"({inner},)" if names else "()"

    def one(self, names: list[str]) -> str:
        return (
            self.random.choice(names)
            if names and self.random.random() < 0.85
            else self.random.choice(NAMES)
        )

    def expression(self, names: list[str], depth: int = 0) -> str:
        """An expression whose value has, more or less, these dims."""
        if depth > 0 and self.random.random() < 0.7 + depth:
            return self.tensor(names)
        return self.random.choice(OPS)(self, names, lambda names: self.expression(names, depth + 1))


def _reduce(draw, names, of):
    inner = names + [n for n in draw.names(3) if n not in names]
    draw.random.shuffle(inner)
    gone = [n for n in inner if n not in names] or [draw.one(inner)]
    op = draw.random.choice(["sum", "mean", "max", "logsumexp"])
    over = draw.dim(gone[0]) if len(gone) == 1 else draw.dims(gone, draw.dim)
    call = draw.random.choice(["md.{op}({x}, {over})", "({x}).{op}({over})"])
    return call.format(op=op, x=of(inner), over=over)


def _element(draw, names, of):
    at = draw.random.randint(0, len(names))
    inner = [*names[:at], next(n for n in NAMES if n not in names), *names[at:]]
    return f"({of(inner[:4])})[{draw.dim(draw.one(inner[at : at + 1]))}, 1]"


def _take(draw, names, of):
    index = draw.one(NAMES[:2])
    table = [index, *(n for n in draw.names(2) if n != index)]
    draw.random.shuffle(table)
    return f"md.take({of(table)}, i_{''.join(_ids(draw, index))}, {draw.dim(index)})"


def _ids(draw, without):
    names = [n for n in draw.names(2) if n != without]
    draw.tensors.add(f"i_{''.join(names)}")
    return names


def _ellipsis(draw, names, of):
    shared, new = draw.one(names), draw.random.sample(NAMES, draw.random.randint(1, 2))
    weight = (
        [shared, *(n for n in new if n != shared)] if draw.random.random() < 0.8 else draw.names(3)
    )
    return f"md.einsum({of(names)}, {of(weight)}, out=(..., {', '.join(map(draw.proper, new))}))"


OPS = [
    lambda draw, names, of: f"{of(names)} {draw.random.choice('+-*<')} {of(draw.near(names))}",
    lambda draw, names, of: f"{of(draw.near(names))} {draw.random.choice('+-*<')} {of(names)}",
    lambda draw, names, of: f"md.maximum({of(names)}, {of(draw.near(names))})",
    lambda draw, names, of: (
        f"md.where({of(draw.near(names))} > 0, {of(names)}, {of(draw.near(names))})"
    ),
    lambda draw, names, of: f"md.where({of(names)} > 0, 1.0, {of(draw.near(names))})",
    lambda draw, names, of: f"md.tanh(2 * {of(names)})",
    lambda draw, names, of: (
        f"md.einsum({of(draw.names())}, {of(draw.near(names))}, {of(names)}, "
        f"out={draw.dims(names, draw.random.choice([draw.proper, draw.dim]))})"
    ),
    lambda draw, names, of: (
        f"md.transpose({of(draw.random.sample(names, len(names)))}, {draw.dims(names, draw.dim)})"
    ),
    lambda draw, names, of: f"md.broadcast({of(draw.near(names))}, {draw.dims(names)})",
    lambda draw, names, of: (
        f"md.rename({of(names)}, {draw.dim(draw.one(names))}, "
        f"{draw.dim(draw.random.choice(NAMES))})"
    ),
    lambda draw, names, of: f"md.softmax({of(names)}, {draw.dims(draw.near(names), draw.dim)})",
    lambda draw, names, of: f"md.cumsum({of(names)}, {draw.dim(draw.one(names))})",
    lambda draw, names, of: f"md.argmax({of(names)}, {draw.dim(draw.one(names))})",
    lambda draw, names, of: (
        f"md.one_hot(i_{''.join(_ids(draw, None))}, {draw.proper(draw.random.choice(NAMES))})"
    ),
    lambda draw, names, of: (
        f"md.stack([{of(names)}, {of(names)}], {draw.dim(draw.random.choice(NAMES))})"
    ),
    lambda draw, names, of: f"md.concat([{of(names)}, {of(names)}], {draw.dim(draw.one(names))})",
    lambda draw, names, of: f"({of(names)})[{draw.dim(draw.one(names))}, ::-1]",
    lambda draw, names, of: f"({of(names)}).softmax({draw.dim(draw.one(names))}).exp()",
    _element,
    _reduce,
    _reduce,
    _take,
    _ellipsis,
]


def _source() -> str:
    draw = _Draw(seed=1)
    programs = [draw.expression(draw.names()) for _ in range(COUNT)]
    typed = lambda names: f"md.Tensor[{', '.join(f'Literal[{n!r}]' for n in names) or '()'}]"
    types = {t: "md.Tensor" if t[0] == "u" else typed(t[2:]) for t in sorted(draw.tensors)}
    types |= {f"d_{n}": f"md.Dim[Literal[{n!r}]]" for n in NAMES} | {
        f"e_{n}": "md.Dim" for n in NAMES
    }
    lines = [
        "from typing import Literal, reveal_type",
        "",
        "import meshdsl as md",
        "",
        "",
        "def programs(",
    ]
    lines += [f"    {name}: {text}," for name, text in types.items()]
    lines += ["):", *(f"    reveal_type({program})" for program in programs)]
    return "\n".join(lines) + "\n"


SOURCE = _source()


def run() -> dict[int, tuple[str, object]]:
    """For each line of `SOURCE` with a program: it, and a Tensor without data or an error."""
    dims = {n: md.Dim(n, 2) for n in NAMES}
    names: dict = {"md": md} | {f"{kind}_{n}": d for n, d in dims.items() for kind in "de"}
    found = {}
    for number, line in enumerate(SOURCE.splitlines(), start=1):
        kind, _, rest = line.strip().partition("_")
        if line.startswith("    ") and ": md.Tensor" in line:
            name, chosen = f"{kind}_{rest.split(':')[0]}", [dims[n] for n in rest.split(":")[0]]
            names[name] = md.tensor(
                jnp.ones([2] * len(chosen), int if kind == "i" else float), chosen
            )
        elif "reveal_type(" in line and line.startswith("    "):
            program = line.strip().removeprefix("reveal_type(")[:-1]
            found[number] = program, _result(program, names)
    return found


def _result(program: str, names: dict):
    try:
        return jax.eval_shape(lambda: eval(program, names))
    except (md.MeshDSLError, TypeError) as error:
        return error
