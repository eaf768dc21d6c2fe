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
from meshdsl.models.unet import Config

STEPS = 60
SPATIAL = ["batch -> data", "height -> rows", "width -> cols"]
config = Config(levels=1, channels=8, height=8, width=8, noise=0.5)
batch = md.Dim("batch", 64)
dims = config.batch(batch)["image"].dims  # batch, height, width, colors
optimizer = optax.adam(1e-2)


def images() -> np.ndarray:
    """1797 images of 8x8 pixels between 0 and 1, shuffled: [image, height, width, color]."""
    pixels = load_digits().images.astype(np.float32) / 16
    return np.random.default_rng(0).permutation(pixels)[..., None]


def step(state, clean, key):
    """A step of training. The noise is the same under every layout."""
    model, moments = state
    loss = lambda model: config.loss(model, {"image": clean}, key)
    value, gradients = md.value_and_grad(loss)(model)
    updates, moments = optimizer.update(gradients, moments)
    return (optax.apply_updates(model, updates), moments), value


def init(key):
    model = config.init(key)
    return model, optimizer.init(model)


def main(rules):
    jax.config.update("jax_num_cpu_devices", 8)  # counts only where there is no accelerator
    layout = md.Layout(rules or SPATIAL, mesh={"data": "rest", "rows": 2, "cols": 2}, uneven="pad")
    mesh = md.make_mesh(layout)
    lowered = md.lower(step, layout, mesh, dims=dims)
    state = md.init(init, jax.random.key(0), layout, mesh)
    digits, order = images(), np.random.default_rng(1)
    for number in range(STEPS):
        chosen = order.choice(len(digits), batch.size, replace=False)
        clean = md.tensor(digits[chosen], dims)
        state, value = lowered(state, clean, jax.random.key(number))
        if number == 0 or (number + 1) % 20 == 0:
            noise = config.noise**2
            print(f"step {number + 1}: loss {value.item():.6f}, of the noise itself {noise:.4f}")


if __name__ == "__main__":
    main(sys.argv[1:])
