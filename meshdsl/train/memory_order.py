"""A program that is called again and again, with its arguments in the order that suits it.

A compiler for TPUs lays the last two dims of an array into tiles, and can also choose which dims
these are, and in which order. What a program reads in another order it copies first, in every
call. So a program that has the same weights in each call, such as the one that writes a token, is
compiled without an order for them, and they are brought once into the one that the compiler chose.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.experimental.layout import Format, Layout
from jax.sharding import Mesh

from meshdsl.predict.compiler.options import default_options


class InBestOrder:
    """Calls a function, compiled for orders of its arguments that suit it.

    The first call compiles it, and so does one with arguments of other shapes. Of `kept` those
    arrays take memory a second time that come into another order.

    Args:
      fn: called with `kept`, `carried` and others, gives what is carried on and something else.
      kept: what is the same in all calls. Like all arguments it is on the devices of `mesh`.
    """

    def __init__(self, fn: Callable[..., tuple[Any, Any]], kept: Any, mesh: Mesh):
        self._fn, self._kept, self._mesh = fn, kept, mesh
        self._compiled: Any = None
        self._compiled_for: Any = None
        self._kept_in_order: Any = None

    def __call__(self, carried: Any, *others: Any) -> tuple[Any, Any]:
        """What `fn` gives; the memory of `carried` is used for what is carried on."""
        shapes = [(x.shape, x.dtype) for x in jax.tree.leaves((carried, others))]
        if shapes != self._compiled_for:
            self._compiled, self._compiled_for = None, None
            self._kept_in_order = None  # first, because there may be no room for two
            compiled = compiled_for_best_order(self._fn, self._mesh, self._kept, carried, *others)
            self._kept_in_order = _in(compiled.input_formats[0][0], self._kept)
            self._compiled, self._compiled_for = compiled, shapes
        carried = _in(self._compiled.input_formats[0][1], carried, donate=True)
        return self._compiled(self._kept_in_order, carried, *others)


def compiled_for_best_order(fn: Callable, mesh: Mesh, kept: Any, carried: Any, *others: Any) -> Any:
    """`fn`, compiled so that the first two arguments have the order that the compiler chose.

    Args:
      kept, carried, others: arrays, or their shapes with shardings.
    """
    free = lambda tree: jax.tree.map(lambda x: Format(Layout.AUTO, x.sharding), tree)
    # Where an array may be on any device, such as a key, there is nothing to say.
    as_they_are = jax.tree.map(
        lambda x: x.sharding if getattr(x, "committed", True) else None, others
    )
    step = jax.jit(
        fn,
        donate_argnums=1,
        in_shardings=(free(kept), free(carried), *as_they_are),
        out_shardings=(free(carried), None),
        compiler_options=default_options(mesh) or None,
    )
    # A shape that has no order: that of an array would have to be the one that is chosen.
    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (kept, carried, *others)
    )
    return step.lower(*shapes).compile()


def _in(formats: Any, tree: Any, donate: bool = False) -> Any:
    """`tree` with its arrays in the order that `formats` says."""
    move = lambda x, format: x if x.format == format else jax.device_put(x, format, donate=donate)
    return jax.tree.map(move, tree, formats)
