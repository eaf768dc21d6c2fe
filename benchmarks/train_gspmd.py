"""A whole training step of a Llama for TPU pods: meshdsl beside `jit` with shardings.

    python -m benchmarks.train_gspmd --layouts fsdp fsdp-sequence --keep texts

The programs are compiled for the same target and layout; no TPU is needed. The model is
`benchmarks/llama.py`, parameters in float32 and products in bfloat16, each layer rematerialised,
adamw with clipping; parameters and optimizer state are split as the shipped layout file says.
`jit, usual` constrains parameters, gradients and the residual stream; `jit, annotated` also every
intermediate and every weight where it is used. Each implementation first takes two steps of a small
model on 8 CPU devices, and must have meshdsl's losses and parameters.

The compiler gets the same options for all. Times are replayed from the compiled schedule
(`meshdsl.predict.compiler.replay`).
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import meshdsl as md
from meshdsl.commands.settings import model_values
from meshdsl.machine import Network, find_target
from meshdsl.predict.compiler.collectives import from_hlo
from meshdsl.predict.compiler.options import default_options, parse_options
from meshdsl.predict.compiler.replay import replay
from meshdsl.predict.compiler.topology import compile_only, target_devices
from meshdsl.program import summary
from meshdsl.train.config import Config
from meshdsl.train.job import Job
from meshdsl.train.settings import override
from meshdsl.train.stored_layout import find_layout

from . import llama, measure
from .kept import compiled as kept_or_compiled
from .kernel import attend_on

GIB = 2**30
# layout -> target, mesh, sequences in a step
CASES = {
    "fsdp": ("v5p:4x4x4", {"data": 64}, 64),
    "tensor": ("v5p:2x2x2", {"model": 8}, 8),
    "fsdp-sequence": ("v5p:4x4x4", {"data": 16, "model": 4}, 64),
}
SMALL = {
    "layers": 2,
    "d_model": 32,
    "heads": 16,
    "kv_heads": 8,
    "head_dim": 8,
    "d_ff": 64,
    "vocab": 256,
    "length": 16,
    "rotary_base": 500.0,
}
SMALL_MESHES = {
    "fsdp": {"data": 8},
    "tensor": {"model": 8},
    "fsdp-sequence": {"data": 4, "model": 2},
}


# -- how everything is split -----------------------------------------------------------------------


def at_rest(config: Config, layout: md.Layout, mesh: Mesh) -> dict[str, P]:
    """The parameters, as meshdsl splits them under the layout."""
    by_name = config.model.dims

    def spec(names):
        law = layout.at_rest(tuple(by_name[name] for name in names), mesh.shape, "parameters")
        return P(*(law.get(by_name[name], (None,))[0] for name in names))

    return {name: spec(names) for name, names in llama.DIMS.items()}


def residual(config: Config, layout: md.Layout, mesh: Mesh) -> P:
    """The residual stream (batch, length, d_model)."""
    dims = md.Dim("batch", config.batch), config.model.dims["length"], config.model.dims["d_model"]
    law = layout.at_rest(dims, mesh.shape)
    return P(*(law.get(dim, (None,))[0] for dim in dims))


def intermediates(parameters: dict[str, P], stream: P, mesh: Mesh) -> dict[str, P]:
    """How each intermediate of the model is split: as meshdsl's collectives leave it.

    Args:
      parameters: how they are split at rest.
      stream: how the residual stream is split.
    """
    data, inner = stream[0], ("model" if "model" in mesh.shape else None)
    in_use = {
        name: P(*(axis if axis == "model" else None for axis in spec))
        for name, spec in parameters.items()
    }
    return {
        f"use/{name}": P(*spec[1:]) if name in llama.BLOCK else spec
        for name, spec in in_use.items()
    } | {
        "projected": stream,
        "normed": P(data, None, None),
        "queries": P(data, None, inner, None, None),
        "keys": P(data, None, inner, None),
        "hidden": P(data, None, inner),
        "logits": P(data, None, inner),
    }


# -- the implementations ---------------------------------------------------------------------------


class Jitted:
    """The step as `jit` over global arrays, the collectives left to XLA's partitioner."""

    def __init__(self, config: Config, layout: md.Layout, mesh: Mesh, *, annotated: bool):
        parameters, stream = at_rest(config, layout, mesh), residual(config, layout, mesh)
        specs = intermediates(parameters, stream, mesh)
        attend = attend_on(mesh, specs["queries"], specs["keys"])
        specs = {"residual": stream} | (specs if annotated else {})
        self.tx = llama.make_tx(config.optimizer, config.schedule, config.steps)
        self._place = functools.partial(NamedSharding, mesh)
        shapes = llama.parameter_shapes(config.model)
        state = shapes, jax.eval_shape(self.tx.init, shapes)
        self.shardings = jax.tree_util.tree_map_with_path(
            lambda path, _: self._place(parameters.get(getattr(path[-1], "key", None), P())), state
        )
        self.state = jax.tree.map(
            lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), state, self.shardings
        )
        self._batch = self._place(P(*stream[:2]))
        self.batch = {
            name: jax.ShapeDtypeStruct(
                (config.batch, config.model.length), jnp.int32, sharding=self._batch
            )
            for name in ("tokens", "targets")
        }

        def note(name, x):
            return (
                jax.lax.with_sharding_constraint(x, self._place(specs[name]))
                if name in specs
                else x
            )

        def step(state, batch):
            parameters, opt_state = state
            loss, gradients = jax.value_and_grad(llama.loss)(
                parameters,
                batch["tokens"],
                batch["targets"],
                config.model,
                note,
                attend,
                config.precision.compute,
            )
            gradients = jax.lax.with_sharding_constraint(gradients, self.shardings[0])
            updates, opt_state = self.tx.update(gradients, opt_state, parameters)
            metrics = {"loss": loss, "gradient_norm": optax.global_norm(gradients)}
            return (optax.apply_updates(parameters, updates), opt_state), metrics

        self.step = jax.jit(step, donate_argnums=0, out_shardings=(self.shardings, None))

    def put(self, parameters, batch):
        """A first state of plain parameters, and a batch, on the devices."""
        state = jax.device_put((parameters, self.tx.init(parameters)), self.shardings)
        return state, {name: jax.device_put(array, self._batch) for name, array in batch.items()}


