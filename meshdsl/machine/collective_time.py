"""How long a collective takes on the levels of network that its devices lie on.

Times follow the alpha-beta model: the latency of the hops, plus the bytes over the bandwidth. The
algorithms are those of "How to Scale Your Model", chapter Sharded Matrices
(https://jax-ml.github.io/scaling-book/sharding). With n devices, V the bytes of the whole array
that is gathered or reduced, B the bytes on one device, and W the bandwidth of a level, both ways of
the links that are used:

    all_gather, psum_scatter   V (n - 1) / n / W
    psum, pmax, pmin           2 V (n - 1) / n / W
    all_to_all                 B n / (4 W) on a torus, n and W of the dim where it is longest
                               B (n - 1) / n / W through a switch
    ppermute                   B / W one way

Over several levels the outer ones work on what the inner ones leave for them: each device moves its
own part. The hops through a switch are those of recursive doubling (Thakur, Rabenseifner and Gropp,
2005: "Optimization of Collective Communication Operations in MPICH").
"""

from __future__ import annotations

from collections.abc import Callable

from meshdsl.machine.axis_network import Level


def seconds(operation: str, levels: tuple[Level, ...], bytes: float, efficiency: float) -> float:
    """Seconds of one collective alone on its links; 0 for what moves nothing, such as `slice`.

    Args:
      operation: as in `Collective.operation`.
      levels: of the network of its devices, inner first.
      bytes: the larger of operand and result on one device.
      efficiency: the share of the bandwidth that collectives reach.
    """
    formula = _FORMULAS.get(operation)
    return formula(levels, bytes, efficiency) if formula else 0.0


def sent_between(operation: str, levels: tuple[Level, ...], bytes: float) -> float:
    """Bytes that each device sends from its slice or node to others, in one collective.

    What is summed or gathered within a slice first goes between slices in parts: with 16 devices in
    each of 2 slices a sum of B bytes sends 2 (B / 16) / 2. TPU compilers do so with one sum over
    both axes (seen in programs that libtpu 0.0.42.1 compiled for two slices of v5e:2x4), and NCCL
    does.

    Args:
      operation, levels, bytes: as in `seconds`.
    """
    inside = 1
    for level in levels:
        if level.kind == "scale-out":
            share = (level.size - 1) / level.size
            return bytes * {
                "all_gather": share / inside,
                "psum_scatter": share / inside,
                "psum": 2 * share / inside,
                "pmax": 2 * share / inside,
                "pmin": 2 * share / inside,
                "all_to_all": share,
                "ppermute": 1.0,
            }.get(operation, 0.0)
        inside *= level.size
    return 0.0


def _gather(levels: tuple[Level, ...], bytes: float, efficiency: float) -> float:
    total = 0.0
    for level in levels:
        total += (
            bytes * (level.size - 1) / level.size / (level.gather_bandwidth * efficiency)
            + level.gather_hops * level.latency
        )
        bytes /= level.size
    return total


def _scatter(levels: tuple[Level, ...], bytes: float, efficiency: float) -> float:
    total = 0.0
    for level in levels:
        total += (
            bytes * (level.size - 1) / level.size / (level.scatter_bandwidth * efficiency)
            + level.scatter_hops * level.latency
        )
        bytes /= level.size
    return total


def _reduce(levels: tuple[Level, ...], bytes: float, efficiency: float) -> float:
    total = 0.0
    for level in levels:
        total += 2 * (
            bytes * (level.size - 1) / level.size / (level.bandwidth * efficiency)
            + level.hops * level.latency
        )
        bytes /= level.size
    return total


def _all_to_all(levels: tuple[Level, ...], bytes: float, efficiency: float) -> float:
    total = 0.0
    for level in levels:
        if level.kind == "torus":
            whole = level.size / level.bandwidth
            longest = max((p.size / p.bandwidth for p in level.parts), default=whole)
            on_links = bytes / 4 * longest
        else:
            on_links = bytes * (level.size - 1) / level.size / level.bandwidth
        total += on_links / efficiency + level.hops * level.latency
    return total


def _permute(levels: tuple[Level, ...], bytes: float, efficiency: float) -> float:
    return max(
        (
            bytes / (level.one_way * efficiency) + level.step_hops * level.latency
            for level in levels
        ),
        default=0.0,
    )


_FORMULAS: dict[str, Callable[[tuple[Level, ...], float, float], float]] = {
    "all_gather": _gather,
    "psum_scatter": _scatter,
    "psum": _reduce,
    "pmax": _reduce,
    "pmin": _reduce,
    "all_to_all": _all_to_all,
    "ppermute": _permute,
}
