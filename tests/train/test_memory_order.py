"""A program that is called again and again gives the same as any other, and uses memory again."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from meshdsl.mesh import make_mesh
from meshdsl.train.memory_order import InBestOrder


def test_calls_carry_on_in_the_memory_of_what_was_carried():
    mesh = make_mesh({"data": 8}, jax.devices())
    at = NamedSharding(mesh, PartitionSpec("data"))
    put = lambda x: jax.device_put(jnp.asarray(x, jnp.float32), at)
    traced = []

    def fn(kept, carried, x):
        traced.append(carried["sum"].shape)
        return {"sum": carried["sum"] + kept * x}, carried["sum"].mean()

    call = InBestOrder(fn, put(np.arange(8)), mesh)
    for _ in range(2):
        carried = {"sum": put(np.zeros(8))}
        for _ in range(3):
            before, (carried, mean) = carried["sum"], call(carried, jnp.float32(2))
            assert before.is_deleted()
        np.testing.assert_array_equal(carried["sum"], 6 * np.arange(8))
        assert mean == 4 * np.arange(8).mean()
    assert traced == [(8,)]


def test_other_shapes_are_compiled_anew():
    mesh = make_mesh({"data": 8}, jax.devices())
    at = NamedSharding(mesh, PartitionSpec("data"))
    kept = jax.device_put(jnp.ones(8), at)
    call = InBestOrder(lambda kept, x: (x * kept.sum(), x.shape[0]), kept, mesh)
    for size in (8, 16, 8):
        carried, count = call(jax.device_put(jnp.ones(size), at))
        assert count == size
        np.testing.assert_array_equal(carried, np.full(size, 8))
