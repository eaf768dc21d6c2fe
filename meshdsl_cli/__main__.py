"""`python -m meshdsl_cli` is the program `meshdsl`."""

from meshdsl_cli.program import start

start()
