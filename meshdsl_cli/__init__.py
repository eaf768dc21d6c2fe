"""The command line `meshdsl COMMAND`: what a user may type, and what `--help` says about it.

`import meshdsl` imports JAX, which takes a second. This package imports nothing but the standard
library, so that help and mistakes in flags are answered at once. Once a command line has been
understood, the function that its command names is loaded from `meshdsl.commands` and runs.

    commands/   one file per command: its flags, each with its help, and the function that runs it
    flags.py    flags that several commands have
    declare.py  what a declaration consists of
    parser.py   from the words of a command line to a command, its flags and its settings
    program.py  the program itself, which Ctrl-C ends at any moment

To add a flag, add it to the file of its command; its value is `arguments.NAME` in the function.
"""

from meshdsl_cli.program import main, start

__all__ = ["main", "start"]
