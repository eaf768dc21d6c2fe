"""Watching a run: what each step measured, on disk, on the screen, elsewhere, and as curves."""

from meshdsl.train.watch.metrics_file import StepMetrics, read_metrics
from meshdsl.train.watch.units import bits_per_byte, perplexity
from meshdsl.train.watch.watch import Facts, Watch, check

__all__ = [
    "Facts",
    "StepMetrics",
    "Watch",
    "bits_per_byte",
    "check",
    "perplexity",
    "read_metrics",
]
