"""Ops as methods of Tensors: `x.sum(d)` is `md.sum(x, d)`.

Importing this file gives them to the class `Tensor`. A method is the op itself, with the Tensor as
its first argument, so it has the op's arguments, errors and help. `x.split` is no method: it tells
how a Tensor is split.
"""

from __future__ import annotations

from meshdsl.ops.families import named
from meshdsl.tensor import Tensor

METHODS = """
    abs all any argmax argmin argsort broadcast cast clip cummax cumprod cumsum dot exp flip gelu
    log log_softmax logsumexp max mean min norm pad prod relu rename reshape roll round rsqrt shift
    sigmoid sign silu slice softmax sort sqrt square std stop_gradient sum take tanh top_k
    transpose unstack var
""".split()

_OPS = named()
for _name in METHODS:
    assert not hasattr(Tensor, _name), _name
    setattr(Tensor, _name, _OPS[_name])
