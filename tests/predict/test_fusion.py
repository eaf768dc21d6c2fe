"""Which equations become one kernel, and what they read and write."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from meshdsl.mesh import abstract_mesh
from meshdsl.models.sizes import SIZES
from meshdsl.predict.kernels.block_outputs import slice_lanes
from meshdsl.predict.kernels.kernel_graph import kernel_graph
from meshdsl.predict.kernels.kernels import Buffer, Kernel
from meshdsl.predict.memory.peak import peak
from meshdsl.program.recorder import tag_in
from meshdsl.train.config import Config
from meshdsl.train.job import Job
from meshdsl.train.settings import override
from tests.helpers import only
from tests.models import common
from tests.models.test_golden import train_step
from tests.predict.graphs import array, graph, names


def test_element_wise_code_is_one_kernel_and_nothing_between_is_written():
    made = graph(lambda x, y: jnp.tanh(x * 2 + y) - 1, array(64, 64), array(64, 64))
    (kernel,) = made.kernels
    assert kernel.reads == made.arguments and kernel.writes == made.results


def test_an_activation_belongs_to_the_kernel_of_its_product():
    made = graph(lambda x, w: jax.nn.relu(x @ w + 1), array(64, 64), array(64, 64))
    assert names(made) == ["dot_general"]
    assert made.kernels[0].writes == made.results  # and the product alone is not written


def test_a_cheap_operand_is_computed_by_the_product():
    made = graph(lambda x, w: (x * 2).T @ w, array(64, 64), array(64, 64))
    assert names(made) == ["dot_general"] and made.kernels[0].reads == made.arguments


def test_a_gpu_multiplies_in_kernels_that_do_nothing_else():
    def function(x, w):
        return jax.nn.relu((x * 2) @ w + 1)

    made = graph(function, array(64, 64), array(64, 64), kind="gpu")
    assert names(made) == ["mul", "dot_general", "max"]
    assert [len(k.reads) + len(k.writes) for k in made.kernels] == [2, 3, 2]


def test_softmax_reads_the_scores_three_times_and_writes_none_of_its_intermediates():
    def attend(q, k, v):
        return jax.nn.softmax((q @ k.T).astype(jnp.float32)).astype(jnp.bfloat16) @ v

    made = graph(attend, *(array(1024, 128, dtype=jnp.bfloat16) for _ in "qkv"))
    assert names(made) == [
        "dot_general",
        "reduce_sum",
        "dot_general",
    ]  # the row maximum comes out of the first product
    scores = made.kernels[0].writes[0]
    assert scores.dtype == "bfloat16" and all(scores in k.reads for k in made.kernels[1:])
    assert all(b is scores or b.bytes <= 4 * 1024 for k in made.kernels[:2] for b in k.writes)


def test_what_many_kernels_need_is_written_when_its_operands_are_larger():
    def function(x, y, w):
        total = x + y
        return total @ w, total @ w.T, jnp.sum(total), jnp.max(total, 0)

    made = graph(function, array(64, 64), array(64, 64), array(64, 64))
    written = {b for k in made.kernels for b in k.writes} - set(made.results)
    assert len(written) == 1
    assert [b for k in made.kernels[1:] for b in k.reads if b in made.arguments[:2]] == []


@pytest.mark.parametrize("others, written", [(1, 0), (3, 1)])
def test_what_two_products_need_is_written_where_that_moves_fewer_bytes(others, written):
    def function(x, w, *others):
        total = sum(others, x)
        return total @ w, total.T @ w

    made = graph(function, *(array(64, 64) for _ in range(2 + others)))
    assert len({b for k in made.kernels for b in k.writes} - set(made.results)) == written


def test_an_update_of_a_parameter_and_its_moment_is_one_kernel_and_masks_take_no_memory():
    def update(p, m, g, rate):
        m = 0.9 * m + 0.1 * g
        scale = jnp.minimum(1.0, rate)
        return p - scale * m, m

    made = graph(update, *(array(256, 256) for _ in "pmg"), array(), donated=(0, 1))
    big = [k for k in made.kernels if k.traffic > 4096]
    assert len(big) == 1 and set(big[0].writes) == set(made.results)
    assert made.aliases == {0: 0, 1: 1}


def test_a_loop_has_its_body_with_slices_of_stacks_and_what_it_carries():
    def function(x, ws):
        return lax.scan(lambda x, w: (jnp.tanh(x @ w), jnp.sum(x)), x, ws)

    made = graph(function, array(64, 64), array(7, 64, 64))
    (kernel,) = made.kernels
    loop = kernel.loop
    assert loop.length == 7 and names(loop.kernels) == ["dot_general", "reduce_sum"]
    product, total = loop.kernels
    ((start, end),) = loop.carries
    assert start in product.reads and end in product.writes
    (slice_,) = (b for b in product.reads if b.within is not None)
    assert slice_.within is made.arguments[1] and slice_.shape == (64, 64)
    assert total.reads == [start] and total.writes[0].within is made.results[1]


def test_what_a_collective_gives_is_copied_into_a_stack():
    mesh = abstract_mesh({"data": 8})

    def body(x, w):
        whole = lax.all_gather(w, "data", tiled=True)
        return x @ whole, (whole, x + 1)

    def local(x, ws):
        return lax.scan(body, lax.pcast(x, "data", to="varying"), ws)

    specs = {"in_specs": (P(), P(None, "data")), "out_specs": (P("data"), P(None, "data"))}
    function = jax.shard_map(local, mesh=mesh, **specs)
    (loop,) = [k.loop for k in graph(function, array(64, 64), array(3, 64, 64), mesh=mesh).kernels]
    assert sorted(names(loop.kernels)) == ["add", "all_gather", "copy", "dot_general"]
    copy = next(k for k in loop.kernels if k.primitive == "copy")
    assert copy.writes[0].within is not None and copy.traffic == 2 * copy.writes[0].bytes


def test_the_gradient_of_a_slice_is_added_where_it_belongs():
    def add(gradients, part, i):
        return gradients + lax.dynamic_update_slice(jnp.zeros_like(gradients), part, (i, 0, 0))

    whole, part = array(8, 64, 64), array(2, 64, 64)
    made = graph(add, whole, part, array(dtype=jnp.int32), donated=(0,))
    (kernel,) = made.kernels
    assert kernel.in_place == [(made.arguments[0], made.results[0])]
    assert kernel.traffic == 3 * made.arguments[1].bytes + 4  # and the position


def test_a_mask_that_a_loop_is_given_is_computed_inside():
    def function(x):
        mask = jnp.arange(512)[:, None] >= jnp.arange(512)
        return lax.scan(lambda x, _: (jnp.where(mask, x * 2, 0.0), ()), x, None, length=3)[0]

    made = graph(function, array(512, 512))
    assert [
        b.bytes
        for k, _ in made.walk()
        for b in (*k.reads, *k.writes)
        if b.dtype == "bool" and b.bytes > 4096
    ] == []


def test_a_stack_used_in_a_narrower_type_is_converted_once_for_both_loops():
    @jax.checkpoint
    def layer(x, w):
        return jnp.tanh(x @ w.astype(jnp.bfloat16)), ()

    def loss(x, ws):
        return jnp.sum(lax.scan(layer, x, ws)[0])

    made = graph(jax.grad(loss), array(64, 64, dtype=jnp.bfloat16), array(9, 64, 64))
    narrow = [
        b
        for k in made.kernels
        for b in k.writes
        if k.primitive == "convert_element_type" and b.shape == (9, 64, 64)
    ]
    assert len(narrow) == 1 and narrow[0].dtype == "bfloat16"
    assert all(
        narrow[0] in k.reads and made.arguments[1] not in k.reads for k in made.kernels if k.loop
    )


@pytest.mark.parametrize("checkpoint, copies", [(True, 2), (False, 0)])
def test_what_a_checkpoint_recomputes_from_is_taken_out_of_its_stack(checkpoint, copies):
    def layer(x, w):
        return jnp.tanh(x @ w), ()

    def loss(x, ws):
        return jnp.sum(lax.scan(jax.checkpoint(layer) if checkpoint else layer, x, ws)[0])

    backward = [
        k.loop for k in graph(jax.grad(loss), array(64, 64), array(9, 64, 64)).kernels if k.loop
    ][-1]
    copied = [k for k in backward.kernels if k.primitive == "optimization_barrier"]
    assert len(copied) == copies and all(
        k.reads[0].within and not k.writes[0].within for k in copied
    )


def test_branches_and_unknown_loops_are_walked_into():
    def function(x, w, flag):
        x = lax.cond(flag, lambda x: x @ w, jnp.sin, x)
        return lax.while_loop(
            lambda c: jnp.sum(c[0] @ c[0]) < c[1], lambda c: (c[0] @ w, c[1] + 1), (x, 0)
        )[0]

    made = graph(function, array(64, 64), array(64, 64), array(dtype=jnp.bool_))
    branch, loop = (k for k in made.kernels if k.branches or k.loop)
    assert [names(b) for b in branch.branches] == [["sin"], ["dot_general"]]
    assert (
        loop.loop.length == 1 and [k.flops for k in loop.loop.kernels if k.dots] == [2 * 64**3] * 2
    )


def test_shapes_are_local_inside_and_outside_of_shard_map():
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    split = NamedSharding(mesh, P("data", "model"))

    def function(x):
        y = jax.shard_map(
            lambda x: lax.psum(x, "model") * 2,
            mesh=mesh,
            in_specs=P("data", "model"),
            out_specs=P("data"),
        )(x)
        return (
            jnp.tanh(x),
            y + 1,
            jax.lax.with_sharding_constraint(x * 3, NamedSharding(mesh, P(None, "model"))) + 1,
        )

    made = graph(function, jax.ShapeDtypeStruct((64, 64), jnp.float32, sharding=split), mesh=mesh)
    assert made.arguments[0].shape == (16, 32)
    assert [b.shape for b in made.results] == [(16, 32), (16, 32), (64, 32)]
    (reduced,) = (k for k in made.kernels if k.collective)
    assert (reduced.collective.operation, reduced.collective.axes, reduced.collective.bytes) == (
        "psum",
        ("model",),
        16 * 32 * 4,
    )


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
        return whole, lax.all_to_all(x, "data", split_axis=1, concat_axis=0, tiled=True)

    mapped = jax.shard_map(
        function,
        mesh=mesh,
        in_specs=(P("data"), P("data")),
        out_specs=(P(), P(None, "data")),
        check_vma=False,
    )
    given = array(128, 128), array(16, 16, 128)
    after = ["all_gather", "copy", "copy", "all_to_all", "copy"]
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


def test_nothing_joins_a_kernel_through_a_barrier_and_both_pass_at_once():
    def function(x, y, z):
        both = lax.optimization_barrier((x @ y, x @ z))
        return jnp.tanh(both[0]), both[1] @ y

    made = graph(function, array(64, 64), array(64, 64), array(64, 64), kind="tpu")
    assert names(made) == ["dot_general", "dot_general", "tanh", "dot_general"]
    first, second, tanh, last = made.kernels
    products = {id(first.writes[0]), id(second.writes[0])}
    assert {id(b) for b in tanh.behind} == {id(b) for b in last.behind} == products
    assert tanh.bare and not last.bare


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
        named = jax.ad_checkpoint.checkpoint_name  # so that JAX does not see that nothing changes
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


@pytest.mark.parametrize("name", only(("single", "hybrid-fsdp", "fsdp-sequence"), common.LAYOUTS))
def test_a_train_step_has_its_collectives_as_kernels_and_its_flops_by_op(name):
    step, _, args = train_step(name)
    program = step.program(*args)
    made = kernel_graph(program)
    assert [k.collective for k, _ in made.walk() if k.collective] == program.collectives
    products = {
        (tag, phase): n
        for (tag, phase), n in made.flops.items()
        if (op := program.op_tagged(tag)) and op.name == "einsum"
    }
    forward, recompute, backward = (
        sum(n for (_, p), n in products.items() if p == phase)
        for phase in ("forward", "recompute", "backward")
    )
    assert recompute < forward < backward
    assert {k.phase for k, _ in made.walk()} == {"forward", "recompute", "backward", "optimizer"}
    assert all(
        tag_in(b.scope) for k in made.kernels if k.loop for b in k.writes if b.shape[:1] == (4,)
    )


def test_more_layers_and_devices_are_no_more_kernels():
    """So the largest model on the largest machine is planned as fast as a small one."""

    def kernels(layers, mesh):
        settings = {f"model.{key}": value for key, value in SIZES["llama3-405b"].items()} | {
            "model.layers": layers
        }
        job = Job(
            override(Config(), **settings, batch=512),
            common.load("fsdp-sequence"),
            abstract_mesh(mesh),
        )
        graph = kernel_graph(job.program())
        assert peak(graph).bytes > 0
        return len(list(graph.walk()))

    assert kernels(126, {"data": 64, "model": 8}) == kernels(2, {"data": 2, "model": 8})
