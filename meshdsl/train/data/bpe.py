"""Learns a tokenizer from text: a byte-pair encoding, which merges the most frequent neighbours.

Sennrich et al., 2016; on bytes as in GPT-2 (Radford et al., 2019).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from meshdsl.extras import extra
from meshdsl.train.data.documents import documents
from meshdsl.train.data.files import File
from meshdsl.train.data.tokenizer import ENDS

if TYPE_CHECKING:
    import tokenizers

SMALLEST_VOCAB = 257  # every byte, and the end of a document


def train_bpe(files: Iterable[File], field: str, vocab: int) -> tokenizers.Tokenizer:
    """A byte-level BPE of at most `vocab` tokens, learned from the documents in `files`.

    Args:
      field: as of `documents`.

    Raises:
      MeshDSLError: a file cannot be read.
    """
    with extra("train"):
        import tokenizers
        from tokenizers import decoders, models, pre_tokenizers, trainers
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[ENDS[0]],
        initial_alphabet=alphabet,
        show_progress=sys.stderr.isatty(),
    )
    blocks = (
        block.decode("utf-8", "replace")
        for file in files
        for document in documents(file, field)
        for block in document
    )
    tokenizer.train_from_iterator(blocks, trainer)
    return tokenizer
