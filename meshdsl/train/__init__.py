"""Training: from a configuration to a trained model in a folder.

`config` declares the settings. `training_run` checks everything and starts the run, `training_loop`
takes its steps, `job` makes the step of a configuration from `step`, and `data`, `checkpoints` and
`watch` are what is read, saved and measured.
"""
