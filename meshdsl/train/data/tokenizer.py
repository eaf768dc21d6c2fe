"""Tokenizers, from text to token ids and back: bytes, or a `tokenizer.json` of Hugging Face.

One is learned from text as a byte-pair encoding, which merges the most frequent neighbours
(Sennrich et al., 2016), of bytes as in GPT-2 (Radford et al., 2019).
"""

from __future__ import annotations

import codecs
import hashlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from meshdsl.errors import MeshDSLError, system_errors_say
from meshdsl.extras import extra
from meshdsl.train.config import Config
from meshdsl.train.data.documents import documents
from meshdsl.train.data.files import File

if TYPE_CHECKING:
    import tokenizers

# How published tokenizers spell the token that ends a document, most specific first.
ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]", "<|end|>", "[SEP]")
SMALLEST_VOCAB = 257  # of a tokenizer that is learned: every byte, and the end of a document


class Stream(Protocol):
    """Turns token ids into text as they come: one call for each id gives the text that is complete.

    A character may be made of several tokens; the call with the last one gives it.
    """

    def __call__(self, token: int) -> str: ...

    def rest(self) -> str:
        """The text of the tokens at the end that make no complete character."""
        ...


class Tokenizer(Protocol):
    """Turns text into token ids, and ids into text.

    Attributes:
      name: as it is written in the settings.
      vocab: every id is less than this.
      separator: the id that ends a document; no text is turned into it.
      digest: a hash of everything that decides which ids a text is turned into.
    """

    name: str
    vocab: int
    separator: int
    digest: str

    def encode(self, text: str) -> np.ndarray:
        """The ids of a text."""
        ...

    def encode_blocks(self, blocks: Sequence[bytes]) -> Iterable[np.ndarray]:
        """The ids of each block of UTF-8, in order."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """The text of some ids; what is no text, or not UTF-8, becomes U+FFFD or is left out."""
        ...

    def stream(self) -> Stream:
        """Begin to decode ids that come one after the other."""
        ...


def load_tokenizer(name: str) -> Tokenizer:
    """The tokenizer that the setting `data.tokenizer` names.

    Args:
      name: `bytes`, or the path of a `tokenizer.json` or of a folder with one.

    Raises:
      MeshDSLError: the file is missing or no tokenizer, or has no token that ends a document.
    """
    return Bytes() if name == "bytes" else FileTokenizer(name)


def fitting_tokenizer(config: Config) -> Tokenizer:
    """The tokenizer of a run.

    Raises:
      MeshDSLError: it cannot be read, or has more tokens than the model, if that has a setting
        `vocab`.
    """
    tokenizer, vocab = load_tokenizer(config.data.tokenizer), getattr(config.model, "vocab", None)
    if vocab is not None and tokenizer.vocab > vocab:
        raise MeshDSLError(
            f"data.tokenizer: `{tokenizer.name}` has {tokenizer.vocab:,} tokens, more than "
            f"model.vocab={vocab}; set model.vocab={tokenizer.vocab}"
        )
    return tokenizer


class Bytes:
    """The tokenizer in which every byte of UTF-8 is a token; the separator is 0."""

    name, vocab, separator, digest = "bytes", 256, 0, "bytes"

    def encode(self, text: str) -> np.ndarray:
        return np.frombuffer(text.encode("utf-8", "replace"), np.uint8)

    def encode_blocks(self, blocks: Sequence[bytes]) -> Iterable[np.ndarray]:
        return (np.frombuffer(block, np.uint8) for block in blocks)

    def decode(self, ids: Iterable[int]) -> str:
        stream = self.stream()
        return "".join(map(stream, ids)) + stream.rest()

    def stream(self) -> Stream:
        return _BytesStream()


class _BytesStream:
    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def __call__(self, token: int) -> str:
        # A model may have more ids than there are bytes; those stand for no text.
        return self._decoder.decode(bytes([token])) if token < 256 else self.rest() + "\ufffd"

    def rest(self) -> str:
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text


class FileTokenizer:
    """A tokenizer of Hugging Face, from its `tokenizer.json`.

    Args:
      with_special: whether a special token in a text stands for itself, as in what a chat template
        writes. If not, `</s>` in a text is text, not the end of a document.
    """

    def __init__(self, name: str, with_special: bool = False):
        with extra("train"):
            import tokenizers
        content = _read(name)
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(content.decode("utf-8"))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # the library raises no narrower one where its Rust panics
            raise MeshDSLError(
                f"data.tokenizer: `{name}` is no tokenizer.json of Hugging Face: {error}"
            ) from None
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._tokenizer.encode_special_tokens = not with_special
        self.name = name
        self.digest = hashlib.sha256(content).hexdigest()
        known = self._tokenizer.get_vocab(with_added_tokens=True)
        self.vocab = max(known.values(), default=-1) + 1
        if not self.vocab:
            raise MeshDSLError(f"data.tokenizer: `{name}` has no tokens")
        ends = [known[token] for token in ENDS if token in known]
        if not ends:
            raise MeshDSLError(
                f"data.tokenizer: `{name}` has no token that ends a document; "
                f"add one of {', '.join(f'`{token}`' for token in ENDS)} to it"
            )
        self.separator = ends[0]

    def encode(self, text: str) -> np.ndarray:
        with self._failures_say():
            return np.asarray(self._tokenizer.encode(text, add_special_tokens=False).ids, np.int32)

    def encode_blocks(self, blocks: Sequence[bytes]) -> Iterable[np.ndarray]:
        texts = [block.decode("utf-8", "replace") for block in blocks]
        with self._failures_say():
            found = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return (np.asarray(each.ids, np.int32) for each in found)

    @contextmanager
    def _failures_say(self) -> Iterator[None]:
        """Make a MeshDSLError of what the library raises: some contradictions show only in use."""
        try:
            yield
        except Exception as error:  # the library raises no narrower one
            raise MeshDSLError(
                f"data.tokenizer: `{self.name}` cannot be used: {' '.join(str(error).split())}"
            ) from None

    def decode(self, ids: Iterable[int]) -> str:
        return self._tokenizer.decode([int(token) for token in ids], skip_special_tokens=True)

    def stream(self) -> Stream:
        return _FileStream(self._tokenizer)


class _FileStream:
    def __init__(self, tokenizer: tokenizers.Tokenizer):
        with extra("train"):
            from tokenizers.decoders import DecodeStream
        self._tokenizer = tokenizer
        self._begin = lambda: DecodeStream(skip_special_tokens=True)
        self._decoder = self._begin()
        self._waiting: list[int] = []  # tokens that came since the last text

    def __call__(self, token: int) -> str:
        text = self._decoder.step(self._tokenizer, int(token)) or ""
        self._waiting.append(int(token))
        if text:
            self._waiting.clear()
        return text

    def rest(self) -> str:
        text = self._tokenizer.decode(self._waiting, skip_special_tokens=True)
        self._waiting.clear()
        self._decoder = self._begin()
        return text


def _read(name: str) -> bytes:
    path = Path(name)
    if path.is_dir():
        path = path / "tokenizer.json"
    with system_errors_say(
        f"data.tokenizer: `{path}`", "expected bytes, or a Hugging Face tokenizer.json"
    ):
        return path.read_bytes()


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
