"""conv and conv_transpose do what jax.lax does by position, also along split dims."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jax import lax

import meshdsl as md
from meshdsl import conv, conv_transpose
from meshdsl.predict.compiler.collectives import from_hlo
from meshdsl.program import summary
from tests.helpers import (
    assert_equal,
    assert_same,
    collectives,
    data,
    dims,
    distance,
    every,
    integers,
    layout,
    weight,
)

N, H, W, C, O, P, Q, G = dims(n=2, h=8, w=16, c=4, o=8, p=3, q=5, g=2)
X, K = data(N, H, W, C), weight(P, Q, C, O, ins=(C,))
OVER = {H: P, W: Q}
NHWC = ("NHWC", "HWIO", "NHWC")
SETTINGS = {
    "same": (dict(), dict(window_strides=(1, 1), padding="SAME")),
    "strided": (dict(stride=2), dict(window_strides=(2, 2), padding="SAME")),
    "valid, dilated": (
        dict(dilation={"h": 3, "w": 2}, padding="VALID"),
        dict(window_strides=(1, 1), padding="VALID", rhs_dilation=(3, 2)),
    ),
    "explicit": (
        dict(stride={H: 3}, padding={"h": (3, 0), "w": 1}),
        dict(window_strides=(3, 1), padding=[(3, 0), (1, 1)]),
    ),
    "a number": (
        dict(stride=3, dilation=2, padding=4),
        dict(window_strides=(3, 3), padding=[(4, 4)] * 2, rhs_dilation=(2, 2)),
    ),
}
MESH = {"m": 2, "s": 4}
LAYOUTS = {
    "batch and rows": layout("n? -> m", "h, u? -> s", mesh=MESH, uneven="pad"),
    "rows and columns": layout("h, u? -> m", "w, v? -> s", mesh=MESH, uneven="pad"),
    "columns, minor first": layout("w -> s, m", "v? -> m", mesh=MESH, uneven="pad"),
    "rows over both": layout("h, v? -> m, s", mesh=MESH, uneven="pad"),
    "channels in": layout("c -> s", "h -> m", mesh=MESH),
    "channels out": layout("o -> s", "w, u? -> m", mesh=MESH, uneven="pad"),
    "the kernel": layout("p?, q?, t? -> s", "c -> m", mesh=MESH, uneven="pad"),
    "groups": layout("g? -> m", "a?, n? -> s", mesh=MESH, uneven="pad"),
    "three axes": layout("h -> m", "w -> r", "o -> s", mesh={"r": 2, "m": 2, "s": 2}),
}


def transposed(how):
    """The settings for the way back, where x has u and v."""
    name = {"h": "u", "w": "v", H: "u", W: "v"}
    return {
        key: {name[d]: n for d, n in value.items()} if isinstance(value, dict) else value
        for key, value in how.items()
    }


def there_and_back(x, k, how):
    y = conv(x, k, OVER, out=(..., O), into={H: "u", "w": "v"}, **how)
    back = conv_transpose(
        y, k, {"u": P, "v": "q"}, out=(..., C), into={"u": H, "v": W}, **transposed(how)
    )
    return y, back


@pytest.mark.parametrize("ours, theirs", SETTINGS.values(), ids=SETTINGS)
def test_conv_is_that_of_jax_and_conv_transpose_its_transpose(ours, theirs):
    y, back = there_and_back(X, K, ours)
    expected, transpose = jax.vjp(
        lambda x: lax.conv_general_dilated(x, K.array, dimension_numbers=NHWC, **theirs), X.array
    )
    assert distance(y.array, expected) < 1e-6
    assert distance(back.array, transpose(expected)[0]) < 1e-6


@every(
    LAYOUTS,
    "columns, minor first",
    "rows over both",
    "batch and rows",
    "channels out",
    "groups",
)
def test_every_setting_is_the_same_lowered(rules):
    run = lambda x, k: {name: there_and_back(x, k, ours) for name, (ours, _) in SETTINGS.items()}
    assert_same(run, X, K, layout=rules)


A, B, T, S = dims(a=3, b=2, t=3, s=5)
MANY, GROUPED, TAPS = data(H, C, B, W, A, G, seed=3), weight(O, G, T, C, seed=4), weight(S, T)
PARTS = {
    "several batch dims": lambda x, k, _: conv(x, k, {"w": T}, out=(A, B, H, W, O, G)),
    "an order of its own": lambda x, k, _: conv(x, k, {"w": T}, out=(O, W, G, ..., A)),
    "groups of one channel": lambda x, k, _: conv(x, k, {W: "t"}, out=(..., C, G, O)),
    "batch summed out": lambda x, k, _: conv(x, k, {W: "t"}, out=(H, W, G)),
    "all channels in": lambda x, k, _: conv(x, k, {"h": "t"}, out=(..., O)),
    "no channels at all": lambda x, _, taps: conv(x, taps, {H: T, W: S}, out=(...,)),
}
JUDGED = {
    "several batch dims": {W: T},
    "an order of its own": {W: T},
    "groups of one channel": {W: T},
    "batch summed out": {W: T},
    "all channels in": {H: T},
    "no channels at all": {H: T, W: S},
}


def by_taps(x, k, over, out, stride=1, dilation=1, padding=None):
    """The convolution as a sum over the taps, in numpy.

    `padding` is (low, high); by default that of "SAME" with stride 1.
    """
    letters = {
        name: chr(ord("a") + i) for i, name in enumerate({d.name: 0 for d in (*x.dims, *k.dims)})
    }
    term = lambda names: "".join(letters[d.name] for d in names)
    array, weights, total = np.asarray(x.array, np.float64), np.asarray(k.array, np.float64), 0
    for d, t in over.items():
        reach = (t.size - 1) * dilation
        low, high = padding or (reach // 2, reach - reach // 2)
        array = np.pad(array, [(low, high) if e == d else (0, 0) for e in x.dims])
    for taps in np.ndindex(*[t.size for t in over.values()]):
        seen, tap = array, dict(zip(over.values(), taps, strict=True))
        for d, t in over.items():
            at = x.dims.index(d)
            ends = tap[t] * dilation, array.shape[at] - (t.size - 1 - tap[t]) * dilation
            seen = np.take(seen, np.arange(*ends, stride), at)
        chosen = weights[tuple(tap.get(d, slice(None)) for d in k.dims)]
        rest = [d for d in k.dims if d not in tap]
        total = total + np.einsum(f"{term(x.dims)},{term(rest)}->{term(out)}", seen, chosen)
    return total


@pytest.mark.parametrize("name", JUDGED)
def test_names_say_what_is_batch_group_and_channel(name):
    y = PARTS[name](MANY, GROUPED, TAPS)
    expected = by_taps(
        MANY, TAPS if name == "no channels at all" else GROUPED, JUDGED[name], y.dims
    )
    assert distance(y.array, expected) < 1e-6


@pytest.mark.parametrize("name", ["batch and rows", "channels in", "groups", "three axes"])
def test_every_part_is_the_same_lowered(name):
    run = lambda *args: {name: fn(*args) for name, fn in PARTS.items()}
    assert_same(run, MANY, GROUPED, TAPS, layout=LAYOUTS[name])


@st.composite
def windows(draw):
    """Sizes, a window that fits, and the size of the dim that the transpose is to come out with."""
    n, taps, stride, dilation = (draw(st.integers(1, top)) for top in (20, 5, 4, 3))
    padding = draw(
        st.sampled_from(["SAME", "VALID", 1]) | st.tuples(st.integers(0, 7), st.integers(0, 7))
    )
    low, high = {"SAME": (99, 99), "VALID": (0, 0), 1: (1, 1)}.get(padding, padding)
    assume((taps - 1) * dilation < n + low + high)
    return (
        md.Dim("w", n),
        md.Dim("t", taps),
        dict(stride=stride, dilation=dilation, padding=padding),
    )


def by_jax(x, k, stride, dilation, padding):
    """The convolution of [batch, spatial, channels].

    The padding is put there first: JAX's own gradient may be garbage with it.
    """
    reach = (k.shape[0] - 1) * dilation + 1
    pads = (padding, padding) if isinstance(padding, int) else padding
    if isinstance(padding, str):
        ((pads),) = lax.padtype_to_pads((x.shape[1],), (reach,), (stride,), padding)
    x = jnp.pad(x, [(0, 0), pads, (0, 0)])
    return lax.conv_general_dilated(
        x, k, (stride,), "VALID", rhs_dilation=(dilation,), dimension_numbers=("NHC", "HIO", "NHC")
    )


@settings(max_examples=settings.default.max_examples // 2)
@given(windows())
def test_one_dim_is_that_of_jax_for_any_window(drawn):
    dim, taps, how = drawn
    x, k = data(N, dim, C), weight(taps, C, O)
    y = conv(x, k, {dim: taps}, out=(..., O), into={"w": "v"}, **how)
    expected, transpose = jax.vjp(lambda x: by_jax(x, k.array, **how), x.array)
    assert distance(y.array, expected) < 1e-6
    back = conv_transpose(y, k, {"v": taps}, out=(..., C), into={"v": dim}, **how)
    assert distance(back.array, transpose(expected)[0]) < 1e-6
    freely = conv_transpose(y, k, {"v": taps}, out=(..., C), into={"v": "w"}, **how).dim("w")
    assert conv(
        md.tensor(np.zeros(freely.size), (freely,)),
        md.tensor(np.zeros(taps.size), (taps,)),
        {freely: taps},
        out=(...,),
        into={"w": "v"},
        **how,
    ).dim("v") == y.dim("v")


@settings(max_examples=settings.default.max_examples // 5)
@given(windows(), st.sampled_from([("m",), ("s",), ("m", "s"), ("s", "m")]))
def test_one_dim_is_the_same_lowered_for_any_window_and_any_number_of_parts(drawn, axes):
    dim, taps, how = drawn

    def run(x, k):
        y = conv(x, k, {dim: taps}, out=(..., O), into={"w": "v"}, **how)
        return y, conv_transpose(y, k, {"v": taps}, out=(..., C), into={"v": dim}, **how)

    rules = layout(f"w -> {', '.join(axes)}", f"v -> {axes[0]}", mesh=MESH, uneven="pad")
    assert_same(run, data(dim, C), weight(taps, C, O), layout=rules)


def test_three_spatial_dims_split_over_three_axes():
    depth, z = dims(depth=4, z=3)
    volume, kernel = data(depth, C, H, W), weight(z, P, Q, C, G)
    fn = lambda x, k: conv(x, k, {"depth": "z", "h": "p", "w": "q"}, out=(..., G), stride={"h": 2})
    expected = lax.conv_general_dilated(
        volume.array[None],
        kernel.array,
        (1, 2, 1),
        "SAME",
        dimension_numbers=("NDCHW", "DHWIO", "NDHWC"),
    )
    assert distance(fn(volume, kernel).array, expected[0]) < 1e-6
    rules = layout("depth -> m", "h -> r", "w -> s", mesh={"r": 2, "m": 2, "s": 2})
    assert_same(fn, volume, kernel, layout=rules)
    assert collectives(fn, volume, kernel, layout=rules) == {("ppermute", (a,)): 1 for a in "rms"}


def moved(fn, *args, rules):
    """{(operation, axes): (count, bytes)} in the jaxpr and, as is checked, what is compiled."""
    mesh = md.make_mesh(rules)
    lowered = md.lower(fn, rules, mesh)
    program = lowered.program(*args)
    found = summary(program.collectives)
    assert summary(from_hlo(lowered.lower(*args).compile().as_text(), mesh)) == found
    return found, program


def step(over, **how):
    """The sum of squares of a convolution, and its gradients by both operands."""

    def loss(operands):
        y = conv(*operands, over, out=(..., O), **how)
        return md.sum(md.square(y))

    return lambda x, k: md.value_and_grad(loss)([x, k])


def test_a_split_over_rows_and_columns_moves_the_rim_of_the_tiles_forward_and_backward():
    rules = layout("h -> m", "w -> s", mesh={"m": 4, "s": 2})
    rows, cols = H.size // 4, W.size // 2
    bytes_of = lambda elements: N.size * C.size * 4 * elements
    # Two rows of neighbours, up and down; then two columns on each side, with those rows in them.
    # With two parts the left one sends right and the right one left at once.
    forward = {
        ("ppermute", ("m",)): (2, bytes_of(2 * cols)),
        ("ppermute", ("s",)): (1, bytes_of(2 * (rows + 2))),
    }
    found, program = moved(lambda x, k: conv(x, k, OVER, out=(..., O)), X, K, rules=rules)
    assert found == forward
    assert sum(
        m.bytes for op in program.ops for m in op.moves if m.operation == "ppermute"
    ) == bytes_of(2 * cols + 2 * (rows + 2))
    found, _ = moved(step(OVER), X, K, rules=rules)
    assert {key: found[key] for key in forward} == {
        key: (2 * n, 2 * size) for key, (n, size) in forward.items()
    }
    assert {operation for operation, _ in found} == {
        "ppermute",
        "psum",
    }  # and the gradient of the kernel, once


# Settings of a window along w (16 elements in 4 parts), and how many elements of it each exchange
# brings.
HALOS = {
    "none, of one tap": (1, dict(), []),
    "none, of windows side by side": (2, dict(stride=2, padding="VALID"), []),
    "one side, of an even window": (2, dict(), [1]),
    "one side, with a stride": (3, dict(stride=2), [1]),
    "one side, causal": (3, dict(padding=(2, 0)), [2]),
    "both sides": (5, dict(), [2, 2]),
    "dilated": (3, dict(dilation=3), [3, 3]),
    "from further parts": (
        3,
        dict(dilation=6),
        [4, 4, 2],
    ),  # the outer two parts and the inner two swap at once
}


@pytest.mark.parametrize("taps, how, sizes", HALOS.values(), ids=HALOS)
def test_a_halo_is_what_the_windows_look_at_and_no_more(taps, how, sizes):
    t = md.Dim("t", taps)
    rules = layout("w -> s", mesh={"s": 4})
    row = N.size * H.size * C.size * 4
    expected = {("ppermute", ("s",)): (len(sizes), row * sum(sizes))} if sizes else {}
    found, _ = moved(
        lambda x, k: conv(x, k, {W: t}, out=(..., O), **how), X, weight(t, C, O), rules=rules
    )
    assert found == expected
    found, _ = moved(step({W: t}, **how), X, weight(t, C, O), rules=rules)
    assert found.get(("ppermute", ("s",)), (0, 0)) == (2 * len(sizes), 2 * row * sum(sizes))


def test_upsampling_by_the_stride_moves_nothing():
    t = md.Dim("t", 2)
    fn = lambda x, k: conv_transpose(x, k, {W: t}, out=(..., O), stride=2)
    assert fn(X, weight(t, C, O)).dim("w").size == 32
    assert moved(fn, X, weight(t, C, O), rules=layout("w -> s", mesh={"s": 4}))[0] == {}


def test_channels_in_leave_a_pending_sum_and_channels_out_nothing():
    fn = lambda x, k: conv(x, k, OVER, out=(..., O))
    assert collectives(fn, X, K, layout=layout("c -> s", mesh={"s": 4})) == {("psum", ("s",)): 1}
    assert collectives(fn, X, K, layout=layout("o -> s", mesh={"s": 4})) == {}
    assert collectives(fn, X, K, layout=layout("o -> s", "c -> s", mesh={"s": 4})) == {
        ("all_gather", ("s",)): 1
    }
    assert collectives(fn, X, K, layout=layout("c -> s", "o -> s", mesh={"s": 4})) == {
        ("psum_scatter", ("s",)): 1
    }
    both = lambda x, k: conv(x, k, OVER, out=(..., O)) + conv(x * 2, k, OVER, out=(..., O))
    assert collectives(both, X, K, layout=layout("c -> s", mesh={"s": 4})) == {("psum", ("s",)): 1}


def test_depthwise_channels_may_be_split_for_nothing():
    fn = lambda x, k: conv(x, k, {H: P, W: Q}, out=(..., C))
    assert collectives(fn, X, weight(P, Q, C), layout=layout("c -> s", mesh={"s": 4})) == {}


def test_dtypes_are_those_of_an_einsum():
    run = lambda x, k, i: [
        conv(
            md.cast(x, jnp.bfloat16),
            md.cast(k, jnp.bfloat16),
            OVER,
            out=(..., O),
            preferred_element_type=jnp.float32,
        ),
        conv(md.cast(x, jnp.bfloat16), k, OVER, out=(..., O), precision="highest"),
        conv_transpose(
            md.cast(x, jnp.float16), md.cast(k, jnp.float16), OVER, out=(..., O), stride=2
        ),
        conv(i, md.cast(k * 9, jnp.int32), OVER, out=(..., O)),
    ]
    I = integers(N, H, W, C, below=9)
    assert [t.dtype for t in run(X, K, I)] == [jnp.float32, jnp.float32, jnp.float16, jnp.int32]
    wide = conv(md.cast(X, jnp.bfloat16), md.cast(K, jnp.bfloat16), OVER, out=(..., O))
    assert_equal(md.cast(wide, jnp.float32), run(X, K, I)[0], tolerance=1e-2)
    for name in ("batch and rows", "columns, minor first"):
        assert_same(run, X, K, I, layout=LAYOUTS[name], tolerance=1e-2)


def test_a_dim_keeps_its_name_with_its_new_size_or_takes_another():
    assert conv(X, K, OVER, out=(..., O), stride=2).dims == (N, md.Dim("h", 4), md.Dim("w", 8), O)
    assert conv(X, K, OVER, out=(O, H, N, W), stride=2, into={"h": "u"}).dims == (
        O,
        md.Dim("u", 4),
        N,
        md.Dim("w", 8),
    )
    assert conv(X, K, OVER, out=(md.Dim("h", 4), ..., O), stride=2).dims == (
        md.Dim("h", 4),
        N,
        md.Dim("w", 8),
        O,
    )
    assert conv_transpose(X, K, OVER, out=(..., O), stride=2).dims == (
        N,
        md.Dim("h", 16),
        md.Dim("w", 32),
        O,
    )
    odd = conv_transpose(
        X, K, OVER, out=(..., O), stride=2, into={H: md.Dim("h", 15), "w": md.Dim("v", 31)}
    )
    assert odd.dims == (N, md.Dim("h", 15), md.Dim("v", 31), O)
    rules = layout("h -> m", "w, v? -> s", mesh=MESH, uneven="pad")
    assert_same(
        lambda x, k: conv(
            conv(x, k, OVER, out=(..., O), stride=2), k, {"h": P, "w": Q}, out=(..., C)
        ),
        X,
        K,
        layout=rules,
    )
