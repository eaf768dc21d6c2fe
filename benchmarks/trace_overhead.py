"""What names cost when a program is traced: meshdsl beside `jax.numpy`.

    python -m benchmarks.trace_overhead

Traced are 1,000 component-wise ops and 100 einsums. meshdsl does it in three ways: outside of a
lowering; lowered for one device; lowered for 8 devices, where each einsum of the chain also
reshards its operands. All are compared with the same ops on arrays under `jit`.
"""

import gc
import math
import time

import jax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)

import jax.numpy as jnp  # noqa: E402

import meshdsl as md  # noqa: E402

from .measure import show  # noqa: E402

BATCH, FEATURES = md.Dim("batch", 16), md.Dim("features", 32)
HIDDEN = md.Dim("hidden", 32)
LAYOUTS = {
    "no layout": None,
    "one device": md.Layout(),
    "8 devices": md.Layout(
        rules=["batch -> data", "hidden -> model"], mesh={"data": 4, "model": 2}
    ),
}
COUNT, EINSUMS = 1000, 100


def component_names(x, w):
    for _ in range(COUNT // 4):
        x = md.tanh(x) * x + x
        x = md.exp(x)
    return x


def component_numpy(x, w):
    for _ in range(COUNT // 4):
        x = jnp.tanh(x) * x + x
        x = jnp.exp(x)
    return x


def einsum_names(x, w):
    for _ in range(EINSUMS // 2):
        x = md.einsum(md.einsum(x, w, out=(BATCH, HIDDEN)), w, out=(BATCH, FEATURES))
    return x


def einsum_numpy(x, w):
    for _ in range(EINSUMS // 2):
        x = jnp.einsum("bh,fh->bf", jnp.einsum("bf,fh->bh", x, w), w)
    return x


CASES = {
    f"{COUNT} component-wise ops": (component_names, component_numpy),
    f"{EINSUMS} einsums": (einsum_names, einsum_numpy),
}


def fresh(fn, layout):
    """`fn` as a step that was never traced, lowered if there is a layout."""

    def wrapped(x, w):
        return fn(x, w)

    return jax.jit(wrapped) if layout is None else md.lower(wrapped, layout)


def seconds(fns: dict, repeats: int = 7) -> dict[str, float]:
    """For each function the fastest of several times to trace it, in seconds of this thread.

    The functions take turns. What JAX has cached of its own functions is kept: only `fns` are
    traced anew.
    """
    best = dict.fromkeys(fns, math.inf)
    for _ in range(repeats):
        for name, (fn, layout, arguments) in fns.items():
            step = fresh(fn, layout)
            gc.collect()
            start = time.thread_time()
            step.trace(*arguments)
            best[name] = min(best[name], time.thread_time() - start)
    return best


def main() -> None:
    arrays = jnp.ones((BATCH.size, FEATURES.size)), jnp.ones((FEATURES.size, HIDDEN.size))
    tensors = (
        md.tensor(arrays[0], (BATCH, FEATURES)),
        md.parameter(arrays[1], (FEATURES, HIDDEN), ins=(FEATURES,)),
    )
    rows = [["", "jax.numpy ms", *(f"{name}, ms (ratio)" for name in LAYOUTS)]]
    for name, (named, plain) in CASES.items():
        fns = {"jnp": (plain, None, arrays)} | {
            key: (named, layout, tensors) for key, layout in LAYOUTS.items()
        }
        best = seconds(fns)
        base = best.pop("jnp")
        rows.append(
            [
                name,
                f"{1000 * base:.1f}",
                *(f"{1000 * t:.1f} ({t / base:.2f})" for t in best.values()),
            ]
        )
    show(rows)


if __name__ == "__main__":
    main()
