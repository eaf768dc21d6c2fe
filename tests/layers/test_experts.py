"""A mixture of experts is its formula, and the same under every layout, dropped tokens included."""

import math
from functools import partial

import jax
import numpy as np
import optax
import pytest

import meshdsl as md
from meshdsl.layers import Experts, Router, Stack
from meshdsl.train.optimizer import by_signs
from tests.helpers import assert_equal, assert_same, collectives, data, dims, layout

BATCH, LENGTH, D_MODEL, D_FF = dims(batch=8, length=16, d_model=8, d_ff=12)
EXPERTS = md.Dim("experts", 8)
X = data(BATCH, LENGTH, D_MODEL, low=-2.0, high=2.0)
MESH = {"data": 2, "expert": 4}
LAYOUTS = {
    "experts": layout("experts -> expert", "batch -> data, expert", mesh=MESH),
    "experts over data": layout("experts -> data", "batch -> data", mesh={"data": 4}),
    "tensor": layout(
        "experts -> expert",
        "batch -> data, expert",
        "d_ff, length -> model",
        mesh={"data": 2, "expert": 2, "model": 2},
    ),
    "sequence": layout("batch -> data", "length -> data", "experts -> expert", mesh=MESH),
    "fsdp": md.Layout(
        ["experts -> expert", "batch -> data, expert"], ["d_model -> data"], mesh=MESH
    ),
}
LAYOUTS["uneven"] = layout(
    "experts -> expert",
    "batch -> expert",
    "d_ff -> data",
    mesh={"data": 2, "expert": 3},
    uneven="pad",
)
KINDS = {
    "dropless": {},
    "capacity": {"capacity": 1.0},
    "deepseek": {
        "capacity": 1.25,
        "shared": 10,
        "offset": True,
        "scores": "sigmoid",
        "groups": 4,
        "groups_used": 2,
        "scale": 2.5,
    },
    "biases": {"bias": True, "shared": 10, "shared_gate": True},
}


def made(top=2, **how) -> Experts:
    experts = Experts.init(jax.random.key(0), D_MODEL, D_FF, EXPERTS, top, **how)
    if experts.biases is None:
        return experts
    keys = enumerate(experts.biases)
    return experts.replace(
        biases=tuple(data(*b.dims, seed=i).replace(role=b.role) for i, b in keys)
    )


def use(experts, x):
    y, load = experts.with_load(x)
    return y, load.balance, load.z, load.share, load.dropped


def by_loops(experts: Experts, x, room: float = math.inf):
    """Token by token, with NumPy; and how many choices were dropped."""
    choice = experts.router(x)
    ids, weights = (np.asarray(t.array) for t in (choice.experts, choice.weights))
    gate, up, down = (
        np.asarray(t.array, np.float64) for t in (experts.gate, experts.up, experts.down)
    )
    biases = [np.asarray(b.array) for b in experts.biases] if experts.biases else [np.zeros(8)] * 3
    values, y, dropped = np.asarray(x.array, np.float64), np.zeros(x.array.shape), 0
    for b in range(BATCH.size):
        used = np.zeros(EXPERTS.size)
        for i in range(LENGTH.size):
            for k in range(ids.shape[-1]):
                e = ids[b, i, k]
                used[e] += 1
                if used[e] > room:
                    dropped += 1
                    continue
                gated = values[b, i] @ gate[e] + biases[0][e]
                h = gated / (1 + np.exp(-gated)) * (values[b, i] @ up[e] + biases[1][e])
                y[b, i] += weights[b, i, k] * (h @ down[e] + biases[2][e])
    return y, dropped / ids.size


@pytest.mark.slow
@pytest.mark.parametrize(
    "capacity, room, bias",
    [(0, math.inf, True), (8.0, 16, True), (1.0, 4, False), (1.3, 6, True), (0.1, 1, False)],
)
def test_each_token_goes_through_its_experts_as_long_as_there_is_room(capacity, room, bias):
    experts = made(capacity=capacity, bias=bias)
    y, load = experts.with_load(X)
    expected, dropped = by_loops(experts, X, room)
    np.testing.assert_allclose(y.array, expected, atol=2e-5)
    np.testing.assert_allclose(load.dropped.array, dropped, atol=1e-6)
    assert (dropped > 0) == (room < 16)


# Each kind under some, and each layout with some.
PAIRS = [
    *((name, "capacity") for name in ("experts", "experts over data")),
    *((name, "deepseek") for name in ("sequence", "uneven")),
    ("fsdp", "dropless"),
    ("tensor", "biases"),
]


@pytest.mark.slow
@pytest.mark.parametrize("name, kind", PAIRS)
def test_experts_and_gradients_are_the_same_under_every_layout(name, kind):
    assert_same(use, made(**KINDS[kind]), X, layout=LAYOUTS[name], floor=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["experts", "uneven"])
def test_by_the_kernels_for_gpu_a_layer_is_the_same_under_a_layout(name, monkeypatch):
    expected = use(made(**KINDS["biases"]), X)
    monkeypatch.setattr(md, "routed", partial(md.routed, implementation="pallas"))
    program, reference = assert_same(use, made(**KINDS["biases"]), X, layout=LAYOUTS[name])
    assert "pallas" in [op.kernel for op in program.ops]
    assert_equal(reference[0], expected)


