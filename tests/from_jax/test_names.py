"""Names that libraries keep beside parameters, and what is said of those that are none."""

import warnings
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import meshdsl as md

X = jnp.ones((4, 5))
KEPT = ("d_model", "d_ff")


def described(fn, params):
    named = md.from_jax(fn, {"x": "batch _"})
    text = named.describe(params, X)
    found = jax.eval_shape(named, *named.pack(params, X))
    assert "[d_model=5, d_ff=6]" in text and "[batch=4, d_model=5]" in text
    assert [d.name for d in found.dims] == ["batch", "d_ff"]
    return text


@pytest.mark.parametrize("keep", [nn.with_partitioning, nn.with_logical_partitioning])
def test_names_of_linen_are_read(keep):
    model = nn.Dense(6, kernel_init=keep(nn.initializers.ones, KEPT))
    described(lambda params, x: model.apply(params, x), model.init(jax.random.key(0), X))


def test_names_of_nnx_are_read():
    kernel = nnx.with_partitioning(nnx.initializers.ones, KEPT, eager_sharding=False)
    graph, state = nnx.split(nnx.Linear(5, 6, kernel_init=kernel, rngs=nnx.Rngs(0)))
    described(lambda state, x: nnx.merge(graph, state)(x), state)


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True)
class Named:
    """An array with axes, as haliax has them."""

    array: jax.Array
    axes: tuple

    def tree_flatten(self):
        return (self.array,), self.axes

    @classmethod
    def tree_unflatten(cls, axes, leaves):
        return cls(leaves[0], axes)


def test_axes_of_the_form_of_haliax_are_read():
    axes = tuple(md.Dim(name, size) for name, size in zip(KEPT, (5, 6), strict=True))
    described(lambda w, x: x @ w.array, Named(jnp.ones((5, 6)), axes))


def test_axes_of_haliax_are_read():
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            hax: Any = import_module("haliax")
    except ImportError as error:
        pytest.skip(f"haliax is missing, or does not fit this JAX: {error}")
    w = hax.ones((hax.Axis("d_model", 5), hax.Axis("d_ff", 6)))
    described(lambda w, x: x @ w.array, w)


def test_axes_of_a_mesh_name_no_dims():
    init = nn.initializers.ones

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            kept = ("data", "model"), ("model", "data")
            for width, names in zip((6, 7), kept, strict=True):
                x = nn.Dense(width, kernel_init=nn.with_partitioning(init, names))(x)
            return x

    params = Net().init(jax.random.key(0), X)
    named = md.from_jax(lambda params, x: Net().apply(params, x), {"x": "batch d_model"})
    text = named.describe(params, X)
    assert "note: `data`, which is kept beside parameters, stands for several dims" in text
    assert "[d_model=5, model=6]" in text and "[model=6, dim7_1=7]" in text


def refused(names, fn=lambda w, x: x @ w, rules=("batch -> data",), **how) -> str:
    """The error of a product of X and a matrix of 5 x 96."""
    layout = md.Layout(list(rules), mesh={"data": 4})
    with pytest.raises(md.MeshDSLError) as error:
        named = md.from_jax(fn, names, **how)
        args = named.pack(jnp.ones((5, 96)), X)
        md.lower(named, layout)(*args)
    return str(error.value)


def test_another_name_for_no_dim_is_an_error():
    said = refused({"x": "batch _"}, call={"dim96_2": "memory"})
    assert said == (
        "from_jax: call={'dim96_2': 'memory'}: no dim was called `dim96_2`; did you mean `dim96_1`?"
    )
    said = refused({"x": "batch _"}, call={"batch": "rows"})
    assert said == (
        "from_jax: call={'batch': 'rows'}: `batch` is a name that was given, and call= is for "
        "those that were made up"
    )
    said = refused({"x": "batch _"}, call={"dim96_1": "batch"})
    assert said == (
        "from_jax: call={'dim96_1': 'batch'}: `batch` is another dim, which stands beside it"
    )


def test_another_name_that_a_later_trace_does_not_need_is_no_error():
    named = md.from_jax(lambda x: x @ x.T, {"x": "length _"}, call={"length_2": "memory"})
    named.describe(jnp.ones((4, 5)))
    assert "length" not in named.describe(jnp.ones((1, 5)))


def test_sizes_that_the_code_contradicts_are_an_error():
    names = {"x": "batch _", "w": "_ (qkv heads head_dim)"}
    fn = lambda w, x: (x @ w).reshape(4, 3, 4, 8) * 2
    said = refused(names, fn, sizes={"qkv": 3, "heads": 8})
    assert said.startswith(
        "from_jax: `w`: a dim is given as `qkv`=3 x `heads`=8 x `head_dim`=4, and `reshape` at "
        "test_names.py:"
    )
    assert said.endswith(
        "takes it apart as [3, 4, 8]; give these sizes, or leave them out of sizes="
    )
    said = refused(names, fn, sizes={"head": 4})
    assert said == (
        "from_jax: sizes= has `head`, which stands in no pattern; did you mean `heads`?"
    )


def test_factors_that_come_apart_somewhere_may_be_regrouped_elsewhere():
    def fn(w, x):
        y = x @ w
        return y.reshape(4, 12, 8) * 2, y.reshape(4, 8, 12).sum(1)

    named = md.from_jax(fn, {"w": "_ (heads head_dim)"}, sizes={"heads": 12})
    assert "(heads=12 head_dim=8)" in named.describe(jnp.ones((5, 96)), X)


def test_errors_say_how_dims_get_names_and_show_none_of_an_op():
    said = refused({})
    assert said.endswith(
        "known: `dim4_1`, `dim5_1`, `dim96_1`; dims without a name in names= of md.from_jax are "
        "called by their sizes"
    )
    lookups = lambda w, x: jnp.reshape(x @ w, (4, 8, 12))[jnp.array([1, 0]), :, 3:].reshape(-1)
    said = refused({"x": "batch _", "w": "_ (heads head_dim)"}, lookups, ["zzzz -> data"])
    assert "known: `batch`" in said and "__" not in said and "looked_up" not in said