class Lowered:
    """The step as meshdsl trains it."""

    def __init__(self, config: Config, layout: md.Layout, mesh: Mesh):
        self.job = Job(config, layout, mesh)
        self.state, self.batch, self.step = self.job.state, self.job.batch, self.job.step


IMPLEMENTATIONS: dict[str, Callable[..., Any]] = {
    "meshdsl": Lowered,
    "jit, usual": functools.partial(Jitted, annotated=False),
    "jit, annotated": functools.partial(Jitted, annotated=True),
}


# -- whether they compute the same -----------------------------------------------------------------


def check(layout_name: str, tolerance: float = 1e-5) -> None:
    """Takes two steps of a small model on 8 CPU devices, in float32, with each implementation.

    Raises:
      AssertionError: losses, or the final parameters norm-wise, are not those of meshdsl.
    """
    layout, sizes = find_layout(layout_name), SMALL_MESHES[layout_name]
    mesh = md.make_mesh(sizes, jax.devices("cpu")[:8])
    config = override(Config(), batch=8, **{f"model.{key}": value for key, value in SMALL.items()})
    tokens = np.random.default_rng(0).integers(
        0, SMALL["vocab"], (8, SMALL["length"] + 1), np.int32
    )
    batch = {"tokens": tokens[:, :-1], "targets": tokens[:, 1:]}
    lowered = Lowered(config, layout, mesh)
    state = lowered.job.step.init(jax.random.key(0))
    plain = dict(
        zip(llama.DIMS, (np.asarray(x) for x in jax.tree.leaves(state.params)), strict=True)
    )
    placed, expected = lowered.job.place(batch), []
    for _ in range(2):
        state, metrics = lowered.step(state, placed)
        expected += [float(metrics["loss"]), float(metrics["gradient_norm"])]
    for name in ("jit, usual", "jit, annotated"):
        jitted = IMPLEMENTATIONS[name](config, layout, mesh)
        own, placed = jitted.put(plain, batch)
        found = []
        for _ in range(2):
            own, metrics = jitted.step(own, placed)
            found += [float(metrics["loss"]), float(metrics["gradient_norm"])]
        np.testing.assert_allclose(
            found,
            expected,
            rtol=tolerance,
            err_msg=f"{name}, {layout_name}: loss and norm of the gradient",
        )
        for key, value in zip(llama.DIMS, jax.tree.leaves(state.params), strict=True):
            moved = np.linalg.norm(np.asarray(value) - plain[key])
            error = np.linalg.norm(np.asarray(own[0][key]) - np.asarray(value)) / moved
            # Adam divides by small roots.
            assert error < 100 * tolerance, (
                f"{name}, {layout_name}: the update of {key} is off by {error:.1e}"
            )


