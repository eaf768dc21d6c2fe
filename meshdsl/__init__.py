"""meshdsl: models with named dims, run on any mesh by the rules of a layout file.

The ops declare themselves, each beside its function in `meshdsl/ops`; see `ops/declare.py`. What
each takes and returns is in `help(meshdsl.einsum)`; all public names are in docs/api.md.
"""

from importlib.metadata import version as _version

from meshdsl.checked import hold as _hold
from meshdsl.dims import Dim
from meshdsl.errors import MeshDSLError
from meshdsl.family import Average, Family
from meshdsl.later import compare, compile, explain, show
from meshdsl.layout import Layout
from meshdsl.lowering.init import init
from meshdsl.lowering.lower import lower
from meshdsl.lowering.shardings import shardings
from meshdsl.mesh import make_mesh
from meshdsl.ops import operators as _operators  # noqa: F401  (gives Tensors their operators)
from meshdsl.ops import random
from meshdsl.ops.families import named as _named
from meshdsl.tensor import Tensor, abstract, from_local, parameter, tensor

_OPS = _named()
globals().update(_OPS)

__version__ = _version("meshdsl")

__all__ = [  # pyright: ignore[reportUnsupportedDunderAll] (the ops name themselves)
    "Average",
    "Dim",
    "Family",
    "Layout",
    "MeshDSLError",
    "Tensor",
    "abstract",
    "compare",
    "compile",
    "explain",
    "from_local",
    "init",
    "lower",
    "make_mesh",
    "parameter",
    "random",
    "shardings",
    "show",
    "tensor",
    *_OPS,
]

_hold(set(__all__) - set(_OPS), globals())
