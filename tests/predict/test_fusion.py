"""Which equations become one kernel, and what they read and write."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from meshdsl.mesh import abstract_mesh
from meshdsl.models.sizes import SIZES
from meshdsl.predict.kernels.kernel_graph import kernel_graph
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