# -- compiled for the pod --------------------------------------------------------------------------


def compare(
    layout_name: str,
    names: list[str],
    settings: list[str],
    options: dict[str, str] | None,
    keep: Path | None,
) -> None:
    """Compiles implementations under a layout, and prints their memory, times and collectives.

    Args:
      names: of the implementations.
      settings: of the job, `key=value`.
      options: of the compiler; meshdsl's for the chip if None.
      keep: a folder for compiled programs.
    """
    target_name, sizes, batch = CASES[layout_name]
    target, layout = find_target(target_name), find_layout(layout_name)
    mesh = md.make_mesh(sizes, target_devices(target))
    # Meshdsl's own step has them on.
    off = dict.fromkeys((k for k, v in default_options(mesh).items() if v == "True"), "false")
    options = default_options(mesh) if options is None else options
    config = override(Config(), settings, batch=batch, **model_values("llama3-8b"))
    rows = [
        [
            "implementation",
            "arguments GiB",
            "temporaries GiB",
            "peak GiB",
            "moved GiB",
            "step ms",
            "compute ms",
            "exposed ms",
            "compile s",
        ]
    ]
    moved: dict[str, dict] = {}
    for name in names:
        run = IMPLEMENTATIONS[name](config, layout, mesh)
        kept = keep and keep / "-".join(("gspmd", layout_name, name.replace(", ", "-"), *settings))
        found = kept_or_compiled(
            kept, lambda run=run: run.step.lower(run.state, run.batch), off | options
        )
        if "error" in found:
            rows.append([name, *["-"] * 7, found["error"][:90]])
            continue
        replayed = replay(found["text"], target.chip, Network(target, sizes), sizes)
        moved[name] = summary(from_hlo(found["text"], mesh))
        memory = (
            found["arguments"],
            found["temporaries"],
            found["peak"],
            sum(total for _, total in moved[name].values()),
        )
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
    measure.show(
        rows,
        f"{layout_name}, llama3-8b, batch {config.batch} of length {config.model.length} "
        f"on {target_name}, mesh {sizes}, options {options}",
    )
    measure.show(collectives_table(moved), "collectives")


def collectives_table(moved: dict[str, dict]) -> list[list[str]]:
    """Count and GiB of each collective, with a column for each implementation.

    Args:
      moved: for each implementation the `summary` of its collectives.
    """
    rows = [["collective: count, GiB", *moved]]
    for operation, axes in sorted({key for found in moved.values() for key in found}):
        cells = [moved[name].get((operation, axes), (0, 0)) for name in moved]
        rows.append(
            [
                f"{operation}({', '.join(axes)})",
                *(f"{count}, {total / GIB:.3f}" if count else "-" for count, total in cells),
            ]
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layouts", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument(
        "--implementations", nargs="+", choices=IMPLEMENTATIONS, default=list(IMPLEMENTATIONS)
    )
    parser.add_argument(
        "--option",
        action="append",
        metavar="KEY=VALUE",
        help="an option of the compiler, instead of meshdsl's for the chip",
    )
    parser.add_argument(
        "--no-options",
        dest="option",
        action="store_const",
        const=[],
        help="the compiler's own defaults",
    )
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="FOLDER",
        help="where compiled programs are kept, and not compiled again",
    )
    parser.add_argument(
        "settings", nargs="*", metavar="key=value", help="of the job, such as model.length=2048"
    )
    given = parser.parse_args()
    compile_only()
    jax.config.update("jax_num_cpu_devices", 8)
    for layout in given.layouts:
        check(layout)
    print(
        f"jax {jax.__version__}; "
        "the losses, gradient norms and updates of all implementations agree",
        flush=True,
    )
    for layout in given.layouts:
        compare(
            layout,
            given.implementations,
            given.settings,
            None if given.option is None else parse_options(given.option),
            given.keep,
        )


if __name__ == "__main__":
    main()
