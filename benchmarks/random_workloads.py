"""Steps of training that a seed draws, so that an estimate is judged on what it has not seen.

A workload is a model, a machine, a batch and a length; its ways are layouts, meshes and policies of
rematerialisation. Whatever the layout or the model refuses is drawn again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any

from meshdsl.errors import MeshDSLError
from meshdsl.machine import find_target
from meshdsl.tools.analysis import Analysis

from .workloads import Workload

WAYS = 12
_TPUS = (
    ("v5e:4x4", "v5e:4x8", "v5e:8x8"),
    ("v5p:2x2x4", "v5p:4x4x4", "v5p:4x4x8"),
    ("v6e:4x4", "v6e:4x8", "v6e:8x8"),
    ("tpu7x:2x2x2", "tpu7x:2x2x4"),
)
_GPUS = (("h100:8", "h100:8x2", "h100:8x4"),)
_REMATS = ("full", "attention", "qkv", "hidden", "dots", "none")
# Layouts by the axes beside `data` that they split over; the sizes of these are drawn.
_LAYOUTS: dict[str, tuple[str, ...]] = {
    "data": (),
    "zero1": (),
    "zero2": (),
    "fsdp": (),
    "fsdp-once": (),
    "hybrid-fsdp": ("replica",),
    "fsdp-tensor": ("model",),
    "fsdp-sequence": ("model",),
    "data-sequence": ("model",),
    "zero1-tensor": ("model",),
    "hybrid-sequence": ("replica", "model"),
    "context": ("context",),
    "context-ring": ("context",),
    "ulysses": ("context",),
}
_OF_EXPERTS: dict[str, tuple[str, ...]] = {
    "fsdp": (),
    "hybrid-fsdp": ("replica",),
    "fsdp-sequence": ("model",),
    "experts-data": (),
    "experts": ("expert",),
    "experts-fsdp": ("expert",),
    "experts-exchange": ("expert",),
    "experts-tensor": ("expert", "model"),
}
_OF_IMAGES: dict[str, tuple[str, ...]] = {
    "data": (),
    "conv-zero1": (),
    "conv-fsdp": (),
    "conv-rows": ("rows",),
    "conv-rows-fsdp": ("rows",),
    "spatial": ("rows", "cols"),
    "conv-channels": ("model",),
}


def draw(
    seed: int, number: int, ways: int = WAYS, kinds: Sequence[str] = ()
) -> Iterator[tuple[str, Workload]]:
    """So many workloads with their names, on each kind of chip in turn.

    GPUs have a turn only where their compiler is installed.

    Args:
      ways: how many each has, of those that its model and the layouts allow.
      kinds: of models; by default all.
    """
    chips = (*_TPUS, *(_GPUS if find_spec("jax_cuda13_plugin") else ()))
    for i in range(number):
        rng = random.Random(f"{seed} {i}")
        kind = rng.choice(list(kinds or KINDS))
        yield f"seed {seed}, {i}", _workload(rng, rng.choice(chips[i % len(chips)]), kind, ways)


def _workload(rng: random.Random, target: str, kind: str, number: int) -> Workload:
    devices = find_target(target).devices
    settings: dict[str, Any] = {"precision.compute": "bfloat16"} | KINDS[kind](rng)
    settings["batch"] = devices * rng.choice([1, 1, 2, 4])
    layouts = {"unet": _OF_IMAGES, "experts": _OF_EXPERTS}.get(kind, _LAYOUTS)
    ways: list[str] = []
    for _ in range(20 * number):
        way = _way(rng, devices, layouts)
        if way not in ways and _allowed(Workload(target, settings, ()), way):
            ways.append(way)
        if len(ways) == number:
            break
    return Workload(target, settings, tuple(ways))


def small_step(rng: random.Random, target: str) -> Analysis:
    """A step of two layers on few chips, so small that it compiles in a minute.

    Raises:
      MeshDSLError: nothing that was drawn is legal and fits.
    """
    devices = find_target(target).devices
    kind = rng.choices(list(KINDS), _OFTEN)[0]
    layouts = {"unet": _OF_IMAGES, "experts": _OF_EXPERTS}.get(kind, _LAYOUTS)
    for _ in range(40):
        settings: dict[str, Any] = {"precision.compute": "bfloat16"} | KINDS[kind](rng)
        pattern = len(settings.get("model.pattern", ("",)))
        if kind != "unet":
            settings["model.layers"] = pattern if pattern > 1 else 2
        if kind == "encoder-decoder":
            settings["model.decoder_layers"] = 2
        tokens = rng.choice([2048, 4096, 8192, 16384])  # on each chip
        length = tokens // rng.choice([1, 2]) if kind == "unet" else settings["model.length"]
        settings["batch"] = devices * max(1, tokens // length)
        workload, way = Workload(target, settings, ()), _way(rng, devices, layouts)
        if _allowed(workload, way):
            return workload.analysis(way)
    raise MeshDSLError(f"nothing of 40 steps of {kind} is legal on {target} and fits")


def _way(rng: random.Random, devices: int, layouts: dict[str, tuple[str, ...]]) -> str:
    name = rng.choice(list(layouts))
    sizes, left = {}, devices
    for axis in layouts[name]:
        sizes[axis] = rng.choice([n for n in (2, 4, 8) if n <= left // 2] or [1])
        left //= sizes[axis]
    first = {"replica": sizes.pop("replica")} if "replica" in sizes else {}
    mesh = ",".join(f"{axis}={n}" for axis, n in (first | {"data": left} | sizes).items())
    return f"{name} {mesh} {rng.choice(_REMATS)}"


def _allowed(workload: Workload, way: str) -> bool:
    """Whether a way is legal, and its estimate says that it fits in memory."""
    try:
        return workload.analysis(way).explain().memory.fits is not False
    except MeshDSLError:
        return False


def _sizes(rng: random.Random) -> dict[str, Any]:
    """The sizes of a decoder: a width from 512 to 8192, of which wide ones have few layers."""
    width = 128 * round(2 ** rng.uniform(2, 6))
    head = rng.choice([64, 128, 128, 256])
    heads = 4 * max(width // head // 4, 1)
    return {
        "model.family": "transformer",
        "model.layers": rng.randint(4, max(5, min(40, 2**16 // width))),
        "model.d_model": width,
        "model.heads": heads,
        "model.head_dim": head,
        "model.d_ff": 128 * round(width * rng.uniform(2.5, 4.5) / 128),
        "model.vocab": rng.randint(8_000, 200_000),
        "model.length": rng.choice([1024, 2048, 4096, 8192]),
    }


def _dense(rng: random.Random) -> dict[str, Any]:
    return _sizes(rng) | {"model.style": rng.choice(["gpt2", "llama"])}


def _grouped(rng: random.Random) -> dict[str, Any]:
    sizes = _sizes(rng) | {"model.style": rng.choice(["llama", "qwen3", "olmo2"])}
    return sizes | {"model.kv_heads": sizes["model.heads"] // rng.choice([2, 4])}


def _windows(rng: random.Random) -> dict[str, Any]:
    pattern = rng.choice([("local",), ("local", "global"), ("local", "local", "global")])
    window = rng.choice([256, 512, 1024])
    sizes = _grouped(rng) | {"model.style": "llama", "model.pattern": pattern}
    layers = sizes["model.layers"] // len(pattern) * len(pattern)
    return sizes | {"model.window": window, "model.layers": max(layers, len(pattern))}


def _softcaps(rng: random.Random) -> dict[str, Any]:
    caps = {"model.attention_softcap": 50.0, "model.logit_softcap": 30.0}
    return _windows(rng) | caps | {"model.style": "gemma2"}


def _experts(rng: random.Random) -> dict[str, Any]:
    sizes = _grouped(rng) | {"model.style": "llama"}
    narrow = 128 * round(sizes["model.d_ff"] / rng.choice([2, 4]) / 128)
    return sizes | {
        "model.layers": max(sizes["model.layers"] // 2, 2),
        "model.d_ff": max(narrow, 256),
        "model.experts": rng.choice([8, 16, 32, 64]),
        "model.experts_used": rng.choice([1, 2, 4]),
        "model.capacity": rng.choice([0.0, 1.0, 1.25]),
    }


def _encoder_decoder(rng: random.Random) -> dict[str, Any]:
    sizes = _sizes(rng)
    kept = ("layers", "d_model", "heads", "head_dim", "d_ff", "vocab")
    found = {f"model.{key}": sizes[f"model.{key}"] for key in kept}
    return found | {
        "model.family": "t5",
        "model.decoder_layers": sizes["model.layers"],
        "model.source": rng.choice([512, 1024, 2048]),
        "model.length": rng.choice([256, 512, 1024]),
        "model.gated": rng.choice([True, False]),
    }


def _unet(rng: random.Random) -> dict[str, Any]:
    side = rng.choice([128, 256])
    return {
        "model.family": "unet",
        "model.channels": rng.choice([64, 96, 128, 192]),
        "model.levels": rng.randint(2, 4),
        "model.height": side,
        "model.width": side * rng.choice([1, 2]),
        "model.colors": 3,
        "model.outputs": 3,
    }


KINDS: dict[str, Callable[[random.Random], dict[str, Any]]] = {
    "dense": _dense,
    "grouped": _grouped,
    "windows": _windows,
    "soft caps": _softcaps,
    "experts": _experts,
    "encoder-decoder": _encoder_decoder,
    "unet": _unet,
}
# How often each kind is drawn for a small step; those of images take minutes to compile.
_OFTEN = (3, 4, 2, 2, 2, 2, 0)
