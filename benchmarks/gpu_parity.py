"""The comparisons of `benchmarks.gpu`: kernels of attention with blocks, layouts with one device.

Attention by cuDNN and by the Pallas kernel against that by blocks, outputs and gradients in
bfloat16; how often cuDNN runs in a step that keeps what attention found; and loss and gradients of
a small transformer under layouts over all GPUs, against no layout on one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import meshdsl as md
from meshdsl.ops.attention import cudnn, pallas
from meshdsl.ops.attention.blocks import Options, Sides
from meshdsl.ops.attention.kernels import Place, Runs, kernel_of
from meshdsl.ops.attention.parts import attend, whole
from meshdsl.train.config import Config
from meshdsl.train.precision import cast
from meshdsl.train.settings import override
from meshdsl.train.stored_layout import find_layout

from . import measure


def report(text: str) -> None:
    print(text, flush=True)


# What attention is called with: heads of keys, queries for each, rows, features, options, parts
CALLS: dict[str, tuple[int, int, int, int, dict[str, Any], int]] = {
    "all keys": (4, 1, 512, 64, {}, 1),
    "causal": (4, 1, 512, 64, {"causal": True}, 1),
    "causal, grouped": (2, 4, 1024, 128, {"causal": True}, 1),
    "causal window": (2, 2, 1024, 64, {"causal": True, "window": 100}, 1),
    "heads of 80": (4, 1, 384, 80, {"causal": True}, 1),
    "heads of 256": (2, 2, 512, 256, {"causal": True}, 1),
    "all keys, queries in 4 parts": (2, 2, 1024, 64, {}, 4),
    "causal, queries in 4 parts": (2, 2, 1024, 64, {"causal": True}, 4),
}
# The same for the Pallas kernel, with documents one after the other in the place of parts.
PALLAS_CALLS: dict[str, tuple[int, int, int, int, dict[str, Any], int]] = {
    "documents": (4, 1, 1000, 64, {"causal": True}, 7),
    "documents, grouped": (2, 4, 1024, 128, {"causal": True}, 5),
    "documents, heads of 80": (2, 2, 384, 80, {"causal": True}, 3),
    "documents, heads of 256": (2, 2, 512, 256, {"causal": True}, 3),
    "a window and a soft cap": (2, 2, 1024, 64, {"window": 100, "softcap": 5.0}, 1),
}
# Rounding to bfloat16 leaves 8 bits; sums of many such errors stay within a few of them.
TOLERANCE = {"bfloat16": 2e-2, "float32": 1e-4}


def attention_parity(tiny: bool) -> Iterator[tuple[str, float, float]]:
    """Each call with the distance of a kernel to blocks in float32, and the one that is allowed."""
    on_gpu = jax.default_backend() == "gpu"
    if not on_gpu:
        report("attention: there is no GPU here; cuDNN is left out, and Pallas is interpreted")
    for name in ("all keys", "causal") if tiny else CALLS:
        call = CALLS[name]
        tried = partial(_by_cudnn, parts=call[-1]) if on_gpu else _by_blocks
        yield _compared(f"{'cuDNN' if on_gpu else 'blocks'}, {name}", call, 1, tried, tiny)
    for name in ("documents",) if tiny else PALLAS_CALLS:
        call = PALLAS_CALLS[name]
        yield _compared(f"Pallas, {name}", call, call[-1], _by_pallas, tiny)


def _compared(
    name: str, call: tuple, documents: int, tried: Callable, tiny: bool
) -> tuple[str, float, float]:
    """The name, the distance of `tried` to blocks, and the one that is allowed."""
    heads, group, rows, features, how, _ = call
    rows = rows // 8 if tiny else rows
    options = Options(
        shared=2,
        causal=how.get("causal", False),
        window=how.get("window"),
        softcap=how.get("softcap"),
        scale=features**-0.5,
    )
    shapes = (2, heads, group, rows, features), *((2, heads, rows, features),) * 2
    keys = jax.random.split(jax.random.key(0), 4)
    q, k, v = (jax.random.normal(key, s) for key, s in zip(keys, shapes, strict=False))
    cotangent = jax.random.normal(keys[3], shapes[0])
    sides = _sides(rows, documents)

    with jax.default_matmul_precision("highest"):
        expected = _with_gradients(partial(_by_blocks, options, sides))(q, k, v, cotangent)
    narrow = (x.astype(jnp.bfloat16) for x in (q, k, v, cotangent))
    found = _with_gradients(partial(tried, options, sides))(*narrow)
    return name, _distance(found, expected), TOLERANCE["bfloat16"]


def _sides(rows: int, documents: int) -> Sides:
    """Positions, and so many documents of about one length."""
    by_row, by_column = ((1, 1, 1, rows, 1), (1, 1, 1, 1, rows))
    positions = jnp.arange(rows)
    sides = Sides(rows=positions.reshape(by_row), columns=positions.reshape(by_column))
    if documents == 1:
        return sides
    numbers = positions * documents // rows
    numbered = {"row_segments": by_row, "column_segments": by_column}
    return sides._replace(**{name: numbers.reshape(shape) for name, shape in numbered.items()})


def _by_blocks(options: Options, sides: Sides, q, k, v) -> jax.Array:
    return attend(whole(options), q, k, v, sides)


def _by_pallas(options: Options, sides: Sides, q, k, v) -> jax.Array:
    place = _place(q.shape[-2], k.shape[-2])
    kernel = kernel_of(pallas, options, place)
    way = whole(options)._replace(kernel=kernel)
    return attend(way, q, k, v, sides)


def _by_cudnn(options: Options, sides: Sides, q, k, v, *, parts: int) -> jax.Array:
    """Each part of the queries by itself, as the devices of a mesh do it. `sides` count from 0."""
    way = whole(options)
    made = []
    for part, mine in enumerate(jnp.split(q, parts, axis=-2)):
        place = _place(q.shape[-2], k.shape[-2], part, parts)
        made.append(cudnn.attend(way, place, mine, k, v, Sides()))
    return jnp.concatenate(made, axis=-2)


def _place(rows: int, columns: int, part: int = 0, parts: int = 1) -> Place:
    """That of a device with one part of the rows and all columns."""
    size = rows // parts
    return Place(
        part=(lambda: [jnp.int32(part)]) if parts > 1 else None,
        parts=parts,
        padded=False,
        counted=True,
        platform=jax.default_backend(),
        lowered=False,
        whole=True,
        rows=Runs(tuple((number * size,) for number in range(parts)), size),
        columns=Runs(((0,),), columns),
        aligned=False,
    )


def _with_gradients(attend: Callable) -> Callable:
    def both(q, k, v, cotangent):
        output, pullback = jax.vjp(attend, q, k, v)
        return output, *pullback(cotangent)

    return jax.jit(both)


def _distance(found: Any, expected: Any) -> float:
    """The largest distance of an array to what is expected, as a share of the latter's norm."""
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    shares = [
        np.linalg.norm(np.float32(a) - np.float32(b)) / max(float(np.linalg.norm(b)), 1e-6)
        for a, b in pairs
    ]
    return float(max(shares))


