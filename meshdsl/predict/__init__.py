"""The memory and the time of a program on a machine: estimated, by a real compiler, or measured.

- `explain`: the estimate, from a recorded program to an `Explanation`.
- `kernels`: from the jaxpr to what a compiler launches as one.
- `memory`, `time`: of the kernels.
- `compiler`: what a real compiler makes of the program.
- `ledger`: measured time, beside the estimate.
"""
