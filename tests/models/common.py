"""The small transformers that the tests of this folder run, and the meshes that they run on."""

import dataclasses
import functools
from collections.abc import Iterator

import jax
import numpy as np

import meshdsl as md
from meshdsl.layout import Layout
from meshdsl.mesh import axis_sizes
from meshdsl.models.transformer import Config, Transformer
from meshdsl.program.jaxpr import sub_jaxprs

LAYOUTS = (
    "single",
    "data",
    "zero1",
    "fsdp",
    "hybrid-fsdp",
    "tensor",
    "sequence",
    "fsdp-tensor",
    "fsdp-sequence",
)
STAGES = (
    "zero2",
    "fsdp-once",
)  # between zero1 and fsdp, for whom the tests of these two stand in elsewhere
CONTEXT = ("context", "context-ring", "ulysses")  # sequences split over devices
PIPELINES = ("pipeline", "pipeline-fsdp", "pipeline-tensor", "pipeline-rounds")
EXPERTS = ("experts", "experts-data", "experts-exchange", "experts-fsdp", "experts-tensor")
CONFIGS = {
    "llama": Config(
        style="llama",
        layers=2,
        d_model=32,
        heads=16,
        kv_heads=8,
        head_dim=8,
        d_ff=64,
        vocab=64,
        length=16,
        dropout=0.1,
        z_loss=1e-3,
    ),
    "gpt2": Config(
        style="gpt2",
        layers=2,
        d_model=32,
        heads=8,
        head_dim=8,
        d_ff=64,
        vocab=64,
        length=16,
        dropout=0.1,
    ),
}
BATCH = md.Dim("batch", 8)


def load(name: str) -> Layout:
    return Layout.load(f"layouts/{name}.toml")


def on(layout: Layout, devices: int, *, reverse: bool = False) -> Layout:
    """`layout` with its mesh sized for `devices`, its axes in either order."""
    alone = dict.fromkeys(layout.mesh, 1)
    mesh = alone if devices == 1 else axis_sizes(layout.mesh, devices)
    return dataclasses.replace(layout, mesh=dict(reversed(mesh.items())) if reverse else mesh)


def init(config: Config) -> Transformer:
    return Transformer.init(jax.random.key(0), config)


def batch(
    config: Config, seed: int = 1, rows: md.Dim = BATCH, **outer: int
) -> dict[str, md.Tensor]:
    """Random tokens and targets with dims `outer`, `rows`, length."""
    length = config.dims["length"]
    dims = (*(md.Dim(name, size) for name, size in outer.items()), rows, length)
    shape = [d.size for d in dims]
    tokens = jax.random.randint(
        jax.random.key(seed), (*shape[:-1], length.size + 1), 0, config.vocab
    )
    return {
        "tokens": md.tensor(tokens[..., :-1], dims),
        "targets": md.tensor(tokens[..., 1:], dims),
    }


def loss(model: Transformer, batch, key):
    key = key.array if isinstance(key, md.Tensor) else key
    return model.loss(batch["tokens"], batch["targets"], key=key)


value_and_grad = md.value_and_grad(loss, has_aux=True)


@functools.cache
def on_one_device(config: Config, rows: md.Dim = BATCH):
    """A model, a batch and a key, and the loss and gradients of these on one device."""
    args = init(config), batch(config, rows=rows), jax.random.key(5)
    return args, jax.jit(value_and_grad)(*args)


def assert_like_one_device(config: Config, layout: Layout, rows: md.Dim = BATCH):
    """Loss and every gradient under a layout are those of one device; returns the program."""
    args, ((value, aux), gradients) = on_one_device(config, rows)
    traced, program = md.lower(value_and_grad, layout).trace_program(*args)
    (found, found_aux), found_gradients = traced.lower().compile()(*args)
    np.testing.assert_allclose(found.array, value.array, rtol=1e-6)
    for name, expected in aux.items():
        np.testing.assert_allclose(found_aux[name].array, expected.array, rtol=1e-6)
    assert_same_gradients(found_gradients, gradients)
    return program


def assert_same_gradients(found, expected, tolerance: float = 1e-5) -> None:
    """Each gradient differs from the expected one by at most `tolerance` times its norm."""
    expected, found = _by_path(expected), _by_path(found)
    assert expected.keys() == found.keys()
    everything = np.sqrt(sum(np.sum(np.square(g)) for g in expected.values()))
    for path, g in expected.items():
        # Softmax does not see a bias of the keys: that gradient is zero but for rounding, so it is
        # measured by the rest.
        scale = everything if "key.bias" in path else np.linalg.norm(g)
        assert found[path].shape == g.shape, path
        assert np.linalg.norm(found[path] - g) <= tolerance * scale, path


def _by_path(tree):
    return {
        jax.tree_util.keystr(path): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def sizes_in(jaxpr) -> Iterator[int]:
    """The sizes of all that a program computes, position by position, inner programs included."""
    for eqn in jaxpr.eqns:
        for variable in eqn.outvars:
            yield from getattr(variable.aval, "shape", ())
        for sub in sub_jaxprs(eqn.params):
            yield from sizes_in(sub)
