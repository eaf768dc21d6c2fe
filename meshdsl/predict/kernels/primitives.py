"""Families of JAX primitives, as XLA's fusion treats them on a TPU."""

from __future__ import annotations


def names(text: str) -> frozenset[str]:
    """The words of `text` as a set."""
    return frozenset(text.split())


ELEMENTWISE = names("""
    abs acos acosh add add_any and asin asinh atan atan2 atanh axis_index broadcast_in_dim cbrt ceil
    clamp clz complex concatenate conj convert_element_type copy cos cosh digamma div dynamic_slice
    eq erf erf_inv erfc exp exp2 expm1 floor ge gt imag integer_pow iota is_finite le lgamma log
    log1p logistic lt max min mul ne neg nextafter not or pad population_count pow random_bits
    random_fold_in random_split random_seed real reduce_precision rem rev round rsqrt select_n
    shift_left shift_right_arithmetic shift_right_logical sign sin sinh slice split sqrt square sub
    tan tanh threefry2x32 xor
""")
REDUCTIONS = names("""
    reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or reduce_xor argmax argmin
""")
PRODUCTS = names("dot_general conv_general_dilated")
FUSED = "local_kernel"  # a fused kernel, written by hand
FILL = "fill"  # a kernel that fills an array with zeros
ROUND = "reduce_precision"  # what makes the arrays that a policy keeps for the backward pass
TAKE = "take_slice"  # a kernel that copies the slice of a stack that a turn of a loop reads

# Element-wise, but an element of the result does not stand where its operand stood.
REORDERS = names("concatenate dynamic_slice pad rev slice split")

# They change a part of their first operand, in its memory.
IN_PLACE = names("""
    dynamic_update_slice scatter scatter-add scatter_add scatter_mul scatter_min scatter_max
""")

# They read only a part of their first operand.
PARTIAL_READS = names("dynamic_slice gather slice")

# Element-wise, and so much work for each element that computing them twice does not pay.
COSTLY = names("""
    acos acosh asin asinh atan atan2 atanh cbrt cos cosh digamma erf erf_inv erfc exp exp2 expm1
    lgamma log log1p logistic pow random_bits sin sinh tan tanh threefry2x32
""")

# They move elements about and compute nothing.
MOVES = names("""
    broadcast_in_dim concatenate convert_element_type copy dynamic_slice dynamic_update_slice gather
    iota optimization_barrier pad reduce_precision rev select_n slice split
""")
