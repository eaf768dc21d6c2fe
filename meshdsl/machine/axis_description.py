"""How a mesh axis lies on the machine, described in words."""

from __future__ import annotations

from meshdsl.machine.axis_network import AxisNetwork, Level, TorusPart
from meshdsl.machine.target import Target


def describe(axis: AxisNetwork, target: Target) -> str:
    """Describes each level of `axis`, the inner ones first.

    An example is `ring of 16 along x of the torus, 2 links, 180 GB/s both ways`.
    """
    if axis.size == 1:
        return "one device"
    if target.chip.kind == "cpu":
        return f"{axis.size} virtual devices of one machine"
    return "; then ".join(_level(level, target) for level in axis.levels)


def _level(level: Level, target: Target) -> str:
    rate = f"{level.sum.bandwidth / 1e9:.4g} GB/s"
    if level.kind == "cores":
        return f"the {level.size} devices of a chip, {rate} one way"
    if level.kind == "switch":
        return f"{level.size} GPUs of a node, NVLink, {rate} one way"
    if level.kind == "scale-out":
        over, what = (
            ("the data-centre network", "slices")
            if target.chip.kind == "tpu"
            else ("InfiniBand", "nodes")
        )
        return f"{level.size} {what}, {over}, {rate} one way"
    if not level.parts:
        return (
            f"{level.size} chips that fill no block of the torus, "
            f"up to {level.step_hops} hops apart, {rate}"
        )
    links = f"{level.links} link{'s' * (level.links > 1)}"
    ways = " both ways" if level.ring else ""
    return f"{_block(level, target)}, {links}, {rate}{ways}{_slower(level)}"


def _block(level: Level, target: Target) -> str:
    """The chips of a level that fills a block of the torus: `4 by 4, rings along y and z ...`."""
    along = [_along(p, target) for p in level.parts]
    kinds = ["ring" if p.ring else "line" for p in level.parts]
    sizes = " by ".join(str(p.size) for p in level.parts)
    if len(along) == 1:
        return f"{kinds[0]} of {sizes} along {along[0]} of the torus"
    if level.one_ring:
        return f"one ring through {sizes} chips along {_list(along)} of the torus"
    if len(set(kinds)) == 1:
        return f"{sizes}, {kinds[0]}s along {_list(along)} of the torus"
    each = [f"a {kind} along {dim}" for kind, dim in zip(kinds, along, strict=True)]
    return f"{sizes}, {_list(each)} of the torus"


def _slower(level: Level) -> str:
    """What gathers and scatters reach, in brackets, where that is less than what sums reach."""
    rates: dict[float, list[str]] = {}
    for what, route in (("gathers", level.gather), ("scatters", level.scatter)):
        if route.bandwidth < level.sum.bandwidth:
            rates.setdefault(route.bandwidth, []).append(what)
    if not rates:
        return ""
    said = [f"{' and '.join(what)} {rate / 1e9:.4g} GB/s" for rate, what in rates.items()]
    return f" ({', '.join(said)})"


def _along(part: TorusPart, target: Target) -> str:
    """The dim of the torus, and in brackets what makes the part less than a ring of its own."""
    wraps = target.wraps["xyz".index(part.dim)]
    notes = [f"{part.size} of its {part.of} chips"] if part.size < part.of else []
    if part.step > 1:
        notes.append(f"one in {part.step}, 1/{part.step} of the bandwidth")
    if not part.ring:
        notes.append("no ring, half the bandwidth" if wraps else "no wrap-around")
    return part.dim + (f" ({', '.join(notes)})" if notes else "")


def _list(items: list[str]) -> str:
    return f"{', '.join(items[:-1])} and {items[-1]}"
