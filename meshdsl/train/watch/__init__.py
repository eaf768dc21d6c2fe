"""Watching a run: what each step measured, on disk, on the screen, in TensorBoard and Weights & Biases, and as curves."""

from meshdsl.train.watch.learning_rates import Facts
from meshdsl.train.watch.metrics_file import Record, read_records
from meshdsl.train.watch.units import bits_per_byte, perplexity
from meshdsl.train.watch.watch import Watch, check

__all__ = ["Facts", "Record", "Watch", "bits_per_byte", "check", "perplexity", "read_records"]
