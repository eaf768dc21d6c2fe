"""The benchmark that fits the figures of a TPU's kernels: what it reads, and what it fits."""

import random
from dataclasses import replace

import pytest

from benchmarks.compiled_kernels import Seen, seen_kernels
from benchmarks.kernel_figures import TABLE, fitted, memory_figures, toml, write
from meshdsl.machine import chips
from meshdsl.predict.kernels.kernels import Buffer, Dot, Kernel, Move
from meshdsl.predict.time.kernel_time import kernel_seconds

REST = 'kind=kOutput, calls=%fused_computation, backend_config={"estimated_cycles":"1750"}'
PROGRAM = """HloModule m, is_scheduled=true

%fused_computation (param_0: bf16[256,100], param_1: bf16[4,100,512]) -> bf16[256,512] {
  %param_0 = bf16[256,100]{1,0:T(8,128)(2,1)} parameter(0)
  %param_1 = bf16[4,100,512]{2,1,0:T(8,128)(2,1)} parameter(1)
  %constant = s32[]{:T(128)} constant(1)
  %slice = bf16[1,100,512]{2,1,0:T(8,128)(2,1)} dynamic-slice(%param_1, %constant)
  %bitcast = bf16[100,512]{1,0:T(8,128)(2,1)} bitcast(%slice)
  ROOT %product = bf16[256,512]{1,0:T(8,128)(2,1)} convolution(%param_0, %bitcast), LABELS
}

ENTRY %main (p0: bf16[256,100], p1: bf16[4,100,512]) -> bf16[256,512] {
  %p0 = bf16[256,100]{1,0:T(8,128)(2,1)S(1)} parameter(0)
  %p1 = bf16[4,100,512]{2,1,0:T(8,128)(2,1)} parameter(1)
  ROOT %fusion = bf16[256,512]{1,0:T(8,128)(2,1)} fusion(%p0, %p1), REST
}
""".replace("LABELS", "dim_labels=bf_io->bf").replace("REST", REST)


def test_a_fusion_is_a_kernel_with_its_products_and_arrays_in_tiles():
    (seen,) = seen_kernels(PROGRAM, "mine", chips()["v6e"])
    assert (seen.program, seen.seconds) == ("mine", pytest.approx(1e-6))
    (dot,) = seen.kernel.dots
    assert (dot.m, dot.k, dot.n, dot.dtype) == (256, 100, 512, "bfloat16")
    # 100 lanes are 128; of the stack a slice is read, of which 100 rows are 104.
    sizes = [2 * 256 * 128, 2 * 104 * 512, 2 * 256 * 512]
    assert [(m.bytes, m.write) for m in seen.kernel.moves] == [
        (sizes[0], False),
        (sizes[1], False),
        (sizes[2], True),
    ]
    assert seen.on_chip == (True, False, False)
    assert seen.whole == (True, False, True)


def array(elements, write=False):
    return Move(Buffer((elements // 128, 128), "bfloat16", 2 * elements), 2 * elements, write)


def drawn(machine, fast):
    """Kernels with the times that a chip's figures give, and arrays below a size in fast memory."""
    rng = random.Random(1)
    for i in range(120):
        m, k, n = (128 * 2 ** rng.randint(1, 6) for _ in range(3))
        result = array(m * n, write=True)
        if i % 3:
            more = [array(m * n)] * rng.randint(0, 2) + [array(m * k)] * rng.randint(0, 1)
            moves = [array(m * k), array(k * n), *more, result]
            kernel = Kernel("fusion", "", dots=[Dot(1, m, k, n, 2 * m * k * n, "bfloat16")])
        else:
            moves = [*[array(m * n)] * rng.randint(1, 5), result]
            kernel = Kernel("fusion", "")
        kernel.moves = moves
        on_chip = tuple(move.bytes < fast for move in moves)
        seconds = kernel_seconds(kernel, machine)
        yield Seen(f"step-{i % 7}", kernel, on_chip, (True,) * len(moves), seconds)


def test_figures_are_found_again_from_the_times_that_they_give():
    known = chips()["v5p"]
    seen = list(drawn(known, fast=8 * 2**20))
    sizes = memory_figures(seen)
    assert all(4 * 2**20 < size < 16 * 2**20 for size in sizes.values())
    known = replace(known, **sizes)
    seen = list(drawn(known, fast=8 * 2**20))
    start = replace(known, matmul_efficiency=0.5, vector_rate=1e11, result_rate=1e11)
    found = fitted(start, seen)
    for one in seen:
        assert kernel_seconds(one.kernel, found) == pytest.approx(one.seconds, rel=0.1)
    assert found.matmul_efficiency == pytest.approx(known.matmul_efficiency, rel=0.05)


def test_figures_are_written_in_their_units_and_where_they_belong(tmp_path, monkeypatch):
    mine = tmp_path / "hardware.toml"
    mine.write_text(TABLE.read_text())
    monkeypatch.setattr("benchmarks.kernel_figures.TABLE", mine)
    before = chips()
    found = replace(before["tpu7x"], matmul_efficiency=0.66, kept=2**20)
    missed = {"product": (0.11, 40), "pass": (0.22, 50)}
    write("tpu7x", toml(before["tpu7x"], found, missed), missed)
    after = chips(mine)
    assert after["tpu7x"].matmul_efficiency == 0.66
    assert after["tpu7x"].kept == 2**20  # of a device, of which a chip has two
    assert dict(after["tpu7x"].residuals) == {
        **before["tpu7x"].residuals,
        "product": 0.11,
        "pass": 0.22,
    }
    assert after["v6e"] == before["v6e"]
    assert "fitted to 40 kernels" in after["tpu7x"].sources["matmul_efficiency"]
