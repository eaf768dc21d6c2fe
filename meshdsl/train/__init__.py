"""Training: configuration, data, the step, checkpoints, metrics and the loop that ties them."""
