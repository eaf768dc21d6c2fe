"""A model on several meshes: loss and gradients are those of one device, and nothing waits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshdsl as md
from meshdsl.stages.schedule import one_forward_one_backward
from tests.helpers import assert_by_law, assert_equal, data, dims, integers

B, F, H, C = dims(batch=12, features=8, d_ff=24, classes=6)
MICROBATCHES = [(data(B, F, seed=i), None, integers(B, below=6, seed=i)) for i in range(4)]


def init_first(key):
    return {"w": md.normal(key, (F, H), ins=F), "bias": md.zeros(H)}


def init_middle(key):
    return {"scale": md.normal(key, (H,), std=1.0), "unused": md.ones(C)}


def init_last(key):
    return md.normal(key, (H, C), ins=H)


def first(params, x):
    """A pytree of Tensors, of which one has the batch alone."""
    return {"h": md.tanh(md.dot(x, params["w"]) + params["bias"]), "norm": md.mean(x * x, F)}


def middle(params, x, _):
    return {"h": md.gelu(x["h"] * params["scale"]), "norm": x["norm"] * 2}


def last(params, x, labels):
    logits = md.dot(x["h"], params) + x["norm"]
    return -md.mean(md.take(md.log_softmax(logits, C), labels, C)) + md.mean(x["norm"] * logits)


FUNCTIONS, INITS = (first, middle, last), (init_first, init_middle, init_last)
KEYS = jax.random.split(jax.random.key(0), 3)


@pytest.fixture(scope="module")
def expected():
    """Loss and gradients on one device: the means over the microbatches."""

    def loss(params, microbatch):
        x, nothing, labels = microbatch
        y = middle(params[1], first(params[0], x), nothing)
        return last(params[2], y, labels)

    params = tuple(init(key) for init, key in zip(INITS, KEYS, strict=True))
    one_device = jax.jit(md.value_and_grad(loss))
    each = [one_device(params, m) for m in MICROBATCHES]
    return jax.tree.map(lambda *xs: jnp.mean(jnp.stack(xs), 0), *each)


def on(devices, rules, parameters=(), **sizes):
    made = md.Layout(rules, parameters, mesh=sizes)
    return made, md.make_mesh(made, jax.devices()[devices])


DATA, TENSOR = ["batch -> data"], ["d_ff -> model"]
PLACES = {
    "2 + 6, two stages": (
        on(slice(2), DATA, ["features? -> data"], data=2),
        on(slice(2, 8), DATA + TENSOR, ["classes -> data"], data=3, model=2),
    ),
    "2 + 2 + 4, three stages": (
        on(slice(2), DATA, data=2),
        on(slice(2, 4), TENSOR, model=2),
        on(slice(4, 8), DATA + TENSOR, data=2, model=2),
    ),
    "three stages in turn on two meshes": (
        on(slice(4), DATA, data=4),
        on(slice(4, 8), TENSOR, model=4),
        on(slice(4), DATA, data=4),
    ),
}
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in [*PLACES][1:]]


@pytest.mark.parametrize("name", ["2 + 6, two stages", *SLOW])
def test_loss_and_every_gradient_are_those_of_one_device(name, expected):
    places = PLACES[name]
    functions, inits, microbatches = FUNCTIONS, INITS, MICROBATCHES
    if len(places) == 2:  # the middle is of the last stage

        def init_rest(keys):
            return {"middle": init_middle(keys[0]), "last": init_last(keys[1])}

        def rest(params, x, labels):
            return last(params["last"], middle(params["middle"], x, None), labels)

        functions, inits = (first, rest), (init_first, init_rest)
        microbatches = [(x, labels) for x, _, labels in MICROBATCHES]
    keys = KEYS if len(places) == 3 else (KEYS[0], KEYS[1:])
    stages = md.Stages([md.lower(f, *place) for f, place in zip(functions, places, strict=True)])
    params = [md.init(*args, *place) for *args, place in zip(inits, keys, places, strict=True)]

    value, gradients = stages.value_and_grad(params, microbatches)

    for of_stage, place in zip(gradients, places, strict=True):
        assert_by_law(of_stage, *place, "optimizer")
    if len(places) == 2:
        gradients = (gradients[0], gradients[1]["middle"], gradients[1]["last"])
    assert_equal((value, gradients), expected)
    # Each stage but the last gets a cotangent of what it sent, of the same size.
    elements = B.size * H.size + B.size
    there_and_back = 2 * (len(places) - 1) * elements * 4
    assert stages.transfers.bytes == len(MICROBATCHES) * there_and_back
    losses = [stages(params, m).item() for m in microbatches]
    np.testing.assert_allclose(np.mean(losses), value.item(), rtol=1e-6)


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 1), (2, 4), (3, 2), (4, 8), (5, 3)])
def test_forward_and_backward_passes_take_turns(stages, microbatches):
    order = one_forward_one_backward(stages, microbatches)
    assert len(order) == len(set(order)) == (2 * stages - 1) * microbatches
    at = {action: i for i, action in enumerate(order)}
    for stage, m, backward in order:
        if backward and stage < stages - 1:
            assert at[stage, m, False] < at[stage, m, True] > at[stage + 1, m, True]
        elif stage:
            assert at[stage - 1, m, False] < at[stage, m, backward]
    for stage in range(stages - 1):  # of how many microbatches a stage keeps the inputs
        kept = np.cumsum([-1 if a.backward else 1 for a in order if a.stage == stage])
        assert kept.max() == min(stages - stage, microbatches) and kept[-1] == 0
