"""The language on one page: a model of named dims, trained under a layout.

At the end it prints the collectives that a step runs under that layout.

python examples/mlp.py                                # fully sharded, on eight virtual devices
python examples/mlp.py "batch -> devices"             # data parallel: the same losses
python examples/mlp.py "d_ff -> devices"              # tensor parallel
"""

import sys

import jax
import jax.numpy as jnp
import optax
from flax.struct import PyTreeNode

import meshdsl as md

batch, features, d_ff, classes = (
    md.Dim("batch", 64),
    md.Dim("features", 32),
    md.Dim("d_ff", 128),
    md.Dim("classes", 16),
)


class MLP(PyTreeNode):
    up: md.Tensor
    down: md.Tensor

    @classmethod
    def init(cls, key):
        a, b = jax.random.split(key)
        return cls(
            up=md.parameter(
                jax.random.normal(a, (features.size, d_ff.size)) * 0.2,
                (features, d_ff),
                ins=(features,),
            ),
            down=md.parameter(
                jax.random.normal(b, (d_ff.size, classes.size)) * 0.1, (d_ff, classes), ins=(d_ff,)
            ),
        )

    def __call__(self, x):
        hidden = md.gelu(md.einsum(x, self.up, out=(batch, d_ff)))
        return md.einsum(hidden, self.down, out=(batch, classes))


def loss(model, x, labels):
    """Mean cross-entropy, in nats."""
    return -md.mean(md.take(md.log_softmax(model(x), classes), labels, classes))


def main(rules):
    jax.config.update("jax_num_cpu_devices", 8)  # counts only where there is no accelerator
    layout = md.Layout(
        rules or ["batch -> devices"],
        [] if rules else ["features -> devices"],
        mesh={"devices": "rest"},
    )
    known = (batch, features, d_ff, classes)
    value_and_grad = md.lower(md.value_and_grad(loss), layout, dims=known)

    points = jax.random.normal(jax.random.key(0), (batch.size, features.size))
    labels = md.tensor(jnp.argmax(points[:, : classes.size], -1), (batch,))
    points = md.tensor(points, (batch, features))
    model = MLP.init(jax.random.key(1))
    optimizer = optax.adam(1e-2)
    state = optimizer.init(model)

    print(value_and_grad.program(model, points, labels).table())
    for step in range(30):
        value, gradients = value_and_grad(model, points, labels)
        updates, state = optimizer.update(gradients, state)
        model = optax.apply_updates(model, updates)
        if step % 10 == 9:
            print(f"step {step + 1}: loss {value.item():.4f}")
    print(model.up)


if __name__ == "__main__":
    main(sys.argv[1:])
