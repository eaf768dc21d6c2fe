"""Gradients: JAX differentiates the lowered program, and this file decides where it sums.

A parameter that several ops use is, by its type, equal on all devices, so JAX would sum its
gradient over the devices at every use: in a scan over layers, once for each layer and microbatch.
Instead the parameter is made to vary, before differentiation, over the axes over which *all* of its
uses vary. Its gradient then comes out as one pending sum, which the law settles once: a psum, or a
psum_scatter where the layout splits optimizer state (ZeRO-1).

Under `sum = "layer"` of a layout the parameter is made to vary only over the axes of such a
psum_scatter. Over the others JAX does sum at every use, while the rest of the backward pass runs.

Over which axes the uses of a parameter vary is known only when the function has been traced. So the
function is traced to a jaxpr with a guess: that all uses vary over the axes that split the data of
the program. JAX differentiates this jaxpr. Only where the guess was wrong, the function is traced
again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from meshdsl import dims as dim_algebra
from meshdsl.dims import Dim
from meshdsl.lowering import collectives, early, repeats, resharding, wires
from meshdsl.lowering import gradient_checks as checks
from meshdsl.lowering.carried import carried, uncarried
from meshdsl.lowering.gradient_sums import gradient, gradient_of_rest
from meshdsl.lowering.parameter_copies import to_differentiate_by
from meshdsl.lowering.scope import Scope, WrongGuess, common, copy_of, with_copy
from meshdsl.program.recorder import next_op_number
from meshdsl.tensor import Tensor, is_tensor

_WIRE = "value_and_grad: wire"


def value_and_grad(
    fn: Callable,
    *,
    has_aux: bool = False,
    accumulate: Dim | str | None = None,
    compute=None,
    reduce=None,
    wire: Mapping[str, str] | None = None,
) -> Callable:
    """A function that returns the value of `fn` and its gradient by the first argument.

    `fn` is traced once, unless a parameter does not vary over the axes that split the data: because
    it stands in a penalty of its own, is the carry of a loop, or is not used at all. Then `fn` is
    traced once or twice more, and what it prints is printed again.

    Args:
      fn: called with a pytree of Tensors and any other arguments; returns a Tensor without dims,
        and with `has_aux` also a pytree of Tensors.
      accumulate: a dim of microbatches, or its name. Every Tensor among the other arguments that
        has it is cut along it, the gradients of the cuts are averaged, and only the average is
        summed over devices: one reduction per step for parameters that are not split. Value and
        auxiliary results are averaged too.
      compute: the dtype in which `fn` gets the first argument, and in which it is gathered where it
        is split; by default its own.
      reduce: the dtype in which gradients travel and are summed over devices; by default that of
        the first argument. Over microbatches they are summed in the latter.
      wire: axes of the mesh over which gradients of two or more dims are summed in few bits, each
        with the format in which they are sent: "int8", "fp8", "bfloat16", or one of
        `register_wire`. Such a sum is rounded, by the values of devices along this axis; so
        gradients depend on the size of the axis. Outside of a lowering nothing is sent.

    Returns:
      A function of the same arguments, giving `(value, gradients)` or `((value, aux), gradients)`.
      Gradients have the dims and dtypes of the parameters and, in a lowering, the layout's split
      for optimizer state (`rules` and all lists below it). What `aux` has is no gradient: it is
      split as a value, or as a parameter where it comes from parameters alone.

    Raises:
      MeshDSLError: the value has dims or is no real floating-point number, `accumulate` is empty or
        not a dim of any argument, or a dtype is no floating-point one; `wire` has an axis that the
        mesh lacks, or over which no gradient is summed, or an unknown format.
    """
    how = {"compute": compute, "reduce": reduce, "wire": wire}
    run = value_and_grad_of_rest(fn, has_aux=has_aux, accumulate=accumulate, **how)

    def value_and_gradients(params, *args):
        value, gradients, _ = run(params, {}, *args)
        return value, gradients

    return value_and_gradients


def value_and_grad_of_rest(fn: Callable, *, has_aux, accumulate, compute, reduce, wire) -> Callable:
    """As `value_and_grad`, with what sums in few bits have dropped given and returned.

    Returns:
      A function of the first argument, of what earlier sums have dropped, and of the other
      arguments. It returns the value, the gradients, and what is dropped then. What is dropped is a
      dict by the number of the parameter: a Tensor with the dims of the parameter behind one for
      the devices along the axis, whose part each device adds to its term of the gradient. What of a
      parameter without one is dropped is lost.
    """
    compute, reduce = checks.floating("compute", compute), checks.floating("reduce", reduce)
    wires.wired(_WIRE, wire)

    def value_and_gradients(params, dropped, *args):
        tensors, tree = checks.parameters(params)
        inputs = [x for x in jax.tree.leaves(args, is_leaf=is_tensor) if is_tensor(x)]
        scope = common("value_and_grad", [*tensors, *inputs])
        turns = checks.microbatches(accumulate, inputs)

        def body(tensors, args):
            params = jax.tree.unflatten(tree, tensors)
            value, aux = checks.value_and_aux(fn(params, *args), has_aux)
            aux, value = _settled((aux, value))
            return carried((value, aux))

        if scope is None:
            run, arrays = _cast_first(body, tensors, compute), [t.stored for t in tensors]
            (value, aux), grads = _differentiated(run, arrays, args, turns)
        else:
            lossy = wires.wired(_WIRE, wire, scope.sizes)
            tensors = [_entered(t, scope, compute, reduce, lossy) for t in tensors]
            args = _whole_along(args, turns, scope)
            cut = _element(args, turns, 0)
            run, tensors, uses = traced(body, tensors, scope, cut, turns, loss=True)
            arrays = [t.stored for t in tensors]
            (value, aux), grads = _differentiated(run, arrays, args, turns)
        grads = [
            Tensor(g, t.dims, t.role, t.placement) for g, t in zip(grads, tensors, strict=True)
        ]
        if scope is not None:
            dropped = dict(dropped)
            for i, (g, axes) in enumerate(zip(grads, uses, strict=True)):
                if i in dropped:
                    grads[i], dropped[i] = gradient_of_rest(g, axes, dropped[i])
                else:
                    grads[i] = gradient(g, axes)
            wires.check_summed(_WIRE, lossy, scope.lossy)
        return ((value, aux) if has_aux else value), jax.tree.unflatten(tree, grads), dropped

    return value_and_gradients


def traced(
    body: Callable,
    tensors: Sequence[Tensor],
    scope: Scope,
    inputs=(),
    repeated: Dim | None = None,
    *,
    loss: bool = False,
):
    """`body`, traced once, as a function that JAX differentiates.

    Args:
      body: called with `tensors` and `inputs`; returns a pytree without Tensors.
      inputs: a pytree of Tensors and anything else.
      repeated: a dim over whose elements the function will run, for the record.
      loss: whether the function is differentiated by its first result alone, a number. Then a scan
        of it may be an early pipeline, see `early`.

    Returns:
      Three things: a function of the arrays of `tensors` and of inputs with the structure of
      `inputs`; `tensors`, each made to vary over the axes over which all of its uses vary; and
      for each of them those axes.
    """
    at_once = [_summed_at_once(t, scope, repeated) for t in tensors]
    guess = [
        scope.in_mesh_order((scope.data_axes - _own_axes(t)) & axes)
        for t, axes in zip(tensors, at_once, strict=True)
    ]
    none = [()] * len(tensors)
    while True:
        first = next_op_number()
        try:
            run, varying, uses = _traced_as(body, tensors, guess, scope, inputs, repeated, loss)
        except WrongGuess:
            if guess == none:  # the wrong guess is that of an outer `value_and_grad`
                raise
            uses = none
        else:
            uses = [
                scope.in_mesh_order(axes.intersection(found))
                for found, axes in zip(uses, at_once, strict=True)
            ]
            if uses == guess:
                return run, varying, uses
        scope.recorder.forget(first)
        guess = uses


def _traced_as(body, tensors, guess, scope: Scope, inputs, repeated: Dim | None, loss: bool):
    """As `traced`, with `tensors` made to vary over the axes `guess`.

    The third result is the axes that were found, which may be others.
    """
    varying = [varied(t, axes, scope) for t, axes in zip(tensors, guess, strict=True)]
    numbers = [next(scope.origins) for _ in tensors]
    scope.guesses |= dict(zip(numbers, map(frozenset, guess), strict=True))
    arrays_of_inputs, inputs_of = _taken_apart(carried(inputs))
    result_of = inputs_of  # replaced once `body` has run, and the structure of its result is known
    rest = early.Rest(scope)

    def numbered(arrays) -> list[Tensor]:
        """The tensors with these arrays, each with the number under which its uses are noted."""
        by_arrays = []
        for t, array, number in zip(varying, arrays, numbers, strict=True):
            placement = t.placement._replace(origin=t.placement.origin | {number})
            by_arrays.append(with_copy(Tensor(array, t.dims, t.role, placement), copy_of(t)))
        return by_arrays

    def of_arrays(arrays, arrays_of_inputs):
        nonlocal result_of, rest
        with early.following(scope, loss and not scope.turns) as rest:
            result = body(numbered(arrays), uncarried(inputs_of(arrays_of_inputs)))
            arrays_of_result, result_of = _taken_apart(rest.ended(result))
        return arrays_of_result

    given = [t.stored for t in varying]
    with scope.recorder.repeated(repeated.name, repeated.size) if repeated else nullcontext():
        closed = jax.make_jaxpr(of_arrays)(given, arrays_of_inputs)
    if rest.axis:
        evaluate = early.differentiable(closed, rest.kinds, len(given))
    else:
        evaluate = repeats.shared(closed)

    def run(arrays, inputs=()):
        return result_of(evaluate(*arrays, *_taken_apart(carried(inputs))[0]))

    uses = [
        scope.in_mesh_order(scope.uses.get(number, frozenset()) - _own_axes(t))
        for number, t in zip(numbers, tensors, strict=True)
    ]
    return run, varying, uses


def _taken_apart(tree) -> tuple[list, Callable]:
    """The arrays of a tree, and a function that puts the tree together again from such arrays.

    Leaves that are not arrays, which JAX cannot trace, are kept in the function.
    """
    leaves, structure = jax.tree.flatten(tree)
    arrays = [isinstance(x, (jax.Array, np.ndarray, np.generic)) for x in leaves]

    def put_together(given):
        given = iter(given)
        every = [next(given) if array else x for x, array in zip(leaves, arrays, strict=True)]
        return jax.tree.unflatten(structure, every)

    return [x for x, array in zip(leaves, arrays, strict=True) if array], put_together


def _summed_at_once(t: Tensor, scope: Scope, repeated: Dim | None) -> frozenset[str]:
    """The axes over which the gradient of `t` is summed once, after the backward pass."""
    if scope.layout.sum == "step" or repeated is not None:
        return scope.of_mesh(scope.sizes)
    return frozenset().union(*scope.at_rest(t.dims, "optimizer"))


def _own_axes(t: Tensor) -> frozenset[str]:
    """The axes over which no use of `t` counts as varying: those that split `t`, and spent ones."""
    scope = t.placement.scope
    return scope.spent.union(*t.placement.axes)


def _cast_first(body: Callable, tensors: Sequence[Tensor], compute) -> Callable:
    """Outside of a lowering: `body` as a function of arrays, cast to the dtype `compute`."""

    def run(arrays, inputs):
        cast = arrays if compute is None else [a.astype(compute) for a in arrays]
        return body([t.replace(array=a) for t, a in zip(tensors, cast, strict=True)], inputs)

    return run


def _differentiated(run: Callable, arrays: list, args, accumulate: Dim | None):
    """What `run` returns, and the gradient of its value by `arrays`; averaged over `accumulate`."""

    def value(arrays, args):
        out = run(arrays, args)
        return out[0].tensor.array, out

    with_gradient = jax.value_and_grad(value, has_aux=True)
    if accumulate is None:
        (_, out), grads = with_gradient(arrays, args)
        return uncarried(out), grads

    def add_turn(total, index):
        (_, out), grads = with_gradient(arrays, _element(args, accumulate, index))
        return jax.tree.map(jnp.add, total, grads), out

    # Each device adds up its own terms; nothing is summed over devices before the last microbatch.
    zeros = [collectives.vary(jnp.zeros_like(a), collectives.varying(a)) for a in arrays]
    total, outs = lax.scan(add_turn, zeros, jnp.arange(accumulate.size))
    # By additions, because a sum along a dim of an array is refused where parts of it differ.
    first = jax.tree.map(lambda a: jnp.zeros_like(a[0]), outs)
    added = lambda sums, out: (jax.tree.map(jnp.add, sums, out), None)
    sums, _ = lax.scan(added, first, outs, unroll=True)
    mean = jax.tree.map(lambda a: a / accumulate.size, sums)
    return uncarried(mean), [g / accumulate.size for g in total]


def _entered(t: Tensor, scope: Scope, compute, reduce, wire: wires.Wired) -> Tensor:
    """The parameter `t` in the form in which the function to differentiate gets it."""
    t = made_whole(resharding.placed(resharding.plain(t), scope))
    return to_differentiate_by(t, compute, reduce, wire)


def made_whole(t: Tensor) -> Tensor:
    """`t`, settled and with a type that varies over spent axes, for a derivative by it.

    Inside `over` each element has a derivative of its own. So the derivative must not be summed
    over the spent axes, which split the dim that `over` maps along.
    """
    spent = t.placement.scope.in_mesh_order(t.placement.scope.spent)
    return varied(resharding.take_sums(t), spent, t.placement.scope) if spent else t


def _settled(tree):
    """What a differentiated function returns, with each Tensor in it settled.

    Later uses of these Tensors do not count as uses of the parameters that they come from.
    """

    def settled(x: Tensor) -> Tensor:
        scope, level = x.placement.scope, x.placement.level
        scope.note_use(x.placement.origin, ())
        level = "parameters" if level == "gradients" else level
        split, turns = scope.split(x.dims, level), ()
        if scope.rest is not None and scope.rest.axis:
            x, split, turns = scope.rest.of_turn(x, split)
        x = resharding.plain(resharding.take_sums(x, split=split, level=level))
        placement = x.placement._replace(level=level, pending=turns, origin=frozenset(), wire=())
        return x.replace(placement=placement)

    placed = lambda x: is_tensor(x) and x.placement is not None
    return jax.tree.map(lambda x: settled(x) if placed(x) else x, tree, is_leaf=is_tensor)


def varied(t: Tensor, axes, scope: Scope) -> Tensor:
    """`t` with a type that varies over `axes`; recorded, since a second derivative sums there."""
    if not axes:
        return t
    with jax.named_scope(scope.recorder.begin("vary", t.dims, t.placement.axes).tag):
        return with_copy(t.replace(array=collectives.vary(t.stored, axes)), copy_of(t))


def _whole_along(args, dim: Dim | None, scope: Scope):
    """`args`, with every Tensor that has `dim` whole along it and each element split by the law."""
    if dim is None:
        return args
    op = scope.recorder.begin("accumulate", (dim,), ((),))

    def turn(x):
        return resharding.whole_along(x, (dim,), op) if is_tensor(x) and dim in x.dims else x

    return jax.tree.map(turn, args, is_leaf=is_tensor)


def _element(args, dim: Dim | None, index):
    """`args`, with every Tensor that has `dim` cut to one element along it."""

    def cut(x):
        if not is_tensor(x) or dim not in x.dims:
            return x
        at = x.dims.index(dim)
        placement = x.placement and x.placement._replace(
            axes=x.placement.axes[:at] + x.placement.axes[at + 1 :]
        )
        array = lax.dynamic_index_in_dim(x.array, index, at, keepdims=False)
        return Tensor(array, dim_algebra.without(x.dims, (dim,)), x.role, placement)

    return args if dim is None else jax.tree.map(cut, args, is_leaf=is_tensor)
