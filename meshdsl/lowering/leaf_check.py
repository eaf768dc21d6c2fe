"""What a program does with arrays that JAX took out of Tensors, and what would be wrong of a part.

`jax.tree.map` and optax get the arrays that one device has. What treats each element by itself is
right for parts as for wholes. A sum, a norm, a matrix product or a draw is not: each device would
take that of its own part, without a word. Programs are searched for those before they run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

import jax
from jax.extend.core import Literal

from meshdsl.errors import MeshDSLError
from meshdsl.program.collective import live_axes
from meshdsl.program.jaxpr import body_of, sub_jaxprs
from meshdsl.program.recorder import tag_in

_OF_MANY = ("reduce_", "arg", "cum", "dot_general", "conv_general", "ragged_dot", "fft", "sort")
_OF_MATRICES = ("cholesky", "eig", "eigh", "lu", "qr", "svd", "schur", "triangular_solve", "top_k")
# Called like reductions, but one treats each element, and the other is an explicit collective.
_NEITHER = ("reduce_precision", "reduce_scatter")
_DRAWS = ("random_bits", "rng_bit_generator", "rng_uniform")
_INSTALLED = os.path.dirname(os.path.dirname(jax.__file__))
_OURS = os.path.dirname(os.path.dirname(__file__))


def check_parts(closed_jaxpr, sizes: Mapping[str, int], name: str) -> None:
    """Raise a MeshDSLError where `name` sums, multiplies or draws for a part of a Tensor.

    What an op of the language does carries the tag of that op, and is right.
    """
    found = next(_wrong(body_of(closed_jaxpr), sizes, {}), None)
    if found is not None:
        raise MeshDSLError(
            f"{name}: {found} works on one device's part of an array that jax.tree.map or optax "
            "took out of a Tensor; inside a lowering only what treats each element by itself is "
            "right there. Take sums and norms of whole Tensors (md.sum, md.global_norm), or run "
            "the optimizer outside of the lowering, on whole arrays"
        )


def _wrong(jaxpr, sizes: Mapping[str, int], draws: dict[int, bool]) -> Iterator[str]:
    """What is wrong of the equations of a jaxpr; `draws` has what is known, see `_draws`."""
    equal: set = set()  # variables that hold draws, the same ones on all devices
    for eqn in jaxpr.eqns:
        if tag_in(str(eqn.source_info.name_stack)):
            continue
        inner = list(sub_jaxprs(eqn.params))
        for sub in inner:
            yield from _wrong(sub, sizes, draws)
        varies = any(_varies(v, sizes) for v in (*eqn.invars, *eqn.outvars))
        if varies and not inner and _mixes_elements(eqn.primitive.name):
            yield f"`{eqn.primitive.name}`{_line(eqn)}"
        if _draws(eqn, draws) or any(v in equal for v in eqn.invars if not isinstance(v, Literal)):
            if varies:
                yield f"a random draw{_line(eqn)}"
            equal.update(v for v in eqn.outvars if v.aval.shape)


def _mixes_elements(primitive: str) -> bool:
    named = primitive.startswith(_OF_MANY) or primitive in _OF_MATRICES
    return named and primitive not in _NEITHER


def _draws(eqn, known: dict[int, bool]) -> bool:
    """Whether an equation draws, or one inside of it; `known` has the answers, by identity."""
    if id(eqn) not in known:
        inner = (e for sub in sub_jaxprs(eqn.params) for e in sub.eqns)
        known[id(eqn)] = eqn.primitive.name in _DRAWS or any(_draws(e, known) for e in inner)
    return known[id(eqn)]


def _varies(variable, sizes: Mapping[str, int]) -> bool:
    types = getattr(variable.aval, "manual_axis_type", None)
    return types is not None and bool(live_axes(tuple(types.varying), sizes))


def _line(eqn) -> str:
    """` (train.py:12)`: where the user's code asked for it; empty where that is not known."""
    traceback = eqn.source_info.traceback
    for frame in traceback.frames if traceback else ():
        file = frame.file_name
        if not file.startswith((_INSTALLED, _OURS, "<")) and os.sep in file:
            return f" ({os.path.basename(file)}:{frame.line_num})"
    return ""
