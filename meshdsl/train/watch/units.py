"""The units of metrics, and losses converted to other units."""

from __future__ import annotations

import math

SPEED = "_per_second"  # ends the name of the metric that is the speed of training
# What a run may count its data in.
COUNTED = ("tokens", "images", "pairs", "examples")
# The unit of each metric. A run may measure more: whatever its loss function reports. Where images
# or something else is counted, these stand in the place of `tokens` in names and in units.
UNITS = {
    "step": "steps",
    "time": "s since 1970",
    "loss": "nats per token",
    "cross_entropy": "nats per token",
    "trained": "of all tokens",
    "bits_per_byte": "bits per byte",
    "gradient_norm": "1",
    "parameter_norm": "1",
    "learning_rate": "1",
    "loss_scale": "1",
    "skipped": "steps",
    "tokens": "tokens",
    "tokens_per_second": "tokens/s",
    "tokens_per_second_per_device": "tokens/s",
    "mfu_causal": "of peak FLOP/s",
    "mfu_full": "of peak FLOP/s",
    "seconds": "s",
    "input_seconds": "s",
    "step_seconds": "s",
    "wait_seconds": "s",
    "validation_seconds": "s",
    "checkpoint_seconds": "s",
    "profile_seconds": "s",
    "slow_processes": "processes",
    "memory_bytes": "bytes",
    "memory_peak_bytes": "bytes",
    "validation_loss": "nats per token",
    "validation_bits_per_byte": "bits per byte",
    "validation_perplexity": "1",
}


def unit(metric: str, counted: str = "tokens") -> str:
    """The unit of a metric; empty where it has none or is not known.

    With several datasets `validation/NAME/loss` has the unit of `validation_loss`.

    Args:
      counted: what the run counts its data in, one of COUNTED. Only where these are tokens is the
        unit of a loss known.
    """
    before, _, last = metric.rpartition("/")
    name = (f"validation_{last}" if before else metric).replace(counted, "tokens")
    found = UNITS.get(name, "1")
    if counted != "tokens" and found.startswith("nats"):
        found = "1"
    return "" if found == "1" else found.replace("tokens", counted)


def bits_per_byte(loss: float, bytes_per_token: float = 1.0) -> float:
    """A loss in nats per token as bits per byte of text, to compare models across tokenizers."""
    return loss / math.log(2) / bytes_per_token


def perplexity(loss: float) -> float:
    """exp(loss), for a loss in nats per token; infinite where that is too large for a float."""
    if math.isnan(loss):
        return loss
    return math.exp(loss) if loss < 709 else math.inf
