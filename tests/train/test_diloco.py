"""Workers are DiLoCo as one writes it in JAX and optax alone, with fragments and delays."""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshdsl as md
from meshdsl.predict.compiler.collectives import from_hlo
from meshdsl.tensor import Parameter, Tensor
from meshdsl.train.config import Config
from meshdsl.train.local import LocalStep
from meshdsl.train.local_settings import Local
from meshdsl.train.timetable import Timetable
from tests.helpers import dims, distance, only


def plain_diloco(params, batches, inner, outer, workers, every, fragments, delay=0, own=0.5):
    """DiLoCo in JAX and optax alone: a loop over workers, each with its own rows.

    Args:
      fragments: lists of names of parameters, exchanged at times that lie evenly between.
    """

    def loss(params, x, y):
        hidden = jnp.tanh(x @ params["up"])
        for name in ("layer 0", "layer 1", "layer 2"):
            hidden = jnp.tanh(hidden @ params[name])
        return jnp.mean((hidden @ params["down"] - y) ** 2)

    @jax.jit
    def step(params, state, x, y):
        updates, state = inner.update(jax.grad(loss)(params, x, y), state, params)
        return optax.apply_updates(params, updates), state

    params, of_workers = dict(params), [dict(params) for _ in range(workers)]
    inner_states = [inner.init(params)] * workers
    some = lambda of, f: {name: of[name] for name in fragments[f]}
    outer_states = [outer.init(some(params, f)) for f in range(len(fragments))]

    def send(f):
        mean = jax.tree.map(lambda *each: sum(each) / workers, *[some(w, f) for w in of_workers])
        moved = jax.tree.map(jnp.subtract, some(params, f), mean)
        updates, outer_states[f] = outer.update(moved, outer_states[f], some(params, f))
        params.update(optax.apply_updates(some(params, f), updates))

    def arrive(f, own):
        for w in of_workers:
            w.update({n: own * w[n] + (1 - own) * params[n] for n in fragments[f]})

    due = lambda t: [
        f for f in range(len(fragments)) if t > 0 and (t - f * every // len(fragments)) % every == 0
    ]
    for number, (x, y) in enumerate(batches, 1):
        sent = due(number - 1) if delay else []
        before = [dict(w) for w in of_workers]
        for w in range(workers):
            rows = slice(w * len(x) // workers, (w + 1) * len(x) // workers)
            found = step(of_workers[w], inner_states[w], x[rows], y[rows])
            of_workers[w], inner_states[w] = found
        after, of_workers[:] = of_workers[:], before
        for f in sent:
            send(f)
        of_workers[:] = after
        ends = number == len(batches)
        for t in range(number - delay, number if ends else number - delay + 1):
            for f in due(t) if delay else []:
                arrive(f, own)
        for f in range(len(fragments)) if ends else [] if delay else due(number):
            send(f)
            arrive(f, 0.0)
    return params, of_workers


WORKER, BATCH, INS, HIDDEN, LAYERS = dims(worker=4, batch=4, ins=5, hidden=6, layers=3)


class Small(NamedTuple):
    """A run of a small model in the language: what `Timetable` asks for."""

    local: LocalStep
    config: Config


def small_run(first, inner, outer, steps: int, settings: Local) -> Any:
    """With four workers in as many slices."""
    made = md.Dim("made", HIDDEN.size)

    def init(_):
        stack = jnp.stack([first[f"layer {i}"] for i in range(LAYERS.size)])
        return {
            "up": md.parameter(jnp.asarray(first["up"]), (INS, HIDDEN), ins=INS),
            "stack": Tensor(stack, (LAYERS, HIDDEN, made), Parameter(("hidden",), ("made",))),
            "down": md.parameter(jnp.asarray(first["down"]), HIDDEN, ins=HIDDEN),
        }

    def loss(model, given, key):
        h = md.tanh(md.dot(given["x"], model["up"]))
        for layer in md.unstack(model["stack"], LAYERS):
            h = md.rename(md.tanh(md.einsum(h, layer, out=(BATCH, made))), made, HIDDEN)
        return md.mean(md.square(md.dot(h, model["down"]) - given["y"])), {}

    rules = ["worker -> replica", "batch -> data"]
    layout = md.Layout(rules, mesh={"replica": 4, "data": 2}, parameters=["hidden -> data"])
    how = {"workers": 4, "fragments": settings.fragments, "own": settings.own, "outer": outer}
    step = LocalStep(init, loss, inner, layout, md.make_mesh(layout), **how)
    return Small(step, replace(Config(), steps=steps, local=settings))


def small_batch(x, y) -> dict[str, md.Tensor]:
    x, y = x.reshape(4, 4, 5), y.reshape(4, 4)
    return {"x": md.tensor(x, (WORKER, BATCH, INS)), "y": md.tensor(y, (WORKER, BATCH))}


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(sum(shape) + seed)
    return random.normal(size=shape).astype(np.float32)


def first_values() -> dict[str, np.ndarray]:
    layers = {f"layer {i}": drawn(6, 6, seed=i) * 0.5 for i in range(LAYERS.size)}
    return {"up": drawn(5, 6), "down": drawn(6), **layers}


# By the settings of workers, the names of the parameters in each fragment.
PLAIN = {
    "one": (Local(every=3), [["layer 0", "layer 1", "layer 2", "up", "down"]]),
    "two": (Local(every=3, fragments=2), [["layer 0", "up", "down"], ["layer 1", "layer 2"]]),
    "late": (
        Local(every=4, fragments=2, delay=1, own=0.25),
        [["layer 0", "up", "down"], ["layer 1", "layer 2"]],
    ),
    "as late as can be": (
        Local(every=3, fragments=3, delay=3),
        [["layer 0", "up"], ["layer 1", "down"], ["layer 2"]],
    ),
}


OUTER = {
    "sgd": (optax.sgd(0.7, 0.9, nesterov=True), 2e-6),
    "adam": (optax.adam(0.01), 1e-5),
}


@pytest.mark.parametrize(
    "name, outer",
    only(
        [("two", "adam"), ("late", "sgd")],
        [(name, outer) for name in PLAIN for outer in OUTER],
        [("one", "adam"), ("as late as can be", "sgd")],
    ),
)
def test_it_is_diloco_as_one_writes_it_in_jax(name, outer):
    outer, tolerance = OUTER[outer]
    settings, fragments = PLAIN[name]
    first = first_values()
    batches = [(drawn(16, 5) + i, drawn(16) - i) for i in range(9)]
    inner = optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(1e-2))
    run = small_run(first, inner, outer, len(batches), settings)
    state, timetable = run.local.init(jax.random.key(0)), Timetable(run)
    for number, each in enumerate(batches, 1):
        state, _ = timetable.step(run.local, state, small_batch(*each), number)
    how = {"workers": 4, "every": settings.every, "delay": settings.delay, "own": settings.own}
    params, of_workers = plain_diloco(first, batches, inner, outer, fragments=fragments, **how)

    def assert_has(model, wanted):
        layers = np.stack([wanted[f"layer {i}"] for i in range(LAYERS.size)])
        for found, value in (("up", wanted["up"]), ("down", wanted["down"]), ("stack", layers)):
            assert distance(model[found].array, value, floor=1e-6) < tolerance

    assert_has(state.params, params)
    for i, own in enumerate(of_workers):
        of_worker = jax.tree.map(lambda x, i=i: x[i], state.workers.params)
        assert_has(of_worker, own)


@pytest.mark.usefixtures("compiled_for_users")  # so it stands last
def test_only_the_exchange_crosses_slices():
    settings = Local(fragments=2, delay=1)
    step = small_run(first_values(), optax.adam(0.1), optax.sgd(0.7), 1, settings).local
    batch = small_batch(drawn(16, 5), drawn(16))
    assert not any("replica" in c.axes for c in step.program(step.abstract, batch).collectives)
    across = lambda lowered: [
        (c.operation, c.axes)
        for c in from_hlo(lowered.compile().as_text(), step.mesh)
        if c.axes != ("data",)
    ]
    assert not across(step.lower(step.abstract, batch))
    recorded = [(c.operation, c.axes) for c in step.exchange_program().collectives]
    assert recorded == [("psum", ("replica",))] * 3
    assert across(step.lower_exchange()) == recorded
    assert across(step.lower_sending(batch, 1)) == recorded[:1]
