"""meshdsl: models with named dims, run on any mesh by the rules of a layout file."""

from importlib.metadata import version as _version

from meshdsl.checked import hold as _hold
from meshdsl.dims import Dim
from meshdsl.errors import MeshDSLError
from meshdsl.layout import Layout
from meshdsl.lowering.gradients import value_and_grad
from meshdsl.lowering.lower import lower
from meshdsl.lowering.shardings import shardings
from meshdsl.mesh import make_mesh
from meshdsl.ops import operators as _operators
from meshdsl.ops import random
from meshdsl.ops.branch import cond, switch
from meshdsl.ops.calculus import hvp, jvp, vjp
from meshdsl.ops.checkpoint import checkpoint, checkpoint_name
from meshdsl.ops.component import cast, map, stop_gradient
from meshdsl.ops.conv import conv, conv_transpose
from meshdsl.ops.cumulative import cumlogsumexp, cummax, cummin, cumprod, cumsum
from meshdsl.ops.custom_gradient import custom_gradient
from meshdsl.ops.distributions import dropout
from meshdsl.ops.einsum import einsum
from meshdsl.ops.functions import FUNCTIONS as _FUNCTIONS
from meshdsl.ops.index import iota, one_hot, take
from meshdsl.ops.local import local
from meshdsl.ops.loops import map_over, while_loop
from meshdsl.ops.over import over
from meshdsl.ops.placement import replicate, reshard
from meshdsl.ops.pool import max_pool, mean_pool
from meshdsl.ops.reduce import (
    all,
    any,
    argmax,
    argmin,
    count_nonzero,
    log_softmax,
    logsumexp,
    max,
    mean,
    min,
    norm,
    prod,
    softmax,
    std,
    sum,
    var,
)
from meshdsl.ops.reshape import broadcast, rename, reshape, transpose
from meshdsl.ops.scan import scan
from meshdsl.ops.scatter import bincount, scatter, segment_sum
from meshdsl.ops.shift import flip, roll, shift
from meshdsl.ops.slicing import concat, pad, slice, split, stack, unstack
from meshdsl.ops.sorting import argsort, nth_largest, nth_smallest, searchsorted, sort, top_k
from meshdsl.ops.triangle import diagonal, eye, tril, triu
from meshdsl.report.show import show
from meshdsl.tensor import Tensor, from_local, parameter, tensor

globals().update(_FUNCTIONS)

__version__ = _version("meshdsl")

__all__ = [
    "Dim", "Layout", "MeshDSLError", "Tensor", "all", "any", "argmax", "argmin", "argsort", "bincount", "broadcast", "cast",
    "checkpoint", "checkpoint_name", "concat", "cond", "conv", "conv_transpose", "count_nonzero", "cumlogsumexp", "cummax", "cummin", "cumprod",
    "cumsum", "custom_gradient", "diagonal", "dropout", "einsum", "eye", "flip", "from_local", "hvp", "iota", "jvp", "local",
    "log_softmax", "logsumexp", "lower", "make_mesh", "map", "map_over", "max", "max_pool", "mean", "mean_pool", "min", "norm",
    "nth_largest", "nth_smallest", "one_hot", "over", "pad", "parameter", "prod", "random", "rename", "replicate", "reshape",
    "reshard", "roll", "scan", "scatter", "searchsorted", "segment_sum", "shardings", "shift", "show", "slice", "softmax", "sort", "split",
    "stack", "std", "stop_gradient", "sum", "switch", "take", "tensor", "top_k", "transpose", "tril", "triu", "unstack",
    "value_and_grad", "var", "vjp", "while_loop", *_FUNCTIONS,
]  # fmt: skip

_hold(set(__all__) - set(_FUNCTIONS), globals())
