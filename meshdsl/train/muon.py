"""Muon, with each matrix made orthogonal by one device: nothing is gathered that need not be.

Muon (https://kellerjordan.github.io/posts/muon/) replaces the momentum of a matrix by a nearly
orthogonal one. That takes products with the whole matrix, which a layout such as FSDP has split. To
gather all matrices on all devices would take their memory, and every device would do the same work.
But the matrices of a model are stacked, over `layers` say, and those of different layers have
nothing to do with each other. So the momentum moves from a split along the rows or columns of each
matrix to one along the stack: one all_to_all there and one back, by the law, as any other move. A
stack that does not divide is padded meanwhile. A matrix that is in no stack is gathered.

Which parameters are matrices is not guessed from their ranks: a parameter Tensor says which of its
dims it contracts (`role.ins`), so a weight that is stacked over a `layers` dim is known to be one.

The formulas are those of `optax.contrib.muon`, whose settings and state this has.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from optax.contrib import MuonDimensionNumbers, MuonState

import meshdsl as md
from meshdsl.dims import Dim
from meshdsl.layout import Layout
from meshdsl.lowering.lower import Lowered
from meshdsl.tensor import Tensor, is_tensor


def is_matrix(parameter: Tensor) -> bool:
    """Whether the parameter is one that an einsum contracts with its input."""
    return bool(parameter.role and parameter.role.ins)


def matrices(parameters: Any) -> Any:
    """A tree prefix of `parameters`: whether each Tensor is a matrix."""
    return jax.tree.map(is_matrix, parameters, is_leaf=is_tensor)


def matrix_of(parameter: Tensor) -> tuple[str, ...]:
    """The names of the dims that are rows or columns of a parameter's matrices.

    The dims that a weight contracts are its rows, the dims that it makes are its columns, and over
    all others its matrices are stacked.
    """
    assert parameter.role is not None
    return (*parameter.role.ins, *parameter.role.outs)


def numbers_of(parameter: Tensor) -> MuonDimensionNumbers:
    """The positions of rows and of columns among the dims of a parameter that is a matrix."""
    assert parameter.role is not None
    position = {dim.name: index for index, dim in enumerate(parameter.dims)}
    ins, outs = parameter.role.ins, parameter.role.outs
    return MuonDimensionNumbers(
        tuple(position[name] for name in ins), tuple(position[name] for name in outs)
    )


class Lowering(optax.GradientTransformationExtraArgs):
    """A transformation that lowers a part of its update, if it is given `lowered`.

    `update(..., lowered=f)` calls `f` with an `InStacks` and a pytree of Tensors that are split as
    the state of an optimizer is; `f` returns what the `InStacks`, lowered, makes of them.
    """


class Stack(NamedTuple):
    """What is split while whole matrices of a parameter are worked on.

    Attributes:
      dim: of the parameter, and no part of a matrix.
      over: the dim that stands for it meanwhile, with a rule of its own.
      axes: over which `over` is split.
    """

    dim: Dim
    over: Dim
    axes: tuple[str, ...]


def stack_of(x: Tensor, layout: Layout, sizes: Mapping[str, int]) -> Stack | None:
    """The largest dim that is no part of a matrix, over the axes that split it or the matrices.

    None where the layout leaves the matrices whole, or there is no such dim.
    """
    rest = layout.at_rest(x.dims, sizes, "optimizer")
    inside = [d for d in x.dims if d.name in matrix_of(x)]
    others = [d for d in x.dims if d not in inside]
    of_matrices = [axis for d in inside for axis in rest.get(d, ())]
    if not (others and of_matrices):
        return None
    dim = max(others, key=lambda d: d.size)
    axes = (*rest.get(dim, ()), *of_matrices)
    return Stack(dim, Dim("_".join([dim.name, "over", *axes]), dim.size), axes)


class InStacks(NamedTuple):
    """A function of one matrix, for the parameters of a tree, each whole on one device.

    Attributes:
      of_matrices: takes a local array and the numbers of its dims, and returns such an array.
    """

    of_matrices: Callable[[jax.Array, MuonDimensionNumbers], Any]

    def layout(self, tree: Any, layout: Layout, sizes: Mapping[str, int]) -> Layout:
        """`layout` with rules, above its own, for what is split while the function runs."""
        stacks = [stack_of(x, layout, sizes) for x in _tensors(tree)]
        axes = {s.over.name: s.axes for s in stacks if s}
        rules = [
            {"rule": f"{name} -> {', '.join(over)}", "uneven": "pad"} for name, over in axes.items()
        ]
        return replace(layout, rules=(*rules, *layout.rules), strict=False)

    def lowered(
        self,
        tree: Any,
        layout: Layout,
        mesh: Mesh,
        dims: Iterable[Dim | str],
        over: Dim | None = None,
    ) -> Lowered:
        """This function, lowered for trees such as `tree`, split as optimizer state is.

        Args:
          layout: that of one tree.
          over: a dim that the Tensors have in front, if the function is for many trees at once.
        """
        sizes = dict(mesh.shape)

        # JAX keeps the traces of a function, and each of these is for a tree of its own.
        def optimizer(tree: Any) -> Any:
            return self(tree, layout, sizes)

        inside = replace(self.layout(tree, layout, sizes), spent=frozenset())
        fn = optimizer if over is None else md.over(over, optimizer)
        return Lowered(fn, inside, mesh, dims, optimizer=(0,))

    def __call__(self, tree: Any, layout: Layout, sizes: Mapping[str, int]) -> Any:
        """What the function makes of each parameter; inside of a lowering by `self.layout`."""
        one = lambda x: self._of(x, stack_of(x, layout, sizes))
        with jax.named_scope("optimizer"):
            return jax.tree.map(one, tree, is_leaf=is_tensor)

    def of_one_device(self, tree: Any) -> Any:
        """What the function makes of each parameter, without a lowering."""
        return jax.tree.map(lambda x: self._of(x, None), tree, is_leaf=is_tensor)

    def _of(self, x: Tensor, stack: Stack | None) -> Tensor:
        moved = md.rename(_at(x, "rules"), stack.dim, stack.over) if stack else x
        numbers = numbers_of(x)

        def newton_schulz(array: jax.Array) -> Any:
            return self.of_matrices(array, numbers)

        made = md.local(newton_schulz, moved, out=moved.dims, whole=matrix_of(x))
        made = _at(made, "optimizer")
        made = md.rename(made, stack.over, stack.dim) if stack else made
        return Tensor(made.array, made.dims, x.role, made.placement)


def _at(x: Tensor, level: str) -> Tensor:
    """`x`, of which what is made is split by the layout's lists down to `level`."""
    where = x.placement
    return Tensor(x.array, x.dims, x.role, where and where._replace(level=level))


