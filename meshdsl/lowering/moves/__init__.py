"""The ways in which a rule brings a tensor to an op: one file each, see `move` and `table`."""
