"""How axes lie on the network, and the times of collectives: by hand, and by the loads of links."""

import doctest
import math
import pathlib
import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from meshdsl.machine import Network, find_target
from meshdsl.machine.chips import chips
from meshdsl.machine.network import device_coordinates
from meshdsl.machine.target import Target

MB = 1e6


def network(text, slices=1, **sizes):
    return Network(find_target(text, slices=slices), sizes)


# A machine, a mesh, one of its axes; and how that lies.
WORDS = """
v5p:4x4x4, data=16 model=4: model
ring of 4 along x of the torus, 2 links, 180 GB/s both ways

v5p:4x4x4, data=16 model=4: data
4 by 4, rings along y and z of the torus, 4 links, 360 GB/s both ways

v5p:4x4x4, data=64: data
4 by 4 by 4, rings along x, y and z of the torus, 6 links, 540 GB/s both ways (scatters 270
GB/s)

tpu7x:4x4x4, data=16 model=8: data
4 by 4, rings along y and z of the torus, 4 links, 180 GB/s both ways

v5p:2x2x1, data=4: data
2 by 2, lines along x (no wrap-around) and y (no wrap-around) of the torus, 2 links, 180 GB/s
(scatters 90 GB/s)

v4:2x2x1, data=4: data
2 by 2, lines along x (no wrap-around) and y (no wrap-around) of the torus, 2 links, 90 GB/s
(gathers 45 GB/s)

v6e:16x16, data=64 model=4: model
line of 4 along x (4 of its 16 chips, no ring, half the bandwidth) of the torus, 1 link, 90 GB/s

v6e:16x16, data=64 model=4: data
one ring through 4 by 16 chips along x (4 of its 16 chips, one in 4, 1/4 of the bandwidth) and y
of the torus, 2 links, 45 GB/s both ways (scatters 90 GB/s)

v5p:4x4x4, data=8 model=8: model
one ring through 4 by 2 chips along x and y (2 of its 4 chips, no ring, half the bandwidth) of
the torus, 1 link, 90 GB/s

v5e:2x2, data=2 model=2: data
2 chips that fill no block of the torus, up to 2 hops apart, 45 GB/s

tpu7x:2x2x2, data=8 model=2: model
the 2 devices of a chip, 540 GB/s one way

h100:8x4, data=4 model=8: model
8 GPUs of a node, NVLink, 450 GB/s one way

h100:8x4, data=2 model=16: model
8 GPUs of a node, NVLink, 450 GB/s one way; then 2 nodes, InfiniBand, 50 GB/s one way

v5p:4x4x4 x2, replica=2 data=64: replica
2 slices, the data-centre network, 6.25 GB/s one way

cpu:8, data=8: data
8 virtual devices of one machine

cpu:8, data=8 model=1: model
one device
"""


@pytest.mark.parametrize("case", WORDS.strip().split("\n\n"))
def test_words(case):
    head, *words = case.split("\n")
    text, slices, mesh, axis = re.fullmatch(r"([\w:]+)(?: x(\d))?, (.*): (\w+)", head).groups()
    sizes = {name: int(size) for name, size in re.findall(r"(\w+)=(\d+)", mesh)}
    assert network(text, int(slices or 1), **sizes).describe(axis) == " ".join(words)


def test_axes_that_fill_a_dim_together_are_a_ring():
    parts = network("v6e:16x16", a=4, b=4, c=16)
    assert parts.axis("a").wraps and not parts.axis("b").wraps
    assert parts.axes(("a", "b")) == network("v6e:16x16", a=16, c=16).axis("a")


# What collectives reach of a v5p's ring and of an h100's NVLink, and a gather along these.
RING, FAST = 180e9 * 0.82, 450e9 * 0.82
ON_RING, ON_SWITCH = 100 * MB * 3 / 4 / RING + 2e-6, 100 * MB * 7 / 8 / FAST + 9e-6


