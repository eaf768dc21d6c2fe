"""A U-Net that takes the noise off handwritten digits, on tiles of images.

The tiles of an image lie on different devices.

    # tiles over rows x cols, the batch over data
    python examples/unet_digits.py
    # data parallel: the same losses
    python examples/unet_digits.py "batch -> data, rows, cols"
    # every image over all eight devices
    python examples/unet_digits.py "height -> data, rows" "width -> cols"

Needs scikit-learn, which has the digits in it.
"""

import sys

import jax
import numpy as np
import optax
from sklearn.datasets import load_digits

import meshdsl as md
from meshdsl.models.unet import Config, UNet

STEPS, NOISE = 60, 0.5
SPATIAL = ["batch -> data", "height -> rows", "width -> cols"]
batch, height, width, colors = (
    md.Dim("batch", 64),
    md.Dim("height", 8),
    md.Dim("width", 8),
    md.Dim("colors", 1),
)


def images() -> np.ndarray:
    """1797 images of 8x8 pixels between 0 and 1, shuffled: [image, height, width, color]."""
    pixels = load_digits().images.astype(np.float32) / 16
    return np.random.default_rng(0).permutation(pixels)[..., None]


def loss(model, clean, key):
    """Mean squared error of the digits that the model sees in the noise.

    The noise is the same under every layout.
    """
    noise = NOISE * md.random.normal(key, clean.dims, like=clean)
    return md.mean(md.square(md.rename(model(clean + noise), "outputs", "colors") - clean))


def main(rules):
    jax.config.update("jax_num_cpu_devices", 8)  # counts only where there is no accelerator
    layout = md.Layout(rules or SPATIAL, mesh={"data": "rest", "rows": 2, "cols": 2}, uneven="pad")
    mesh = md.make_mesh(layout)
    value_and_grad = md.lower(md.value_and_grad(loss), layout, mesh, dims=(batch, height, width))
    optimizer = optax.adam(1e-2)

    def init(key):
        model = UNet.init(key, Config(levels=1, channels=8))
        return model, optimizer.init(model)

    @jax.jit
    def update(gradients, model, state):
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(model, updates), state

    key = jax.random.key(0)
    model, state = jax.jit(
        init, out_shardings=md.shardings(jax.eval_shape(init, key), layout, mesh)
    )(key)
    digits, order = images(), np.random.default_rng(1)
    for step in range(STEPS):
        chosen = order.choice(len(digits), batch.size, replace=False)
        clean = md.tensor(digits[chosen], (batch, height, width, colors))
        value, gradients = value_and_grad(model, clean, jax.random.key(step))
        model, state = update(gradients, model, state)
        if step == 0 or (step + 1) % 20 == 0:
            print(f"step {step + 1}: loss {value.item():.6f}, of the noise itself {NOISE**2:.4f}")


if __name__ == "__main__":
    main(sys.argv[1:])
