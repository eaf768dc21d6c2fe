"""What becomes of an image: its size is the model's, and its numbers are those of pixels."""

import io

import numpy as np
import pytest
from PIL import Image

import meshdsl as md
from meshdsl.train.data.fields import decoded, fitted_image
from meshdsl.train.data.files import errors_say
from tests.train.data.common import refused
from tests.train.data.families import Classifier


def field(**values):
    return Classifier(**values).batch(md.Dim("batch", 2))["image"]


@pytest.mark.parametrize(
    ("image", "like", "expected"),
    [
        (np.full((4, 3), 51, np.uint8), field(), np.full((4, 3, 1), 0.2)),
        (np.full((4, 3, 1), 51, np.int64), field(colors=0), np.full((4, 3), 0.2)),
        (np.full((12,), 51, np.uint8), field(), np.full((4, 3, 1), 0.2)),
        (np.full((4, 3), 13107, np.uint16), field(), np.full((4, 3, 1), 0.2)),
        (np.full((4, 3), 7.5), field(), np.full((4, 3, 1), 7.5)),
        (np.full((4, 3), 51, np.uint8), field(dtype="uint8"), np.full((4, 3, 1), 51)),
        (np.full((4, 3), 51, np.uint8), field(dtype="int32"), np.full((4, 3, 1), 51)),
    ],
)
def test_pixels_become_those_of_the_model(image, like, expected):
    found = fitted_image(image, like, "there")
    assert found.dtype == like.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("image", "like", "text"),
    [
        (
            np.zeros((3, 4), np.uint8),
            field(),
            "the image is 3 x 4, and the model's batch has [height=4, width=3, color=1]; images "
            "are not resized",
        ),
        (
            np.zeros((4, 3, 3), np.uint8),
            field(),
            "the image is 4 x 3 x 3, and the model's batch has [height=4, width=3, color=1]",
        ),
        (np.full((4, 3), 300), field(), "the image has whole numbers outside of 0 to 255; give"),
        (np.full((4, 3), -1), field(), "the image has whole numbers outside of 0 to 255; give"),
        (np.zeros((4, 3)), field(dtype="uint8"), "has float64, and the model's batch has uint8"),
        (np.full((4, 3), 255, np.uint8), field(dtype="int8"), "which does not hold its numbers"),
        (np.zeros((4, 3), bool), field(), "an image has whole numbers or floats, not bool"),
    ],
)
def test_images_of_another_kind_are_refused(image, like, text):
    with refused("data: there: ", text), errors_say("data"):
        fitted_image(image, like, "there")


@pytest.mark.parametrize(
    ("mode", "shape"),
    [("L", (2, 3)), ("1", (2, 3)), ("RGB", (2, 3, 3)), ("P", (2, 3, 3)), ("RGBA", (2, 3, 4))],
)
def test_pictures_of_every_mode_are_pixels(mode, shape):
    out = io.BytesIO()
    Image.new(mode, (3, 2)).save(out, "PNG")
    found = decoded(out.getvalue(), "there")
    assert found.shape == shape and found.dtype == np.uint8