def _tensors(tree: Any) -> Iterable[Tensor]:
    return [x for x in jax.tree.leaves(tree, is_leaf=is_tensor) if is_tensor(x)]


def scale_by_muon(
    beta: float = 0.95,
    mu_dtype: Any = None,
    nesterov: bool = True,
    adaptive: bool = False,
    **of_matrices: Any,
) -> optax.GradientTransformationExtraArgs:
    """`optax.contrib.scale_by_muon` for parameter Tensors that are all matrices.

    Args:
      of_matrices: its other settings, which are about making a matrix orthogonal.
    """
    # Without momentum it only makes its argument orthogonal.
    still = {"beta": 0.0, "nesterov": False, **of_matrices}

    def orthogonal(array: jax.Array, numbers: MuonDimensionNumbers) -> Any:
        tx = optax.contrib.scale_by_muon(**still, weight_dimension_numbers=numbers)
        return tx.update(array, tx.init(array))[0]

    in_stacks = InStacks(orthogonal)
    usual = optax.contrib.scale_by_muon(beta=beta, mu_dtype=mu_dtype, **of_matrices)

    def update(updates: Any, state: Any, params: Any = None, *, lowered: Any = None, **extra: Any):
        del params, extra
        mu = optax.tree.update_moment(updates, state.mu, beta, 1)
        count = optax.safe_increment(state.count)
        if nesterov:
            ahead = optax.tree.bias_correction(mu, beta, optax.safe_increment(count))
            now = optax.tree.bias_correction(updates, beta, count)
            momentum = jax.tree.map(lambda m, g: beta * m + (1 - beta) * g, ahead, now)
        else:
            momentum = optax.tree.bias_correction(mu, beta, count)
        made = lowered(in_stacks, momentum) if lowered else in_stacks.of_one_device(momentum)
        if adaptive:
            made = jax.tree.map(lambda x, y: jnp.sum(x.conj() * y) * y, momentum, made)
        kept = optax.tree.cast(mu, mu_dtype)
        return made, MuonState(count=count, mu=kept, ns_coeffs=state.ns_coeffs)

    return optax.GradientTransformationExtraArgs(usual.init, update)


