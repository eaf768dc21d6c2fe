"""Control flow, derivatives, and the way out."""

import jax.numpy as jnp

import meshdsl as md
from tests.catalogue import Case, Entry

ONE = md.tensor(jnp.float32(1), ())


def _of(fn):
    """An example of a function of a tensor and its two dims, which works along the first."""

    def example(draw):
        a, b = draw.dims("a", "b")
        return Case(lambda x: fn(x, a, b), (draw.tensor(a, b),), (a,))

    return example


def _free(fn):
    """An example that works along no dim."""
    return lambda draw: Case(fn, (draw.tensor(*draw.dims("a", "b")),))


def _chosen(fn):
    return lambda draw: Case(fn, (draw.tensor(*draw.dims("a", "b")), draw.integers(below=2)))


def _counted(x):
    return md.while_loop(
        lambda c: c[0] < 3, lambda c: (c[0] + 1, md.sin(c[1])), (md.tensor(0, ()), x)
    )[1]


def _scan(x, a, b):
    return md.scan(lambda h, x: (md.tanh(h + x), h * x), md.sum(x, a), x, dim=a)


def _map_over(draw):
    a, b = draw.dims("a", "b")
    batch = draw.pick(None, draw.integer(1, max(1, a.size)))
    return Case(
        lambda x: md.map_over(lambda x: md.softmax(x, b), x, dim=a, batch=batch),
        (draw.tensor(a, b),),
        (a,),
    )


def _value(x):
    return md.mean(md.square(md.tanh(x)))


def _pulled(x):
    value, back = md.vjp(_value, x)
    return back(md.cast(ONE, value.dtype))


LOOP = "the body, for one element of the dim after another; the dim is whole"
ENTRIES = [
    Entry("scan", _of(_scan), LOOP),
    Entry("map_over", _map_over, LOOP),
    Entry("over", _of(lambda x, a, b: md.over(a, lambda x: md.softmax(x, b))(x)), "the function, for all elements of its part at once"),
    Entry("while_loop", _free(_counted), "the body, as often as all others; no gradient, but `jvp`", (),
          "WhileLoopOperation; no gradient, lists of tensors only", gradients=False),
    Entry("cond", _chosen(lambda x, i: md.cond(i > 0, md.sin, md.cos, x)), "one of two functions"),
    Entry("switch", _chosen(lambda x, i: md.switch(i, [md.sin, md.cos], x)), "one of several functions"),
    Entry("checkpoint", _free(md.checkpoint(lambda x: md.sin(md.tanh(x)))), "the function, again in the backward pass", (),
          "CustomGradientOperation (`recompute_grad`); everything or nothing"),
    Entry("checkpoint_name", _free(md.checkpoint(lambda x: md.sin(md.checkpoint_name(md.tanh(x), "y")), save="y")), "nothing"),
    Entry("custom_gradient", _free(md.custom_gradient(lambda x: (md.round(x), lambda ct: ct))), "the function, and the gradient that it brings", (),
          "CustomGradientOperation; a graph is patched"),
    Entry("value_and_grad", _free(md.value_and_grad(_value)), "the function and its backward pass", (),
          "none: `gradients` builds ops, each class with a gradient of its own", floats=True),
    Entry("vjp", _free(_pulled), "the function, and its backward pass for a cotangent",
          floats=True),
    Entry("jvp", _free(lambda x: md.jvp(_value, (x,), (md.sin(x),))),
          "the function, and its derivative along a tangent", floats=True),
    Entry("hvp", _free(lambda x: md.hvp(_value, (x,), (md.sin(x),))),
          "the derivative of the backward pass along a tangent", gradients=False, floats=True),
    Entry("local", _free(lambda x: md.local(jnp.sin, x, out=x.dims)), "any JAX function", mesh_tensorflow="SlicewiseOperation; gradients by hand"),
]  # fmt: skip
