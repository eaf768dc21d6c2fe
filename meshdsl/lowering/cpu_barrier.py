"""How an array came about, hidden from XLA:CPU and from no other compiler.

XLA:CPU makes an array of its own of each piece that an all_to_all sends. A piece that it knows to
be all zeros, because it is padding, may get another layout in memory than the others, and then it
refuses what it made ("HLO all-to-all has operands with different shapes"). Behind an optimization
barrier it knows nothing of that kind. The compiler for TPUs keeps an all_to_all in one piece, and a
barrier would only cost it a copy.
"""

from __future__ import annotations

import jax
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

_HIDDEN = Primitive("hidden_on_cpu")
_HIDDEN.def_impl(lambda x: x)
_HIDDEN.def_abstract_eval(lambda x: x)
ad.deflinear(_HIDDEN, lambda ct: [hidden_on_cpu(ct)])
batching.defvectorized(_HIDDEN)
mlir.register_lowering(_HIDDEN, lambda ctx, x: [x])
_barrier = mlir.lower_fun(lax.optimization_barrier, multiple_results=False)
mlir.register_lowering(_HIDDEN, _barrier, platform="cpu")


def hidden_on_cpu(x) -> jax.Array:
    """`x`, and its cotangent too, of which XLA:CPU does not know how they were computed."""
    return _HIDDEN.bind(x)
