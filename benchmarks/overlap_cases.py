"""What `benchmarks.overlap` compiles: meshes, collectives and sets of compiler options."""

from __future__ import annotations

from dataclasses import dataclass, replace

from meshdsl.machine import Chip, Target, find_target

Axes = tuple[str, ...]
Options = dict[str, str]

COLLECTIVES = ("all_gather", "psum_scatter", "psum", "all_to_all", "ppermute")


@dataclass(frozen=True)
class Case:
    """A mesh on a slice, and the axes that collectives go over."""

    shape: str
    mesh: dict[str, int]
    over: tuple[Axes, ...]

    @property
    def whole(self) -> bool:
        """Whether one axis is the whole slice."""
        return len(self.mesh) == 1

    @property
    def stages(self) -> list[tuple[str, Axes]]:
        """The collectives of the program, each with its axes."""
        return [(operation, axes) for axes in self.over for operation in COLLECTIVES]

    def target(self, chip: Chip) -> Target:
        """The machine, of a chip that may differ from that of the table."""
        return replace(find_target(f"{chip.name}:{self.shape}"), chip=chip)


A, B, AB = ("a",), ("b",), ("a", "b")
_TORUS_OF_2 = (
    Case("4x4", {"a": 16}, (A,)),
    Case("4x8", {"a": 32}, (A,)),
    Case("16x16", {"a": 256}, (A,)),
    Case("4x8", {"a": 8, "b": 4}, (A, B, AB)),
    Case("16x16", {"a": 16, "b": 16}, (A, AB)),
    Case("16x16", {"a": 64, "b": 4}, (A, B)),
    Case("4x4", {"a": 4, "b": 2, "c": 2}, (B, ("c",), AB)),
    Case("2x2", {"a": 2, "b": 2}, (A,)),
)
_TORUS_OF_3 = (
    Case("4x4x4", {"a": 64}, (A,)),
    Case("2x2x4", {"a": 16}, (A,)),
    Case("2x2x1", {"a": 4}, (A,)),
    Case("4x4x4", {"a": 16, "b": 4}, (A, B, AB)),
    Case("4x4x4", {"a": 8, "b": 8}, (A, B)),
    Case("4x4x4", {"a": 32, "b": 2}, (A, B)),
    Case("2x2x4", {"a": 4, "b": 4}, (A, B, AB)),
)
CASES = {
    "v4": _TORUS_OF_3,
    "v5e": _TORUS_OF_2,
    "v5p": _TORUS_OF_3,
    "v6e": _TORUS_OF_2,
    "tpu7x": (
        Case("4x4x4", {"a": 128}, (A,)),
        Case("2x2x4", {"a": 32}, (A,)),
        Case("2x2x1", {"a": 8}, (A,)),
        Case("2x2x2", {"a": 8, "b": 2}, (A, B)),
        Case("4x4x4", {"a": 16, "b": 8}, (A, B)),
        Case("2x2x2", {"a": 4, "b": 4}, (A, B, AB)),
    ),
}


def _on(*names: str) -> Options:
    return dict.fromkeys((f"xla_{name}" for name in names), "True")


_OFFLOAD = "tpu_enable_sparse_core_collective_offload"
# Options that belong together, each group with what it is for. MaxText, MaxDiffusion and
# tpu-recipes of AI-Hypercomputer publish nearly all of them, for one chip or another.
GROUPS: dict[str, tuple[str, Options]] = {
    "exchange": (
        "An all_to_all runs while the device computes.",
        _on("tpu_enable_async_all_to_all"),
    ),
    "fuse": (
        "Sums are spread over the products that run meanwhile.",
        _on(
            "enable_async_all_reduce",
            "tpu_enable_async_collective_fusion_fuse_all_reduce",
            "tpu_async_collective_fusion_fuse_multiple_collectives",
        ),
    ),
    "spread": (
        "Gathers are spread over the products that run meanwhile.",
        _on(
            "enable_async_all_gather",
            "tpu_enable_async_collective_fusion",
            "tpu_enable_async_collective_fusion_fuse_all_gather",
        ),
    ),
    "offload": (
        "The sparse cores carry collectives; by default the matrix units wait for them.",
        _on(*(f"{_OFFLOAD}_{what}" for what in ("all_gather", "reduce_scatter", "all_reduce"))),
    ),
    "2d": ("Gathers over two dims of the torus, too.", _on(f"{_OFFLOAD}_2d_all_gather")),
    "3d": ("Gathers over three dims, too.", _on(f"{_OFFLOAD}_3d_all_gather")),
    "gathers": (
        "A gather over a whole slice stays one; it is no sum of buffers filled with zeros.",
        _on("tpu_prefer_async_allgather_to_allreduce"),
    ),
    "nd": (
        "Scatters over two dims use all links of both.",
        _on(f"{_OFFLOAD}_nd_reduce_scatter"),
    ),
    "tiles32": (
        "A fused kernel may take 32 MiB of fast memory, and products have wider tiles.",
        {"xla_tpu_scoped_vmem_limit_kib": "32768"},
    ),
    "tiles60": (
        "A fused kernel may take 60 of the 64 MiB of fast memory, and products have wider tiles.",
        {"xla_tpu_scoped_vmem_limit_kib": "61440"},
    ),
    "tiles96": (
        "A fused kernel may take 96 of the 128 MiB of fast memory, and products have wider tiles.",
        {"xla_tpu_scoped_vmem_limit_kib": "98304"},
    ),
    "recipes": (
        "What tpu-recipes of AI-Hypercomputer adds for a tpu7x.",
        _on(
            "tpu_enable_sparse_core_reduce_scatter_v2",
            "tpu_enable_sparse_core_collective_aggregator",
            "tpu_enable_sparse_core_offload_queuing_in_lhs",
            "tpu_enable_concurrent_sparse_core_offloading",
            "tpu_use_single_sparse_core_for_all_gather_offload",
            "tpu_enable_latency_hiding_layer_scheduler",
            "tpu_enable_layer_scheduler_for_dependent_collectives",
        )
        | {
            "xla_tpu_enable_async_collective_fusion_fuse_all_gather": "False",
            "xla_tpu_sparse_core_all_gather_latency_multiplier": "1",
            "xla_tpu_sparse_core_reduce_scatter_latency_multiplier": "3",
        },
    ),
}
# A v5e has no sparse cores, and those of a v4 carry no collectives.
_BASIC = ("", "exchange", "fuse")
_OVER_3_DIMS = ("exchange offload 2d 3d gathers", "exchange offload 2d 3d gathers nd")
SETS = {
    "v4": (*_BASIC, "exchange spread", "exchange spread gathers"),
    "v5e": (*_BASIC, "fuse gathers"),
    "v5p": (
        *("", "exchange fuse", "offload 2d 3d gathers", "exchange offload"),
        *("exchange offload 2d", *_OVER_3_DIMS, f"{_OVER_3_DIMS[-1]} recipes"),
        *(f"{names} tiles32" for names in _OVER_3_DIMS),
    ),
    "v6e": (
        *("", "exchange fuse", "offload 2d", "exchange offload 2d"),
        *("exchange offload 2d nd", "exchange offload 2d gathers nd"),
        "exchange offload 2d gathers nd tiles96",
    ),
    "tpu7x": ("", "exchange", *_OVER_3_DIMS, *(f"{names} tiles60" for names in _OVER_3_DIMS)),
}


def options_of(names: str) -> Options:
    """The options of a set, which names groups."""
    return {key: value for name in names.split() for key, value in GROUPS[name][1].items()}
