"""The commands, in the order in which the help lists them, each with its flags.

A file names the function that runs its command and does not import it: that would import JAX.
"""

from meshdsl_cli.commands.analysing import (
    COMPARE,
    COMPILE,
    EXPLAIN,
    LAYOUTS,
    MODELS,
    REHEARSE,
    SEARCH,
    VERIFY,
)
from meshdsl_cli.commands.measuring import CALIBRATE, DOCTOR
from meshdsl_cli.commands.running import EVALUATE, GENERATE, LAUNCH, TRAIN
from meshdsl_cli.commands.stored import CHECKPOINT, EXPORT, IMPORT, PLOT, TOKENIZER, TOP
from meshdsl_cli.commands.submitting import SUBMIT

COMMANDS = (
    *(TRAIN, GENERATE, EVALUATE, LAUNCH, SUBMIT, CHECKPOINT, IMPORT, EXPORT, TOKENIZER, PLOT, TOP),
    *(EXPLAIN, COMPILE, COMPARE, SEARCH, VERIFY, REHEARSE, CALIBRATE, DOCTOR, LAYOUTS, MODELS),
)
