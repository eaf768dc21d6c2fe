"""A Llama written in flax for TPU pods: by `md.JaxFamily`, and by `jit` with shardings.

    python -m benchmarks.flax_gspmd --keep texts

The module is that of `examples/flax_llama.py`, with the sizes of Llama 3 8B, layers scanned and
rematerialised, parameters in float32 and products in bfloat16, adamw with clipping. All programs
are compiled for the same target and layout; no TPU is needed. Parameters, optimizer state and
inputs are split alike.

- `from_jax`: meshdsl, which takes the module as it is, with names for a few dims.
- `jit`: the same names as shardings of parameters, gradients and inputs.
- `jit, activations`: the module also constrains each of its intermediates.
- `jit, activations, kernel`: and attends by the kernel that meshdsl uses, in a `shard_map`.

Each first takes two steps of a small model on 8 CPU devices, and must have the losses of the first.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import meshdsl as md
from examples.flax_llama import FlaxLlama
from meshdsl.machine import Network, find_target
from meshdsl.predict.compiler.collectives import from_hlo
from meshdsl.predict.compiler.options import default_options
from meshdsl.predict.compiler.replay import replay
from meshdsl.predict.compiler.topology import compile_only, target_devices
from meshdsl.program import summary
from meshdsl.train.config import Config
from meshdsl.train.job import Job
from meshdsl.train.optimizer import make_schedule, peak
from meshdsl.train.stored_layout import find_layout

from . import measure, train_gspmd
from .kept import compiled as kept_or_compiled
from .kernel import attend_on

GIB = 2**30
SMALL = FlaxLlama(
    length=16, vocab=256, d_model=32, layers=2, heads=16, kv_heads=8, head_dim=8, d_ff=64
)


def config_of(family: FlaxLlama, batch: int, compute: str) -> Config:
    """The settings of a training run of the module."""
    config = replace(Config(), model=family, batch=batch)
    return replace(config, precision=replace(config.precision, compute=compute))


class Lowered:
    """The step as meshdsl trains it."""

    def __init__(self, config: Config, layout: md.Layout, mesh: Mesh):
        self.job = Job(config, layout, mesh)
        self.state, self.batch, self.step = self.job.state, self.job.batch, self.job.step


class Jitted:
    """The step of the module as `jit` over global arrays, split by XLA's partitioner.

    Args:
      notes: whether the module constrains its intermediates.
      kernel: whether it attends by the kernel that meshdsl uses.
    """

    def __init__(self, config: Config, layout: md.Layout, mesh: Mesh, *, notes=False, kernel=False):
        family: Any = config.model
        self._place = functools.partial(NamedSharding, mesh)
        self._specs = _at_rest(family, layout, mesh)
        stream = P(*_split(layout, mesh, config.batch, family))
        specs = _intermediates(stream, mesh)
        how: dict[str, Any] = {}
        if notes:
            how["note"] = lambda name, x: jax.lax.with_sharding_constraint(
                x, self._place(specs[name])
            )
        if kernel:
            queries = P(*specs["queries"][:3], None, None)
            attend = attend_on(mesh, queries, specs["keys"])
            how["attend"] = functools.partial(_grouped, attend)
        module, compute = family.module(**how), jnp.dtype(config.precision.compute)
        rate = make_schedule(config.schedule, peak(config.optimizer), config.steps)
        shapes = jax.eval_shape(family.plain_init, jax.random.key(0))
        matrices = jax.tree_util.tree_map_with_path(lambda p, _: p[-1].key != "scale", shapes)
        decay = config.optimizer.weight_decay
        self.tx = optax.chain(
            optax.clip_by_global_norm(config.optimizer.clip),
            optax.adamw(rate, b2=0.95, weight_decay=decay, mask=matrices),
        )
        state = shapes, jax.eval_shape(self.tx.init, shapes)
        self.shardings = jax.tree_util.tree_map_with_path(self._sharding, state)
        self.state = jax.tree.map(
            lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), state, self.shardings
        )
        self._batch = self._place(P(*stream[:2]))
        shape = config.batch, family.length
        tokens = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=self._batch)
        self.batch = {"tokens": tokens, "targets": tokens}

        def loss(params, batch):
            params = jax.tree.map(lambda x: x.astype(compute), params)
            scores: Any = module.apply(params, batch["tokens"])
            losses = optax.softmax_cross_entropy_with_integer_labels(scores, batch["targets"])
            return losses.mean()

        def step(state, batch):
            params, opt_state = state
            value, gradients = jax.value_and_grad(loss)(params, batch)
            gradients = jax.lax.with_sharding_constraint(gradients, self.shardings[0])
            updates, opt_state = self.tx.update(gradients, opt_state, params)
            metrics = {"loss": value, "gradient_norm": optax.global_norm(gradients)}
            return (optax.apply_updates(params, updates), opt_state), metrics

        self.step = jax.jit(step, donate_argnums=0, out_shardings=(self.shardings, None))

    def _sharding(self, path, _) -> NamedSharding:
        keys = [getattr(k, "key", None) for k in path]
        known = keys[keys.index("params") :] if "params" in keys else []
        return self._place(self._specs.get("/".join(map(str, known)), P()))

    def put(self, params, batch):
        """A first state of plain parameters, and a batch, on the devices."""
        state = jax.device_put((params, self.tx.init(params)), self.shardings)
        return state, {name: jax.device_put(array, self._batch) for name, array in batch.items()}


def _grouped(attend: Callable, q, k, v):
    """The kernel, of queries whose heads are not yet grouped."""
    groups = (*q.shape[:2], k.shape[2], q.shape[2] // k.shape[2], q.shape[3])
    return attend(q.reshape(groups), k, v).reshape(q.shape)


def _at_rest(family: FlaxLlama, layout: md.Layout, mesh: Mesh) -> dict[str, P]:
    """How the layout splits each parameter, by its path: the axes of the first factor of a dim."""
    leaves = jax.tree_util.tree_leaves_with_path(jax.eval_shape(family.init, jax.random.key(0)))
    # By the variables, whose positions are those of the module's arrays.
    family.plain.describe()
    found = {}
    for (path, _), v in zip(leaves, family.plain.variables_of_first_trace(0), strict=True):
        split = layout.at_rest(v.flat, mesh.shape, "parameters")
        first = [split.get(dims[0], ()) if dims else () for dims in v.dims]
        name = jax.tree_util.keystr(path[:-1], simple=True, separator="/")
        found[name] = P(*(axes[0] if axes else None for axes in first))
    return found


def _split(layout: md.Layout, mesh: Mesh, batch: int, family: FlaxLlama) -> list[str | None]:
    """How the residual stream (batch, length, d_model) is split."""
    sizes = {"batch": batch, "length": family.length, "d_model": family.d_model}
    dims = tuple(md.Dim(name, size) for name, size in sizes.items())
    split = layout.at_rest(dims, mesh.shape)
    return [split.get(d, (None,))[0] for d in dims]


def _intermediates(stream: P, mesh: Mesh) -> dict[str, P]:
    """How each intermediate is split: as meshdsl's collectives leave it."""
    data, inner = stream[0], ("model" if "model" in mesh.shape else None)
    return {
        "residual": stream,
        "projected": stream,
        "normed": P(data, None, None),
        "queries": P(data, None, inner, None),
        "keys": P(data, None, inner, None),
        "hidden": P(data, None, inner),
        "logits": P(data, None, inner),
    }


