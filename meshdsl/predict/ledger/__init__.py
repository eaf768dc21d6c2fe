"""The ledger: measured time of a program beside its estimate, for each op, rule and line.

- `trace`: what the devices ran, read from a trace of JAX's profiler.
- `gpu_kernels`: the instruction of the program that each kernel of a GPU ran for.
- `self_time`: how long each instruction ran on a device, so that no moment counts twice.
- `owners`: the op of the record that each instruction of the compiled program belongs to.
- `ledger`: the entries, what the record did not foresee, and the sums, as plain data.
"""
