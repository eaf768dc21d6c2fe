"""meshdsl against the same model without it. Run from the top of the tree: `python -m benchmarks.trace_overhead`."""
