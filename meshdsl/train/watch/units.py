"""The units of metrics, and losses converted to other units."""

from __future__ import annotations

import math

SPEED = "_per_second"  # ends the name of the metric that is the speed of training
# What a run may count its data in.
COUNTED = ("tokens", "images", "pairs", "examples")
# The unit of a loss, by what the run counts; of other losses it is not known.
_LOSSES = {"tokens": "nats per token"}
_OF_LOSS = ("loss", "cross_entropy", "validation_loss")
# The unit of each other metric. A run may measure more: whatever its loss function reports.
UNITS = {
    "step": "steps",
    "trained": "of all tokens",
    "bits_per_byte": "bits per byte",
    "gradient_norm": "1",
    "parameter_norm": "1",
    "learning_rate": "1",
    "loss_scale": "1",
    "skipped": "steps",
    **{each: each for each in COUNTED},
    **{f"{each}{SPEED}": f"{each}/s" for each in COUNTED},
    **{f"{each}{SPEED}_per_device": f"{each}/s" for each in COUNTED},
    "mfu_causal": "of peak FLOP/s",
    "mfu_full": "of peak FLOP/s",
    "seconds": "s",
    "input_seconds": "s",
    "step_seconds": "s",
    "validation_seconds": "s",
    "checkpoint_seconds": "s",
    "profile_seconds": "s",
    "memory_bytes": "bytes",
    "memory_peak_bytes": "bytes",
    "validation_bits_per_byte": "bits per byte",
    "validation_perplexity": "1",
}


def unit(metric: str, counted: str = "tokens") -> str:
    """The unit of a metric; empty where it has none or is not known.

    With several datasets `validation/NAME/loss` has the unit of `validation_loss`.

    Args:
      counted: what the run counts its data in, one of COUNTED.
    """
    before, _, last = metric.rpartition("/")
    name = f"validation_{last}" if before else metric
    found = _LOSSES.get(counted, "1") if name in _OF_LOSS else UNITS.get(name, "1")
    return "" if found == "1" else found


def bits_per_byte(loss: float, bytes_per_token: float = 1.0) -> float:
    """A loss in nats per token as bits per byte of text, to compare models across tokenizers."""
    return loss / math.log(2) / bytes_per_token


def perplexity(loss: float) -> float:
    """exp(loss), for a loss in nats per token; infinite where that is too large for a float."""
    if math.isnan(loss):
        return loss
    return math.exp(loss) if loss < 709 else math.inf
