"""The memory and the time of a recorded program on a machine, estimated without a compiler."""
