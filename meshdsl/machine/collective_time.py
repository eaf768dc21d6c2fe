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

from meshdsl.machine.axis_network import Level

# Of collectives that leave to each device its own part of an array at each level: how the level is
# used (`Level`), and how many times.
_IN_PARTS = {
    "all_gather": ("gather", 1),
    "psum_scatter": ("scatter", 1),
    "psum": ("sum", 2),
    "pmax": ("sum", 2),
    "pmin": ("sum", 2),
}


def seconds(operation: str, levels: tuple[Level, ...], bytes: float, efficiency: float) -> float:
    """Seconds of one collective alone on its links; 0 for what moves nothing, such as `slice`.

    Args:
      operation: as in `Collective.operation`.
      levels: of the network of its devices, inner first.
      bytes: the larger of operand and result on one device.
      efficiency: the share of the bandwidth that collectives reach.
    """
    if operation == "ppermute":
        one_way = [
            bytes / (level.one_way * efficiency) + level.step_hops * level.latency
            for level in levels
        ]
        return max(one_way, default=0.0)
    total = 0.0
    for level in levels:
        if operation == "all_to_all":
            total += _all_to_all(level, bytes) / efficiency + level.sum.hops * level.latency
        elif operation in _IN_PARTS:
            kind, times = _IN_PARTS[operation]
            bandwidth, hops = getattr(level, kind)
            moved = bytes * (level.size - 1) / level.size
            total += times * (moved / (bandwidth * efficiency) + hops * level.latency)
            bytes /= level.size
    return total


def _all_to_all(level: Level, bytes: float) -> float:
    """Seconds of an all_to_all at a level, if it reached the whole bandwidth."""
    if level.kind != "torus":
        return bytes * (level.size - 1) / level.size / level.sum.bandwidth
    whole = level.size / level.sum.bandwidth
    return bytes / 4 * max((p.size / p.bandwidth for p in level.parts), default=whole)


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
        if level.kind != "scale-out":
            inside *= level.size
        elif operation == "ppermute":
            return bytes
        else:
            share = (level.size - 1) / level.size
            if operation == "all_to_all":
                return bytes * share
            _, times = _IN_PARTS.get(operation, ("", 0))
            return bytes * (times * share / inside)
    return 0.0
