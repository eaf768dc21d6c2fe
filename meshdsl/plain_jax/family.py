"""`JaxFamily`: a family of models that are written in plain JAX, flax, equinox or haiku."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import jax

from meshdsl.dims import Dim
from meshdsl.errors import MeshDSLError, quote
from meshdsl.family import Family
from meshdsl.plain_jax.packing import packed, unpacked
from meshdsl.plain_jax.program import Variable
from meshdsl.plain_jax.public import FromJax, from_jax
from meshdsl.tensor import Tensor, is_tensor, is_value

_ROWS = 8  # of the batch for which the names of the parameters' dims are found


@dataclass(frozen=True)
class JaxFamily(Family):
    """A family of models of plain JAX: parameters as arrays, a loss of arrays, and names.

    With it `meshdsl train`, `explain`, `compile`, `search` and `compare` take a module of flax,
    equinox or haiku as it is. A family inherits from this, is a frozen dataclass like any other,
    and has `batch` as any other; `init` and `loss` follow from what is below.

        @dataclass(frozen=True)
        class Tower(md.JaxFamily):
            \"""A tower of dense layers.\"""

            task = "examples"
            names = {".*Dense_0/kernel": "features d_ff"}

            def batch(self, rows):
                vector = md.abstract((rows, md.Dim("features", 16)), jnp.float32)
                return {"vector": vector, "label": md.abstract((rows,), jnp.int32)}

            def plain_init(self, key):
                return Module().init(key, jnp.zeros((1, 16)))

            def plain_loss(self, params, batch, key):
                logits = Module().apply(params, batch["vector"])
                return softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()

    Attributes:
      names: patterns of dims by regular expressions over paths of parameters, as `md.from_jax`
        takes them. The inputs are named by the dims of `batch`.
      factors: sizes of names that stand in groups, where the code does not tell them.
      call: other names for dims that were made up, as in `{"length_2": "memory"}`.
      strict: what has no rule is an error, instead of running on whole operands.

    Each may be a property, where it follows from settings.
    """

    names: ClassVar[Mapping[str, str]] = {}
    factors: ClassVar[Mapping[str, int]] = {}
    call: ClassVar[Mapping[str, str]] = {}
    strict: ClassVar[bool] = False

    def plain_init(self, key: jax.Array) -> Any:
        """The parameters before training: a pytree of arrays, drawn with `key`."""
        raise self._lacks("plain_init")

    def plain_loss(self, params: Any, batch: dict[str, jax.Array], key: Any) -> Any:
        """The loss, as `Family.loss` returns it, with arrays for Tensors.

        Args:
          params: as `plain_init` makes them, in the dtype that the run computes in.
          batch: arrays by name, in the shapes of `batch`.
          key: a JAX PRNG key for dropout or noise; None where there is to be none.
        """
        raise self._lacks("plain_loss")

    @cached_property
    def plain(self) -> FromJax:
        """The loss as `md.from_jax` makes it: `family.plain.describe()` says what was found."""

        def loss(params, batch, key):
            return self.plain_loss(params, dict(batch), key)

        how = {"sizes": self.factors, "call": self.call, "strict": self.strict}
        made = from_jax(loss, self.names, **how)
        params = jax.eval_shape(self._arrays, jax.random.key(0))
        made.describe(params, self.batch(Dim("batch", _ROWS)), None)
        return made

    @cached_property
    def _variables(self) -> list[Variable]:
        """What stands for the parameters in the trace that says how they are packed."""
        return self.plain.variables_of_first_trace(0)

    def init(self, key: jax.Array) -> Any:
        """The parameters by the factors of their dims."""
        leaves, tree = jax.tree.flatten(self._arrays(key))
        pairs = zip(leaves, self._variables, strict=True)
        return jax.tree.unflatten(tree, [packed(x, v, parameter=True) for x, v in pairs])

    def loss(self, model: Any, batch: dict[str, Tensor], key: Any) -> Any:
        """The loss of Tensors."""
        return self.plain(model, dict(batch), key)

    def unpack(self, model: Any) -> Any:
        """Parameters, or gradients or moments of them, as arrays of their original shapes."""
        leaves, tree = jax.tree.flatten(model, is_leaf=is_tensor)
        pairs = zip(leaves, self._variables, strict=True)
        return jax.tree.unflatten(tree, [unpacked(x, v) for x, v in pairs])

    def _lacks(self, method: str) -> MeshDSLError:
        return MeshDSLError(f"{type(self).__name__} has no `{method}`; see md.JaxFamily")

    def _arrays(self, key: jax.Array) -> Any:
        params = self.plain_init(key)
        for path, leaf in jax.tree_util.tree_leaves_with_path(params):
            if not is_value(leaf) or is_tensor(leaf):
                name = jax.tree_util.keystr(path, simple=True, separator="/") or "the model"
                raise MeshDSLError(
                    f"{type(self).__name__}.plain_init: a model is made of arrays, and `{name}` is "
                    f"{quote(leaf)}; eqx.partition(module, eqx.is_array) sets the others apart"
                )
        return params
