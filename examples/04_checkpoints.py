"""Checkpoints, and a run that goes on under another layout.

    pip install "meshdsl[train]"
    python examples/04_checkpoints.py

A run stops after 10 of 20 steps, and another goes on from its checkpoint. The first is data
parallel, in the second every matrix is split both ways: the losses are those of a run that never
stopped. `state` may be any pytree of Tensors, arrays and numbers.
"""

import tempfile
from typing import Any

import jax
import optax

import meshdsl as md
from meshdsl.train import Checkpoints

# Both have the same axes, of other sizes.
DATA_PARALLEL = md.Layout(["batch -> data"], mesh={"data": 8, "model": 1})
BOTH = md.Layout(
    ["batch -> data", "outputs -> model"], ["inputs -> data"], mesh={"data": 4, "model": 2}
)

batch, inputs, outputs = md.Dim("batch", 64), md.Dim("inputs", 32), md.Dim("outputs", 16)
optimizer = optax.adam(1e-2)


def init(key):
    """What a checkpoint holds: the model, and what the optimizer keeps of it."""
    model = {"weight": md.normal(key, (inputs, outputs), ins=inputs), "bias": md.zeros(outputs)}
    return model, optimizer.init(model)


def loss(model, x):
    """The model is to give back the first features of what it gets."""
    y = md.dot(x, model["weight"]) + model["bias"]
    return md.mean(md.square(y - md.slice(x, inputs, 0, outputs)))


def step(state, x) -> Any:
    model, moments = state
    value, gradients = md.value_and_grad(loss)(model, x)
    updates, moments = optimizer.update(gradients, moments)
    return (optax.apply_updates(model, updates), moments), value


def train(layout, folder, steps):
    """Go on from the newest checkpoint in a folder, or begin; returns the losses by their steps."""
    lowered, losses, key = md.lower(step, layout), {}, jax.random.key(0)
    with Checkpoints(folder, every=5) as checkpoints:
        if checkpoints.latest is None:
            state, done = md.init(init, key, layout), 0
        else:
            state, done, _ = checkpoints.restore(jax.eval_shape(init, key), layout)  # by shapes
        for number in range(done + 1, steps + 1):
            # What a step reads follows from its number, so that none is read twice or left out.
            x = md.random.normal(jax.random.fold_in(key, number), (batch, inputs))
            state, value = lowered(state, x)
            losses[number] = value.item()
            if checkpoints.due(number):
                checkpoints.save(number, state)
    print(f"steps {done + 1} to {steps}, with the weight as {state[0]['weight']}")
    return losses


def main(folder):
    jax.config.update("jax_num_cpu_devices", 8)  # counts only where there is no accelerator
    losses = train(DATA_PARALLEL, f"{folder}/stopped", steps=10)
    losses |= train(BOTH, f"{folder}/stopped", steps=20)
    whole = train(DATA_PARALLEL, f"{folder}/whole", steps=20)
    for number in (10, 11, 15, 20):
        print(f"step {number}: loss {losses[number]:.4f}, and {whole[number]:.4f} without a stop")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(temporary)
