"""The commands, in the order in which the help lists them: one file each, which declares its flags.

A file names the function that runs its command and does not import it: that would import JAX.
"""

from meshdsl_cli.commands import (
    checkpoint,
    compare,
    compile,
    evaluate,
    exchange,
    explain,
    generate,
    launch,
    layouts,
    models,
    plot,
    search,
    tokenizer,
    train,
)

COMMANDS = (
    train.COMMAND,
    generate.COMMAND,
    evaluate.COMMAND,
    launch.COMMAND,
    checkpoint.COMMAND,
    exchange.IMPORT,
    exchange.EXPORT,
    tokenizer.COMMAND,
    plot.COMMAND,
    explain.COMMAND,
    compile.COMMAND,
    compare.COMMAND,
    search.COMMAND,
    layouts.COMMAND,
    models.COMMAND,
)
