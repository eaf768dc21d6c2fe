"""What a step of training will do on a machine that is not here, before anything runs.

    python examples/03_explain.py             # explained for a TPU, compiled for virtual devices
    python examples/03_explain.py v5p:2x2x1   # compiled for that TPU too; needs meshdsl[tpu]

`md.explain` reads the recorded program and estimates; it takes a second. `md.compile` asks the real
compiler of the machine. Both only need shapes, so this model of 6.4 billion parameters fits here.
"""

import sys

import jax
import jax.numpy as jnp
import optax

import meshdsl as md

TARGET = "v5p:2x2x1"
LAYOUTS = {
    "data": md.Layout(["batch -> data"], mesh={"data": "rest"}),
    "fsdp": md.Layout(
        ["batch -> data"], parameters=["d_model, d_ff -> data"], mesh={"data": "rest"}
    ),
    "tensor": md.Layout(["d_ff -> model"], mesh={"model": "rest"}),
}

batch, d_model, d_ff = md.Dim("batch", 8192), md.Dim("d_model", 16384), md.Dim("d_ff", 196608)
optimizer = optax.adam(1e-4)


def init(key):
    """The model, and what the optimizer keeps of it."""
    up, down = jax.random.split(key)
    model = {
        "up": md.normal(up, (d_model, d_ff), ins=d_model),
        "down": md.normal(down, (d_ff, d_model), ins=d_ff),
    }
    return model, optimizer.init(model)


def loss(model, x):
    """How far the model is from giving back what it gets."""
    y = md.dot(md.gelu(md.dot(x, model["up"])), model["down"])
    return md.mean(md.square(y - x))


def step(model, state, x):
    value, gradients = md.value_and_grad(loss)(model, x)
    updates, state = optimizer.update(gradients, state)
    return optax.apply_updates(model, updates), state, value


def main(targets):
    jax.config.update("jax_num_cpu_devices", 8)  # counts only where there is no accelerator
    # Everything in the abstract: Tensors that have dims and a dtype, and no numbers.
    model, state = jax.eval_shape(init, jax.random.key(0))
    arguments = (model, state, md.abstract((batch, d_model), jnp.float32))
    # What goes in is not needed afterwards, so the results may have its memory.
    donated = (0, 1)

    print(f"three layouts on {TARGET}\n")
    print(md.compare(step, *arguments, layouts=LAYOUTS, target=TARGET, donate_argnums=donated))
    fsdp = LAYOUTS["fsdp"]
    print(f"\nfsdp on {TARGET}, op by op\n")
    print(md.explain(step, *arguments, layout=fsdp, target=TARGET, donate_argnums=donated))
    for target in targets or ["cpu:8"]:
        print(f"\nwhat the compiler of {target} makes of it\n")
        print(md.compile(step, *arguments, layout=fsdp, target=target, donate_argnums=donated))


if __name__ == "__main__":
    main(sys.argv[1:])
