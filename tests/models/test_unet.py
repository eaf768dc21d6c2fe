"""The U-Net is the same under every layout, and spatial splits of it cost halos only."""

import functools
import re
import runpy

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshdsl as md
from meshdsl.models.unet import Config, UNet
from meshdsl.predict.compiler.collectives import from_hlo
from meshdsl.program import summary
from tests.helpers import assert_equal, data, dims, every, layout, only
from tests.models import common

CONFIG = Config(levels=2, channels=4, colors=3, outputs=2)
BATCH, HEIGHT, WIDTH, COLORS = dims(batch=2, height=8, width=16, colors=3)
ODD = dims(batch=3, height=7, width=11, colors=3)
SPATIAL = md.Layout.load("layouts/spatial.toml")
TILES = layout("height -> rows", "width -> cols", mesh={"rows": 4, "cols": 2}, uneven="pad")
LAYOUTS = {
    "spatial": (SPATIAL, (BATCH, HEIGHT, WIDTH, COLORS)),
    "odd sizes": (TILES, ODD),
    "channels and rows": (
        layout("hidden -> m", "height -> r", mesh={"r": 2, "m": 4}),
        (BATCH, HEIGHT, WIDTH, COLORS),
    ),
    "FSDP": (
        layout(
            "batch -> d", "height -> r", mesh={"d": 2, "r": 2}, parameters=["channels, hidden -> d"]
        ),
        (BATCH, HEIGHT, WIDTH, COLORS),
    ),
}


def loss(model, images):
    return md.mean(md.square(model(images)))


step = md.value_and_grad(loss)


@functools.cache
def on_one_device(dims):
    model, images = UNet.init(jax.random.key(0), CONFIG), data(*dims)
    return model, images, jax.jit(step)(model, images)


@pytest.mark.parametrize("name", only(["odd sizes"], LAYOUTS))
def test_loss_and_every_gradient_equal_one_device(name):
    rules, dims = LAYOUTS[name]
    model, images, expected = on_one_device(dims)
    assert_equal(md.lower(step, rules)(model, images), expected)


@pytest.mark.parametrize("sizes", [(1, 1), (5, 8), (9, 3)])
def test_images_come_back_in_their_size(sizes):
    height, width = md.Dim("height", sizes[0]), md.Dim("width", sizes[1])
    model = jax.eval_shape(lambda: UNet.init(jax.random.key(0), CONFIG))
    made = jax.eval_shape(lambda m, x: m(x), model, data(height, BATCH, COLORS, width))
    assert set(made.dims) == {BATCH, height, width, md.Dim("outputs", 2)}


@pytest.mark.slow
def test_digits_lose_their_noise_and_the_same_under_every_layout(capsys):
    main = runpy.run_path("examples/unet_digits.py")["main"]
    losses = []
    for rules in (["nothing? -> data"], []):
        main(rules)
        losses.append([float(x) for x in re.findall(r"loss ([\d.]+)", capsys.readouterr().out)])
        main.__globals__["STEPS"] = 20  # of the second
    whole, tiles = losses
    assert whole[-1] < 0.25 * whole[0]
    np.testing.assert_allclose(tiles, whole[:2], rtol=1e-5, atol=1e-6)


def halo_bytes(config: Config, size: int, batch: int, rows: int, cols: int) -> tuple[int, int]:
    """What a device sends over rows and cols, forward and backward: rims of tiles, for each 3x3.

    Each convolution fetches one row of pixels of `ins` channels from above and below, then one
    column on each side, of which rows + 2 pixels are here now. Backward their cotangents travel
    back, but for the images themselves.
    """
    over_rows = over_cols = 0
    for level in range(config.levels + 1):
        height, width, channels = (
            size // 2**level // rows,
            size // 2**level // cols,
            config.channels * 2**level,
        )
        ins = [channels if level else config.colors, channels] + [2 * channels, channels] * (
            level < config.levels
        )
        passes = sum(n * (1 if level == i == 0 else 2) for i, n in enumerate(ins))
        sides = lambda parts: 1 if parts == 2 else 2
        over_rows += passes * sides(rows) * width * batch * 4
        over_cols += passes * sides(cols) * (height + 2) * batch * 4
    return over_rows, over_cols


@every({"spatial": SPATIAL, "tiles": TILES}, "spatial")
def test_images_of_4096_pixels_squared_cost_the_rims_of_their_tiles(rules):
    config = Config(levels=3, channels=32, colors=3, outputs=3)
    mesh = md.make_mesh(rules)
    sizes = dict(mesh.shape)
    batch = md.Dim("batch", sizes.get("data", 1))
    images = (batch, *dims(height=4096, width=4096), COLORS)
    args = jax.eval_shape(
        lambda: (
            UNet.init(jax.random.key(0), config),
            md.tensor(jnp.zeros([d.size for d in images]), images),
        )
    )
    lowered = md.lower(step, rules, mesh)
    traced, program = lowered.trace_program(*args)
    over_rows, over_cols = halo_bytes(config, 4096, 1, sizes["rows"], sizes["cols"])
    found = summary(program.collectives)
    assert found["ppermute", ("rows",)][1] == over_rows
    assert found["ppermute", ("cols",)][1] == over_cols
    assert {operation for operation, _ in found} == {"ppermute", "psum"}
    assert summary(from_hlo(traced.lower().compile().as_text(), mesh)) == found
    (whole,) = [e for e in traced.jaxpr.eqns if e.primitive.name == "shard_map"]
    assert (
        max(common.sizes_in(whole.params["jaxpr"])) == 4096 // min(sizes["rows"], sizes["cols"]) + 2
    )  # no more than a tile with its halo


@pytest.mark.parametrize(
    "settings, text",
    [
        ({"levels": -1}, "model: levels is at least 0, not -1"),
        ({"kernel": 0}, "model: kernel is at least 1, not 0"),
        ({"norm": "batch"}, "model: no norm 'batch'; known: `layer`, `rms`"),
    ],
)
def test_a_wrong_setting_is_named(settings, text):
    with pytest.raises(md.MeshDSLError, match=re.escape(text)):
        Config(**settings)
