"""Tokens per second of decoding, and what a step reads and writes, by the compiled program.

    python -m benchmarks.decode
    python -m benchmarks.decode --tpu v5p:2x2x1    # compiled only; needs libtpu, and no TPU

A step reads one token of each row and gives the logits of the next. It is called from Python, with
the cache donated, as `meshdsl generate` calls it. The hand-written step does the same in plain JAX,
on one device. Bytes are those of one device in one step, read off the compiled program: slices and
updates in place count with their own size, and a loop as often as it runs.
"""

import argparse
import dataclasses
import itertools
import math
import os
import time

# JAX reads these when it is imported; those of TPU are explained in `tpu_compile`.
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-8")
os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies

import meshdsl as md
from meshdsl.mesh import axis_sizes
from meshdsl.models import generate
from meshdsl.models.generate import Progress, Sampling
from meshdsl.models.transformer import Config
from meshdsl.predict.compiler.hlo_text import Instruction, Module
from meshdsl.predict.compiler.instruction_time import traffic

from . import decode_by_hand
from .measure import show

MIB = 2**20
GREEDY = Sampling(temperature=0.0)
SIZES = {"layers": 8, "d_model": 256, "heads": 16, "head_dim": 32, "vocab": 2048, "length": 1024}
CONFIGS = {
    "llama": Config(style="llama", kv_heads=8, d_ff=768, **SIZES),
    "gpt2": Config(style="gpt2", d_ff=1024, **SIZES),
}
LAYOUTS = ("single", "tensor", "fsdp-tensor")
HEAD_DIMS = (128, 64)  # on TPU, whose registers have 128 lanes
BATCH, PROMPT = md.Dim("batch", 8), md.Dim("length", 16)


def run_instructions(module: Module, computation: str, times: int = 1):
    """All instructions that a computation runs, each with how often."""
    for i in module.computations[computation]:
        if i.opcode == "while":
            turns = times * (module.trip_count(i) or 1)
            yield from run_instructions(module, module.named(i, "body"), turns)
        elif i.opcode in ("call", "conditional"):
            for called in module.called(i):
                yield from run_instructions(module, called, times)
        else:
            yield i, times


_FREE = ("parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all")


def bytes_of(module: Module) -> int:
    """The bytes that a program reads and writes."""
    found = run_instructions(module, module.entry)
    return sum(times * _bytes(module, i) for i, times in found if i.opcode not in _FREE)


def _bytes(module: Module, i: Instruction) -> int:
    """As `traffic`, which does not look into the fusions that a fusion of the TPU compiler has."""
    if i.opcode != "fusion":
        return traffic(module, i)
    inner = [j for j in module.computations[module.named(i, "calls")] if j.opcode == "fusion"]
    total = traffic(module, i)
    for j in inner:
        for part, operand in enumerate(module.operands(j)):
            if operand.opcode == "parameter":
                total -= operand.bytes - _read(module, j, part)
    return total


def _read(module: Module, fusion: Instruction, part: int) -> int:
    """The bytes that a fusion reads of one of its operands."""
    inside = module.computations[module.named(fusion, "calls")]
    own = next(i for i in inside if i.opcode == "parameter" and i.arguments == str(part))
    uses = [i for i in inside if own.name in i.operands]
    sliced = all(i.opcode == "dynamic-slice" and i.operands[0] == own.name for i in uses)
    return sum(i.bytes for i in uses) if sliced else own.bytes


def rewritten(module: Module, layer_bytes: int) -> float:
    """How many layers' keys, or values, are written anew in one step.

    All results of that size or more are counted but those that are updated in place.
    """
    total = 0.0
    for i, times in run_instructions(module, module.entry):
        if i.opcode not in _FREE and i.bytes >= layer_bytes and not _in_place(module, i):
            total += times * i.bytes / layer_bytes
    return total


def _in_place(module: Module, i: Instruction) -> bool:
    """Whether an instruction updates its operand, or is a collective's second half."""
    if i.opcode == "fusion":
        root = module.root(module.named(i, "calls"))
        i = module.origin(root, ("bitcast",))
    return i.opcode in ("dynamic-update-slice", "scatter") or i.opcode.endswith("-done")


@dataclasses.dataclass
class Step:
    """A compiled step: called with the model, the cache, and the rest of the progress.

    Attributes:
      layer_bytes: those of one layer's keys on one device.
      arguments: None where it is compiled only.
    """

    compiled: jax.stages.Compiled
    layer_bytes: int
    arguments: tuple | None = None

    def run(self) -> float:
        """One step from where the last one left off, and how many seconds it took."""
        assert self.arguments is not None
        model, *state = self.arguments
        began = time.perf_counter()
        state = jax.block_until_ready(self.compiled(model, *state))
        self.arguments = (model, *state)
        return time.perf_counter() - began

    def row(self) -> list[str]:
        memory = self.compiled.memory_analysis()
        text = self.compiled.as_text()
        assert text is not None and memory is not None
        module = Module(text)
        sizes = (bytes_of(module), memory.temp_size_in_bytes, memory.alias_size_in_bytes)
        return [f"{rewritten(module, self.layer_bytes):.1f}", *(f"{n / MIB:.1f}" for n in sizes)]


def advance(model, cache, rest: Progress) -> tuple:
    after = generate.advance(model, rest.replace(cache=cache), jax.random.key(0), GREEDY)
    return after.cache, after.replace(cache=None)