@pytest.mark.parametrize(
    "operation, ring, switch",
    [
        ("all_gather", ON_RING, ON_SWITCH),
        ("psum_scatter", ON_RING, ON_SWITCH),
        ("psum", 2 * ON_RING, 2 * ON_SWITCH),
        ("pmax", 2 * ON_RING, 2 * ON_SWITCH),
        ("all_to_all", 100 * MB * 4 / 4 / RING + 2e-6, ON_SWITCH),
        ("ppermute", 100 * MB / (RING / 2) + 1e-6, 100 * MB / FAST + 3e-6),
        ("slice", 0, 0),
    ],
)
def test_seconds_by_the_formulas(operation, ring, switch):
    for net, seconds in (
        (network("v5p:4x4x4", data=16, model=4), ring),
        (network("h100:8x4", data=4, model=8), switch),
    ):
        assert net.seconds(operation, ("model",), 100 * MB) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text, sizes, gather, scatter, sum_",
    [
        # Two dims: only on some chips gathers and scatters use both, as sums do.
        ("v4:4x4x4", {"data": 16, "model": 4}, 90, 90, 180),
        ("v5p:4x4x4", {"data": 16, "model": 4}, 360, 360, 360),
        ("v5p:8x8x16", {"data": 128, "model": 8}, 360, 360, 360),
        ("tpu7x:4x4x4", {"data": 16, "model": 8}, 180, 180, 180),
        # Three dims: scatters are run as sums, which take twice as long.
        ("v4:4x4x4", {"data": 64}, 90, 135, 270),
        ("v5p:4x4x4", {"data": 64}, 540, 270, 540),
        # A dim in part: along one ring, or along as many as there are dims, each at the pace of
        # the narrowest dim.
        ("v6e:16x16", {"data": 64, "model": 4}, 45, 90, 45),
        ("v5p:4x4x4", {"data": 8, "model": 8}, 180, 90, 90),
        ("v6e:4x8", {"data": 32}, 180, 180, 180),
        ("v6e:16x16", {"data": 16, "model": 16}, 180, 180, 180),
    ],
)
def test_several_dims_of_the_torus(text, sizes, gather, scatter, sum_):
    net, v, n = network(text, **sizes), 1e12, sizes["data"]
    for operation, rate in (
        ("all_gather", gather),
        ("psum_scatter", scatter),
        ("psum", sum_ / 2),
    ):
        assert net.seconds(operation, ("data",), v) == pytest.approx(
            v * (n - 1) / n / (rate * 1e9 * 0.82), rel=1e-3
        )


def test_nodes_are_left_an_eighth_by_eight_gpus():
    net = network("h100:8x4", data=2, model=16)
    inside = 100 * MB * 7 / 8 / FAST + 9e-6
    between = 100 * MB / 8 / 2 / (50e9 * 0.82) + 10e-6
    assert net.seconds("all_gather", ("model",), 100 * MB) == pytest.approx(inside + between)
    assert net.seconds("psum", ("model",), 100 * MB) == pytest.approx(2 * (inside + between))


def test_an_axis_of_one_and_virtual_devices_take_no_time():
    assert network("v5p:4x4x4", data=64, model=1).seconds("psum", ("model",), MB) == 0
    assert network("cpu:8", data=8).seconds("psum", ("data",), MB) == 0


def test_processes_of_cpus_wait_for_each_other():
    """Of four, with 20 Mbit/s and 50 ms, as `python -m benchmarks.slow_network` measures it."""
    links = {"scale_out_bandwidth": 2.5e6, "scale_out_latency": 0.05}
    cpu = replace(chips()["cpu"], flops=1.0, **links)
    net = Network(Target("cpu:1x4", cpu, (1, 4)), {"replica": 4})
    sums = net.seconds("psum", ("replica",), MB)
    assert sums == pytest.approx(2 * MB * 3 / 4 / 2.5e6 + 2 * 3 * 0.1)  # a ring, there and back
    gathered = net.seconds("all_gather", ("replica",), MB)
    assert gathered == pytest.approx(MB * 3 / 4 / 2.5e6 + 2 * 0.1)  # by doubling


def test_a_gather_measured_on_hardware():
    """bf16[1024, 16384] over an axis of 4 of a v5e 4x4 took 680 us.

    Source: https://jax-ml.github.io/scaling-book/sharding.
    """
    assert network("v5e:4x4", x=4, y=4).seconds(
        "all_gather", ("y",), 2 * 1024 * 16384
    ) == pytest.approx(680e-6, rel=0.02)


