"""meshdsl: models with named dims, run on any mesh by the rules of a layout file."""

from meshdsl.dims import Dim
from meshdsl.errors import MeshDSLError
from meshdsl.layout import Layout
from meshdsl.lowering.grad import value_and_grad
from meshdsl.lowering.spmd import lower, shardings
from meshdsl.mesh import make_mesh
from meshdsl.ops import random
from meshdsl.ops.component import FUNCTIONS as _FUNCTIONS
from meshdsl.ops.component import cast, map, stop_gradient
from meshdsl.ops.control import checkpoint, cond, scan
from meshdsl.ops.einsum import einsum
from meshdsl.ops.index import concat, cumsum, iota, one_hot, pad, slice, split, take
from meshdsl.ops.local import local
from meshdsl.ops.placement import replicate, reshard
from meshdsl.ops.random import dropout
from meshdsl.ops.reduce import (
    all,
    any,
    argmax,
    argmin,
    log_softmax,
    logsumexp,
    max,
    mean,
    min,
    prod,
    softmax,
    sum,
    var,
)
from meshdsl.ops.reshape import broadcast, rename, reshape, transpose
from meshdsl.tensor import Tensor, from_local, parameter, tensor

globals().update(_FUNCTIONS)

__all__ = [
    "Dim", "Layout", "MeshDSLError", "Tensor", "all", "any", "argmax", "argmin", "broadcast", "cast", "checkpoint",
    "concat", "cond", "cumsum", "dropout", "einsum", "from_local", "iota", "local", "log_softmax", "logsumexp", "lower",
    "make_mesh", "map", "max", "mean", "min", "one_hot", "pad", "parameter", "prod", "random", "rename", "replicate", "reshape", "reshard",
    "scan", "shardings", "slice", "softmax", "split", "stop_gradient", "sum", "take", "tensor", "transpose",
    "value_and_grad", "var", *_FUNCTIONS,
]  # fmt: skip
