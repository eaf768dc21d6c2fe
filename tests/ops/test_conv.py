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
    only,
    weight,
)

N, H, W, C, O, P, Q, G = dims(n=2, h=8, w=16, c=4, o=8, p=3, q=5, g=2)
X, K = data(N, H, W, C), weight(P, Q, C, O, ins=(C,))
OVER = {H: P, W: Q}
SETTINGS = [
    dict(),
    dict(stride=2),
    dict(dilation={"h": 3, "w": 2}, padding="VALID"),
    dict(stride={H: 3}, padding={"h": (3, 0), "w": 1}),
    dict(stride=3, dilation=2, padding=4),
]
MESH = {"m": 2, "s": 4}
LAYOUTS = {
    "rows and columns": layout("h, u? -> m", "w, v? -> s", mesh=MESH, uneven="pad"),
    "channels in": layout("c -> s", "h -> m", mesh=MESH),
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


@every(LAYOUTS, "groups", "three axes", night=("channels in", "the kernel"))
def test_every_setting_is_the_same_lowered(rules):
    run = lambda x, k: [there_and_back(x, k, how) for how in SETTINGS]
    assert_same(run, X, K, layout=rules)


A, B, T, S = dims(a=3, b=2, t=3, s=5)
MANY, GROUPED, TAPS = data(H, C, B, W, A, G, seed=3), weight(O, G, T, C, seed=4), weight(S, T)


def parts(x, k, taps):
    """Convolutions in which the names play other parts."""
    return {
        "several batch dims": conv(x, k, {"w": T}, out=(A, B, H, W, O, G)),
        "an order of its own": conv(x, k, {"w": T}, out=(O, W, G, ..., A)),
        "groups of one channel": conv(x, k, {W: "t"}, out=(..., C, G, O)),
        "batch summed out": conv(x, k, {W: "t"}, out=(H, W, G)),
        "all channels in": conv(x, k, {"h": "t"}, out=(..., O)),
        "no channels at all": conv(x, taps, {H: T, W: S}, out=(...,)),
    }


OTHERS = {"all channels in": (GROUPED, {H: T}), "no channels at all": (TAPS, {H: T, W: S})}


def by_taps(x, k, over, out):
    """The convolution with the padding of "SAME" as a sum over the taps, in numpy."""
    letters = dict(zip(dict.fromkeys((*x.dims, *k.dims)), "abcdefghijklmn", strict=False))
    term = lambda dims: "".join(letters[d] for d in dims)
    array, weights, total = np.asarray(x.array, np.float64), np.asarray(k.array, np.float64), 0
    sides = [over[d].size // 2 if d in over else 0 for d in x.dims]  # of an odd number of taps
    array = np.pad(array, [(n, n) for n in sides])
    for taps in np.ndindex(*[t.size for t in over.values()]):
        tap = dict(zip(over.values(), taps, strict=True))
        at = [tap[over[d]] if d in over else 0 for d in x.dims]
        seen = array[tuple(slice(n, n + d.size) for n, d in zip(at, x.dims, strict=True))]
        chosen = weights[tuple(tap.get(d, slice(None)) for d in k.dims)]
        rest = [d for d in k.dims if d not in tap]
        total = total + np.einsum(f"{term(x.dims)},{term(rest)}->{term(out)}", seen, chosen)
    return total


def test_names_say_what_is_batch_group_and_channel():
    for name, y in parts(MANY, GROUPED, TAPS).items():
        kernel, over = OTHERS.get(name, (GROUPED, {W: T}))
        assert distance(y.array, by_taps(MANY, kernel, over, y.dims)) < 1e-6, name


@pytest.mark.parametrize("name", only(["groups"], ["channels in", "groups"]))
def test_every_part_is_the_same_lowered(name):
    assert_same(parts, MANY, GROUPED, TAPS, layout=LAYOUTS[name])


@st.composite
def windows(draw):
    """Sizes, a window that fits, and the size of the dim that the transpose is to come out with."""
    n, taps, stride, dilation = (draw(st.integers(1, top)) for top in (20, 5, 4, 3))
    padding = draw(
        st.sampled_from(["SAME", "VALID", 1]) | st.tuples(st.integers(0, 7), st.integers(0, 7))
    )
    low, high = {"SAME": (99, 99), "VALID": (0, 0), 1: (1, 1)}.get(padding, padding)
    assume((taps - 1) * dilation < n + low + high)
    return *dims(w=n, t=taps), dict(stride=stride, dilation=dilation, padding=padding)


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


@settings(max_examples=settings.default.max_examples // 4)
@given(windows())
def test_one_dim_is_that_of_jax_for_any_window(drawn):
    dim, taps, how = drawn
    x, k = data(N, dim, C), weight(taps, C, O)

    def both_ways(x, k):
        y = conv(x, k, {dim: taps}, out=(..., O), into={"w": "v"}, **how)
        return y, conv_transpose(y, k, {"v": taps}, out=(..., C), into={"v": dim}, **how)

    def by_jax_both_ways(x, k):
        y, transpose = jax.vjp(lambda x: by_jax(x, k, **how), x)
        return y, transpose(y)[0]

    y, back = jax.jit(both_ways)(x, k)
    expected, expected_back = jax.jit(by_jax_both_ways)(x.array, k.array)
    assert distance(y.array, expected) < 1e-6
    assert distance(back.array, expected_back) < 1e-6
    freely = conv_transpose(y, k, {"v": taps}, out=(..., C), into={"v": "w"}, **how).dim("w")
    again = conv(data(freely), data(taps), {freely: taps}, out=(...,), into={"w": "v"}, **how)
    assert again.dims == (y.dim("v"),)


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
    order = ("NDCHW", "DHWIO", "NDHWC")
    expected = lax.conv_general_dilated(
        volume.array[None], kernel.array, (1, 2, 1), "SAME", dimension_numbers=order
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

    loss = lambda operands: md.sum(md.square(conv(*operands, over, out=(..., O), **how)))
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
    recorded = [m.bytes for op in program.ops for m in op.moves if m.operation == "ppermute"]
    assert sum(recorded) == bytes_of(2 * cols + 2 * (rows + 2))
    found, _ = moved(step(OVER), X, K, rules=rules)
    for key, (count, size) in forward.items():
        assert found[key] == (2 * count, 2 * size)
    # And the gradient of the kernel, once.
    assert {operation for operation, _ in found} == {"ppermute", "psum"}


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
    "from further parts, of which two pairs swap at once": (3, dict(dilation=6), [4, 4, 2]),
}


@pytest.mark.parametrize("taps, how, sizes", HALOS.values(), ids=HALOS)
def test_a_halo_is_what_the_windows_look_at_and_no_more(taps, how, sizes):
    t = md.Dim("t", taps)
    rules = layout("w -> s", mesh={"s": 4})
    row = N.size * H.size * C.size * 4
    expected = {("ppermute", ("s",)): (len(sizes), row * sum(sizes))} if sizes else {}
    fn = lambda x, k: conv(x, k, {W: t}, out=(..., O), **how)
    assert moved(fn, X, weight(t, C, O), rules=rules)[0] == expected
    found, _ = moved(step({W: t}, **how), X, weight(t, C, O), rules=rules)
    assert found.get(("ppermute", ("s",)), (0, 0)) == (2 * len(sizes), 2 * row * sum(sizes))


def test_upsampling_by_the_stride_moves_nothing():
    t = md.Dim("t", 2)
    fn = lambda x, k: conv_transpose(x, k, {W: t}, out=(..., O), stride=2)
    assert fn(X, weight(t, C, O)).dim("w").size == 32
    assert moved(fn, X, weight(t, C, O), rules=layout("w -> s", mesh={"s": 4}))[0] == {}


def test_channels_in_leave_a_pending_sum_and_channels_out_nothing():
    fn = lambda x, k: conv(x, k, OVER, out=(..., O))
    both = lambda x, k: fn(x, k) + fn(x * 2, k)
    for run, rules, expected in (
        (fn, ["c -> s"], {"psum": 1}),
        (fn, ["o -> s"], {}),
        (fn, ["o -> s", "c -> s"], {"all_gather": 1}),
        (fn, ["c -> s", "o -> s"], {"psum_scatter": 1}),
        (both, ["c -> s"], {"psum": 1}),
    ):
        found = collectives(run, X, K, layout=layout(*rules, mesh={"s": 4}))
        assert found == {(name, ("s",)): count for name, count in expected.items()}


def test_depthwise_channels_may_be_split_for_nothing():
    fn = lambda x, k: conv(x, k, {H: P, W: Q}, out=(..., C))
    assert collectives(fn, X, weight(P, Q, C), layout=layout("c -> s", mesh={"s": 4})) == {}


def test_dtypes_are_those_of_an_einsum():
    how = {"out": (..., O)}
    narrow = lambda dtype, *xs: [md.cast(x, dtype) for x in xs]
    run = lambda x, k, i: [
        conv(*narrow(jnp.bfloat16, x, k), OVER, preferred_element_type=jnp.float32, **how),
        conv(md.cast(x, jnp.bfloat16), k, OVER, precision="highest", **how),
        conv_transpose(*narrow(jnp.float16, x, k), OVER, stride=2, **how),
        conv(i, md.cast(k * 9, jnp.int32), OVER, **how),
    ]
    I = integers(N, H, W, C, below=9)
    assert [t.dtype for t in run(X, K, I)] == [jnp.float32, jnp.float32, jnp.float16, jnp.int32]
    wide = conv(*narrow(jnp.bfloat16, X, K), OVER, **how)
    assert_equal(md.cast(wide, jnp.float32), run(X, K, I)[0], tolerance=1e-2)
    assert_same(run, X, K, I, layout=LAYOUTS["rows and columns"], tolerance=1e-2)


def test_a_dim_keeps_its_name_with_its_new_size_or_takes_another():
    h, w, u = dims(h=4, w=8, u=4)
    halved = lambda out, **how: conv(X, K, OVER, out=out, stride=2, **how).dims
    doubled = lambda **how: conv_transpose(X, K, OVER, out=(..., O), stride=2, **how).dims
    assert halved((..., O)) == (N, h, w, O)
    assert halved((O, H, N, W), into={"h": "u"}) == (O, u, N, w)
    assert halved((h, ..., O)) == (h, N, w, O)
    assert doubled() == (N, *dims(h=16, w=32), O)
    odd, v = dims(h=15, v=31)
    assert doubled(into={H: odd, "w": v}) == (N, odd, v, O)
