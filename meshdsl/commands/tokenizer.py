"""`meshdsl tokenizer train`: a tokenizer from text."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from meshdsl.commands.output import check_files
from meshdsl.errors import MeshDSLError
from meshdsl.train.data.files import find_files, nothing_in
from meshdsl.train.data.tokenizer import SMALLEST_VOCAB, train_bpe


def train_tokenizer(arguments: argparse.Namespace) -> int:
    """Learn a byte-level BPE from files of text, and write it as a `tokenizer.json`.

    Raises:
      MeshDSLError: the vocabulary is too small, there is no text, or the file exists or cannot be
        written.
    """
    if arguments.vocab < SMALLEST_VOCAB:
        raise MeshDSLError(
            f"--vocab {arguments.vocab}: must be at least {SMALLEST_VOCAB}, which are every "
            "byte and the end of a document"
        )
    _check_out(arguments.out)
    files = find_files(arguments.paths, arguments.format)
    if not any(file.size for file in files):
        raise nothing_in(arguments.paths)
    for file in files:
        if file.format == "tokens":
            raise MeshDSLError(f"`{file.path}`: holds tokens; a tokenizer is made from text")
    start = time.perf_counter()
    tokenizer = train_bpe(files, arguments.field, arguments.vocab)
    _write(arguments.out, tokenizer.to_str(pretty=True))
    made, size = tokenizer.get_vocab_size(), sum(file.size for file in files) / 2**20
    seconds = time.perf_counter() - start
    print(f"{made:,} tokens from {size:,.1f} MiB of {len(files):,} files in {seconds:.1f} s")
    if made < arguments.vocab:
        print(f"the text has no pairs for more; --vocab asked for {arguments.vocab:,}")
    print(f"use it by data.tokenizer={arguments.out} model.vocab={made}")
    return 0


def _check_out(out: Path) -> None:
    """Refuse before the work a file that exists or could not be written after it."""
    if os.path.lexists(out):
        raise MeshDSLError(f"--out {out}: exists; choose another file")
    check_files(out)


def _write(out: Path, text: str) -> None:
    """Write `out` as a whole, or not at all."""
    partial = out.with_name(f"{out.name}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(out)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise MeshDSLError(f"--out {out}: cannot be written: {error.strerror}") from None
