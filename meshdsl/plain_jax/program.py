"""A jaxpr with its calls inlined: what names are inferred for, and what is evaluated.

Bodies of `scan`, `while`, `cond`, rematerialisation and `custom_vjp` stay programs of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex

from meshdsl.dims import Dims
from meshdsl.plain_jax.factors import Node
from meshdsl.plain_jax.source import is_library, lines_of, shown
from meshdsl.program.recorder import Lines

CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr"}
REMATERIALISED = frozenset({"checkpoint", "remat", "remat2"})


@dataclass(eq=False)
class Variable:
    """A variable of the program.

    Attributes:
      shape, dtype: of the whole array.
      nodes: for each position of the shape the dim that stands there, while names are inferred.
      dims: the same afterwards, as its factors with their names, major first.
    """

    shape: tuple[int, ...]
    dtype: Any
    nodes: tuple[Node, ...] = ()
    dims: tuple[Dims, ...] = ()

    @property
    def is_key(self) -> bool:
        """Whether it holds random keys, which are never split."""
        return bool(jnp.issubdtype(self.dtype, jax.dtypes.prng_key))

    @property
    def flat(self) -> Dims:
        """All its factors, in order."""
        return tuple(d for dims in self.dims for d in dims)


@dataclass(eq=False)
class Literal:
    """A number that stands in the program."""

    value: Any
    shape: tuple[int, ...] = ()
    nodes: tuple[Node, ...] = ()
    dims: tuple[Dims, ...] = ()
    flat: Dims = ()
    is_key: bool = False

    @property
    def dtype(self) -> Any:
        """The dtype of the number."""
        return self.value.dtype


Value = Variable | Literal


@dataclass(eq=False)
class Equation:
    """One equation.

    Attributes:
      name: that of its primitive.
      primitive: what JAX binds; None for what was recognised, such as `softmax`.
      ins, outs: what it takes and what it makes.
      params: those of the primitive.
      lines: of the user's code, the innermost first.
      bodies: the programs that it runs, see `flatten`.
      notes: what is found for its rule while names are inferred.
    """

    name: str
    primitive: Any
    ins: list[Value]
    outs: list[Variable]
    params: dict[str, Any]
    lines: Lines
    bodies: list[Program] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass(eq=False)
class Program:
    """Equations in order, with what they take and give.

    Attributes:
      constants: the arrays that the traced function has closed over, by their variables.
      remarks: what the flattening has to say to the user.
    """

    invars: list[Variable] = field(default_factory=list)
    outvars: list[Value] = field(default_factory=list)
    constants: list[tuple[Variable, Any]] = field(default_factory=list)
    equations: list[Equation] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def flatten(closed: Any, called: Callable, lines: Lines = ()) -> Program:
    """The program of a closed jaxpr.

    Args:
      called: says what an equation calls, see `calls.called`.
      lines: of the user's code, for equations that have none of their own.
    """
    program, env = Program(), {}
    for v in closed.jaxpr.invars:
        env[v] = Variable(tuple(v.aval.shape), v.aval.dtype)
        program.invars.append(env[v])
    _inline(closed, env, program, called, lines, instead=False)
    program.outvars = [_read(v, env) for v in closed.jaxpr.outvars]
    return program


def _read(v: Any, env: dict) -> Value:
    if isinstance(v, jex.Literal):
        aval: Any = v.aval
        return Literal(np.asarray(v.val).astype(aval.dtype)[()])
    return env[v]


def _inline(
    closed: Any, env: dict, program: Program, called: Callable, lines: Lines, *, instead: bool
) -> None:
    """The equations of `closed`, whose inputs are in `env`, at the end of `program`.

    Args:
      lines: for equations that have none.
      instead: the lines are those of every equation.
    """
    for v, constant in zip(closed.jaxpr.constvars, closed.consts, strict=True):
        env[v] = Variable(tuple(v.aval.shape), v.aval.dtype)
        program.constants.append((env[v], constant))
    for e in closed.jaxpr.eqns:
        found = lines if instead else lines_of(e.source_info) or lines
        ins = [_read(v, env) for v in e.invars]
        inlined, bodies, notes, remark, within = called(e, found)
        if remark:
            program.remarks.append(f"{shown(found)}: {remark}")
        if inlined is not None:
            inner = dict(zip(inlined.jaxpr.invars, ins, strict=True))
            library = instead or is_library(inlined)
            _inline(inlined, inner, program, called, found, instead=library)
            for v, w in zip(e.outvars, inlined.jaxpr.outvars, strict=True):
                env[v] = _read(w, inner)
            continue
        outs = [Variable(tuple(v.aval.shape), v.aval.dtype) for v in e.outvars]
        env.update(zip(e.outvars, outs, strict=True))
        programs = [flatten(b, within or called, found) for b in bodies]
        program.remarks += [r for p in programs for r in p.remarks]
        program.equations.append(
            Equation(
                e.primitive.name,
                e.primitive,
                ins,
                outs,
                dict(e.params),
                found,
                programs,
                dict(notes or {}),
            )
        )
