"""Adapters: parameters of low rank that are trained beside frozen ones (Hu et al., 2021, "LoRA").

A matrix that contracts the dims `ins` and makes the dims `outs` gets two parameters: `a`, with
`ins` and a dim `rank`, and `b`, with `rank` and `outs`. Dims that count copies of the matrix, as
the `layers` of a stack, both have. The law splits them as it splits any others. `b` begins with
zeros, so the first loss is that of the model without adapters.

The adapters of a model are a dict that a checkpoint holds under `adapters`:

    {"a": {name: Tensor}, "b": {name: Tensor}, "scale": the number that their products are times}
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import chain
from typing import Any

import jax
import jax.numpy as jnp
from flax.struct import PyTreeNode

import meshdsl as md
from meshdsl.dims import Dim, show
from meshdsl.errors import MeshDSLError
from meshdsl.ops.low_rank import LowRank
from meshdsl.tensor import Parameter, Tensor, is_tensor
from meshdsl.train.config import Lora
from meshdsl.train.trained import matched, name_at, parameters_by_name, together

RANK = "rank"


class Trained(PyTreeNode):
    """What is trained where there are adapters: some of the parameters, and the adapters' two."""

    params: Any
    a: dict[str, Tensor]
    b: dict[str, Tensor]


class Frozen(PyTreeNode):
    """The rest of the model and of the adapters, which is not trained."""

    params: Any
    scale: Any


def adapted_names(lora: Lora, model: Any) -> frozenset[str]:
    """The names of the parameters of `model` that get an adapter.

    Raises:
      MeshDSLError: a pattern matches nothing, or a parameter that is no matrix; or the model has a
        dim that is called `rank`.
    """
    parameters = parameters_by_name(model)
    found = matched(lora.parameters, parameters, "lora.parameters")
    for name in sorted(found):
        parameter = parameters[name]
        if not (parameter.role and parameter.role.ins and parameter.role.outs):
            raise MeshDSLError(
                f"lora.parameters: `{name}` {show(parameter.dims)} is no matrix: it does not say "
                "which dims it contracts, as md.parameter(..., ins=...) does"
            )
    if any(dim.name == RANK for each in parameters.values() for dim in each.dims):
        raise MeshDSLError("lora: the model has a dim `rank` of its own; give that another name")
    return found


def first_adapters(lora: Lora, names: Iterable[str], model: Any, key: Any) -> dict[str, Any]:
    """The adapters before training, of the parameters that are called so.

    Args:
      key: of the draws. What is drawn for a parameter depends on its name, and not on the others.
    """
    rank, parameters = Dim(RANK, lora.rank), parameters_by_name(model)
    first, second = {}, {}
    for name in sorted(names):
        weight = parameters[name]
        role: Any = weight.role
        copies = [d for d in weight.dims if d.name not in (*role.ins, *role.outs)]
        ins = [d for d in weight.dims if d.name in role.ins]
        outs = [d for d in weight.dims if d.name in role.outs]
        drawn = jax.random.fold_in(key, zlib.crc32(name.encode()))
        a = md.normal(drawn, (*copies, *ins, rank), ins=ins)
        b = md.zeros((*copies, rank, *outs), ins=rank)
        a.role = Parameter(tuple(d.name for d in ins), (RANK,))
        b.role = Parameter((RANK,), tuple(d.name for d in outs))
        first[name], second[name] = a, b
    return {"a": first, "b": second, "scale": jnp.asarray(lora.alpha / lora.rank, jnp.float32)}


def adapted(model: Any, adapters: Mapping[str, Any]) -> Any:
    """`model`, whose weights compute with their adapters beside them."""
    scale = Tensor(adapters["scale"], ())

    def with_adapter(path: tuple, weight: Tensor) -> Any:
        name = name_at(path)
        if name not in adapters["a"]:
            return weight
        b = adapters["b"][name]
        return LowRank(weight, adapters["a"][name], b * md.cast(scale, b.dtype))

    return jax.tree_util.tree_map_with_path(with_adapter, model, is_leaf=is_tensor)


def merged(model: Any, adapters: Mapping[str, Any] | None) -> Any:
    """`model` with the adapters added to its weights; each stays split as it is."""
    if adapters is None:
        return model

    def with_adapter(path: tuple, weight: Tensor) -> Tensor:
        name = name_at(path)
        if name not in adapters["a"]:
            return weight
        a, b = adapters["a"][name], adapters["b"][name]
        dims = [[d.name for d in t.dims] for t in (weight, a, b)]
        return weight.replace(
            array=merged_array(weight.array, a.array, b.array, adapters["scale"], dims)
        )

    return jax.tree_util.tree_map_with_path(with_adapter, model, is_leaf=is_tensor)


def merged_array(weight: Any, a: Any, b: Any, scale: Any, names: list[list[str]]) -> jax.Array:
    """`weight + scale * a b`, split as `weight` is and in its dtype.

    Args:
      names: of the dims of each of the three.
    """
    number = {name: i for i, name in enumerate(dict.fromkeys(chain(*names)))}
    of_weight, of_a, of_b = (tuple(number[name] for name in each) for each in names)
    add = partial(_added, of=(of_weight, of_a, of_b))
    return jax.jit(add, out_shardings=weight.sharding)(weight, a, b, scale)


def _added(weight: Any, a: Any, b: Any, scale: Any, of: tuple) -> jax.Array:
    wide = [x.astype(jnp.float32) for x in (weight, a, b)]
    product = jnp.einsum(
        wide[1], list(of[1]), wide[2], list(of[2]), list(of[0]), precision="highest"
    )
    return (wide[0] + scale * product).astype(weight.dtype)


def whole_model(trained: Any, frozen: Any = None) -> Any:
    """The model that the loss function gets, of the parts that a step takes it to."""
    if frozen is None:
        return trained
    if isinstance(trained, Trained):
        model = together(trained.params, frozen.params)
        return adapted(model, {"a": trained.a, "b": trained.b, "scale": frozen.scale})
    return together(trained, frozen)