@pytest.mark.slow
def test_a_shared_gate_is_a_factor_of_each_token():
    experts = made(shared=10, shared_gate=True)
    alone, gate = experts.replace(shared=None)(X), experts.shared_gate
    factor = 1 / (1 + np.exp(-np.asarray(X.array) @ np.asarray(gate.weight.array)))
    expected = alone.array + factor[..., None] * experts.shared(X).array
    np.testing.assert_allclose(experts(X).array, expected, atol=1e-5)
    with pytest.raises(md.MeshDSLError, match="Experts: shared_gate is of `shared`, which is 0"):
        made(shared_gate=True)


def test_capacity_takes_two_exchanges_forward_and_two_backward():
    experts = made(capacity=1.0)
    fn = lambda experts, x: experts(x)
    found = collectives(fn, experts, X, layout=LAYOUTS["experts"])
    assert found == {("all_to_all", ("expert",)): 2}
    loss = lambda both, x: md.mean(md.square(both[0](x * both[1])))
    scale = md.ones(D_MODEL)
    found = collectives(md.value_and_grad(loss), (experts, scale), X, layout=LAYOUTS["experts"])
    assert found[("all_to_all", ("expert",))] == 4
    assert {name for name, _ in found} == {"all_to_all", "psum"}


@pytest.mark.slow
def test_a_router_uses_the_best_groups_and_weighs_without_offsets():
    """As DeepSeek-V3: the best two scores rank a group, offsets choose, and scores weigh."""
    router = Router.init(
        jax.random.key(3),
        D_MODEL,
        8,
        2,
        scores="sigmoid",
        offset=True,
        groups=4,
        groups_used=2,
        scale=2.5,
    )
    offset = np.linspace(-1, 1, 8, dtype=np.float32)
    router = router.replace(offset=md.parameter(offset, router.offset.dims))
    choice = router(X)
    scores = 1 / (1 + np.exp(-np.asarray(X.array) @ np.asarray(router.weight.array)))
    for row, ids, weights in zip(
        scores.reshape(-1, 8),
        np.asarray(choice.experts.array).reshape(-1, 2),
        np.asarray(choice.weights.array).reshape(-1, 2),
        strict=True,
    ):
        ranked = (row + offset).reshape(4, 2)
        used = np.argsort(-ranked.sum(1))[:2]
        allowed = np.where(np.isin(np.arange(8) // 2, used), row + offset, -np.inf)
        assert ids.tolist() == np.argsort(-allowed)[:2].tolist()
        np.testing.assert_allclose(weights, 2.5 * row[ids] / row[ids].sum(), atol=1e-5)


def settle(stack, x):
    def body(layer, x, _):
        y, load = layer.with_load(x)
        return x + y, load

    y, load = stack.scan(body, x)
    return md.mean(md.square(y)) + md.sum(load.settling), load.share


@pytest.mark.slow
def test_the_gradient_of_an_offset_is_the_load_of_its_expert():
    init = lambda key: Experts.init(key, D_MODEL, D_FF, EXPERTS, 2, offset=True)
    stack = Stack.init(jax.random.key(0), init, md.Dim("layers", 3), remat="full")
    step = md.value_and_grad(settle, has_aux=True)
    (_, share), gradients = step(stack, X)
    found = gradients.layer.router.offset
    np.testing.assert_allclose(found.array, share.array - 1 / 8, atol=1e-6)
    assert_same(step, stack, X, layout=LAYOUTS["experts"], gradients=False)
    turns = md.Dim("turns", 2), md.Dim("batch", 4)
    cut = md.tensor(X.array.reshape(2, 4, 16, 8), (*turns, LENGTH, D_MODEL))
    of_parts = md.value_and_grad(settle, has_aux=True, accumulate=cut.dims[0])
    (_, share), gradients = of_parts(stack, cut)
    np.testing.assert_allclose(gradients.layer.router.offset.array, found.array, atol=1e-6)

    tx = by_signs(optax.adamw(1e-2))
    updates, _ = tx.update(gradients, tx.init(stack), stack)
    signs = np.sign(np.asarray(found.array))
    expected = 1e-3 * (signs.mean(1, keepdims=True) - signs)
    np.testing.assert_allclose(updates.layer.router.offset.array, expected, atol=1e-7)
    assert float(np.abs(updates.layer.gate.array).max()) > 5e-3


@pytest.mark.slow
def test_gradients_of_the_layer_are_those_of_the_formula():
    """Of the capacity, whose lookups state their derivatives, against all experts for all."""
    experts = made(capacity=8.0)

    def dense(experts, x):
        choice, out = experts.router(x), (BATCH, LENGTH, EXPERTS, D_FF)
        chosen = md.one_hot(choice.experts, EXPERTS) * md.broadcast(
            choice.weights, (*choice.weights.dims, EXPERTS)
        )
        h = md.silu(md.einsum(x, experts.gate, out=out)) * md.einsum(x, experts.up, out=out)
        y = md.einsum(h, experts.down, out=(BATCH, LENGTH, EXPERTS, D_MODEL))
        return md.einsum(y, md.sum(chosen, "top"), out=(BATCH, LENGTH, D_MODEL))

    grads = [
        jax.jit(
            md.value_and_grad(lambda both, x, fn=fn: md.mean(md.sin(fn(both[0], x * both[1]))))
        )((experts, md.ones(D_MODEL)), X)
        for fn in (dense, lambda e, x: e(x), lambda e, x: e.replace(capacity=0.0)(x))
    ]
    for found in grads[1:]:
        assert_equal(found, grads[0], floor=1.0)
