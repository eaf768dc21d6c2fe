"""meshdsl: models with named dims, run on any mesh by the rules of a layout file.

The ops declare themselves, each beside its function in `meshdsl/ops`; see `ops/declare.py`. What
each takes and returns is in `help(meshdsl.einsum)`, and on the site that `make docs` builds.
"""

from importlib import import_module as _import_module
from importlib.metadata import version as _version

from meshdsl.checked import checked as _checked
from meshdsl.checked import hold as _hold
from meshdsl.dims import Dim
from meshdsl.errors import MeshDSLError
from meshdsl.family import Average, Family
from meshdsl.layout import Layout
from meshdsl.lowering.init import init
from meshdsl.lowering.lower import lower
from meshdsl.lowering.shardings import shardings
from meshdsl.lowering.wires import register_wire
from meshdsl.mesh import make_mesh
from meshdsl.ops import indexing as _indexing  # noqa: F401  (these three give Tensors their
from meshdsl.ops import methods as _methods  # noqa: F401  (methods and operators)
from meshdsl.ops import operators as _operators  # noqa: F401
from meshdsl.ops import random
from meshdsl.ops.families import named as _named
from meshdsl.ops.global_norm import clip_by_global_norm, global_norm
from meshdsl.ops.precision import wires as _wires  # noqa: F401  (it registers those that we have)
from meshdsl.parameters import full, normal, ones, truncated_normal, uniform, zeros
from meshdsl.program.program import Program as _Program
from meshdsl.stages.stages import Stages
from meshdsl.stages.transfer import transfer
from meshdsl.stages.transfers import Transfers
from meshdsl.tensor import Tensor, abstract, from_local, parameter, tensor

# What is imported when somebody asks for it, with the module that has it: a program that trains
# draws no page and estimates no time, so it starts without the modules that do.
_LATER = {
    "compare": "meshdsl.tools.compare",
    "compile": "meshdsl.tools.function",
    "explain": "meshdsl.tools.function",
    "JaxFamily": "meshdsl.plain_jax.family",
    "from_jax": "meshdsl.plain_jax.public",
    "ledger": "meshdsl.tools.ledger",
    "search": "meshdsl.tools.search",
    "show": "meshdsl.tools.show",
    "verify": "meshdsl.tools.function",
}
_OPS = _named()
globals().update(_OPS)

__version__ = _version("meshdsl")

__all__ = [  # pyright: ignore[reportUnsupportedDunderAll] (the ops name themselves)
    "Average",
    "Dim",
    "Family",
    "Layout",
    "MeshDSLError",
    "Stages",
    "Tensor",
    "Transfers",
    "abstract",
    "clip_by_global_norm",
    "from_local",
    "full",
    "global_norm",
    "init",
    "lower",
    "make_mesh",
    "normal",
    "ones",
    "parameter",
    "random",
    "register_wire",
    "shardings",
    "tensor",
    "transfer",
    "truncated_normal",
    "uniform",
    "zeros",
    *_LATER,
    *_OPS,
]


def _drawn(program: _Program) -> str:
    """What `explain` says of a program, as a notebook draws it."""
    return _import_module("meshdsl.tools.analysis").Explained.of(program)._repr_html_()


_Program._repr_html_ = _drawn
_hold(set(__all__) - set(_OPS) - set(_LATER), globals())


def __getattr__(name: str):
    """What is imported when it is first asked for, such as `md.explain`."""
    if name not in _LATER:
        raise AttributeError(f"module 'meshdsl' has no attribute {name!r}")
    found = getattr(_import_module(_LATER[name]), name)
    found = globals()[name] = found if isinstance(found, type) else _checked(found)
    return found
