"""The small transformers that the tests of this folder run, and the meshes that they run on."""

import dataclasses

import jax

import meshdsl as md
from meshdsl.layout import Layout
from meshdsl.mesh import axis_sizes
from meshdsl.models.transformer import Config, Transformer

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
    mesh = dict.fromkeys(layout.mesh, 1) if devices == 1 else axis_sizes(layout.mesh, devices)
    return dataclasses.replace(layout, mesh=dict(reversed(mesh.items())) if reverse else mesh)


def init(config: Config) -> Transformer:
    return Transformer.init(jax.random.key(0), config)


def batch(config: Config, seed: int = 1, **outer: int) -> dict[str, md.Tensor]:
    """Random tokens and targets with dims `outer`, batch, length."""
    length = config.dims["length"]
    dims = (*(md.Dim(name, size) for name, size in outer.items()), BATCH, length)
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