def muon(rate: Any, decay: float, decays: Callable, **settings: Any) -> Lowering:
    """`optax.contrib.muon`: matrices by muon, and all other parameters by adamw.

    Args:
      rate: the learning rate, or a schedule.
      decay: of the weights for which the tree that `decays` makes of parameters has True.
      settings: those of `optax.contrib.muon`.
    """
    given = inspect.signature(optax.contrib.muon).bind(rate, **settings)
    given.apply_defaults()
    of = given.arguments
    # Optax looks up coefficients that have a name, and checks the settings.
    with jax.ensure_compile_time_eval():
        tiny: Any = optax.contrib.muon(rate, **settings).init({"matrix": jnp.zeros((2, 2))})
        found = np.asarray(tiny.inner_states["muon"].inner_state[0].ns_coeffs)
    coefficients = tuple(map(_as_tuple, found))
    by_muon = optax.chain(
        scale_by_muon(
            of["beta"],
            of["mu_dtype"],
            of["nesterov"],
            of["adaptive"],
            ns_coeffs=coefficients,
            ns_steps=of["ns_steps"],
            eps=of["eps"],
            preconditioning=of["preconditioning"],
        ),
        optax.stateless(lambda updates, _: _scaled(updates, of["consistent_rms"])),
        optax.add_decayed_weights(decay, decays),
        optax.scale_by_learning_rate(rate),
    )
    by_adam = optax.adamw(
        rate if of["adam_learning_rate"] is None else of["adam_learning_rate"],
        b1=of["adam_b1"],
        b2=of["adam_b2"],
        eps=of["eps"],
        eps_root=of["adam_eps_root"],
        weight_decay=of["adam_weight_decay"],
        mu_dtype=of["mu_dtype"],
        nesterov=of["nesterov"],
    )
    name = lambda x: "muon" if is_matrix(x) else "adam"
    names = lambda params: jax.tree.map(name, params, is_leaf=is_tensor)
    return Lowering(*optax.partition({"muon": by_muon, "adam": by_adam}, names))


def _as_tuple(x: np.ndarray) -> Any:
    return tuple(map(_as_tuple, x)) if x.ndim else float(x)


def _scaled(updates: Any, consistent_rms: float | None) -> Any:
    """Updates of a size that suits the shape of each matrix.

    By https://arxiv.org/abs/2502.16982 with a `consistent_rms`, else by
    https://github.com/KellerJordan/Muon.
    """

    def scaled(x: Tensor) -> Tensor:
        assert x.role is not None
        size = lambda names: math.prod(d.size for d in x.dims if d.name in names)
        ins, outs = size(x.role.ins), size(x.role.outs)
        factor = max(1.0, outs / ins) if consistent_rms is None else max(ins, outs)
        return jax.tree.map(lambda a: factor**0.5 * (consistent_rms or 1.0) * a, x)

    return jax.tree.map(scaled, updates, is_leaf=is_tensor)