IMPLEMENTATIONS: dict[str, Callable[..., Any]] = {
    "from_jax": Lowered,
    "jit": Jitted,
    "jit, activations": functools.partial(Jitted, notes=True),
    "jit, activations, kernel": functools.partial(Jitted, notes=True, kernel=True),
}


def check(layout_name: str, tolerance: float = 1e-5) -> None:
    """Takes two steps of a small model on 8 CPU devices, in float32, with each implementation.

    Raises:
      AssertionError: losses, or norms of gradients, are not those of the first.
    """
    layout, sizes = find_layout(layout_name), train_gspmd.SMALL_MESHES[layout_name]
    mesh, config = md.make_mesh(sizes, jax.devices("cpu")[:8]), config_of(SMALL, 8, "float32")
    tokens = np.random.default_rng(0).integers(0, SMALL.vocab, (8, SMALL.length + 1), np.int32)
    batch = {"tokens": tokens[:, :-1], "targets": tokens[:, 1:]}
    lowered = Lowered(config, layout, mesh)
    state = lowered.job.step.init(jax.random.key(0))
    plain = jax.tree.map(np.asarray, SMALL.unpack(state.params))
    placed, expected = lowered.job.place(batch), []
    for _ in range(2):
        state, metrics = lowered.step(state, placed)
        expected += [float(metrics["loss"]), float(metrics["gradient_norm"])]
    for name, make in list(IMPLEMENTATIONS.items())[1:]:
        jitted, found = make(config, layout, mesh), []
        own, placed = jitted.put(plain, batch)
        for _ in range(2):
            own, metrics = jitted.step(own, placed)
            found += [float(metrics["loss"]), float(metrics["gradient_norm"])]
        where = f"{name}, {layout_name}: loss and norm of the gradient"
        np.testing.assert_allclose(found, expected, rtol=tolerance, err_msg=where)


