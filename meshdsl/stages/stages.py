"""`Stages`: a model in several lowered functions, each on a mesh of its own, and its gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from meshdsl.errors import MeshDSLError, quote
from meshdsl.lowering.lower import Lowered
from meshdsl.ops.calculus import vjp
from meshdsl.ops.component import cast
from meshdsl.stages.schedule import one_forward_one_backward
from meshdsl.stages.transfer import send
from meshdsl.stages.transfers import Transfers
from meshdsl.tensor import is_tensor, tensor


class Stages:
    """A model whose stages are lowered for different meshes, in the order in which they compute.

        stages = md.Stages([md.lower(encode, FIRST, mesh), md.lower(loss, LAST, other_mesh)])
        value, gradients = stages.value_and_grad(params, microbatches)

    The first stage is a function of its parameters and its batch. Each other stage gets what the
    stage before it returned, brought to its own mesh and layout, as the second of three arguments:

        def encode(params, tokens): ...         # returns activations
        def loss(params, x, labels): ...        # the last stage returns the loss, without dims

    What goes from stage to stage is a pytree of floating-point Tensors. A batch may be any pytree,
    `None` where a stage needs none.

    Args:
      stages: what `md.lower` returns, two or more. Memory of their arguments is never donated.
      transfers: the record of what goes between the meshes; by default one of its own.

    Attributes:
      stages: the lowered functions.
      transfers: the record: its `bytes`, and its `table()`.

    Raises:
      MeshDSLError: there are fewer than two stages; one is no lowered function, or is lowered for a
        mesh without devices.
    """

    def __init__(self, stages: Sequence[Lowered], transfers: Transfers | None = None):
        self.stages, self._meshes = _checked(stages)
        self.transfers = Transfers() if transfers is None else transfers
        if not isinstance(self.transfers, Transfers):
            raise MeshDSLError(
                f"Stages: `transfers` is a record, md.Transfers(), not {quote(transfers)}"
            )
        self._forward = [stage.with_function(_itself) for stage in self.stages]
        self._backward = [stage.with_function(_backward) for stage in self.stages[:-1]]
        self._backward.append(self.stages[-1].with_function(_forward_and_backward))

    def __repr__(self):
        return f"<{len(self.stages)} stages: {', '.join(map(repr, self.stages))}>"

    def __call__(self, params: Sequence, batches: Sequence):
        """What the last stage returns for one microbatch: the loss, for instance to evaluate."""
        params, batches = self._of_each("params", params), self._of_each("batches", batches)
        x: tuple = ()
        for s, forward in enumerate(self._forward):
            y = forward(params[s], *x, self._batch(batches[s], s, 0))
            if s < len(self.stages) - 1:
                x = (self._send(y, s, s + 1)(),)
        return y

    def value_and_grad(self, params: Sequence, microbatches: Sequence[Sequence]):
        """The loss and its gradients, each stage's on its own mesh: means over the microbatches.

        Nothing here waits for a device: the passes of all stages and microbatches are begun one
        after the other, so that stages on different devices compute at the same time, one forward
        and one backward pass in turns. A stage keeps its inputs, of at most as many microbatches as
        there are stages from it on, and computes its forward pass again to go backwards.

        Args:
          params: of each stage, on its mesh, as `md.init(init, key, layout, mesh)` makes them.
          microbatches: for each microbatch the batches of all stages. Microbatches are of one size.

        Returns:
          The loss, and a tuple of the gradients of each stage, split as `md.value_and_grad` splits
          them.

        Raises:
          MeshDSLError: there is not one of everything for each stage; parameters lie on devices of
            another mesh; microbatches differ in their dims; the last stage returns no loss. Every
            error of `md.transfer` and of the stages.
        """
        params = self._of_each("params", params)
        each = [self._of_each(f"microbatch {m}", b) for m, b in enumerate(_list(microbatches))]
        self._check_params(params)
        _check_alike(each)
        last, share = len(self.stages) - 1, tensor(np.float32(1 / len(each)), ())
        sent: dict[tuple[int, int, bool], Callable[[], Any]] = {}
        arguments: dict[tuple[int, int], tuple] = {}  # of a stage, until its backward pass
        totals: list[Any] = [None] * len(self.stages)
        for stage, m, backward in one_forward_one_backward(len(self.stages), len(each)):
            key = (stage, m)
            if not backward or stage == last:
                x = (sent.pop((stage, m, False))(),) if stage else ()
                arguments[key] = (params[stage], *x, self._batch(each[m][stage], stage, m))
            if not backward:
                y = self._forward[stage](*arguments[key])
                sent[stage + 1, m, False] = self._send(y, stage, stage + 1)
                continue
            cotangent = share if stage == last else sent.pop((stage, m, True))()
            found, *of_inputs = self._backward[stage](*arguments.pop(key), cotangent)
            totals[stage] = found if m == 0 else _add(totals[stage], found)
            if of_inputs:
                sent[stage - 1, m, True] = self._send(of_inputs[0], stage, stage - 1)
        value, totals[last] = totals[last]
        return value, tuple(totals)

    def _send(self, tree, source: int, target: int) -> Callable[[], Any]:
        layout, mesh = self.stages[target].layout, self._meshes[target]
        what = "activations" if target > source else "cotangents"
        name = f"{what}, stage {source} to {target}"
        return send(tree, layout, mesh, None, name, self.transfers)

    def _batch(self, batch, stage: int, microbatch: int):
        """A batch on the mesh of its stage. It comes from the host, so it is no transfer."""
        layout, name = self.stages[stage].layout, f"stage {stage}, microbatch {microbatch}"
        return send(batch, layout, self._meshes[stage], None, name, None)()

    def _of_each(self, what: str, given) -> list:
        given = _list(given, what)
        if len(given) != len(self.stages):
            raise MeshDSLError(
                f"Stages: {what} has {len(given)} entries for {len(self.stages)} stages; give one "
                "for each stage, in their order"
            )
        return given

    def _check_params(self, params: list) -> None:
        for s, (of_stage, mesh) in enumerate(zip(params, self._meshes, strict=True)):
            devices = set(mesh.devices.flat)
            for array in jax.tree.leaves(of_stage):
                if isinstance(array, jax.Array) and array.committed and array.devices() != devices:
                    raise MeshDSLError(
                        f"Stages: parameters of stage {s} lie on other devices than its mesh; make "
                        "them there, md.init(init, key, layout, mesh), or bring them there, "
                        "md.transfer(params, layout, mesh)"
                    )


def _checked(stages) -> tuple[list[Lowered], list[Mesh]]:
    """The stages, and their meshes."""
    found, meshes = _list(stages, "the argument"), []
    for stage in found:
        if not isinstance(stage, Lowered):
            raise MeshDSLError(f"Stages: a stage is what md.lower returns, not {quote(stage)}")
        if not isinstance(stage.mesh, Mesh):
            raise MeshDSLError(
                f"Stages: `{stage.name}` is lowered for a mesh without devices; lower it for "
                "md.make_mesh(layout, devices)"
            )
        meshes.append(stage.mesh)
    if len(found) < 2:
        raise MeshDSLError(f"Stages: two stages or more, not {len(found)}; md.lower runs one alone")
    return found, meshes


def _list(given, what: str = "microbatches") -> list:
    if not isinstance(given, Sequence) or isinstance(given, str) or not given:
        raise MeshDSLError(
            f"Stages: {what} is a list or tuple with something in it, not "
            f"{'an empty one' if isinstance(given, (list, tuple)) else quote(given)}"
        )
    return list(given)


def _check_alike(microbatches: list[list]) -> None:
    """Raise a MeshDSLError unless all microbatches have the dims of the first one."""
    kinds = [
        [(x.dims if is_tensor(x) else np.shape(x)) for x in jax.tree.leaves(m, is_leaf=is_tensor)]
        for m in microbatches
    ]
    for m, kind in enumerate(kinds):
        if kind != kinds[0]:
            raise MeshDSLError(
                f"Stages: microbatch {m} has other dims than microbatch 0; microbatches are of one "
                "size, because the loss is the mean of theirs"
            )


def _itself(fn: Callable) -> Callable:
    return fn


def _backward(fn: Callable) -> Callable:
    """The backward pass of a stage: gradients of its parameters, and of what it got if it did."""

    @wraps(fn)
    def backward(params, *rest):
        *x, batch, cotangent = rest
        _, back = vjp(lambda params, *x: fn(params, *x, batch), params, *x)
        return back(cotangent)

    return backward


def _forward_and_backward(fn: Callable) -> Callable:
    """Both passes of the last stage, whose cotangent is the share of a microbatch in the mean."""

    @wraps(fn)
    def forward_and_backward(params, x, batch, share):
        def loss(params, x):
            value = fn(params, x, batch)
            if not is_tensor(value) or value.dims or not jnp.issubdtype(value.dtype, jnp.floating):
                kind = repr(value) if is_tensor(value) else quote(value)
                raise MeshDSLError(
                    "Stages: the last stage returns the loss, a floating-point Tensor without "
                    f"dims, not {kind}"
                )
            return value

        value, back = vjp(loss, params, x)
        share = cast(share, value.dtype)
        gradients, of_inputs = back(share)
        return (value * share, gradients), of_inputs

    return forward_and_backward


@jax.jit(donate_argnums=0)
def _add(total, new):
    return jax.tree.map(jnp.add, total, new)
