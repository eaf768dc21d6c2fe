"""Collectives between processes on CPUs are exact, and give the same bits each time."""

import subprocess
import sys
from contextlib import contextmanager

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from meshdsl.train.checkpoints.manifest import read
from meshdsl_cli import main
from tests.hosts.test_hosts import JOINED, begin, finish
from tests.train.common import losses

# Whole numbers, whose sum is the same in any order. Sizes grow from below to far above what a
# socket takes at once: it takes more after a large array has passed.
EXACT = """
    import jax, numpy as np
    from jax.sharding import PartitionSpec as P
    from meshdsl.lowering import collectives
    jax.config.update("jax_num_cpu_devices", 2)
    mesh = jax.make_mesh((2, 2), ("a", "b"))
    n = 4

    def check(name, collective, expected, rows, repeat):
        x = np.random.default_rng(rows).integers(0, 1000, (n, n * rows)).astype(np.float32)
        split = jax.NamedSharding(mesh, P(("a", "b")))
        there = jax.make_array_from_callback(x.shape, split, lambda at: x[at])
        run = jax.jit(jax.shard_map(
            lambda x: collective(x[0])[None], mesh=mesh, in_specs=split.spec, out_specs=split.spec
        ))
        wanted = expected(x)
        for _ in range(repeat):
            for shard in run(there).addressable_shards:
                got = np.asarray(shard.data)[0]
                wrong = np.count_nonzero(got != wanted[shard.index[0].start])
                assert not wrong, f"{name} of {rows} rows: {wrong} elements are wrong"
"""
SCATTER = """
    def sums(axes):
        def of(x):
            x = x.reshape(2, 2, -1)
            total = x.sum(tuple("ab".index(a) for a in axes), keepdims=True)
            parts = total.reshape(*total.shape[:2], 4 if len(axes) > 1 else 2, -1)
            at = lambda i, j: {"a": i, "b": j, "ab": 2 * i + j}["".join(axes)]
            return [
                np.broadcast_to(parts, (2, 2, *parts.shape[2:]))[i, j, at(i, j)]
                for i in range(2) for j in range(2)
            ]
        return of

    for axes in (("a",), ("b",), ("a", "b")):
        for rows in ROWS:
            scatter = lambda x: collectives.psum_scatter(x, axes, 0)
            check(f"psum_scatter over {axes}", scatter, sums(axes), rows, REPEAT)
"""
OTHERS = """
    every = ("a", "b")
    right = [(i, (i + 1) % n) for i in range(n)]
    for rows in ROWS:
        for name, collective, expected in (
            ("psum", lambda x: collectives.vary(collectives.psum(x, every), every),
             lambda x: [x.sum(0)] * n),
            ("all_gather", lambda x: collectives.all_gather(x, every, 0, varies=True),
             lambda x: [x.ravel()] * n),
            ("all_to_all", lambda x: collectives.all_to_all(x, every, 0, 0),
             lambda x: x.reshape(n, n, -1).swapaxes(0, 1).reshape(n, -1)),
            ("ppermute", lambda x: collectives.ppermute(x, every, right),
             lambda x: np.roll(x, 1, 0)),
        ):
            check(name, collective, expected, rows, REPEAT)
"""


@contextmanager
def load():
    """Two programs that keep the machine busy, so that processes come late to each other."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def passes(program, rows, repeat):
    told = f"\n    ROWS, REPEAT = {rows}, {repeat}\n"
    found = finish(begin(JOINED, EXACT, told, program), 600)
    assert [code for code, _, _ in found] == [0, 0], found


def test_a_psum_scatter_of_two_processes_is_exact():
    passes(SCATTER, (4096, 32768), 20)


@pytest.mark.slow
@pytest.mark.parametrize("program", [SCATTER, OTHERS], ids=["psum_scatter", "others"])
def test_collectives_of_two_processes_are_exact(program):
    with load():
        passes(program, (16, 4096, 32768, 262144), 20)


@pytest.mark.parametrize(
    ("shape", "dim", "tiled"), [((8, 3), 0, True), ((2, 16, 3), 1, True), ((3, 4), 1, False)]
)
def test_it_is_an_exchange_and_a_sum_on_cpus_alone(monkeypatch, shape, dim, tiled):
    mesh = jax.sharding.Mesh(jax.devices()[:4], "a")
    x = np.random.default_rng(0).normal(size=(4, *shape)).astype(np.float32)

    def traced():
        def run(x):  # a function of its own each time: JAX remembers how one was lowered
            return jax.lax.psum_scatter(x[0], "a", scatter_dimension=dim, tiled=tiled)[None]

        return jax.jit(jax.shard_map(run, mesh=mesh, in_specs=P("a"), out_specs=P("a"))).trace(x)

    alone = traced().lower()
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    joined, tpu = traced().lower(), traced().lower(lowering_platforms=("tpu",))
    for program, scatters in ((alone, True), (joined, False), (tpu, True)):
        text = program.as_text()
        assert ("reduce_scatter" in text, "all_to_all" in text) == (scatters, not scatters)
    np.testing.assert_array_equal(joined.compile()(x), alone.compile()(x))


@pytest.mark.slow
def test_two_runs_of_two_processes_have_the_same_bits(tmp_path):
    sizes = "d_model=128 layers=2 heads=4 d_ff=512 length=32".split()
    told = [
        "batch=8",
        "steps=4",
        "sample.tokens=0",
        "proof=off",
        *[f"model.{size}" for size in sizes],
    ]
    launched = ["launch", "--processes", "2", "--devices-per-process", "2", "--"]
    found = []
    for name in "ab":
        out = tmp_path / name
        with load():
            assert (
                main([*launched, "train", "--layout", "fsdp-tensor", "--out", str(out), *told]) == 0
            )
        state = read(out / "checkpoints/4")["state"]
        digests = {leaf: is_["digest"] for leaf, is_ in state.items() if "digest" in is_}
        found.append((losses(out), digests))
    assert found[0] == found[1] and len(found[0][1]) > 20
