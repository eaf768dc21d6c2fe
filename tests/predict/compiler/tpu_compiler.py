"""Compiles train steps for TPUs that are not there, one for each line of stdin.

The answers are the collectives of the compiled programs.

    echo '["v5p:2x2x2", "fsdp"]' | python -m tests.predict.compiler.tpu_compiler

A process of its own, because libtpu puts handlers of signals into the process that loads it, and
one for many steps, because loading it takes seconds.
"""

import json
import os
import sys
import warnings

import jax
import jax.numpy as jnp

import meshdsl as md
from meshdsl.layout import Layout
from meshdsl.machine import find_target
from meshdsl.mesh import abstract_mesh, axis_sizes
from meshdsl.models.unet import Config as UNetConfig
from meshdsl.models.unet import UNet
from meshdsl.predict.compiler.collectives import from_hlo
from meshdsl.predict.compiler.options import default_options
from meshdsl.predict.compiler.topology import compile_only, target_devices
from meshdsl.program import Collective
from meshdsl.train.config import Config
from meshdsl.train.job import Job
from meshdsl.train.settings import override

# Sizes of which a device's part is a whole number of the compiler's tiles, so that it has no reason
# to pad.
MODEL = {
    "style": "llama",
    "layers": 2,
    "d_model": 1024,
    "heads": 16,
    "kv_heads": 8,
    "head_dim": 128,
    "d_ff": 1024,
    "vocab": 1024,
    "length": 256,
}
CONFIG = override(
    Config(),
    ["precision.compute=bfloat16"],
    batch=8,
    **{f"model.{key}": value for key, value in MODEL.items()},
)


IMAGES = (md.Dim("batch", 2), md.Dim("height", 64), md.Dim("width", 64), md.Dim("colors", 3))


def mesh_of(layout: Layout) -> dict[str, int]:
    return axis_sizes(layout.mesh, 8) if layout.mesh else {}


def step(name: str, devices: list | None = None):
    """What is lowered under a shipped layout, and its arguments in the abstract.

    Under `spatial` these are the gradients of a U-Net, else a step of training a transformer.

    devices: of a target; without them there is only a program, no compiled one.
    """
    layout = Layout.load(f"layouts/{name}.toml")
    sizes = mesh_of(layout)
    mesh = (
        abstract_mesh(sizes)
        if devices is None
        else md.make_mesh(sizes, devices if sizes else devices[:1])
    )
    if name != "spatial":
        job = Job(CONFIG, layout, mesh)
        return job.step, (job.state, job.batch)
    model = UNet.init(jax.random.key(0), UNetConfig(levels=1, channels=64, colors=3, outputs=3))
    shapes = jax.eval_shape(lambda: (model, md.tensor(jnp.zeros([d.size for d in IMAGES]), IMAGES)))
    places = md.shardings(shapes, layout, mesh)
    args = jax.tree.map(
        lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), shapes, places
    )
    return md.lower(
        md.value_and_grad(lambda model, images: md.mean(md.square(model(images)))), layout, mesh
    ), args


def asked(name: str) -> list[Collective]:
    """What `explain` reads: no devices, no compiler."""
    made, args = step(name)
    return made.program(*args).collectives


def compiled(target: str, name: str) -> list[Collective]:
    made, args = step(name, target_devices(find_target(target)))
    # What the compiler does of itself: all that is switched on is switched off.
    on = (key for key, value in default_options(made.mesh).items() if value == "True")
    off = dict.fromkeys(on, "false")
    return from_hlo(made.lower(*args).compile(compiler_options=off).as_text(), made.mesh)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libtpu prints is no answer
    compile_only()
    warnings.filterwarnings("error", message="the compiler's text")  # of what is not understood
    jax.config.update("jax_disable_most_optimizations", False)
    # A fraction of the time, and the same collectives.
    jax.config.update("jax_optimization_level", "O0")
    for line in sys.stdin:
        found = compiled(*json.loads(line))
        print(
            json.dumps([[c.operation, c.axes, c.count, c.bytes, c.dtype, c.scope] for c in found]),
            file=answers,
            flush=True,
        )


if __name__ == "__main__":
    main()
