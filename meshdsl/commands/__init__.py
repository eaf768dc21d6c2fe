"""What the commands do. Their flags are declared in `meshdsl_cli.commands`.

The function of a command takes the values of its flags, `arguments.steps`, and the settings,
`arguments.settings`, and returns the exit code.
"""
