"""Attention as one op, `attention.py`, and the kernels that it may run by."""
