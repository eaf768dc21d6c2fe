"""Whatever a newcomer hands to a public function, the answer is a result or a MeshDSLError."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshdsl as md
from meshdsl.lowering.wires import WIRES
from meshdsl.ops.functions import FUNCTIONS
from tests.helpers import data, dims, integers, weight

A, B, C, P, T, V = dims(a=4, b=8, c=3, p=3, t=2, v=2)
X, Y, W, IDS = data(A, B), data(B, C), weight(A, B), integers(A, below=4)
IMAGE, KERNEL, KEY = data(A, B, C), weight(P, C, V), jax.random.key(0)
LAYOUT = md.Layout(["a -> data", "b -> model"], mesh={"data": 2, "model": 4})
QUERIES, MEMORY, HEAD_DIM = dims(queries=4, memory=8, head_dim=3)
QUERY, FOUND = data(QUERIES, HEAD_DIM), data(MEMORY, HEAD_DIM)
EXPERTS = data(C, B, md.Dim("n", 8))
YES, ONE, SCALAR = (md.tensor(value, ()) for value in (True, 1, 1.0))


def shares():
    return [(device, np.zeros(2, np.float32)) for device in jax.devices()[:2]]


HOW_LOWERED = dict.fromkeys(("dims", "optimizer_argnums", "donate_argnums"), ())
# For each public function a call that is right.
CALLS = {
    "abstract": (((A, B), jnp.float32), {}),
    "attention": (
        (QUERY, FOUND, FOUND),
        {"queries": QUERIES, "memory": MEMORY, "head_dim": HEAD_DIM, "causal": True, "window": 2}
        | {"softcap": 1.0, "scale": 1.0, "implementation": "blocks"}
        | dict.fromkeys(("segments", "sinks", "bias", "positions")),
    ),
    "bincount": ((IDS, C), {"weights": data(A)}),
    "broadcast": ((X, (A, B, C)), {}),
    "cast": ((X, jnp.bfloat16), {}),
    "checkpoint": ((md.sin, "full"), {"save": (), "offload": (), "in_scan": False}),
    "checkpoint_name": ((X, "name"), {}),
    "clip_by_global_norm": ((1.0,), {}),
    "compare": (
        (md.sin, X),
        {"layouts": [LAYOUT], "target": "cpu:8", "meshes": [], "compiled": 0, "dims": ()},
    ),
    "compile": ((md.sin, X), {"layout": LAYOUT, "target": "cpu:8", "mesh": None, "options": {}}),
    "concat": (([X, X], "b"), {"out": "bb"}),
    "cond": ((YES, md.sin, md.cos, X), {}),
    "cross_entropy": (
        (X, data(B, V), IDS),
        {"vocab": V, "bias": data(V), "softcap": 1.0, "chunk": 3, "dtype": jnp.float32},
    ),
    "cumcount": ((IDS, A, C), {}),
    "custom_gradient": ((lambda x: (x, lambda ct: ct),), {}),
    "diagonal": ((X, A, B, md.Dim("n", 4)), {}),
    "dequantize": ((X, data(A)), {}),
    "dot": ((X, weight(A, B, ins=A)), {"precision": None, "preferred_element_type": None}),
    "dropout": ((X, 0.5, KEY), {}),
    "einsum": ((X, Y), {"out": (A, C), "precision": None, "preferred_element_type": None}),
    "eye": ((A, B, jnp.float32), {"like": X}),
    "explain": (
        (md.sin, X),
        {"layout": LAYOUT, "target": None, "mesh": None, "title": "sine", "tokens": 4, "flops": 1.0}
        | HOW_LOWERED,
    ),
    "from_jax": (
        (lambda x: x, {"x": "a b"}),
        {"sizes": {}, "call": {}, "parameters": 0, "strict": False},
    ),
    "from_local": ((shares(), (A,), md.make_mesh({"data": 2}, jax.devices()[:2]), {A: "data"}), {}),
    "full": (((A, B), 1.0), {"ins": A, "dtype": jnp.float32}),
    "global_norm": (([X],), {}),
    "hvp": ((lambda x: md.sum(x * x), (X,), (X,)), {}),
    "init": ((lambda key: {"x": X}, KEY, LAYOUT), {"mesh": None}),
    "iota": ((A, jnp.int32), {"like": X}),
    "jvp": ((md.sin, (X,), (X,)), {}),
    "local": (
        (lambda x, *starts: jnp.sin(x), X),
        {"out": (A, B), "whole": (), "sums": (), "starts": (), "name": "sine"},
    ),
    "ledger": (
        (md.lower(md.sin, md.Layout([])), X),
        {"steps": 1, "target": None, "title": "sine"},
    ),
    "lower": ((md.sin, LAYOUT, md.make_mesh(LAYOUT)), {"dims": []}),
    "make_mesh": ((LAYOUT, jax.devices()), {}),
    "map": ((jnp.sin, X), {"name": "sine", "linear": False}),
    "materialize": ((X,), {}),
    "map_over": ((md.sin, X), {"dim": A, "batch": 2}),
    "one_hot": ((IDS, C, jnp.float32), {}),
    "over": ((A, md.sin), {}),
    "pad": ((X, B, 1, 2, 0.0), {"out": "bb"}),
    "parameter": ((np.zeros((4, 8)), (A, B)), {"ins": A}),
    "quantize": ((X, "int8", B), {"block": None, "largest": 1.0}),
    "quantized_dot": (
        (X, weight(A, B, ins=A), "int8"),
        {"block": None, "largest": 1.0, "key": jax.random.key(0)},
    ),
    "rename": ((X, B, "z"), {}),
    "replicate": ((X,), {}),
    "register_wire": (("mine", lambda x, largest: x, lambda sent, width: sent), {}),
    "reshape": ((X, "a (u w) -> a u w"), {"u": 2}),
    "reshard": ((X, {"a": "model"}), {"pending": ()}),
    "roll": ((X, B, 1), {"finite": True}),
    "routed": (
        (lambda groups, rows, w: groups.dot(rows, w), X, IDS, data(A), (EXPERTS,), C),
        {"sums": (), "name": "routed", "implementation": "blocks"},
    ),
    "scan": ((lambda c, x: (c, x), SCALAR, X), {"dim": A, "reverse": False, "unroll": 1}),
    "scatter": ((Y, IDS, X, C), {"how": "add"}),
    "searchsorted": ((X, data(T), B), {"side": "left"}),
    "segment_sum": ((X, IDS, A, C), {}),
    "search": (
        (md.sin, X),
        {"target": "v5e:2x2", "axes": 2, "seconds": 0.01, "evaluations": 1, "compiled": 0}
        | {"title": "sine", "keep": None, "dcn": None, "memory": None, "never": ()}
        | {"within_host": (), **HOW_LOWERED},
    ),
    "shardings": (({"x": X}, LAYOUT, md.make_mesh(LAYOUT), "rules"), {}),
    "shift": ((X, B, 1, 0), {}),
    "show": ((X, "x"), {}),
    "slice": ((X, B, 1, 2), {}),
    "split": ((X, B, [3, 5]), {}),
    "stack": (([X, X], "z"), {}),
    "stop_gradient": ((X,), {}),
    "switch": ((ONE, [md.sin, md.cos], X), {}),
    "take": ((X, IDS, B), {}),
    "tensor": ((np.zeros((4, 8)), (A, B)), {}),
    "top_k": ((X, B, 2), {}),
    "transfer": (
        ({"x": X}, LAYOUT, md.make_mesh(LAYOUT)),
        {"level": "rules", "name": "x", "transfers": None},
    ),
    "transpose": ((X, (B, A)), {}),
    "value_and_grad": (
        (md.sum,),
        {"has_aux": False, "accumulate": None, "compute": None, "reduce": None, "wire": None},
    ),
    "vjp": ((md.sin, X), {}),
    "while_loop": ((lambda c: md.tensor(False, ()), lambda c: c, X), {}),
    "verify": ((md.sin, X), {"layout": LAYOUT, "mesh": None, "dims": ()}),
    "where": ((X > 0, X, 0.0), {}),
    "clip": ((X, -1.0, 1.0), {}),
    "add": ((X, X), {}),
    "bitwise_and": ((IDS, IDS), {}),
    "gelu": ((X,), {"approximate": True}),
    "random.bernoulli": ((KEY, 0.5, (A, B)), {"like": X}),
    "random.categorical": ((KEY, X, B), {"temperature": 1.0, "top_k": 2, "top_p": 0.5}),
    "random.dropout": ((X, 0.5, KEY), {}),
    "random.normal": ((KEY, (A, B), jnp.float32), {"like": X}),
    "random.permutation": ((KEY, A), {"like": X}),
    "random.permute": ((KEY, X, A), {}),
    "random.randint": ((KEY, (A, B), 0, 5), {"like": X}),
    "random.truncated_normal": ((KEY, (A, B), -1.0, 1.0, jnp.float32), {"like": X}),
    "random.uniform": ((KEY, (A, B), jnp.float32), {"low": 0.0, "high": 1.0, "like": X}),
    "Dim": (("a", 4), {}),
    "Layout": (
        (["a -> data"], ["a -> data"], ["a -> data"], {"data": 2}, ["a -> data"], "layer", ()),
        {"strict": False, "uneven": "error", "name": "layout"},
    ),
    "Layout.load": (("fsdp",), {}),
    "Layout.from_dict": (({"mesh": {}, "layout": {}}, "layout"), {}),
}
REDUCTIONS = "all any count_nonzero logsumexp max mean min norm prod sum softmax log_softmax"
for name in f"{REDUCTIONS} argmax argmin flip unstack".split():
    CALLS[name] = ((X, B), {})
for name in ("std", "var"):
    CALLS[name] = ((X, B), {"ddof": 1})
for name in ("argsort", "sort"):
    CALLS[name] = ((X, B), {"descending": True})
for name in "cumlogsumexp cummax cummin cumprod cumsum".split():
    CALLS[name] = ((X, B), {"reverse": True, "exclusive": True})
for name in ("conv", "conv_transpose"):
    how = {"stride": 1, "dilation": 1, "padding": "SAME", "into": {"b": "bb"}, "precision": None}
    CALLS[name] = ((IMAGE, KERNEL, {"b": "p"}), {"out": (..., V), **how})
for name in ("max_pool", "mean_pool"):
    CALLS[name] = ((IMAGE, {"b": 2}), {"stride": 2, "padding": "VALID", "into": {"b": "bb"}})
for name in ("nth_largest", "nth_smallest"):
    CALLS[name] = ((X, B, 2), {})
for name in ("tril", "triu"):
    CALLS[name] = ((X, A, B, 1), {})
for name in ("normal", "truncated_normal", "uniform"):
    CALLS[name] = ((KEY, (A, B)), {"ins": A, "std": 0.1, "dtype": jnp.float32})
for name in ("zeros", "ones"):
    CALLS[name] = (((A, B),), {"ins": A, "dtype": jnp.float32})
for name in ("bits", "exponential", "gumbel"):
    CALLS[f"random.{name}"] = ((KEY, (A, B)), {"like": X})

CLUMSY = {
    "None": None,
    "a word": "zz",
    "a fraction": 1.5,
    "a negative number": -1,
    "nothing": [],
    "a list": [1],
    "a mapping": {"b": 1.5},
    "a Tensor": X,
    "a Tensor of whole numbers": IDS,
    "an array": jnp.ones((4, 8)),
    "a Dim": md.Dim("q", 5),
    "two dims": (A, A),
    "an object": object(),
}


def public(name: str):
    found = md
    for part in name.split("."):
        found = getattr(found, part)
    return found


def clumsy_calls(name: str):
    """The call of `name` with one argument after the other replaced by each of the clumsy ones."""
    args, named = CALLS[name]
    for what, value in CLUMSY.items():
        for i in range(len(args)):
            yield f"{what} as argument {i}", (*args[:i], value, *args[i + 1 :]), named
        for key in named:
            yield f"{what} as `{key}`", args, {**named, key: value}


# What is called as it is; in calls of the others nothing is computed, so nothing is compiled.
RUNS = set("compare compile explain from_local init ledger search show transfer verify".split())


def in_one_trace(name: str, call) -> None:
    """`call()`; one that computes is traced, with all that it calls, and not computed."""
    if name in RUNS:
        call()
    else:
        jax.eval_shape(lambda: (call(), None)[1])


@pytest.fixture(autouse=True)
def without_wires():
    """What a test registers is gone after it."""
    kept = dict(WIRES)
    yield
    WIRES.clear()
    WIRES.update(kept)


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_argument_is_a_mesh_dsl_error_in_one_line(name):
    raw = []

    def all_calls():
        args, named = CALLS[name]
        public(name)(*args, **named)
        for what, args, named in clumsy_calls(name):
            try:
                public(name)(*args, **named)
            except md.MeshDSLError as error:
                if any(part in str(error) for part in ("\n", "Array(", "array([", "Traced")):
                    raw.append(f"{what}: {error}")
            except Exception as error:
                raw.append(f"{what}: {type(error).__name__}: {error}")

    in_one_trace(name, all_calls)
    assert not raw


def on_a_tensor(name: str) -> bool:
    return any(x is X for x in CALLS[name][0]) and not name.startswith(("shardings", "show"))


@pytest.mark.parametrize("name", [name for name in CALLS if on_a_tensor(name)])
def test_a_wrong_argument_in_a_lowering_is_one_too(name):
    raw = []

    def all_calls(x):
        for what, args, named in clumsy_calls(name):
            try:
                public(name)(*(x if arg is X else arg for arg in args), **named)
            except md.MeshDSLError:
                continue
            except Exception as error:
                raw.append(f"{what}: {type(error).__name__}: {error}")

    md.lower(all_calls, LAYOUT, dims=["a", "b"]).trace(X)
    assert not raw


def test_every_public_function_is_called():
    functions = {name for name in md.__all__ if inspect.isfunction(getattr(md, name))}
    drawn = {f"random.{name}" for name in md.random.__all__}
    assert (functions | drawn) - set(FUNCTIONS) <= set(CALLS)


def test_a_call_with_a_wrong_signature_is_a_type_error():
    for wrong in (
        lambda: md.roll(X, B),
        lambda: md.sum(X, B, C),
        lambda: md.sort(X, B, reverse=True),
    ):
        with pytest.raises(TypeError, match="argument"):
            wrong()
