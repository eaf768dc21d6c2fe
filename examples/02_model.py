"""A model of named dims, trained under a layout.

    python examples/02_model.py                          # fully sharded: FSDP, ZeRO-3
    python examples/02_model.py "batch -> devices"       # data parallel: the same losses
    python examples/02_model.py "d_ff -> devices"        # tensor parallel: the same losses

A model is a frozen dataclass whose fields are Tensors, so JAX sees a pytree, and optax works on it.
It learns which of the first 16 features of a point is the largest.
"""

import sys
from typing import Any

import jax
import optax
from flax.struct import PyTreeNode

import meshdsl as md

batch, features = md.Dim("batch", 64), md.Dim("features", 32)
d_ff, classes = md.Dim("d_ff", 128), md.Dim("classes", 16)
optimizer = optax.adam(1e-2)


class MLP(PyTreeNode):
    """Two matrices with a gelu between them."""

    up: md.Tensor
    down: md.Tensor

    @classmethod
    def init(cls, key):
        """`ins` are the dims that a matrix contracts where it is used: `md.dot` reads them."""
        up, down = jax.random.split(key)
        return cls(
            up=md.normal(up, (features, d_ff), ins=features),
            down=md.normal(down, (d_ff, classes), ins=d_ff),
        )

    def __call__(self, x):
        return md.dot(md.gelu(md.dot(x, self.up)), self.down)


def loss(model, points, labels):
    """Mean cross-entropy, in nats."""
    return -md.mean(md.take(md.log_softmax(model(points), classes), labels, classes))


def step(model, state, points, labels) -> Any:
    """A step of training: the gradients of the loss, and what the optimizer makes of them."""
    value, gradients = md.value_and_grad(loss)(model, points, labels)
    updates, state = optimizer.update(gradients, state)
    return optax.apply_updates(model, updates), state, value


def main(rules):
    jax.config.update("jax_num_cpu_devices", 8)  # counts only where there is no accelerator
    layout = md.Layout(
        rules or ["batch -> devices"],
        parameters=[] if rules else ["features, d_ff -> devices"],  # how weights lie at rest
        mesh={"devices": "rest"},
    )
    points = md.random.normal(jax.random.key(0), (batch, features))
    labels = md.argmax(md.slice(points, features, 0, classes), classes)

    model = md.init(MLP.init, jax.random.key(1), layout)  # each device makes its part of it
    state = optimizer.init(model)
    # One program for all devices. `dims` are those that the rules may name.
    lowered = md.lower(step, layout, dims=(batch, features, d_ff, classes))
    print(lowered.program(model, state, points, labels).table())
    for number in range(1, 31):
        model, state, value = lowered(model, state, points, labels)
        if number % 10 == 0:
            print(f"step {number}: loss {value.item():.4f}")
    print(model.up)


if __name__ == "__main__":
    main(sys.argv[1:])
