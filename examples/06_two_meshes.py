"""One model on two meshes: the first stage is data parallel, the last one tensor parallel.

    python examples/06_two_meshes.py

Each stage is a function, lowered for its own mesh under its own layout. `md.Stages` brings
activations and cotangents from mesh to mesh, and has both meshes work at the same time, on
different microbatches. The model learns which of the first 16 features of a point is the largest.
"""

import jax
import optax

import meshdsl as md

FIRST = md.Layout(["batch -> data"], mesh={"data": 4})
LAST = md.Layout(["d_ff -> model"], mesh={"model": 4})

batch, features = md.Dim("batch", 16), md.Dim("features", 32)  # the rows of one microbatch
d_model, d_ff, classes = md.Dim("d_model", 64), md.Dim("d_ff", 128), md.Dim("classes", 16)
optimizer = optax.adam(1e-2)


def init_first(key):
    return {"up": md.normal(key, (features, d_model), ins=features)}


def init_last(key):
    up, down = jax.random.split(key)
    return {
        "up": md.normal(up, (d_model, d_ff), ins=d_model),
        "down": md.normal(down, (d_ff, classes), ins=d_ff),
    }


def encode(params, points):
    """The first stage: parameters and a batch in, activations out."""
    return md.gelu(md.dot(points, params["up"]))


def loss(params, x, labels):
    """The last stage: it gets the activations too, and its result is the loss."""
    logits = md.dot(md.gelu(md.dot(x, params["up"])), params["down"])
    return -md.mean(md.take(md.log_softmax(logits, classes), labels, classes))


@jax.jit
def update(params, state, gradients):
    """What the optimizer makes of the gradients of a stage, on its mesh."""
    changes, state = optimizer.update(gradients, state)
    return optax.apply_updates(params, changes), state


def microbatches(key, count=4):
    """Each microbatch has what the first stage reads, and what the last one reads."""
    for each in jax.random.split(key, count):
        points = md.random.normal(each, (batch, features))
        yield points, md.argmax(md.slice(points, features, 0, classes), classes)


def main():
    jax.config.update("jax_num_cpu_devices", 8)  # counts only where there is no accelerator
    first = md.make_mesh(FIRST, jax.devices()[:4])
    last = md.make_mesh(LAST, jax.devices()[4:8])
    stages = md.Stages([md.lower(encode, FIRST, first), md.lower(loss, LAST, last)])

    key, other = jax.random.split(jax.random.key(0))
    params = [md.init(init_first, key, FIRST, first), md.init(init_last, other, LAST, last)]
    states = [optimizer.init(of_stage) for of_stage in params]
    rows = list(microbatches(jax.random.key(1)))
    for number in range(1, 31):
        value, gradients = stages.value_and_grad(params, rows)
        for s in range(2):
            params[s], states[s] = update(params[s], states[s], gradients[s])
        if number % 10 == 0:
            print(f"step {number}: loss {value.item():.4f}")
    print(f"{stages.transfers.bytes:,} bytes went from mesh to mesh\n{stages.transfers.table()}")


if __name__ == "__main__":
    main()
