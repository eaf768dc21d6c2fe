"""The sizes that the benchmarks run, and the four ways to split them.

A layout here is the name of a shipped layout file. Every implementation knows what to do for each
of the four.
"""

import dataclasses

LAYOUTS = ("data", "fsdp", "tensor", "fsdp-sequence")


@dataclasses.dataclass(frozen=True)
class Case:
    """A stack of `layers` Llama-style blocks, and the batch that it is given."""

    layers: int
    d_model: int
    heads: int
    head_dim: int
    d_ff: int
    batch: int
    length: int
    dtype: str

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """The parameters of all layers, stacked along the first dim."""
        d, h, k, f = self.d_model, self.heads, self.head_dim, self.d_ff
        one = {
            "attention_norm": (d,),
            "q": (d, h, k),
            "k": (d, h, k),
            "v": (d, h, k),
            "o": (h, k, d),
            "mlp_norm": (d,),
            "gate": (d, f),
            "up": (d, f),
            "down": (f, d),
        }
        return {name: (self.layers, *shape) for name, shape in one.items()}

    def input_shape(self) -> tuple[int, ...]:
        return (self.batch, self.length, self.d_model)


# Every dim divides by 8, and is as small as it can be for a check against one device.
TINY = Case(layers=2, d_model=32, heads=8, head_dim=4, d_ff=64, batch=8, length=16, dtype="float32")
# A step takes 0.1 to 0.3 s on two cores.
CPU = Case(
    layers=4, d_model=256, heads=8, head_dim=32, d_ff=768, batch=16, length=64, dtype="float32"
)
# Compiled for 64 chips.
POD = Case(
    layers=8,
    d_model=8192,
    heads=64,
    head_dim=128,
    d_ff=28672,
    batch=64,
    length=4096,
    dtype="bfloat16",
)

# Sizes of the mesh axes (data, model).
CPU_MESHES = {"data": (8, 1), "fsdp": (8, 1), "tensor": (1, 8), "fsdp-sequence": (4, 2)}
POD_MESHES = {"data": (64, 1), "fsdp": (64, 1), "tensor": (1, 64), "fsdp-sequence": (16, 4)}
