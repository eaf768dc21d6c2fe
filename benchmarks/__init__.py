"""Benchmarks: meshdsl beside the same model without it.

Run one from the top of the tree: `python -m benchmarks.trace_overhead`.
"""
