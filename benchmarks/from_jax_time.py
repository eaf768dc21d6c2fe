"""How long `md.from_jax` takes to find names, and to trace, beside the plain function.

    python -m benchmarks.from_jax_time

A bare nanoGPT, its layers unrolled, or scanned and rematerialised, in CPU seconds: the least of
several rounds, in each of which all is made anew. What JAX keeps of functions of its own from round
to round it keeps for both.
"""

import time

import jax

import meshdsl as md
from tests.from_jax import plain
from tests.from_jax.test_from_jax import SIZES, STACKED

ROUNDS = 3


def seconds(fn) -> float:
    """The CPU time of one call."""
    start = time.process_time()
    fn()
    return time.process_time() - start


def measured(layers: int, *, scanned: bool) -> list[float]:
    """Of plain tracing with gradients, twice, of finding names, of tracing by names."""
    fn, names = (plain.scanned_loss, STACKED) if scanned else (plain.gpt_loss, plain.GPT_NAMES)
    params = plain.gpt_init(jax.random.key(0), layers)
    params = plain.stacked(params) if scanned else params
    tokens = plain.tokens_and_targets()
    grad = lambda: lambda *args: jax.value_and_grad(fn)(*args)  # one that JAX has not seen
    of_plain = seconds(lambda: jax.jit(grad()).trace(params, *tokens))
    of_jaxpr = seconds(lambda: jax.make_jaxpr(grad())(params, *tokens))
    named = md.from_jax(fn, names, sizes=SIZES, call={"length_2": "memory"})
    of_names = seconds(lambda: named.describe(params, *tokens))  # with the jaxpr of the function
    packed = named.pack(params, *tokens)
    layout = md.Layout.load("fsdp-tensor")
    step = md.lower(md.value_and_grad(named), layout, md.make_mesh(layout))
    return [of_plain, of_jaxpr, of_names, seconds(lambda: step.trace(*packed))]


def main() -> None:
    jax.config.update("jax_num_cpu_devices", 8)
    for scanned in (False, True):
        measured(1, scanned=scanned)  # what is done once in a process
        for layers in (48,) if scanned else (12, 24, 48):
            rounds = [measured(layers, scanned=scanned) for _ in range(ROUNDS)]
            plainly, jaxpr, names, traced = (min(times) for times in zip(*rounds, strict=True))
            print(
                f"{layers} layers{', scanned' * scanned}: plain {plainly:.2f} s, by make_jaxpr "
                f"{jaxpr:.2f} s, names {names:.2f} s, trace by names {traced:.2f} s, "
                f"{traced / plainly:.1f} times",
                flush=True,
            )


if __name__ == "__main__":
    main()
