"""FLOPs of each family, as explain counts them, are those of its jaxpr."""

import math
from typing import Any

import jax
import pytest

import meshdsl as md
from meshdsl.models import bert, t5, vit
from meshdsl.models.architecture import STYLES
from meshdsl.models.transformer import Config
from meshdsl.predict.kernels.kernel_graph import kernel_graph
from meshdsl.predict.time.model_flops import counted_flops
from meshdsl.program.jaxpr import sub_jaxprs
from tests.helpers import only
from tests.models import common

ROWS = md.Dim("batch", 4)
SIZES = {"layers": 3, "d_model": 16, "heads": 4, "head_dim": 6, "d_ff": 24, "vocab": 32}
SIZES |= {"length": 16}
WINDOWS = {"window": 5, "pattern": ("local", "local", "global")}
SPARSE = ("experts", "dense first")  # grouped products are no products of a jaxpr
LATENT = {"latent": 8, "turned": 4, "value_dim": 5}
OTHER = {"layers": 2, "d_model": 16, "heads": 4, "d_ff": 24}
BERT = bert.Config(**OTHER, vocab=32, length=16, mask_token=3)
IMAGES = {"height": 8, "width": 8, "patch": 4, "classes": 3}
PAIRS = {"decoder_layers": 3, "head_dim": 4, "vocab": 32, "source": 12, "length": 16}
FAMILIES = {
    **{
        style: Config(style=style, **SIZES, **(WINDOWS if style.startswith("gemma") else {}))
        for style in STYLES
    },
    "experts": Config(**SIZES, experts=4),
    "latent": Config(**SIZES, **LATENT, query_latent=10),
    "dense first": Config(**SIZES, **LATENT, experts=4, dense_layers=1, dense_d_ff=20),
    "bert": BERT,
    "vit": vit.Config(**IMAGES, **OTHER),
    "t5": t5.Config(**PAIRS, **OTHER, gated=True, tied=False),
}
SHARES = (2 / 3, 1 / 3)  # of the layers in WINDOWS


def loss(config):
    def run(model, batch):
        made = config.loss(model, batch, None)
        made = made[0] if isinstance(made, tuple) else made
        return made.total / md.cast(made.count, "float32") if isinstance(made, md.Average) else made

    return run


def products(jaxpr, times=1.0):
    """The FLOPs of all products of a program, each as often as it runs."""
    found = 0.0
    for eqn in jaxpr.eqns:
        name, of = eqn.primitive.name, eqn.params
        shapes: Any = [getattr(x.aval, "shape", ()) for x in (*eqn.invars, *eqn.outvars)]
        if name == "dot_general":
            contracted = (shapes[0][i] for i in of["dimension_numbers"][0][0])
            found += times * 2 * math.prod(shapes[-1]) * math.prod(contracted)
        elif name == "conv_general_dilated":
            outs = shapes[1][of["dimension_numbers"].rhs_spec[0]]
            found += times * 2 * math.prod(shapes[-1]) * math.prod(shapes[1]) / outs
        elif name == "scan":
            found += products(of["jaxpr"].jaxpr, times * of["length"])
        elif name == "cond":
            counts = [products(branch.jaxpr, times) for branch in of["branches"]]
            # Blocks of attention are left out or not; layers have a window or not.
            shares = SHARES if len(counts) == 2 and all(counts) else (1.0,) * len(counts)
            found += sum(share * count for share, count in zip(shares, counts, strict=True))
        else:
            found += sum(products(inner, times) for inner in sub_jaxprs(of))
    return found


DENSE = [name for name in FAMILIES if name not in SPARSE]


@pytest.mark.parametrize(
    "name", only(["gpt2", "gemma2"], DENSE, [n for n in DENSE if n not in STYLES])
)
def test_flops_of_a_step_are_those_of_its_jaxpr(name):
    config = FAMILIES[name]
    given = jax.eval_shape(config.init, jax.random.key(0)), config.batch(ROWS)
    step = md.value_and_grad(loss(config))
    program = md.lower(step, common.load("single")).program(*given)
    graph = kernel_graph(program)
    computed = sum(times * kernel.flops for kernel, times in graph.walk())
    assert float(computed) == products(jax.make_jaxpr(step)(*given).jaxpr)

    needed = 3 * products(jax.make_jaxpr(loss(config))(*given).jaxpr)  # by the convention
    if isinstance(config, Config):
        turns = 2 * config.length * config.rotary_dim.size // 2 if config.rotary else 0
        stated, full = config.step_flops(ROWS.size)
        assert counted_flops(graph, program) - turns == pytest.approx(stated, rel=1e-9)
        local = sum(config.local_layers) * beyond_windows(config)
        assert needed - 3 * turns == pytest.approx(full + local, rel=1e-9)
        return
    if name == "t5":  # the decoder's causal half
        scores = 2 * ROWS.size * config.heads * config.length**2 * config.head_dim
        needed -= 3 * config.decoder_layers * 2 * scores / 2
    if name == "vit":  # images get no gradient
        patches = (config.height // config.patch) * (config.width // config.patch)
        needed -= 2 * ROWS.size * patches * config.d_model * config.patch**2 * config.colors
    assert counted_flops(graph, program) == pytest.approx(needed, rel=1e-9)


def beyond_windows(config):
    """FLOPs of the scores that blocks compute in a layer with a window, though none sees them."""
    if not config.window:
        return 0
    near = 2 * config.window - config.window * (config.window - 1) / config.length
    pairs = config.length - near
    return 3 * 2 * 2 * ROWS.size * config.heads * config.head_dim * config.length * pairs


@pytest.mark.slow
@pytest.mark.parametrize("name", SPARSE)
def test_flops_of_experts_are_those_that_the_model_states(name):
    config = FAMILIES[name]
    given = jax.eval_shape(config.init, jax.random.key(0)), config.batch(ROWS)
    program = md.lower(md.value_and_grad(loss(config)), common.load("single")).program(*given)
    turns = 2 * config.length * config.rotary_dim.size // 2
    counted = counted_flops(kernel_graph(program), program) - turns
    assert counted == pytest.approx(config.step_flops(ROWS.size)[0], rel=1e-9)
