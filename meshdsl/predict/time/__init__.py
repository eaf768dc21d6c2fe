"""The time of one step: of its kernels, of its collectives, and of both side by side."""