def test_more_bytes_and_more_axes_never_take_less():
    net = network("v6e:16x16", data=32, model=8)
    for operation in ("all_gather", "psum_scatter", "psum", "all_to_all", "ppermute"):
        times = [net.seconds(operation, ("model",), n) for n in (0, MB, 10 * MB)]
        assert times == sorted(times) and times[0] > 0


@pytest.mark.parametrize(
    "text, sizes, axes",
    [
        ("v6e:16x16", {"data": 16, "model": 16}, ("model",)),
        ("v6e:8x8", {"data": 8, "model": 8}, ("model",)),
        ("v6e:16x16", {"data": 64, "model": 4}, ("model",)),
        ("v6e:16x16", {"a": 4, "b": 4, "c": 16}, ("a",)),
        ("v5p:4x4x4", {"data": 16, "model": 4}, ("data",)),
        ("v5p:4x4x4", {"data": 16, "model": 4}, ("data", "model")),
    ],
)
def test_all_to_all_is_the_load_of_the_busiest_link(text, sizes, axes):
    target, size = find_target(text), 64 * MB
    busiest = max(loads(target, sizes, axes, size).values())
    hops = sum(level.gather.hops for level in Network(target, sizes).axes(axes).levels)
    latency = hops * target.chip.link_latency
    expected = busiest / (target.chip.link_bandwidth * target.chip.link_efficiency) + latency
    assert Network(target, sizes).seconds("all_to_all", axes, size) == pytest.approx(
        expected, rel=0.03
    )


def loads(target, sizes, axes, size):
    """Bytes over each directed link when every device sends `size` / n to each of its group.

    They go along x first, the short way round.
    """
    order = [i for i, axis in enumerate(sizes) if axis not in axes] + [
        i for i, axis in enumerate(sizes) if axis in axes
    ]
    n = math.prod(sizes[axis] for axis in axes)
    groups = (
        device_coordinates(target, sizes).transpose(*order, len(order)).reshape(-1, n, 5)[..., 1:4]
    )
    shape, found = (*target.shape, 1)[:3], Counter()
    for group in groups:
        for a in group:
            for b in group:
                # Two ways round a ring are equally short from its middle: half goes each.
                for way in (0, 1):
                    at = list(a)
                    for d, joined in zip(range(3), (*target.wraps, False), strict=False):
                        step = direction(at[d], b[d], shape[d], joined, way)
                        while at[d] != b[d]:
                            found[tuple(at), d, step] += size / n / 2
                            at[d] = (at[d] + step) % shape[d]
    return found


def direction(a, b, n, joined, way):
    ahead = (b - a) % n
    if not joined:
        return int(np.sign(b - a))
    return 1 if 2 * ahead < n or (2 * ahead == n and way) else -1


def test_the_documentation_prints_what_it_says():
    page = pathlib.Path(__file__).parents[2] / "docs" / "hardware.md"
    code = re.search(r"```python\n(.*?)```", page.read_text(), re.DOTALL).group(1)
    found = doctest.DocTestRunner().run(
        doctest.DocTestParser().get_doctest(code, {}, page.name, None, 0)
    )
    assert found.attempted == 4 and not found.failed


@pytest.mark.parametrize(
    ("operation", "axes", "share"),
    [
        ("psum", ("replica", "data"), 2 / 2 / 16),
        ("psum", ("replica",), 2 / 2),
        ("psum", ("data",), 0),
        ("all_gather", ("replica", "data"), 1 / 2 / 16),
        ("psum_scatter", ("replica",), 1 / 2),
        ("all_to_all", ("replica", "data"), 1 / 2),
        ("ppermute", ("replica",), 1),
        ("slice", ("replica",), 0),
    ],
)
def test_of_a_collective_only_a_share_goes_between_slices(operation, axes, share):
    network = Network(find_target("v6e:4x4", slices=2), {"replica": 2, "data": 16})
    assert network.sent_between(operation, axes, 1024) == 1024 * share
