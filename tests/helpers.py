"""What the tests of ops and of the lowering share: dims, layouts, and above all `assert_same`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import FunctionType
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, NamedSharding

import meshdsl as md
from meshdsl.lowering.shardings import level_of, partition_spec
from meshdsl.program import summary
from meshdsl.program.collective import live_axes
from meshdsl.tensor import is_tensor
from meshdsl.testing import same
from meshdsl.testing.collectives import assert_explained
from meshdsl.testing.equal import assert_equal
from meshdsl.testing.equal import distance as distance  # for tests
from meshdsl.testing.same import is_float as is_float  # for tests
from tests.nightly import nightly


def only(quick: Collection, cases: Iterable, slow: Collection | None = None) -> list:
    """Cases of `pytest.mark.parametrize`; those that are not in `quick` are marked slow.

    Where `slow` says which of them run every time, the others run in the nightly profile alone.
    """

    def marked(case):
        often = slow is None or case in slow
        marks = [pytest.mark.slow] if often else [pytest.mark.slow, nightly]
        return pytest.param(*_tuple(case), marks=marks)

    cases = [*cases]
    assert all(case in cases for case in (*quick, *(slow or ()))), "a case that there is not"
    return [
        *(case for case in cases if case in quick),
        *(marked(case) for case in cases if case not in quick),
    ]


def covering(*parameters: Iterable) -> list[tuple]:
    """A few combinations of values of these parameters; each value is in one or more of them."""
    values = [tuple(each) for each in parameters]
    return [tuple(v[i % len(v)] for v in values) for i in range(max(map(len, values)))]


def every(layouts: Mapping, *slow: str, night: Collection[str] = ()):
    """`pytest.mark.parametrize` of a test by `rules`, or by `sizes, rules`: a case for each layout.

    Cases whose names are in `slow` are marked so, and those in `night` run in the nightly profile
    alone.
    """
    assert {*slow, *night} <= set(layouts)
    names = "sizes, rules" if isinstance(next(iter(layouts.values())), tuple) else "rules"
    marks = {name: [pytest.mark.slow] for name in slow}
    marks |= {name: [pytest.mark.slow, nightly] for name in night}
    cases = [
        pytest.param(*_tuple(case), id=name, marks=marks.get(name, ()))
        for name, case in layouts.items()
    ]
    return pytest.mark.parametrize(names, cases)


def _tuple(case) -> tuple:
    return case if isinstance(case, tuple) else (case,)


def dims(**sizes: int) -> tuple[md.Dim, ...]:
    """`dims(a=2, b=3)`: the dims by those names."""
    return tuple(md.Dim(name, size) for name, size in sizes.items())


def data(*dims: md.Dim, seed: int = 0, dtype=jnp.float32, low=-1.0, high=1.0) -> md.Tensor:
    """A Tensor of random numbers between `low` and `high`."""
    values = np.random.default_rng(seed).uniform(low, high, [d.size for d in dims])
    return _tensor(values, dims, dtype)


def integers(*dims: md.Dim, below: int, seed: int = 0, dtype=jnp.int32) -> md.Tensor:
    values = np.random.default_rng(seed).integers(0, below, [d.size for d in dims])
    return _tensor(values, dims, dtype)


def _tensor(values: np.ndarray, dims, dtype) -> md.Tensor:
    # `jnp.asarray` would compile a program for every new shape.
    return md.tensor(jax.device_put(values.astype(dtype)), dims)


def weight(*dims: md.Dim, ins=(), seed: int = 1) -> md.Tensor:
    """A parameter of random numbers."""
    return md.parameter(data(*dims, seed=seed).array, dims, ins=ins)


def made(init, *args, seed: int = 0, **how):
    """What `init(*args, **how)` makes, of random numbers of numpy: nothing is compiled for it."""
    draw = np.random.default_rng(seed).uniform
    fill = lambda x: jax.device_put(draw(-0.5, 0.5, x.shape).astype(x.dtype))
    return jax.tree.map(fill, jax.eval_shape(lambda: init(*args, **how)))


def layout(*rules: str | Mapping[str, str], mesh: Mapping[str, int], **how) -> md.Layout:
    return md.Layout(rules=rules, mesh=mesh, **how)


def assert_by_law(tree, layout: md.Layout, mesh, level: str | None = None) -> None:
    """Every Tensor of `tree` that has elements is split as the layout says for its dims."""
    for t in filter(is_tensor, jax.tree.leaves(tree, is_leaf=is_tensor)):
        if not t.size:
            continue
        law = layout.at_rest(t.dims, mesh.shape, level or level_of(t))
        expected = NamedSharding(mesh, partition_spec(tuple(law.get(d, ()) for d in t.dims)))
        assert t.array.sharding.is_equivalent_to(expected, t.array.ndim), f"{t} instead of {law}"


def in_a_row(program, collective) -> bool:
    """Whether a row of the record says that its op moves this, forwards or backwards."""
    op = program.op_of(collective)
    return op is not None and any(
        collective.operation in (m.operation, m.backward)
        and collective.axes == live_axes(m.axes, program.axis_sizes)
        for m in op.moves
    )


def text_for_gpu(fn, *args) -> str:
    """What JAX would give a compiler for an H100, of a function of arrays, without an H100."""
    h100 = AbstractDevice("NVIDIA H100 80GB HBM3", None, "gpu")  # newer JAX asks for its name
    with jax.sharding.use_abstract_mesh(AbstractMesh((1,), ("alone",), abstract_device=h100)):
        return jax.jit(fn).trace(*args).lower(lowering_platforms=("cuda",)).as_text()


def with_gradients(fn, args: Sequence):
    """`fn` as a function that gives its results and gradients, by each argument of floats.

    The gradients are those of a weighted sum of all results of floats.
    """
    return same.with_gradients(fn, args, lambda i, x: x is args[i])


class _Same(NamedTuple):
    """An object as the key of a cache, which keeps it: equal to itself only."""

    value: object

    def __eq__(self, other):
        return isinstance(other, _Same) and self.value is other.value

    def __hash__(self):
        return id(self.value)


def _key(x):
    """A key for a cache, equal for functions of equal code that see equal objects.

    Tensors are equal where their dims and elements are.
    """
    if isinstance(x, FunctionType):
        cells = [c.cell_contents for c in x.__closure__ or ()]
        seen = [each for each in cells if each is not x]  # what is recursive sees itself
        return x.__code__, *map(_key, [*seen, *(x.__defaults__ or ())])
    if is_tensor(x) and not jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return x.dims, x.role, str(x.dtype), np.asarray(x.array).tobytes()
    return (type(x), x) if isinstance(x, (str, int, float, md.Dim)) else _Same(x)


_REFERENCES: dict = {}


def on_one_device(fn, *args, gradients: bool = True):
    """The results of `fn` and their gradients, as `with_gradients` has them, on one device.

    They are computed once for all layouts under which a test compares `fn` with them.
    """
    key = _key(fn), *map(_key, args), gradients
    if key not in _REFERENCES:
        if len(_REFERENCES) > 20:
            _REFERENCES.clear()
        _REFERENCES[key] = jax.jit(_run(fn, args, gradients))(*args)
    return _REFERENCES[key]


def _run(fn, args, gradients: bool):
    return with_gradients(fn, args) if gradients else lambda *args: (fn(*args), ())


def _numbers(x):
    """An array as one of numpy: to cut one of JAX in parts, JAX compiles a program."""
    return x if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else np.asarray(x)


def assert_same(
    fn,
    *args,
    layout: md.Layout,
    mesh=None,
    gradients: bool = True,
    dims=(),
    reference=None,
    level=None,
    **how,
):
    """`fn` gives the same results and gradients on one device and lowered.

    They are split by the law, and a recorded op explains every collective of the program.

    Args:
      layout: its `mesh` gives the devices, unless `mesh` does.
      dims: names that the layout may speak of although `fn` has no such dim.
      reference: the results and gradients on one device, where they are known (as this function
        returns them).
      level: of the results, where it is not what each Tensor is.
      how: `tolerance` and `floor` of the comparison.

    Returns:
      The recorded program, and the reference.
    """
    mesh = mesh or md.make_mesh(layout)
    reference = reference or on_one_device(fn, *args, gradients=gradients)
    lowered = md.lower(_run(fn, args, gradients), layout, mesh, dims=dims)
    traced, program = lowered.trace_program(*args)
    compiled = traced.lower().compile()
    result, grads = compiled(*jax.tree.map(_numbers, args))
    assert_equal(result, reference[0], "result", **how)
    assert_equal(grads, reference[1], "gradient", **how)
    assert_by_law(result, layout, mesh, level)
    assert_by_law(grads, layout, mesh, "optimizer")
    assert_explained(program, compiled.as_text(), mesh)
    return program, reference


def collectives(
    fn, *args, layout: md.Layout, mesh=None, dims=()
) -> dict[tuple[str, tuple[str, ...]], int]:
    """`{(operation, axes): how often it runs in one call of the lowered `fn`}`."""
    lowered = md.lower(fn, layout, mesh or md.make_mesh(layout), dims=dims)
    return {key: count for key, (count, _) in summary(lowered.program(*args).collectives).items()}
