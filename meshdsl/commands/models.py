"""`meshdsl models`: the published sizes that have a name."""

from __future__ import annotations

import argparse

from meshdsl.commands.settings import sizes


def list_models(arguments: argparse.Namespace) -> int:
    """Print a line for each size: its name, and the whole numbers that it stands for."""
    for _, name, settings in sizes():
        numbers = [f"{key}={value}" for key, value in settings.items() if isinstance(value, int)]
        if numbers:
            print(f"{name:16}  {' '.join(numbers)}")
    return 0
