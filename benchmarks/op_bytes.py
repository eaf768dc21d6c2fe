"""What ops along a split dim move, beside the least that any program could move.

    python -m benchmarks.op_bytes

One dim of 64 is split over 8 CPU devices, in 8 rows of float32. Bytes are read off the compiled
program. A device receives all of a ppermute, and of other collectives their usual share: a gather
or an exchange over k devices brings (k - 1) / k of its result. The bound is what the busiest device
must receive or send.
"""

import jax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)

import numpy as np  # noqa: E402

import meshdsl as md  # noqa: E402
from meshdsl.predict.compiler.collectives import from_hlo  # noqa: E402

from .measure import show  # noqa: E402

ROWS, LONG = md.Dim("rows", 8), md.Dim("long", 64)
PARTS, BLOCK, ROW = 8, 8, 8 * 4  # a row is what all 8 rows hold of one element of `long`, in bytes
OTHERS = PARTS - 1
V = md.Dim("v", 32)
HIGH, WIDE, IN, OUT = (
    md.Dim("high", 64),
    md.Dim("wide", 64),
    md.Dim("channels", 3),
    md.Dim("features", 5),
)
TAPS = md.Dim("taps_high", 5), md.Dim("taps_wide", 5)


def halves(x):
    return md.reshape(x, (ROWS, md.Dim("outer", 16), md.Dim("inner", 4)))


def inner_first(x):
    """A merge of dims of which the inner one is split, to a dim that is split.

    Almost every element moves to another device.
    """
    return md.reshape(md.rename(x, ROWS, "outside"), (md.Dim("merged", x.size),))


LINE = md.Layout(["long -> p"], mesh={"p": PARTS})
ALIKE = md.Layout(["long, v -> p"], mesh={"p": PARTS})
MERGED = md.Layout(["merged -> p", "long -> p"], mesh={"p": PARTS})
AREA = md.Layout(["high -> p", "wide -> q"], mesh={"p": 4, "q": 2})
# op: function, layout, least bytes to receive, and why more is moved where it is
CASES = {
    "shift by 3": (lambda x: md.shift(x, LONG, 3), LINE, 3 * ROW, ""),
    "roll by 3": (lambda x: md.roll(x, LONG, 3), LINE, 3 * ROW, ""),
    "roll by 11": (lambda x: md.roll(x, LONG, 11), LINE, BLOCK * ROW, ""),
    "flip": (lambda x: md.flip(x, LONG), LINE, BLOCK * ROW, ""),
    "slice of 32 from 5, split alike": (
        lambda x: md.slice(x, LONG, 5, V), ALIKE, BLOCK * ROW, ""),
    "pad by 32 on both sides": (
        lambda x: md.pad(x, LONG, 32, 32, out=md.Dim("v", 128)), ALIKE, 2 * BLOCK * ROW, ""),
    "concat of two": (
        lambda x: md.concat([x, x], LONG, out=md.Dim("v", 128)), ALIKE, 2 * BLOCK * ROW, ""),
    "cumsum": (
        lambda x: md.cumsum(x, LONG), LINE, ROW,
        "all totals are gathered in one step; "
        "the prefix alone takes log2(p) steps one after another"),
    "top_k of 4": (
        lambda x: md.top_k(x, LONG, md.Dim("v", 4)), LINE, 2 * 4 * ROW,
        "the candidates of all parts are merged at once; in pairs it would take log2(p) steps"),
    "sort": (lambda x: md.sort(x, LONG), LINE, BLOCK * ROW * OTHERS // PARTS,
        "rows are exchanged for whole ones, sorted, and exchanged back"),
    "reshape, the split stays": (halves, md.Layout(["long, outer -> p"], mesh={"p": PARTS}), 0, ""),
    "reshape, the split moves": (inner_first, MERGED, OTHERS * BLOCK * ROW // PARTS, ""),
}  # fmt: skip


def received(compiled, mesh) -> int:
    """Bytes that a device receives from others in one call."""
    total = 0
    for c in from_hlo(compiled.as_text(), mesh):
        devices = int(np.prod([mesh.shape[a] for a in c.axes]))
        share = {"ppermute": 1.0, "psum": 2 * (devices - 1) / devices}.get(
            c.operation, (devices - 1) / devices
        )
        total += round(c.total_bytes * share)
    return total


def measured(fn, layout, *args) -> int:
    """Bytes that a device receives in one call of `fn` under `layout`."""
    lowered = md.lower(fn, layout)
    return received(lowered.lower(*args).compile(), lowered.mesh)


def main() -> None:
    x = md.tensor(np.zeros((ROWS.size, LONG.size), np.float32), (ROWS, LONG))
    rows = [("op", "received, bytes", "least", "")]
    for name, (fn, layout, least, why) in CASES.items():
        rows.append((name, f"{measured(fn, layout, x):,}", f"{least:,}", why))
    image = md.tensor(np.zeros((64, 64, 3), np.float32), (HIGH, WIDE, IN))
    kernel = md.tensor(np.zeros((5, 5, 3, 5), np.float32), (*TAPS, IN, OUT))
    conv = lambda x, w: md.conv(x, w, {HIGH: TAPS[0], WIDE: TAPS[1]}, out=(..., OUT))
    # Two rows above and below, two columns on the one side where there is a neighbour.
    halo = ((16 + 4) * (32 + 2) - 16 * 32) * 3 * 4
    rows.append(
        (
            "conv 5 x 5, space over 4 x 2",
            f"{measured(conv, AREA, image, kernel):,}",
            f"{halo:,}",
            "",
        )
    )
    show(rows)


if __name__ == "__main__":
    main()
