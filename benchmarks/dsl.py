"""The block stack in meshdsl: the shipped layers under the shipped layout files."""

import importlib.resources

import jax

import meshdsl as md
from meshdsl.layers.rotary import angles
from meshdsl.layers.stack import Stack
from meshdsl.models.transformer import Block, Config

from .cases import Case
from .program import Program, put


def _stack(case: Case) -> Stack:
    """The blocks of `Transformer` in the llama style, as shapes."""
    config = Config(
        style="llama",
        layers=case.layers,
        d_model=case.d_model,
        heads=case.heads,
        head_dim=case.head_dim,
        d_ff=case.d_ff,
        length=case.length,
    )

    def init(key):
        return Stack.init(
            key, lambda k: Block.init(k, config), config.dims["layers"], remat=config.remat
        )

    return jax.eval_shape(init, jax.random.key(0))


def _loss(stack: Stack, x: md.Tensor) -> md.Tensor:
    length = x.dim("length")
    turn = angles(md.iota(length), stack.layer.attention.head_dim)

    def block(layer: Block, x, _):
        x, *_ = layer(x, length, lambda y, place: y, rotary=turn)
        return x, ()

    y, _ = stack.scan(block, x)
    return md.mean(md.square(md.cast(y, "float32")))


def build(case: Case, layout: str, mesh: jax.sharding.Mesh) -> Program:
    """The step for one layout file; `mesh` has the axes `data` and `model`."""
    rules = md.Layout.load(importlib.resources.files("meshdsl.layouts") / f"{layout}.toml")
    stack = _stack(case)
    structure = jax.tree.structure(stack)
    names = list(case.parameter_shapes())  # in the order of the fields of Block
    dims = [
        md.Dim(name, size)
        for name, size in zip(("batch", "length", "d_model"), case.input_shape(), strict=True)
    ]

    def arguments(parameters, x):
        whole = (
            jax.tree.unflatten(structure, [parameters[name] for name in names]),
            md.tensor(x, dims),
        )
        return jax.tree.map(put, whole, md.shardings(whole, rules, mesh))

    def make():
        return md.lower(md.value_and_grad(_loss), rules, mesh, dims=["vocab"])

    def plain(loss, gradients):
        return loss.array, dict(zip(names, jax.tree.leaves(gradients), strict=True))

    return Program(make, arguments, plain)
