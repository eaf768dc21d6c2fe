"""Images, rows in order and batches of matrices: plain JAX under layouts, and nothing runs whole.

All cases are one program, which is compiled once.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from jax import lax

import meshdsl as md
from tests.from_jax.test_primitives import check, in_turn, mixed

SIZES = jnp.array([3, 1, 3], jnp.int32)


def convolved(x, y, groups=1, of_batch=1, **how):
    """A convolution of images with kernels of 3 x 3 that are made of `y`."""
    kernel = y.reshape(3, 3, 4 // groups if of_batch == 1 else 2, -1)
    return lax.conv_general_dilated(
        x,
        kernel,
        how.get("stride", (1, 1)),
        how.get("padding", "SAME"),
        feature_group_count=groups,
        batch_group_count=of_batch,
        lhs_dilation=how.get("spread"),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )


def pooled(x):
    return nn.max_pool(x, (2, 3), (2, 3))


def matrices(y):
    """A matrix of a Gram for each row, none of whose eigenvalues are close."""
    return jnp.einsum("rij,rkj->rik", y, y) + jnp.diag(jnp.arange(1.0, 19.0, 3))


def normalised(x):
    """A batch norm, written for one row, as those with an `axis_name` are."""
    mean = lax.pmean(x.mean((0, 1)), "rows")
    square = lax.pmean((x * x).mean((0, 1)), "rows")
    return (x - mean) * lax.rsqrt(square - mean**2 + 1e-3)


def extremes(x):
    """Extremes over two axes of `vmap`, one inside of the other."""
    of_both = lambda r: (
        lax.pmax(r, ("rows", "height")) - lax.pmin(r, "height") * lax.axis_index("rows")
    )
    return jax.vmap(jax.vmap(of_both, axis_name="height"), axis_name="rows")(x)


# Functions of x (4, 8, 6, 4) and y (4, 6, 6).
CASES = {
    "groups": lambda x, y: convolved(x, y, 2),
    "groups and strides": lambda x, y: convolved(x, y, 2, stride=(2, 3)),
    "groups of a transpose": lambda x, y: convolved(
        x, y, 2, spread=(2, 1), padding=((1, 2), (1, 1))
    ),
    "depthwise": lambda x, y: convolved(x, y, 4),
    "groups of the batch": lambda x, y: convolved(x[..., :2], y, of_batch=2),
    "gradient of groups": lambda x, y: jax.grad(lambda y: mixed(convolved(x, y, 2)))(y),
    "largest": lambda x, y: nn.max_pool(x, (3, 3), (1, 1), "SAME"),
    "largest with a stride": lambda x, y: pooled(x) + 1,
    "mean": lambda x, y: nn.avg_pool(x, (3, 2), (2, 2), "SAME"),
    "sum of taps apart": lambda x, y: lax.reduce_window(
        x,
        0.0,
        lax.add,
        (1, 2, 1, 1),
        (1, 1, 1, 1),
        ((0, 0), (3, 2), (0, 0), (0, 0)),
        window_dilation=(1, 3, 1, 1),
    ),
    "smallest": lambda x, y: (
        -nn.max_pool(-x, (3, 1), (1, 1), "SAME")
        + lax.reduce_window(x, jnp.inf, lax.min, (1, 3, 1, 1), (1, 1, 1, 1), "SAME")
    ),
    "gradient of a pool": lambda x, y: jax.grad(lambda x: mixed(pooled(jnp.sin(x))))(x),
    "tangent of a pool": lambda x, y: jax.jvp(pooled, (x,), (jnp.cos(x),))[1],
    "running sum": lambda x, y: jnp.cumsum(x.reshape(32, -1) / 8, 0),
    "running product": lambda x, y: lax.cumprod(1 + x.reshape(32, 24) / 8, 0, reverse=True),
    "running extremes": lambda x, y: lax.cummax(x.reshape(-1)) + lax.cummin(x.reshape(-1)),
    "running logsumexp": lambda x, y: lax.cumlogsumexp(x.reshape(-1) * 3, reverse=True),
    "running sum of one": lambda x, y: jnp.cumsum(x[:, :, :1], 2),
    "together": lambda x, y: lax.sort((jnp.sin(9 * x), x, x * x), dimension=1, num_keys=1),
    "by two keys": lambda x, y: lax.sort((jnp.round(x), x[::-1], -x), dimension=1, num_keys=2),
    "lone rows together": lambda x, y: lax.sort((x[1, :, 1, 1], x[0, :, 0, 0]), num_keys=1),
    "ragged": lambda x, y: lax.ragged_dot(x[0, :, 0], y.reshape(3, 4, 12), SIZES),
    "ragged rows of two dims": lambda x, y: lax.ragged_dot(
        x.reshape(-1, 4), y.reshape(3, 4, 12), 20 * SIZES
    ),
    "vmap with sums": lambda x, y: jax.vmap(normalised, axis_name="rows")(x),
    "gradient of vmap with sums": lambda x, y: jax.grad(
        lambda x: mixed(jax.vmap(normalised, axis_name="rows")(x))
    )(x),
    "vmap with extremes": lambda x, y: x * extremes(lax.stop_gradient(x)),
    "scan in a vmap with sums": lambda x, y: jax.vmap(
        lambda r: lax.scan(lambda c, a: (c + lax.pmean(a, "i"), c * a), r[0], r)[1], axis_name="i"
    )(x),
    "cholesky": lambda x, y: jnp.linalg.cholesky(matrices(y)),
    "lu": lambda x, y: lax.linalg.lu(matrices(y))[0],
    "solution": lambda x, y: jnp.linalg.solve(matrices(y), y),
    "triangular solution": lambda x, y: lax.linalg.triangular_solve(matrices(y), y, lower=True),
    "eigenvalues": lambda x, y: jnp.linalg.eigh(matrices(y))[0],
    "eigenvectors": lambda x, y: jnp.abs(jnp.linalg.eigh(matrices(y))[1]),
    "qr": lambda x, y: jnp.linalg.qr(matrices(y)),
    "svd": lambda x, y: jnp.linalg.svd(matrices(y)[:, :, :4], full_matrices=False)[1],
    "determinant": lambda x, y: jnp.linalg.slogdet(matrices(y))[1],
    "loop that ends by row": lambda x, y: (
        x[..., 0, 0]
        * jax.vmap(lambda r: lax.while_loop(lambda c: c.sum() < 9, lambda c: c * 1.5 + 0.1, r))(
            lax.stop_gradient(jnp.abs(x[..., 0, 0]))
        )
    ),
    "conjugate gradients": lambda x, y: jax.vmap(
        lambda a, b: jax.scipy.sparse.linalg.cg(lambda v: a @ v, b, maxiter=20)[0]
    )(matrices(y), y[:, 0]),
}
NAMES = "rows height width channels", "rows _ _"
LAYOUTS = {
    "batch": md.Layout(["rows -> data"], mesh={"data": 4}),
    "space": md.Layout(["height -> data", "width? -> model"], mesh={"data": 4, "model": 2}),
    "channels": md.Layout(
        ["rows -> data", "channels? -> model"], ["height? -> model"], mesh={"data": 2, "model": 2}
    ),
    "uneven": md.Layout(
        ["rows -> data", {"rule": "height? -> model", "order": "zigzag"}],
        mesh={"data": 3, "model": 2},
        uneven="pad",
    ),
}
QUICK = ("groups", "gradient of a pool", "running sum", "together", "vmap with sums", "lu", "qr")


def images_and_matrices(seed):
    one, two = jax.random.split(jax.random.key(seed))
    return jax.random.normal(one, (4, 8, 6, 4)), jax.random.normal(two, (4, 6, 6)) / 2


def checked(cases, layout):
    """Values and gradients are those of plain JAX, and no primitive ran whole."""
    made = check(cases, layout, NAMES, images_and_matrices)
    for case, named in made.items():
        assert "fallback" not in named.describe(), (case, named.describe())


def test_some_rules_equal_plain_jax():
    checked({case: CASES[case] for case in QUICK}, LAYOUTS["channels"])


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_rules_equal_plain_jax(name):
    checked(in_turn(CASES, LAYOUTS, name), LAYOUTS[name])


def test_the_gradient_of_a_ragged_product_for_its_matrices_equals_plain_jax():
    loss = lambda x, w: mixed(lax.ragged_dot(x, w, SIZES))
    args = jax.random.normal(jax.random.key(0), (8, 4)), jnp.ones((3, 4, 6))
    layout = md.Layout(["rows -> data", "out -> model"], mesh={"data": 2, "model": 2})
    named = md.from_jax(jax.grad(loss, 1), {"x": "rows _", "w": "_ _ out"}, strict=True)
    made = md.lower(named, layout)(*named.pack(*args))
    found, want = named.unpack_result(made), jax.jit(jax.grad(loss, 1))(*args)
    assert jnp.allclose(found, want, rtol=1e-5, atol=1e-5)


def test_groups_of_features_with_a_name_stay_split_and_pools_bring_halos_alone():
    def fn(x, kernel):
        made = lax.conv_general_dilated(
            x,
            kernel,
            (1, 1),
            "SAME",
            feature_group_count=4,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        return nn.max_pool(made, (3, 3), (2, 2), "SAME").sum()

    layout = md.Layout(
        ["rows -> data", "height -> space", "dim4_1 -> space", "channels -> model"],
        mesh={"data": 2, "space": 2, "model": 2},
    )
    names = {"x": "rows height width channels", "kernel": "_ _ _ channels"}
    named = md.from_jax(fn, names, strict=True)
    args = named.pack(jnp.ones((4, 8, 6, 8)), jnp.ones((3, 3, 2, 8)))
    program = md.lower(named, layout).program(*args)
    moved = {(op.name, m.operation) for op in program.ops for m in op.moves if m.bytes}
    assert moved == {
        ("conv", "ppermute"),
        ("conv", "vary"),
        ("reduce_window_max", "ppermute"),
        ("settle", "psum"),
    }
