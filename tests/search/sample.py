"""What a search may find, made by hand: no figure in it was measured."""

from meshdsl.layout import Layout
from meshdsl.layout_search.found import Candidate, Difference, Found, Judged
from meshdsl.predict.explanation import AxisView

GIB = 2**30


def judged(candidate, step, peak, **changes):
    """A candidate with figures that follow from its step and its peak."""
    sizes = candidate.layout.mesh
    axes = tuple(
        AxisView(name, size, 96, 4 * (i + 1) * GIB if size > 1 else 0, seconds=0.2 * (i + 1))
        for i, (name, size) in enumerate(sizes.items())
    )
    given = {"compute": step * 0.9, "exposed": step * 0.1, "axes": axes, "fits": True}
    return Judged(candidate, step, int(peak * GIB), **(given | changes))


FULL, NONE = (("model.remat", "full"),), (("model.remat", "none"),)
CONTEXT = Candidate(
    Layout(
        ["batch -> data", {"rule": "length -> context", "order": "zigzag"}],
        ["d_model -> data, context"],
        mesh={"data": 32, "context": 2},
        name="layout best",
    ),
    NONE,
)
TENSOR = Candidate(
    Layout(
        ["batch -> data", "heads, d_ff -> model", "length -> model"],
        ["d_model -> data"],
        mesh={"data": 16, "model": 4},
        gather="step",
    ),
    FULL,
)
FSDP = Candidate(
    Layout(["batch -> data"], ["d_model -> data"], mesh={"data": 64}, name="layout fsdp.toml"),
    FULL,
    shipped="fsdp",
)
BEST = judged(CONTEXT, 2.0, 39)
SMALL = judged(TENSOR, 2.026, 10.25)
SHIPPED = judged(FSDP, 2.2, 21)
REJECTED = judged(Candidate(FSDP.layout, NONE, "fsdp"), 1.9, 99, fits=False)
FOUND = Found(
    title="llama3-8b, batch 64 of length 8192",
    target="v5p:4x4x4",
    budget=int(95.74 * GIB),
    margin=0.1,
    best=BEST,
    second=SMALL,
    frontier=(SMALL, BEST),
    shipped=SHIPPED,
    differences=(
        Difference("length -> context", True, 0.15, 2 * GIB),
        Difference("mesh context=2", True, None, why="`length -> context` needs it"),
        Difference("model.remat=full", False, 0.05, -18 * GIB),
    ),
    rejected=(REJECTED,),
    explained=14,
    compiled=0,
    seconds=4.2,
)
