"""The report before the first step."""

import jax
import jax.numpy as jnp

from meshdsl.dims import Dim
from meshdsl.layout import Layout
from meshdsl.lowering.shardings import shardings
from meshdsl.mesh import make_mesh
from meshdsl.program.collective import Collective
from meshdsl.tensor import parameter
from meshdsl.train.overview import describe
from meshdsl.train.step import State

REPORT = """\
layout mixed, mesh data=4 model=2 on 8 cpu devices

parameters
  mlp.scale[d_model_data]          8  float32
  mlp.up[d_model_data, d_ff_model]  8 x 16  float32

collectives of one step
  all_gather    data                 3 times     1.5 KiB
  psum          data, model          1 times         4 B

136 parameters
  parameters            72 B per device, 544 B in all
  optimizer state       72 B per device, 544 B in all"""


def test_everything_that_the_layout_decided_is_printed():
    layout = Layout(
        ["batch -> data", "d_ff -> model"],
        ["d_model -> data"],
        mesh={"data": 4, "model": 2},
        name="layout mixed",
    )
    mesh = make_mesh(layout)
    model, ff = Dim("d_model", 8), Dim("d_ff", 16)
    up, scale = (
        parameter(jnp.ones((8, 16)), (model, ff), ins=(model,)),
        parameter(jnp.ones(8), (model,)),
    )
    params = {"mlp": {"up": up, "scale": scale}}
    params = jax.device_put(params, shardings(params, layout, mesh))
    collectives = [
        Collective("all_gather", ("data",), 2, 500, "float32"),
        Collective("all_gather", ("data",), 1, 500, "float32"),
        Collective("psum", ("data", "model"), 1, 4, "float32"),
    ]
    report = describe(layout, mesh, State(jnp.zeros(()), params, params, None), collectives)
    expected = REPORT.replace(
        "mlp.scale[d_model_data]          8", f"{'mlp.scale[d_model_data]':32}  8"
    )
    assert report.splitlines() == expected.splitlines()


def test_a_step_without_collectives_says_so():
    layout = Layout()
    scale = jax.device_put(jnp.ones(8), jax.devices()[0])
    params = {"scale": parameter(scale, (Dim("d_model", 8),))}
    report = describe(layout, make_mesh(layout), State(jnp.zeros(()), params, (), None), [])
    assert "mesh without axes on 1 cpu device" in report
    assert "collectives of one step\n  none" in report
