"""The block stack as `jit` over global arrays, the collectives left to XLA's partitioner.

`usual` constrains what people usually constrain: the parameters and the residual stream.
`annotated` constrains every intermediate, among them the weights of a layer as they are used.
Attention is a kernel, which a partitioner cannot split: both map it over the mesh.
"""

import functools

import jax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from . import model
from .cases import Case
from .handwritten import HANDS
from .kernel import attend_on
from .program import Program, place


def _intermediates(layout: str) -> dict[str, P]:
    """How each intermediate of `model.block` is split."""
    inner = "model" if layout in ("tensor", "fsdp-sequence") else None
    along = "model" if layout == "fsdp-sequence" else None
    weights = {
        name: P(*(axis if axis == "model" else None for axis in spec[1:]))
        for name, spec in HANDS[layout].specs.items()
    }
    return weights | {
        "residual": P("data", along, None),
        "projected": P("data", along, None),
        "normed": P("data", None, None),
        "heads": P("data", None, inner, None),
        "hidden": P("data", None, inner),
    }


def build(case: Case, layout: str, mesh: jax.sharding.Mesh, *, annotated: bool) -> Program:
    """The step for one layout; `mesh` has the axes `data` and `model`."""
    hand = HANDS[layout]
    specs = _intermediates(layout)
    attend = attend_on(mesh, specs["heads"], specs["heads"])
    if not annotated:
        specs = {"residual": specs["residual"]}

    def note(name, x):
        return (
            jax.lax.with_sharding_constraint(x, NamedSharding(mesh, specs[name]))
            if name in specs
            else x
        )

    def make():
        def step(parameters, x):
            loss, gradients = jax.value_and_grad(
                functools.partial(model.loss, note=note, attend=attend)
            )(parameters, x)
            at_rest = {name: NamedSharding(mesh, hand.specs[name]) for name in gradients}
            return loss, jax.lax.with_sharding_constraint(gradients, at_rest)

        return jax.jit(step)

    return Program(make, place(mesh, hand.specs, hand.x))


usual = functools.partial(build, annotated=False)
annotated = functools.partial(build, annotated=True)
