"""The names of HLO's instructions, but for `-start`, `-update` and `-done` of asynchronous ones.

The list is that of XLA's `hlo_opcode.h`. An instruction that is none of these has a meaning, and a
time, that are not known here.
"""

_NAMES = """
    abs acos acosh add add-dependency after-all all-gather all-reduce all-to-all and asin asinh atan
    atan2 atanh batch-norm-grad batch-norm-inference batch-norm-training bitcast bitcast-convert
    broadcast call cbrt ceil cholesky clamp collective-broadcast collective-permute compare complex
    concatenate conditional constant convert convolution copy cosh cosine count-leading-zeros
    custom-call divide domain dot dynamic-reshape dynamic-slice dynamic-update-slice erf
    exponential exponential-minus-one fft floor fusion gather get-dimension-size get-tuple-element
    imag infeed iota is-finite log log-plus-one logistic map maximum minimum multiply negate not
    opt-barrier optimization-barrier or outfeed pad parameter partition-id popcnt power
    ragged-all-to-all ragged-dot real recv reduce reduce-precision reduce-scatter reduce-window
    remainder replica-id reshape reverse rng rng-bit-generator rng-get-and-update-state
    round-nearest-afz round-nearest-even rsqrt scaled-dot scan scatter select select-and-scatter
    send set-dimension-size shift-left shift-right-arithmetic shift-right-logical sign sine sinh
    slice sort sqrt stochastic-convert subtract tan tanh topk transpose triangular-solve tuple
    while xor
"""
OPCODES = frozenset(_NAMES.split())
