"""How long `md.from_jax` takes to find names, and to trace, beside the plain function.

    python -m benchmarks.from_jax_time [MODEL ...]
    python -m benchmarks.from_jax_time --deep

Small models of many kinds, or with `--deep` a bare nanoGPT of many layers, unrolled, or scanned and
rematerialised; in CPU seconds. In each round all is made anew, first the plain function and then
the one with names, and a ratio is taken of the two; the medians of all rounds are shown. `first` is
with the caches of JAX empty before each of the two, as in a process that traces one step, and
`again` with what JAX has kept of its own functions from the rounds before. What the modules hold is
kept out of garbage collections, which take longer than a trace of a small model.
"""

import gc
import sys
import time
import warnings
from collections.abc import Callable
from statistics import median

import jax

import meshdsl as md
from benchmarks.small_models import SMALL
from tests.from_jax import plain
from tests.from_jax.libraries import LIBRARIES
from tests.from_jax.test_from_jax import SIZES, STACKED
from tests.from_jax.zoo import SIZES as ZOO_SIZES
from tests.from_jax.zoo import ZOO

ROUNDS = 3
LAYOUT = md.Layout(
    ["batch? -> data", "d_ff?, heads?, vocab?, nodes? -> model"],
    ["d_model? -> data"],
    mesh={"data": 2, "model": 2},
)


def seconds(fn) -> float:
    """The CPU time of one call."""
    start = time.process_time()
    fn()
    return time.process_time() - start


def measured(case: Callable, how: dict, *, first: bool) -> list[float]:
    """Of plain tracing with gradients, of finding names, of tracing by names.

    Args:
      first: what JAX has kept is dropped before each of the two.
    """
    fn, names, args = case()
    grad = lambda *args: jax.value_and_grad(fn, allow_int=True)(*args)  # one JAX has not seen
    _settle(first=first)
    of_plain = seconds(lambda: jax.jit(grad).trace(*args))
    named = md.from_jax(fn, names, **how)
    _settle(first=first)
    of_names = seconds(lambda: named.describe(*args))  # with the jaxpr of the function
    packed = named.pack(*args)
    step = md.lower(md.value_and_grad(named), LAYOUT, md.make_mesh(LAYOUT, jax.devices()[:4]))
    return [of_plain, of_names, seconds(lambda: step.trace(*packed))]


def _settle(*, first: bool) -> None:
    if first:
        jax.clear_caches()
    gc.collect()
    gc.freeze()


def nano_gpt(layers: int, *, scanned: bool) -> Callable:
    """A bare nanoGPT."""

    def case():
        params = plain.gpt_init(jax.random.key(0), layers)
        tokens = plain.tokens_and_targets()
        if scanned:
            return plain.scanned_loss, STACKED, (plain.stacked(params), *tokens)
        return plain.gpt_loss, plain.GPT_NAMES, (params, *tokens)

    return case


def cases(*, deep: bool) -> dict[str, tuple[Callable, dict]]:
    """Models by name, with what `from_jax` needs to know of sizes."""
    of_gpt = {"sizes": SIZES, "call": {"length_2": "memory"}}
    if deep:
        found = {f"{n} layers": (nano_gpt(n, scanned=False), of_gpt) for n in (12, 24, 48)}
        return {**found, "48 layers, scanned": (nano_gpt(48, scanned=True), of_gpt)}
    found = {
        **{name: (case, {}) for name, case in SMALL.items()},
        **{name: (case, {"sizes": ZOO_SIZES.get(name)}) for name, case in ZOO.items()},
        **{name: (case, {}) for name, case in LIBRARIES.items()},
        "gpt2": (nano_gpt(2, scanned=False), of_gpt),
        "gpt2, scanned": (nano_gpt(2, scanned=True), of_gpt),
    }
    for name in ("equinox", "haiku", "t5"):
        found[name] = (found[name][0], {"sizes": {"heads": 4}})
    return found


def main() -> None:
    jax.config.update("jax_num_cpu_devices", 8)
    warnings.simplefilter("ignore")
    wanted = [name for name in sys.argv[1:] if not name.startswith("-")]
    ratios: dict[bool, list[float]] = {True: [], False: []}
    titles = ["plain ms", "names", "trace", "ratio"]
    head = [*(f"first: {each}" for each in titles), *(f"again: {each}" for each in titles)]
    print(f"| model | {' | '.join(head)} |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    for name, (case, how) in cases(deep="--deep" in sys.argv).items():
        if wanted and name not in wanted:
            continue
        measured(case, how, first=False)  # what is done once in a process
        cells = []
        for first in (True, False):
            rounds = [measured(case, how, first=first) for _ in range(ROUNDS)]
            cells += [f"{median(times) * 1e3:.0f}" for times in zip(*rounds, strict=True)]
            ratios[first].append(median((names + trace) / plain for plain, names, trace in rounds))
            cells.append(f"{ratios[first][-1]:.2f}")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    for first, found in ratios.items():
        what = "first" if first else "again"
        print(f"{what}: median {median(found):.2f}, from {min(found):.2f} to {max(found):.2f}")


if __name__ == "__main__":
    main()
