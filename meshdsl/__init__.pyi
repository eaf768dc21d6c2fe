"""The types of what `meshdsl` exports.

The stubs beside this file, by what is in them:
  _functions: ops whose types follow from what they declare; generated.
  _overloads: ops that are typed by hand.
  _tables: the overloads that many ops share, a table for each kind of op.
  _types: the vocabulary: what a tensor, a number or a choice of dims is to a type checker.
"""

from meshdsl._functions import *
from meshdsl._overloads import *
from meshdsl.analysis.from_python import compare as compare
from meshdsl.analysis.from_python import compile as compile
from meshdsl.analysis.from_python import explain as explain
from meshdsl.analysis.search import search as search
from meshdsl.dims import Dim as Dim
from meshdsl.errors import MeshDSLError as MeshDSLError
from meshdsl.family import Average as Average
from meshdsl.family import Family as Family
from meshdsl.layout import Layout as Layout
from meshdsl.lowering.init import init as init
from meshdsl.lowering.shardings import shardings as shardings
from meshdsl.mesh import make_mesh as make_mesh
from meshdsl.ops import random as random
from meshdsl.ops.global_norm import clip_by_global_norm as clip_by_global_norm
from meshdsl.ops.global_norm import global_norm as global_norm
from meshdsl.parameters import full as full
from meshdsl.parameters import normal as normal
from meshdsl.parameters import ones as ones
from meshdsl.parameters import truncated_normal as truncated_normal
from meshdsl.parameters import uniform as uniform
from meshdsl.parameters import zeros as zeros
from meshdsl.plain_jax import JaxFamily as JaxFamily
from meshdsl.plain_jax import from_jax as from_jax
from meshdsl.report.show import show as show
from meshdsl.stages.stages import Stages as Stages
from meshdsl.stages.transfer import transfer as transfer
from meshdsl.stages.transfers import Transfers as Transfers
from meshdsl.tensor import Tensor as Tensor
from meshdsl.tensor import abstract as abstract
from meshdsl.tensor import from_local as from_local
from meshdsl.tensor import parameter as parameter
from meshdsl.tensor import tensor as tensor

__all__: list[str]
__version__: str
