"""`meshdsl models`: the published sizes that have a name."""

from __future__ import annotations

import argparse

from meshdsl.models.sizes import SIZES

_SHOWN = ("layers", "d_model", "heads", "kv_heads", "d_ff", "vocab", "length")


def list_models(arguments: argparse.Namespace) -> int:
    """Print a line for each size: its name, and the settings that it stands for."""
    for name, fields in SIZES.items():
        print(f"{name:12}  {' '.join(f'{key}={fields[key]}' for key in _SHOWN if key in fields)}")
    return 0