def kept_calls() -> tuple[int, int] | None:
    """How often cuDNN runs forwards and backwards where a checkpoint keeps what attention found."""
    if jax.default_backend() != "gpu":
        return None
    dims = [md.Dim(*x) for x in (("batch", 2), ("heads", 2), ("queries", 512), ("head_dim", 64))]
    memory = md.Dim("memory", 512)
    query = md.abstract(dims, jnp.bfloat16)
    key = md.abstract([*dims[:2], memory, dims[3]], jnp.bfloat16)

    def loss(args):
        attend = lambda q, k, v: md.attention(md.sin(q), k, v, causal=True)
        made = md.checkpoint(attend, save="attention")(*args)
        return md.sum(md.square(md.cast(made, jnp.float32)))

    layout = md.Layout([], mesh={"one": 1})
    mesh = md.make_mesh(layout, jax.devices()[:1])
    step = md.lower(md.value_and_grad(loss), layout, mesh)
    text = step.lower((query, key, key)).compile().as_text() or ""
    calls = text.count('custom_call_target="__cudnn$fmha')
    backward = text.count('custom_call_target="__cudnn$fmhaSoftmaxBackward')
    return calls - backward, backward


def model_parity(tiny: bool) -> Iterator[tuple[str, float, float]]:
    """Loss and gradients of a small transformer under layouts over all devices."""
    devices = jax.devices()
    count = len(devices)
    settings = {
        "style": "llama",
        "layers": 2,
        "d_model": 256,
        "heads": 2 * count,
        "kv_heads": count,
        "head_dim": 64,
        "d_ff": 64 * count,
        "vocab": 64 * count,
        "length": 16 * count if count > 1 else 64,
    }
    config = override(Config(), **{f"model.{key}": value for key, value in settings.items()}).model
    model = config.init(jax.random.key(0))
    rows = md.Dim("batch", count)
    ids = np.random.default_rng(0).integers(0, config.vocab, (count, config.length + 1), np.int32)
    dims = rows, config.dims["length"]
    batch = {"tokens": md.tensor(ids[:, :-1], dims), "targets": md.tensor(ids[:, 1:], dims)}
    layouts = {
        "fsdp": find_layout("fsdp"),
        "tensor": find_layout("tensor"),
        "context": md.Layout(
            ["length, queries, memory -> data"], ["d_model -> data"], mesh={"data": "rest"}
        ),
    }
    if tiny:
        layouts = {"context": layouts["context"]}
    for dtype in ("float32",) if tiny else TOLERANCE:
        fn = md.value_and_grad(lambda m, b, d=dtype: config.loss(cast(m, d), b, None)[0])
        with jax.default_matmul_precision("highest"):
            expected = jax.jit(fn)(model, batch)
            for name, layout in layouts.items():
                mesh = md.make_mesh(dict.fromkeys(layout.mesh, count), devices)
                placed = jax.device_put((model, batch), md.shardings((model, batch), layout, mesh))
                found = jax.jit(md.lower(fn, layout, mesh))(*placed)
                yield f"{name} over {count}, {dtype}", _distance(found, expected), TOLERANCE[dtype]


def parity(tiny: bool) -> dict[str, Any]:
    """Prints and returns every comparison, and whether all are within what is allowed."""
    rows, found = [["compared", "distance", "allowed", ""]], {}
    for kind, comparisons in (("attention", attention_parity(tiny)), ("model", model_parity(tiny))):
        for name, distance, allowed in comparisons:
            good = distance <= allowed
            found[f"{kind}: {name}"] = {"distance": distance, "allowed": allowed, "good": good}
            cells = f"{distance:.1e}", f"{allowed:.0e}", "good" if good else "BAD"
            rows.append([f"{kind}: {name}", *cells])
    calls = kept_calls()
    if calls is not None:
        good = calls == (1, 1)
        found["kept"] = {"forward": calls[0], "backward": calls[1], "good": good}
        kept = f"cuDNN runs {calls[0]} + {calls[1]} times where attention is kept"
        rows.append([kept, "", "1 + 1", "good" if good else "BAD"])
    report(f"\n{measure.table(rows)}\n")
    return found
