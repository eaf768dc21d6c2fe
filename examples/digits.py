"""1,797 handwritten digits of 8 x 8 pixels, which scikit-learn has in it.

    meshdsl train --model examples/vit.py:ViT data.sources.digits.dataset=examples/digits.py:digits

A dataset is anything that has a length and gives examples by their number, each a dict of arrays.
"""

import numpy as np
from sklearn.datasets import load_digits

HELD_OUT = 297


def digits(subset):
    """Those to train on, or those that are held out.

    Args:
      subset: "train" or "validation".

    Returns:
      A list of dicts: `image` (height, width, colors) between 0 and 1, and `label`.
    """
    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found["images"]))
    chosen = order[:HELD_OUT] if subset == "validation" else order[HELD_OUT:]
    images = (found["images"] / 16).astype(np.float32)[..., None]
    labels = found["target"].astype(np.int32)
    return [{"image": images[i], "label": labels[i]} for i in chosen]
