"""Keeps compiled programs in a folder, because compiling one for a pod takes a minute."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax


def compiled(
    kept: Path | None, lower: Callable[[], Any], options: Mapping[str, str]
) -> dict[str, Any]:
    """What the compiler says of the program that `lower` makes.

    Args:
      kept: a path without suffix. If the answer for these options is there it is read, else it
        is written there.
      options: of the compiler.

    Returns:
      `arguments`, `temporaries` and `peak` in bytes and the `text` of the program, or `error`; and
      the `seconds` that compiling took.
    """
    if kept and kept.with_suffix(".json").exists():
        found = json.loads(kept.with_suffix(".json").read_text())
        if found.get("options", {}) == dict(options):
            text = kept.with_suffix(".txt").read_text()
            return found | ({"text": text} if text else {})
    lowered = lower()
    start = time.perf_counter()
    try:
        executable = lowered.compile(compiler_options=dict(options) or None)
    except jax.errors.JaxRuntimeError as error:  # a program that doesn't fit is refused
        found, text = {"error": " ".join(str(error).split())[:200]}, ""
    else:
        m, text = executable.memory_analysis(), executable.as_text()
        found = {
            "arguments": m.argument_size_in_bytes,
            "temporaries": m.temp_size_in_bytes,
            "peak": m.peak_memory_in_bytes,
        }
    found |= {"seconds": time.perf_counter() - start, "options": dict(options)}
    if kept:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.with_suffix(".txt").write_text(text)
        kept.with_suffix(".json").write_text(json.dumps(found))
    return found | ({"text": text} if text else {})
