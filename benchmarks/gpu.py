"""All figures that need a GPU, on whatever GPUs there are, made to take under ten minutes.

    python -m benchmarks.gpu --out gpu.json
    python -m benchmarks.gpu speed --seconds 20 --torch ~/torch/bin/python
    python -m benchmarks.gpu --platform cpu --tiny      # the whole command, without a GPU
    python -m benchmarks.gpu compiled                   # for an H100 that is not there

`parity` (`benchmarks/gpu_parity.py`): attention by cuDNN, where queries are split too, and by the
Pallas kernel, with documents, against that by blocks, outputs and gradients in bfloat16; how often
cuDNN runs in a step that keeps what attention found; and loss and gradients of a small transformer
under layouts over all GPUs, against no layout on one.

`speed`, on one GPU: tokens per second, MFU and memory of a step of training of GPT-2 124M and of a
Llama of 1.1B parameters (the sizes of TinyLlama; Zhang et al., 2024): by meshdsl, by plain jitted
JAX with the same kernel (`benchmarks/gpu_jax.py`), and by PyTorch with `torch.compile` and its SDPA
(`benchmarks/gpu_torch.py`). They take turns. With several GPUs meshdsl's step also runs under the
shipped layout `fsdp` over all. GPT-2 keeps all for its backward pass, the Llama recomputes each
layer. MFU counts causal attention half, and nothing that is recomputed.

`compiled` needs no GPU and runs alone: it compiles the two steps in JAX for one H100, and gives
their memory and their replayed time without the kernels, whose FLOPs plain JAX does not state.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import meshdsl as md
from meshdsl.commands.settings import model_values
from meshdsl.machine import Network, Target, find_target
from meshdsl.machine.chips import chip_of
from meshdsl.predict.compiler.replay import replay
from meshdsl.predict.compiler.topology import compile_only, target_devices
from meshdsl.train.config import Config
from meshdsl.train.job import Job
from meshdsl.train.settings import override
from meshdsl.train.stored_layout import find_layout

from . import measure
from .gpu_jax import PlainStep, model_of
from .gpu_parity import parity, report

GIB = 2**30
TURNS = 3  # of each implementation; the time of one is split among them
TARGET = "h100:1"  # of `compiled`
CHUNK = 5  # steps between two looks at the clock
LLAMA = {
    "style": "llama",
    "layers": 22,
    "d_model": 2048,
    "heads": 32,
    "kv_heads": 4,
    "d_ff": 5632,
    "vocab": 32000,
    "length": 2048,
}
TINY = {"layers": 2, "d_model": 64, "heads": 4, "d_ff": 128, "vocab": 128, "length": 32}
# name -> settings of the model, rows in a step on one GPU, what the backward pass recomputes
MODELS: dict[str, tuple[dict[str, Any], int, str]] = {
    "gpt2-124m": (model_values("gpt2-124m"), 16, "none"),
    "llama-1.1b": ({f"model.{key}": value for key, value in LLAMA.items()}, 8, "full"),
}


# -- speed -----------------------------------------------------------------------------------------


class OfMeshdsl:
    """The step as meshdsl trains it, on some devices."""

    def __init__(self, config: Config, layout_name: str, devices: list):
        layout = find_layout(layout_name)
        mesh = md.make_mesh({axis: len(devices) for axis in layout.mesh} or {"one": 1}, devices)
        config = override(config, batch=config.batch * len(devices))
        self._job = Job(config, layout, mesh)
        ids = _ids(config)
        self._batch = self._job.place({"tokens": ids[:, :-1], "targets": ids[:, 1:]})
        self.compiled = self._job.step.lower(self._job.state, self._batch).compile()
        self._state: Any = None

    def begin(self) -> None:
        self._state = self._job.step.init(jax.random.key(0))

    def step(self) -> jax.Array:
        self._state, metrics = self.compiled(self._state, self._batch)
        return metrics["loss"]

    def end(self) -> None:
        self._state = None


class OfJax:
    """The step in plain jitted JAX, from the same parameters, on one device."""

    def __init__(self, config: Config, kernel: str):
        ids = _ids(config)
        self._batch = jnp.asarray(ids[:, :-1]), jnp.asarray(ids[:, 1:])
        self._config, self._plain = config, PlainStep(config, kernel, *self._batch)
        self.compiled, self._state = self._plain.compiled, None

    def begin(self) -> None:
        # The first parameters of a run of meshdsl.
        for_params, _ = jax.random.split(jax.random.key(0))
        self._state = self._plain.first(jax.jit(self._config.model.init)(for_params))

    def step(self) -> jax.Array:
        self._state, loss = self.compiled(self._state, *self._batch)
        return loss

    def end(self) -> None:
        self._state = None


def _ids(config: Config) -> np.ndarray:
    shape = config.batch, model_of(config).length + 1
    return np.random.default_rng(0).integers(0, model_of(config).vocab, shape, np.int32)


class InJax:
    """One of the two above as something that takes turns."""

    def __init__(self, made: OfMeshdsl | OfJax):
        self._made = made
        m = made.compiled.memory_analysis()
        assert m is not None
        self.memory = (
            m.argument_size_in_bytes
            + m.output_size_in_bytes
            - m.alias_size_in_bytes
            + m.temp_size_in_bytes
        )
        self.loss = float("nan")

    def turn(self, seconds: float) -> list[float]:
        """The seconds of a step, for each chunk of steps; the first two steps do not count."""
        made, found = self._made, []
        made.begin()
        self.loss = float(made.step())
        jax.block_until_ready(made.step())
        begin = time.perf_counter()
        while not found or time.perf_counter() - begin < seconds:
            start, last = time.perf_counter(), None
            for _ in range(CHUNK):
                last = made.step()
            jax.block_until_ready(last)
            found.append((time.perf_counter() - start) / CHUNK)
        made.end()
        gc.collect()
        return found

    def close(self) -> None:
        pass


class InTorch:
    """The process of `benchmarks/gpu_torch.py` as something that takes turns.

    Raises:
      RuntimeError: that Python has no PyTorch, or the process fails; the message is its last line.
    """

    def __init__(self, config: Config, python: str, tiny: bool):
        model = model_of(config)
        dims = {name: dim.size for name, dim in model.dims.items()}
        sizes = {
            **{name: getattr(model, name) for name in ("style", "layers", "d_model", "heads")},
            **{name: dims[name] for name in ("head_dim", "d_ff", "vocab", "length")},
            "kv_heads": model.kv_heads or model.heads,
            "epsilon": model.norm_epsilon,
            "rotary_base": model.rotary_base,
            "remat": model.remat != "none",
            "rows": config.batch,
            "weight_decay": config.optimizer.weight_decay,
            "device": "cpu" if tiny else "cuda",
        }
        script = str(Path(__file__).with_name("gpu_torch.py"))
        environment = {key: x for key, x in os.environ.items() if key != "PYTHONPATH"}
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed by `close`
        self._process = subprocess.Popen(
            [python, script, json.dumps(sizes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            env=environment,
        )
        self.memory, self.loss = None, float("nan")
        self.versions = self._answer()

    def turn(self, seconds: float) -> list[float]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        found = self._answer()
        self.memory = found["memory"]
        return found["seconds"]

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._said.close()

    def _answer(self) -> dict:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        self._process.wait()
        self._said.seek(0)
        said = self._said.read().strip().splitlines()
        raise RuntimeError(said[-1] if said else "the process ended")


def _config(name: str, tiny: bool) -> Config:
    settings, rows, remat = MODELS[name]
    chosen = settings | {"batch": rows, "model.remat": remat, "precision.compute": "bfloat16"}
    if tiny:
        heads = 2 if name == "llama-1.1b" else 0
        chosen |= {"batch": 2, "model.kv_heads": heads}
        chosen |= {f"model.{key}": value for key, value in TINY.items()}
    return override(Config(), **chosen)


def speed(names: list[str], seconds: float, python: str, tiny: bool) -> dict[str, Any]:
    """Prints and returns the speed of every implementation for each of the models."""
    found = {}
    for name in names:
        config = _config(name, tiny)
        found[name] = _speed_of(name, config, seconds, python, tiny)
    return found


def _speed_of(name: str, config: Config, seconds: float, python: str, tiny: bool) -> dict:
    kernel = "cudnn" if jax.default_backend() == "gpu" else "xla"
    devices = jax.devices()
    makers: dict[str, tuple[int, Callable]] = {
        "meshdsl": (1, lambda: InJax(OfMeshdsl(config, "single", devices[:1]))),
        "plain JAX": (1, lambda: InJax(OfJax(config, kernel))),
        "PyTorch": (1, lambda: InTorch(config, python, tiny)),
    }
    if len(devices) > 1:
        fsdp = lambda: InJax(OfMeshdsl(config, "fsdp", devices))
        makers[f"meshdsl, fsdp over {len(devices)}"] = (len(devices), fsdp)
    made, found = {}, {}
    for who, (_, make) in makers.items():
        begin = time.perf_counter()
        if (one := _or_reason(f"{name}, {who}", make)) is not None:
            made[who] = one
            found[who] = {"seconds": [], "ready": time.perf_counter() - begin}
            report(f"{name}, {who}: ready after {found[who]['ready']:.0f} s")
    for _ in range(TURNS):
        for who in list(made):
            one = made[who]
            steps = _or_reason(f"{name}, {who}", lambda one=one: one.turn(seconds / TURNS))
            if steps is None:
                made.pop(who).close()
                del found[who]
            else:
                found[who]["seconds"] += steps
    for who, one in made.items():
        found[who] |= {"memory": one.memory, "loss": one.loss}
        one.close()
    model, chip = model_of(config), chip_of(devices[0])
    flops = model.step_flops(config.batch)[0]
    head = ["", "tokens/s a GPU, best", "median", "MFU, best", "median", "memory GiB", "first loss"]
    table = [[f"{name}, {config.batch} x {model.length}", *head[1:]]]
    for who, figures in found.items():
        best, median = min(figures["seconds"]), statistics.median(figures["seconds"])
        tokens = config.batch * model.length
        figures |= {"tokens_per_second": [tokens / best, tokens / median]}
        if chip is not None:
            figures |= {"mfu": [flops / t / chip.flops for t in (best, median)]}
        memory = figures["memory"]
        table.append(
            [
                who,
                *(f"{x:,.0f}" for x in figures["tokens_per_second"]),
                *(f"{x:.1%}" for x in figures.get("mfu", ())),
                *(["-"] * 2 if chip is None else []),
                "-" if memory is None else f"{memory / GIB:.2f}",
                "-" if np.isnan(figures["loss"]) else f"{figures['loss']:.4f}",
            ]
        )
        figures["loss"] = None if np.isnan(figures["loss"]) else figures["loss"]
    report(f"\n{measure.table(table)}\n")
    return found


def _or_reason(who: str, make: Callable) -> Any:
    """What `make` gives; None, and a printed reason, where it does not run here."""
    try:
        return make()
    except (RuntimeError, OSError) as error:  # JAX's own errors are RuntimeErrors
        lines = str(error).splitlines()
        report(f"{who}: left out: {lines[0][:200] if lines else type(error).__name__}")
        return None


# -- without a GPU ---------------------------------------------------------------------------------


def compiled(names: list[str], target: Target) -> dict[str, Any]:
    """Prints and returns memory and replayed time of both steps in JAX, compiled for a GPU."""
    mesh = md.make_mesh({"one": 1}, target_devices(target))
    head = "temporaries GiB", "arguments GiB", "step ms, without kernels", "calls of cuDNN"
    table, found = [["", *head]], {}
    for name in names:
        config = _config(name, tiny=False)
        job = Job(config, find_layout("single"), mesh)
        shape = config.batch, model_of(config).length
        ids = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=NamedSharding(mesh, P()))
        for who, step in (
            ("meshdsl", job.step.lower(job.state, job.batch).compile()),
            ("plain JAX", PlainStep(config, "cudnn", ids, ids).compiled),
        ):
            text, m = step.as_text() or "", step.memory_analysis()
            assert m is not None
            network = Network(target, mesh.shape)
            replayed = replay(text, target.chip, network, mesh.shape)
            kernels = sum(
                (span.end - span.start) * span.repeats
                for span in replayed.spans
                if "dot_product_attention" in span.name
            )
            figures = {
                "temporaries": m.temp_size_in_bytes,
                "arguments": m.argument_size_in_bytes,
                "seconds": replayed.step - kernels,
                "calls": text.count('custom_call_target="__cudnn$fmha'),
            }
            found[f"{name}, {who}"] = figures
            sizes = (f"{figures[key] / GIB:.2f}" for key in ("temporaries", "arguments"))
            rest = f"{1000 * figures['seconds']:.1f}", str(figures["calls"])
            table.append([f"{name}, {who}", *sizes, *rest])
    report(f"\n{measure.table(table)}\n")
    return found


# -- the command -----------------------------------------------------------------------------------


def check_platform(platform: str) -> None:
    """Ends the command where there is no such device."""
    if platform == "cpu":
        jax.config.update("jax_platforms", "cpu")
        return
    try:
        jax.devices("gpu")
    except RuntimeError:
        raise SystemExit(
            'no GPU: JAX finds none; pip install "meshdsl[cuda13]" on a machine that has one, or '
            "try the command with --platform cpu --tiny"
        ) from None


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", help="parity and speed, by default; or compiled")
    parser.add_argument(
        "--seconds", type=float, default=12, help="of steps of each implementation and model"
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument(
        "--torch", default=sys.executable, metavar="PYTHON", help="a Python that has PyTorch"
    )
    parser.add_argument("--out", type=Path, help="a JSON file for all figures")
    parser.add_argument("--platform", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--tiny", action="store_true", help="sizes that only try the command")
    given = parser.parse_args(arguments)
    parts = given.parts or ["parity", "speed"]
    if parts != ["compiled"] and (unknown := set(parts) - {"parity", "speed"}):
        parser.error(f"parts are parity and speed, or compiled, not {', '.join(sorted(unknown))}")
    if parts == ["compiled"]:
        compile_only()
        report(f"jax {jax.__version__}, compiled for {TARGET}")
        figures = compiled(given.models, find_target(TARGET))
        if given.out:
            given.out.write_text(json.dumps(figures, indent=1))
        return
    # The pool of JAX grows as it is used, and leaves the rest to PyTorch.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    check_platform(given.platform)
    begin, devices = time.perf_counter(), jax.devices()
    found: dict[str, Any] = {
        "command": ["python", "-m", "benchmarks.gpu", *(arguments or sys.argv[1:])],
        "versions": {"jax": jax.__version__, "python": sys.version.split()[0]},
        "devices": [len(devices), devices[0].device_kind],
        "backend": devices[0].client.platform_version,
    }
    report(f"jax {jax.__version__}, {len(devices)} x {devices[0].device_kind}")
    if "parity" in parts:
        found["parity"] = parity(given.tiny)
    if "speed" in parts:
        found["speed"] = speed(given.models, given.seconds, given.torch, given.tiny)
    found["total_seconds"] = time.perf_counter() - begin
    report(f"all of it took {found['total_seconds']:.0f} s")
    if given.out:
        given.out.write_text(json.dumps(found, indent=1))
    if not all(one["good"] for one in found.get("parity", {}).values()):
        raise SystemExit("parity: not all comparisons are good")


if __name__ == "__main__":
    main()
