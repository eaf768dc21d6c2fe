"""Which primitives of JAX are of a kind."""

from __future__ import annotations

from typing import Any

from meshdsl.plain_jax.program import CALLS

# Each element of the results is made of the elements at the same place of the operands.
ELEMENTWISE = frozenset(
    """
    abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp
    clz complex conj convert_element_type copy copy_p cos cosh digamma div eq eq_to erf erf_inv erfc
    exp exp2 expm1 floor ge gt igamma igamma_grad_a igammac imag integer_pow is_finite le le_to
    lgamma log log1p logistic lt lt_to max min mul mulhi ne neg nextafter not or polygamma
    population_count pow real reduce_precision regularized_incomplete_beta rem round rsqrt select_n
    shift_left shift_right_arithmetic shift_right_logical sign sin sinh sqrt square stop_gradient
    sub tan tanh xor zeta
    """.split()
)
# Linear in all operands together, or in one beside a number.
LINEAR = frozenset({"add", "add_any", "sub", "neg", "copy", "copy_p"})
REDUCTIONS = frozenset(
    {"reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or"}
)
EXTREMES = frozenset({"argmax", "argmin"})
CUMULATIVE = frozenset({"cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"})
# Of sliding windows.
POOLS = frozenset(
    """reduce_window_max reduce_window_min reduce_window_sum select_and_gather_add
    select_and_scatter_add""".split()
)
# Of matrices, or of vectors, that stand in the last positions: for all in the others alike.
OF_MATRICES = frozenset(
    """cholesky cholesky_update eig eigh geqrf geqp3 hessenberg householder_product lu ormqr qr
    schur svd symmetric_product triangular_solve tridiagonal""".split()
)
OF_VECTORS = frozenset({"lu_pivots_to_permutation", "tridiagonal_solve"})
# What is done to random keys, on every device alike.
KEYS = frozenset(
    """random_wrap random_unwrap random_fold_in random_split random_seed random_clone
    threefry2x32""".split()
)


# What only gives positions another place.
MOVES = frozenset({"transpose", "broadcast_in_dim", "squeeze"})


def moved_positions(name: str, params: dict[str, Any], rank: int) -> dict[int, int]:
    """Where the positions of an operand of so many stand in the result of one of `MOVES`."""
    if name == "transpose":
        return {i: j for j, i in enumerate(params["permutation"])}
    if name == "broadcast_in_dim":
        return dict(enumerate(params["broadcast_dimensions"]))
    kept = [i for i in range(rank) if i not in params["dimensions"]]
    return {i: j for j, i in enumerate(kept)}


def is_elementwise(jaxpr: Any) -> bool:
    """Whether a jaxpr has only elementwise equations, and numbers that are broadcast."""
    for e in jaxpr.eqns:
        name = e.primitive.name
        if name in CALLS:
            if not is_elementwise(e.params[CALLS[name]].jaxpr):
                return False
        elif name == "custom_jvp_call":
            if not is_elementwise(e.params["call_jaxpr"].jaxpr):
                return False
        elif name == "broadcast_in_dim":
            if e.invars[0].aval.shape != () or len(e.invars) > 1:
                return False
        elif name not in ELEMENTWISE:
            return False
    return True