def compare(layout_name: str, names: list[str], layers: int, keep: Path | None) -> None:
    """Compiles implementations under a layout, and prints their memory, times and collectives."""
    target_name, sizes, batch = train_gspmd.CASES[layout_name]
    target, layout = find_target(target_name), find_layout(layout_name)
    mesh = md.make_mesh(sizes, target_devices(target))
    options = default_options(mesh)
    config = config_of(FlaxLlama(layers=layers), batch, "bfloat16")
    rows = ["implementation", "arguments GiB", "temporaries GiB", "peak GiB", "moved GiB"]
    rows = [[*rows, "step ms", "compute ms", "exposed ms", "compile s"]]
    moved: dict[str, dict] = {}
    for name in names:
        program = IMPLEMENTATIONS[name](config, layout, mesh)
        kept = keep and keep / f"flax-{layout_name}-{layers}-{name.replace(', ', '-')}"
        lower = lambda program=program: program.step.lower(program.state, program.batch)
        found = kept_or_compiled(kept, lower, options)
        if "error" in found:
            rows.append([name, *["-"] * 7, found["error"][:90]])
            continue
        replayed = replay(found["text"], target.chip, Network(target, sizes), sizes)
        moved[name] = summary(from_hlo(found["text"], mesh))
        total = sum(size for _, size in moved[name].values())
        memory = found["arguments"], found["temporaries"], found["peak"], total
        times = replayed.step, replayed.compute, replayed.exposed
        rows.append(
            [
                name,
                *(f"{x / GIB:.2f}" for x in memory),
                *(f"{1000 * t:,.0f}" for t in times),
                f"{found['seconds']:.0f}",
            ]
        )
        print(f"{layout_name}, {name}: compiled in {found['seconds']:.0f} s", flush=True)
    title = f"{layout_name} on {target_name}, mesh {sizes}, batch {batch}, {layers} layers"
    measure.show(rows, title)
    measure.show(train_gspmd.collectives_table(moved), "collectives")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    layouts = list(train_gspmd.CASES)
    parser.add_argument("--layouts", nargs="*", choices=layouts, default=["fsdp-sequence"])
    parser.add_argument(
        "--implementations", nargs="+", choices=IMPLEMENTATIONS, default=list(IMPLEMENTATIONS)
    )
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="where compiled programs are kept"
    )
    given = parser.parse_args()
    compile_only()
    jax.config.update("jax_num_cpu_devices", 8)
    for layout in given.layouts:
        check(layout)
    print(f"jax {jax.__version__}; all implementations agree", flush=True)
    for layout in given.layouts:
        compare(layout, given.implementations, given.layers, given.keep)


if __name__ == "__main__":
    main()
