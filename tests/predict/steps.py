"""The train steps and arrays whose memory is compared with the compiler's."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import optax
from flax.struct import PyTreeNode

import meshdsl as md
from meshdsl.train.step import TrainStep
from tests.helpers import dims, layout

RULES = layout(
    "batch -> data", "hidden -> model", mesh={"data": 2, "model": 2}, parameters=["width -> data"]
)
LAYERS, BATCH, WIDTH, HIDDEN, CLASSES = dims(
    layers=6, batch=4096, width=512, hidden=2048, classes=4096
)


class Layers(PyTreeNode):
    """Six layers of two products, and a product that is as large as a vocabulary's."""

    up: md.Tensor
    down: md.Tensor
    head: md.Tensor

    @classmethod
    def init(cls, key):
        def weight(key, *shape, ins):
            return md.parameter(
                0.01 * jax.random.normal(key, [d.size for d in shape]), shape, ins=ins
            )

        up, down, head = jax.random.split(key, 3)
        return cls(
            weight(up, LAYERS, WIDTH, HIDDEN, ins=(WIDTH,)),
            weight(down, LAYERS, HIDDEN, WIDTH, ins=(HIDDEN,)),
            weight(head, WIDTH, CLASSES, ins=(WIDTH,)),
        )


def step(mesh) -> tuple[TrainStep, tuple]:
    """A step of adam in bfloat16 under RULES, each layer rematerialised, and its arguments."""

    def layer(x, weights):
        up, down = (md.cast(w, jnp.bfloat16) for w in weights)
        return x + md.einsum(
            md.gelu(md.einsum(x, up, out=(BATCH, HIDDEN))), down, out=(BATCH, WIDTH)
        ), ()

    def loss(model, batch, key):
        x, _ = md.scan(md.checkpoint(layer), batch["x"], (model.up, model.down), dim=LAYERS)
        logits = md.einsum(x, md.cast(model.head, jnp.bfloat16), out=(BATCH, CLASSES))
        return md.mean(md.logsumexp(md.cast(logits, jnp.float32), CLASSES)), {}

    made = TrainStep(Layers.init, loss, optax.adam(1e-3), RULES, mesh)
    x = md.tensor(jax.ShapeDtypeStruct((BATCH.size, WIDTH.size), "bfloat16"), (BATCH, WIDTH))
    return made, (made.abstract, split({"x": x}, RULES, mesh))


def split(batch, rules, mesh):
    """A batch as shapes, split as a program under `rules` wants it."""
    shardings = md.shardings(batch, rules, mesh)
    return jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), batch, shardings
    )


def shapes() -> list[tuple[tuple[int, ...], str]]:
    """Shapes that a TPU pads in different ways, in types of one, two and four bytes."""
    found = [
        (),
        (1,),
        (127,),
        (129,),
        (1000,),
        (5000,),
        (2, 3, 4),
        (300, 1, 3),
        (16, 3, 3, 3),
        (32, 256, 2, 4, 128),
        (32, 256, 2, 128),
        (7, 7, 3, 33),
    ]
    found += list(itertools.product((1, 3, 5, 9, 100, 256), (1, 2, 8, 9, 64, 127, 129, 300)))
    return [(shape, dtype) for shape in found for dtype in ("float32", "bfloat16", "int8")]
