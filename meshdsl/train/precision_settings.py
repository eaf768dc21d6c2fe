"""The settings of a run's precision, the table `[precision]`.

`docs/precision.md` says what each does. The settings beside these stand in `meshdsl.train.config`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from meshdsl.errors import MeshDSLError
from meshdsl.fields import chosen
from meshdsl.train.few_bits import (
    ALWAYS_WIDE,
    CHANNEL,
    COMPUTE,
    NEAREST,
    STOCHASTIC,
    check_formats,
)

FLOATS = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Precision:
    """In which dtypes a step works.

    Attributes:
      params: dtype of parameters at rest.
      frozen: dtype at rest of parameters that are not trained; `params`: that of the others.
      compute: dtype of activations, and of parameters where they are used and gathered.
      reduce: dtype of gradients where they are summed over devices.
      output: dtype of the logits that the loss is computed from.
      optimizer: dtype of the optimizer's state.
      loss_scale: what the loss is multiplied by before gradients are taken, for float16: `none`,
        `dynamic`, or a number above 0.
      stochastic_rounding: whether parameters in bfloat16 are rounded up or down at random, by how
        near each is.
      matmul: the format in which matrices are multiplied: `compute`, the dtype of activations,
        `int8`, `fp8`, `mxfp8`, `nvfp4`, or `auto`, what the chip multiplies fastest; or a table of
        formats by patterns of their names, of which the last one that matches a name counts.
      scales: how what is multiplied in few bits gets its scales: `channel`, by the largest element
        of each row and column, `block=N`, by that of each N of their elements, or `static=N`, of
        which the largest is taken to be N.
      gradient_rounding: how gradients are rounded to few bits, in the products of the backward
        pass; `stochastic` is up or down at random, by how near each is.
      except_: patterns of the names of matrices that `matmul` leaves as they are.
      wire: by axes of the mesh, the formats in which gradients are sent where they are summed over
        these: `int8`, `fp8`, `bfloat16`, or one that `md.register_wire` added. Such sums are
        rounded, and the run depends on the size of the axis.
      feedback: whether what such a sum drops of a gradient is added to that of the next step.
    """

    params: str = chosen("float32", ("float32", "bfloat16"))
    frozen: str = chosen("params", ("params", "float32", "bfloat16"))
    compute: str = chosen("float32", FLOATS)
    reduce: str = chosen("float32", FLOATS)
    output: str = chosen("float32", FLOATS)
    optimizer: str = chosen("float32", ("float32", "bfloat16"))
    loss_scale: str | float = "none"
    stochastic_rounding: bool = False
    matmul: str | dict = COMPUTE
    scales: str = CHANNEL
    gradient_rounding: str = chosen(NEAREST, (NEAREST, STOCHASTIC))
    except_: tuple[str, ...] = ALWAYS_WIDE
    wire: dict = field(default_factory=dict, hash=False)
    feedback: bool = False

    def __post_init__(self) -> None:
        if self.loss_scale not in ("none", "dynamic") and not _positive(self.loss_scale):
            raise MeshDSLError(
                f"precision.loss_scale={self.loss_scale}: "
                "expected none, dynamic, or a number above 0"
            )
        if self.stochastic_rounding and self.params != "bfloat16":
            raise MeshDSLError("precision.stochastic_rounding: is for precision.params=bfloat16")
        check_formats(self.matmul, self.scales, self.gradient_rounding)
        if self.feedback and not self.wire:
            raise MeshDSLError("precision.feedback: is for precision.wire")


def _positive(text: str | float) -> bool:
    """Whether `text` is a number above 0, or spells one."""
    try:
        return 0 < float(text) < math.inf
    except ValueError:
        return False