def start(model, prompts: md.Tensor, sizes: md.Tensor, memory: md.Dim) -> tuple:
    first = generate.start(model, prompts, sizes, memory, jax.random.key(0), GREEDY)
    return first.cache, first.replace(cache=None)


def lowered(config: Config, layout: md.Layout, mesh):
    dims = [*config.dims.values(), BATCH]
    memory = config.dims["memory"]
    first = jax.jit(md.lower(lambda m, p, n: start(m, p, n, memory), layout, mesh, dims=dims))
    step = jax.jit(md.lower(advance, layout, mesh, dims=dims), donate_argnums=1)
    return first, step


def prompts() -> tuple[md.Tensor, md.Tensor]:
    tokens = jax.random.randint(jax.random.key(1), (BATCH.size, PROMPT.size), 0, SIZES["vocab"])
    sizes = PROMPT.size - np.arange(BATCH.size, dtype=np.int32)
    return md.tensor(tokens, (BATCH, PROMPT)), md.tensor(jnp.asarray(sizes), (BATCH,))


def layer_bytes(config: Config, layout: md.Layout, itemsize: int = 4) -> int:
    d = {name: dim.size for name, dim in config.dims.items()}
    heads = d.get("kv_heads") or d["heads"]
    devices = math.prod(int(size) for size in layout.mesh.values())
    return BATCH.size * d["memory"] * heads * d["head_dim"] * itemsize // devices


def on_cpu(config: Config, name: str) -> Step:
    layout = md.Layout.load(f"layouts/{name}.toml")
    count = 1 if name == "single" else 8
    layout = dataclasses.replace(layout, mesh=axis_sizes(layout.mesh, count))
    mesh = md.make_mesh(layout)
    model = md.init(config.init, jax.random.key(0), layout, mesh)
    first, step = lowered(config, layout, mesh)
    cache, rest = first(model, *prompts())
    compiled = step.lower(model, cache, rest).compile()
    return Step(compiled, layer_bytes(config, layout), (model, cache, rest))


def by_hand(config: Config, write: str) -> Step:
    layout = md.Layout.load("layouts/single.toml")
    model = decode_by_hand.parameters(md.init(config.init, jax.random.key(0), layout))
    step = jax.jit(decode_by_hand.make_step(config, decode_by_hand.WRITES[write]), donate_argnums=1)
    cache = decode_by_hand.empty_cache(config, BATCH.size)
    rest = jnp.zeros(BATCH.size, jnp.int32), prompts()[1].array
    compiled = step.lower(model, cache, rest).compile()
    return Step(compiled, layer_bytes(config, layout), (model, cache, rest))


def timed(steps: dict[str, Step], rounds: int) -> dict[str, float]:
    """The seconds of the fastest step of each, of some that take turns: A B C A B C ..."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds + 1):
        for name, step in steps.items():
            seconds[name].append(step.run())
    return {name: min(every[1:]) for name, every in seconds.items()}


def on_tpu(config: Config, name: str, head_dim: int, devices) -> list[str]:
    config = dataclasses.replace(config, head_dim=head_dim)
    layout = md.Layout.load(f"layouts/{name}.toml")
    count = 1 if name == "single" else len(devices)
    layout = dataclasses.replace(layout, mesh=axis_sizes(layout.mesh, count))
    mesh = md.make_mesh(layout, devices=devices[:count])
    bfloat16 = lambda t: jax.ShapeDtypeStruct(t.shape, jnp.bfloat16)
    model = jax.tree.map(bfloat16, jax.eval_shape(config.init, jax.random.key(0)))
    shapes = (model, *jax.eval_shape(prompts))
    split = lambda tree: jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
        tree,
        md.shardings(tree, layout, mesh),
    )
    first, step = lowered(config, layout, mesh)
    cache, rest = jax.eval_shape(first, *shapes)
    compiled = step.lower(split(model), split(cache), split(rest)).compile()
    return Step(compiled, layer_bytes(config, layout, 2)).row()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=CONFIGS, default=list(CONFIGS))
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--rounds", type=int, default=15, help="how many steps of each are timed")
    parser.add_argument("--tpu", metavar="TOPOLOGY", help="compile for a TPU instead")
    given = parser.parse_args()
    times = [] if given.tpu else ["step, ms", "tokens/s"]
    head = ["model, layout", *times]
    head += ["layers rewritten", "MiB moved", "temporaries MiB", "donated MiB"]
    rows = [head]
    print(f"jax {jax.__version__}, {BATCH}, {SIZES}", flush=True)
    if given.tpu:
        devices = topologies.get_topology_desc(platform="tpu", topology_name=given.tpu).devices
        for model, name, size in itertools.product(given.models, given.layouts, HEAD_DIMS):
            made = on_tpu(CONFIGS[model], name, size, devices)
            rows.append([f"{model}, {name}, head_dim {size}", *made])
    else:
        steps = {
            f"{model}, {name}": on_cpu(CONFIGS[model], name)
            for model, name in itertools.product(given.models, given.layouts)
        }
        for write in decode_by_hand.WRITES if "llama" in given.models else ():
            steps[f"llama, by hand, {write}"] = by_hand(CONFIGS["llama"], write)
        for name, seconds in timed(steps, given.rounds).items():
            rows.append([name, f"{seconds * 1e3:.1f}", f"{BATCH.size / seconds:.0f}"])
            rows[-1] += steps[name].row()
    show(rows)


if __name__ == "__main__":
    main()
