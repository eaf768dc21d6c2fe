"""A function is the same on one device and under every layout, and so are its gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import meshdsl as md
from meshdsl.dims import Dim, Dims
from meshdsl.errors import MeshDSLError, quote
from meshdsl.layout import Layout
from meshdsl.tensor import Tensor, is_tensor
from meshdsl.testing.collectives import assert_explained
from meshdsl.testing.equal import TOLERANCE, difference, pairs

LayoutLike = Layout | str | Path | Mapping[str, Any]


def assert_same_under(
    function: Callable,
    args: Sequence,
    layouts: LayoutLike | Iterable[LayoutLike],
    *,
    gradients: bool | int | Iterable[int] = True,
    tolerance: float = TOLERANCE,
    dims: Iterable[Dim | str] = (),
) -> None:
    """A function gives the same on one device and under each layout, and so do its gradients.

    The gradients are those of a weighted sum of all floating-point Tensors that the function
    returns: of a loss, those of a multiple of it. Collectives are checked too: an op of the record
    explains each one that a program has, and the compiler added none.

        assert_same_under(loss, (model, batch), ["fsdp", "layouts/mine.toml"])

    Args:
      function: takes and returns pytrees of Tensors and arrays.
      args: its arguments, as a tuple.
      layouts: one or several. Each is a Layout, the name of one that comes with meshdsl, a layout
        file, or a table such as such a file has.
      gradients: of which Tensors they are taken. True: of all parameters of floating-point numbers
        in `args`. A position or several: of all Tensors of floating-point numbers in these
        arguments. False: of none, as for a function that takes gradients itself.
      tolerance: how far a result may be off: the norm of the difference over the norm of what one
        device computes, or over 0.001 where that is larger. Whole numbers have to be equal.
      dims: as in `md.lower`: names that a layout may have rules for although nothing has them.

    Raises:
      AssertionError: a result or a gradient differs. It names the layout, the first one that
        differs, by how much, and how many others do.
      MeshDSLError: a layout does not fit the function, or the devices at hand.
    """
    if not isinstance(args, (tuple, list)):
        raise MeshDSLError(
            f"assert_same_under: `args` are the arguments as a tuple, not {quote(args)}"
        )
    args = jax.tree.map(_movable, tuple(args))
    wanted = _wanted(args, gradients)
    run = with_gradients(function, args, wanted)
    names = [
        f"gradient of args[{i}]{jax.tree_util.keystr(path)}"
        for i, path, x in _leaves(args)
        if is_float(x) and wanted(i, x)
    ]
    result, grads = jax.jit(run)(*args)
    for layout in _layouts(layouts):
        mesh = md.make_mesh(layout)
        traced, program = md.lower(run, layout, mesh, dims=dims).trace_program(*args)
        compiled = traced.lower().compile()
        found, others = compiled(*args)
        leaves = [*pairs(found, result, "result"), *zip(names, others, grads, strict=bool(grads))]
        said = [(name, difference(a, b, tolerance)) for name, a, b in leaves]
        wrong = [f"{name} {why}" for name, why in said if why]
        rest = f"; {len(wrong)} of {len(said)} leaves differ"
        if wrong:
            raise AssertionError(f"{layout.name}: {wrong[0]}{rest if wrong[1:] else ''}")
        assert_explained(program, compiled.as_text(), mesh, layout.name)


def with_gradients(
    function: Callable, args: Sequence, wanted: Callable[[int, Tensor], bool]
) -> Callable:
    """`function` as one that returns its result, and a list of gradients.

    The gradients are those of a weighted sum of all floating-point Tensors in the result. The list
    is empty where there are none.

    Args:
      args: arguments of the function. Only their shapes matter.
      wanted: says of each floating-point Tensor in `args`, after the position of its argument,
        whether its gradient is in the list.
    """
    picked = [n for n, (i, _, x) in enumerate(_leaves(args)) if is_float(x) and wanted(i, x)]
    outs = list(_floats(jax.eval_shape(function, *args)))
    weights = [_weights(t.dims, seed=100 + i) for i, t in enumerate(outs)]

    def run(*args):
        if not picked or not outs:
            return function(*args), []
        leaves, tree = jax.tree.flatten(args, is_leaf=is_tensor)

        def loss(values):
            given = dict(zip(picked, values, strict=True))
            result = function(*tree.unflatten([given.get(n, x) for n, x in enumerate(leaves)]))
            finite = [md.where(md.isfinite(t), t, 0.0) for t in _floats(result)]
            terms = [md.sum(_as_reals(t) * w) for t, w in zip(finite, weights, strict=True)]
            return sum(terms[1:], start=terms[0]), result

        (_, result), grads = md.value_and_grad(loss, has_aux=True)([leaves[n] for n in picked])
        return result, grads

    run.__name__ = getattr(function, "__name__", "function")
    return run


def is_float(x) -> bool:
    """Whether `x` is a Tensor of real or complex floating-point numbers."""
    return is_tensor(x) and jnp.issubdtype(x.dtype, jnp.inexact)


def _floats(tree) -> Iterator[Tensor]:
    return filter(is_float, jax.tree.leaves(tree, is_leaf=is_tensor))


def _leaves(args: Sequence) -> Iterator[tuple[int, Any, Any]]:
    """Each leaf of the arguments: the position of its argument, its path in that, and the leaf."""
    for i, arg in enumerate(args):
        for path, x in jax.tree_util.tree_flatten_with_path(arg, is_leaf=is_tensor)[0]:
            yield i, path, x


def _wanted(args: Sequence, gradients: bool | int | Iterable[int]) -> Callable[[int, Tensor], bool]:
    """Whether the gradient of a Tensor, after the position of its argument, is to be compared."""
    if isinstance(gradients, bool):
        return lambda i, x: gradients and x.role is not None
    positions = list(gradients) if isinstance(gradients, Iterable) else [gradients]
    for position in positions:
        if position not in range(len(args)):
            raise MeshDSLError(
                "assert_same_under: gradients are True, False or positions of arguments, of 0 to "
                f"{len(args) - 1}, not {quote(position)}"
            )
    return lambda i, x: i in positions


def _movable(x):
    """An array as one that a program for any devices takes."""
    return x if jnp.issubdtype(jnp.result_type(x), jax.dtypes.prng_key) else np.asarray(x)


def _layouts(given) -> list[Layout]:
    """One layout or several, each a Layout, a name, a file or a table, as Layouts."""
    if isinstance(given, Iterable) and not isinstance(given, (str, Mapping)):
        return [_layout(each) for each in given]
    return [_layout(given)]


def _layout(given: Any) -> Layout:
    if isinstance(given, Layout):
        return given
    return Layout.from_dict(given) if isinstance(given, Mapping) else Layout.load(given)


def _weights(dims: Dims, seed: int) -> Tensor:
    """Numbers between 0.5 and 1.5, the same for the same dims and seed."""
    values = np.random.default_rng(seed).uniform(0.5, 1.5, [d.size for d in dims])
    return md.tensor(jax.device_put(values.astype(np.float32)), dims)


def _as_reals(t: Tensor) -> Tensor:
    """A float32 Tensor that depends on all of `t`; of a complex one on both parts."""
    if jnp.issubdtype(t.dtype, jnp.complexfloating):
        return md.real(t) + 2 * md.imag(t)  # each in a way of its own
    return md.cast(t, jnp.float32)
