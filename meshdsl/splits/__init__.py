"""The algebra of splits: which collectives lead from one split to another. No arrays, no JAX."""
