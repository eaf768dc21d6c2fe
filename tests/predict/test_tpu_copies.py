"""What a TPU copies beside its kernels: arrays in another order, and what collectives give."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from meshdsl.lowering import collectives
from meshdsl.predict.kernels.block_outputs import slice_lanes
from meshdsl.predict.kernels.kernels import Buffer, Kernel
from tests.predict.graphs import array, graph, names


@pytest.mark.parametrize(
    ("width", "dims", "kernels"),
    [
        # The parts of 64 elements fill no lanes of 128, and experts are a batch of products.
        (64, "ebd,edf->ebf", ["all_gather", "reorder", "dot_general"]),
        (128, "ebd,edf->ebf", ["all_gather", "dot_general"]),
        (64, "bd,df->bf", ["all_gather", "dot_general"]),
    ],
)
def test_a_batch_of_products_copies_what_was_gathered_over_lanes(width, dims, kernels):
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    experts = (4,) if dims.startswith("e") else ()

    def function(x, weight):
        whole = lax.all_gather(weight, "data", axis=len(experts) + 1, tiled=True)
        return jnp.sum(jnp.einsum(dims, x, whole))[None]

    split = P(*([None] * (len(experts) + 1)), "data")
    mapped = jax.shard_map(function, mesh=mesh, in_specs=(P(), split), out_specs=P("data"))
    made = graph(mapped, array(*experts, 8, 16), array(*experts, 16, 2 * width), mesh=mesh)
    assert names(made) == kernels


def test_parts_of_one_element_may_be_a_view_of_what_lacks_the_dim():
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))

    def function(x, weight):
        part = jnp.sin(weight)[..., None]
        whole = lax.all_gather(part, "data", axis=2, tiled=True)
        return jnp.sum(jnp.einsum("ebd,edf->ebf", x, whole))[None]

    given = (P(), P("data"))
    mapped = jax.shard_map(function, mesh=mesh, in_specs=given, out_specs=P("data"))
    made = graph(mapped, array(4, 8, 16), array(8, 16), mesh=mesh)
    assert "reorder" in names(made)


def test_a_scatter_over_lanes_copies_what_a_batch_of_products_made():
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))

    def gradient(x, y):
        whole = jnp.einsum("ebd,ebf->edf", x, y)
        return lax.psum_scatter(whole, "data", scatter_dimension=2, tiled=True)

    out = P(None, None, "data")
    mapped = jax.shard_map(gradient, mesh=mesh, in_specs=(P(None, "data"),) * 2, out_specs=out)
    made = graph(mapped, array(4, 8, 16), array(4, 8, 128), mesh=mesh, kind="tpu")
    assert names(made) == ["dot_general", "reorder", "reduce_scatter"]


@pytest.mark.parametrize(
    "shape, dim, made",
    [
        ((64, 256), 1, ["dot_general", "reduce_scatter"]),  # whole tiles for each device
        ((64, 128), 1, ["dot_general", "reorder", "reduce_scatter"]),  # two parts make a tile
        ((64, 160), 1, ["dot_general", "reduce_scatter", "slice"]),  # runs as a sum of all of it
        ((640, 100), 0, ["dot_general", "reduce_scatter", "slice"]),  # 640 pads less in lanes
    ],
)
def test_a_scatter_over_lanes_runs_as_a_sum_where_its_parts_make_no_tiles(shape, dim, made):
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))

    def gradient(x, y):
        return lax.psum_scatter(x @ y, "data", scatter_dimension=dim, tiled=True)

    out = P("data") if dim == 0 else P(None, "data")
    mapped = jax.shard_map(gradient, mesh=mesh, in_specs=P(), out_specs=out, check_vma=False)
    given = graph(mapped, array(shape[0], 64), array(64, shape[1]), mesh=mesh, kind="tpu")
    assert names(given) == made
    (scatter,) = (k for k in given.kernels if k.collective)
    assert scatter.whole == (made[-1] == "slice")
    half = tuple(n // 2 if i == dim else n for i, n in enumerate(shape))
    assert scatter.writes[0].shape == (shape if scatter.whole else half)


@pytest.mark.parametrize(
    "part, dim, copies",
    [
        ((64, 256), 0, []),  # whole rows of tiles, one behind the other
        ((256, 128), 1, []),  # whole lanes
        ((256, 64), 1, ["reorder"]),  # the parts are no whole lanes: libtpu has 256 in lanes
        ((64, 200), 0, ["reorder"]),  # of the whole, 128 in lanes pads less than 200
        ((3, 20, 256), 1, ["copy"]),  # gathered in front of the dim of 3
        ((100, 62), 1, ["reorder"]),  # 62 are no whole rows either
    ],
)
def test_what_a_tpu_gathers_is_copied_where_its_order_is_another(part, dim, copies):
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))

    def function(weight):
        with jax.named_scope("md.f.1"):
            return jnp.sum(lax.all_gather(weight, "data", axis=dim, tiled=True))

    split = P(*["data" if i == dim else None for i in range(len(part))])
    mapped = jax.shard_map(function, mesh=mesh, in_specs=split, out_specs=P(), check_vma=False)
    whole = [2 * n if i == dim else n for i, n in enumerate(part)]
    made = graph(mapped, array(*whole), mesh=mesh, kind="tpu")
    assert names(made) == ["all_gather", *copies, "reduce_sum"]
    assert "reorder" not in names(graph(mapped, array(*whole), mesh=mesh, kind="gpu"))


def test_what_a_tpu_gathers_as_a_result_or_exchanges_is_copied():
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))

    def function(weight, x):
        whole = lax.all_gather(weight, "data", axis=0, tiled=True)
        return whole, collectives.all_to_all(x, ("data",), 1, 0)

    mapped = jax.shard_map(
        function,
        mesh=mesh,
        in_specs=(P("data"), P("data")),
        out_specs=(P(), P(None, "data")),
        check_vma=False,
    )
    given = array(128, 128), array(16, 16, 128)
    after = ["all_gather", "copy", "all_to_all", "copy"]
    assert names(graph(mapped, *given, mesh=mesh, kind="tpu")) == after
    assert names(graph(mapped, *given, mesh=mesh, kind="gpu")) == ["all_gather", "all_to_all"]


def test_what_a_tpu_gathers_in_a_loop_may_have_one_row_in_a_tile():
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))

    def turn(x, weight):
        with jax.named_scope("md.f.1"):
            return x + jnp.sum(lax.all_gather(weight, "data", axis=1, tiled=True)), None

    def function(weights):
        return lax.scan(turn, jnp.float32(0), weights)[0]

    mapped = jax.shard_map(
        function, mesh=mesh, in_specs=P(None, None, "data"), out_specs=P(), check_vma=False
    )
    (loop,) = (k.loop for k in graph(mapped, array(4, 100, 124), mesh=mesh, kind="tpu").kernels)
    assert names(loop)[:2] == ["all_gather", "reorder_rows"]


@pytest.mark.parametrize("used, slices", [(True, 1), (False, 0)])
def test_a_tpus_fused_kernel_gives_statistics_of_rows_in_all_lanes(used, slices):
    result = Buffer((2, 64, 32), "bfloat16", 2 * 64 * 32 * 2)
    statistic = Buffer((2, 64), "float32", 2 * 64 * 4)
    kernel = Kernel("local_kernel", "", writes=[result, statistic])
    found = slice_lanes(kernel, [result, statistic] if used else [result])
    assert len(found) == slices
    if used:
        wide = kernel.writes[1]
        assert wide.shape == (2, 64, 128) and wide.bytes == 128 * statistic.bytes
        assert found[0].reads == [wide] and found[0].writes == [statistic]
    else:
        assert kernel.writes == [result, statistic]


@pytest.mark.parametrize("length, copied", [(128, [(2, 128, 64)]), (32, [])])
def test_a_tpu_puts_slices_of_what_lay_lengthwise_into_order(length, copied):
    def function(x, weights, wide):
        def turn(x, w):
            return jnp.tanh(x @ w), (x, x @ wide)

        def back(y, w):
            (kept, hidden), weight = w
            return y + kept @ weight + hidden[..., :64], None

        _, kept = lax.scan(turn, x, weights)
        return lax.scan(back, x, (kept, weights))[0]

    given = array(2, length, 64), array(4, 64, 64), array(64, 256)
    _, second = (k.loop for k in graph(function, *given, kind="tpu").kernels if k.loop)
    takes = [k for k in second.kernels if k.primitive == "take_slice"]
    assert [k.writes[0].shape for k in takes] == copied
    assert all(k.reads[0].within is not None for k in takes)
    assert "take_slice" not in names(graph(function, *given).kernels[-1].loop)


def test_a_tpu_copies_the_tables_of_an_optimizer_whose_width_is_padded():
    def update(table, moment, gradient):
        moment = 0.9 * moment + gradient
        return table - moment, moment

    def made(width):
        given = [array(10000, width) for _ in range(3)]
        return names(graph(update, *given, kind="tpu"))

    assert made(256) == ["add"]
    assert made(192) == [*["reorder"] * 3, "add", *["reorder"] * 2]


@pytest.mark.parametrize("gathered, copies", [(True, 4), (False, 1)])
def test_a_gathered_stack_that_goes_unchanged_into_another_is_copied_in_each_turn(gathered, copies):
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))

    def function(weights):
        if gathered:
            weights = lax.all_gather(weights, "data", axis=1, tiled=True)
        named = checkpoint_name  # so that JAX does not see that nothing changes
        return lax.scan(lambda c, w: (c + jnp.sum(w), named(w, "w")), jnp.float32(0), weights)

    split = P(None, "data") if gathered else P()
    mapped = jax.shard_map(function, mesh=mesh, in_specs=split, out_specs=P(), check_vma=False)
    (loop,) = (k.loop for k in graph(mapped, array(4, 128, 128), mesh=mesh).kernels if k.loop)
    (copy,) = (k for k in loop.kernels if k.primitive == "copy")
    assert copy.traffic == copies * 2 * 128 * 128 * 4


@pytest.mark.parametrize("reverse, fills", [(True, ["fill"]), (False, [])])
def test_a_tpu_fills_the_stack_of_a_reversed_loop_with_zeros(reverse, fills):
    def function(xs):
        return lax.scan(lambda c, x: (c, 2 * x), 0.0, xs, reverse=reverse)[1]

    made = graph(function, array(4, 64, 64), kind="tpu")
    assert names(made) == [*fills, "scan"]
    assert sum(k.traffic for k in made.kernels) == len(fills) * 4 * 64 * 64 * 4
    assert names(graph(function, array(4, 64, 64))) == ["scan"]
