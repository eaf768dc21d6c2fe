"""Conversations to fine-tune on: messages with roles, as the tokenizer's chat template writes them.

Only what the assistant says is trained on. Tokens of conversations have bits that tell it, in the
cache and until a batch is made of them (`sequences.CHAT` and those after it). A
conversation is written as the model will meet it: what comes before an answer is what the template
writes when it asks for one. Where a template writes earlier turns in another way once there are
later ones, as those do that leave out thoughts, a conversation becomes several documents, each of
which ends with an answer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from meshdsl.errors import MeshDSLError, nearest
from meshdsl.extras import extra
from meshdsl.parsing import parse_json
from meshdsl.train.chat import PublishedTexts, published_texts
from meshdsl.train.data.documents import parquet_batches
from meshdsl.train.data.files import File
from meshdsl.train.data.sequences import CHAT, END, NO_TOKEN, SAID
from meshdsl.train.data.tokenizer import Tokenizer
from meshdsl.train.data.tokens import Tokens

MESSAGES = "messages"  # the field that holds them, where the settings name none
ANSWERS = "assistant"
_TEMPLATES = ("chat_template.jinja", "tokenizer_config.json")
_TABLES = (".parquet", ".arrow")
_BLOCK = 1 << 20  # tokens that are looked through at once
# How other published data call a role.
_ROLES = {"human": "user", "gpt": ANSWERS, "model": ANSWERS, "bot": ANSWERS}


class Conversations:
    """Turns conversations into documents of tokens, of which some are trained on.

    Args:
      tokenizer: of the run, whose folder has the chat template.

    Raises:
      MeshDSLError: there is no template.
    """

    def __init__(self, tokenizer: Tokenizer):
        texts = published_texts(tokenizer.name)
        if texts is None:
            raise MeshDSLError(
                f"format=chat: data.tokenizer={tokenizer.name} has no chat template; name a folder "
                "of Hugging Face with tokenizer.json and tokenizer_config.json"
            )
        with extra("train"):
            import tokenizers
        self._texts: PublishedTexts = texts
        path = Path(tokenizer.name)
        file = path / "tokenizer.json" if path.is_dir() else path
        self._tokenizer = tokenizers.Tokenizer.from_file(str(file))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        written = [file.parent / name for name in _TEMPLATES]
        read = [path.read_bytes() for path in written if path.is_file()]
        self.digest = hashlib.sha256(b"".join(read)).hexdigest()

    def documents(self, file: File, field: str) -> Iterator[tuple[bytes, list[np.ndarray]]]:
        """The conversations of a file of JSONL, parquet or Arrow.

        Args:
          field: of each object, or the column, which holds the messages.

        Yields:
          What tells conversations apart, and the documents of each: tokens with their bits.

        Raises:
          MeshDSLError: something is no conversation, with the file and the line or row.
        """
        rows = _rows_of_table if file.path.suffix in _TABLES else _lines
        for content, found, where in rows(file.path, field):
            messages = _messages(found, field, where)
            try:
                yield content, list(self._written(messages))
            except MeshDSLError as error:
                raise MeshDSLError(f"{where}: {error}") from None

    def _written(self, messages: Sequence[dict[str, Any]]) -> Iterator[np.ndarray]:
        """The documents of a conversation."""
        text, pieces = "", []  # so far of a document: its text, and its tokens
        for i, message in enumerate(messages):
            if message["role"] != ANSWERS:
                continue
            before = self._texts.rendered(messages[:i], add_generation_prompt=True)
            after = self._texts.rendered(messages[: i + 1], add_generation_prompt=False)
            if not after.startswith(before):
                raise MeshDSLError(
                    "the chat template does not begin an answer as it asks for one; it cannot be "
                    "trained on"
                )
            if not before.startswith(text):
                yield _ended(pieces)
                text, pieces = "", []
            pieces.append(self._tokens(before[len(text) :], 0))
            pieces.append(self._tokens(after[len(before) :], SAID))
            text = after
        yield _ended(pieces)

    def _tokens(self, text: str, bit: int) -> np.ndarray:
        # The template has written the tokens that begin a text.
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        return np.asarray(ids, np.uint32) | np.uint32(CHAT | bit)


def _ended(pieces: list[np.ndarray]) -> np.ndarray:
    tokens = np.concatenate(pieces)
    tokens[-1:] |= np.uint32(END)
    return tokens


def _lines(path: Path, field: str) -> Iterator[tuple[bytes, Any, str]]:
    """Of each line of a JSONL file: the line, what the field holds, and where that is."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    where = f"`{path}` line {number}"
                    yield line.strip(), _in_line(line, field, where), where
    except OSError as error:
        raise MeshDSLError(f"`{path}` cannot be read: {error.strerror or error}") from None


def _in_line(line: bytes, field: str, where: str) -> Any:
    try:
        found = parse_json(line)
    except ValueError as error:
        raise MeshDSLError(f"{where}: not JSON: {error}") from None
    if not isinstance(found, dict) or field not in found:
        close = nearest(field, found) if isinstance(found, dict) else ""
        raise MeshDSLError(f"{where}: expected an object with a field `{field}`{close}")
    return found[field]


def _rows_of_table(path: Path, field: str) -> Iterator[tuple[bytes, Any, str]]:
    """The same of each row of a file of parquet or Arrow."""
    number = 0
    with parquet_batches(path, [field], rows=1024, text=False) as batches:
        for batch in batches:
            for found in batch.column(field).to_pylist():
                number += 1
                # A table has every key in every message, with nothing where a message has none.
                found = _without_nothing(found)
                yield json.dumps(found, default=str).encode(), found, f"`{path}` row {number}"


def _without_nothing(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nothing(each) for key, each in value.items() if each is not None}
    return [_without_nothing(each) for each in value] if isinstance(value, list) else value


def _messages(messages: Any, field: str, where: str) -> list[dict[str, Any]]:
    """The messages of a conversation, each with a `role` and `content`."""
    if not isinstance(messages, list) or not messages:
        raise MeshDSLError(f"{where}: the field `{field}` is no list of messages")
    made = []
    for each in messages:
        if not isinstance(each, dict):
            raise MeshDSLError(f"{where}: a message is an object with a `role` and `content`")
        role, content = each.get("role", each.get("from")), each.get("content", each.get("value"))
        if not isinstance(role, str) or not (isinstance(content, str) or each.get("tool_calls")):
            raise MeshDSLError(f"{where}: a message is an object with a `role` and `content`")
        made.append({**each, "role": _ROLES.get(role, role), "content": content})
    if not any(message["role"] == ANSWERS for message in made):
        raise MeshDSLError(f"{where}: no message is of the role `{ANSWERS}`, so none is trained on")
    return made


class PackedConversations:
    """Rows of whole conversations: as many in each as have room, in their order.

    One that has more tokens than a row ends where the row does.

    Args:
      tokens: of documents, the last of each with the bit END.
      length: of a row, which has one token more.
    """

    def __init__(self, tokens: Tokens, length: int):
        self.tokens, self.length = tokens, length
        self._rows = _rows(_ends(tokens), length + 1)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> np.ndarray:
        """Row `index`, int32 [length + 1], with NO_TOKEN after the last token."""
        out = np.full(self.length + 1, NO_TOKEN, np.int32)
        at = 0
        for start, stop in self._rows[index]:
            out[at : at + stop - start] = self.tokens.read(start, stop)
            at += stop - start
        return out


def _ends(tokens: Tokens) -> list[int]:
    """Where each document ends, after its last token."""
    found: list[int] = []
    for start in range(0, len(tokens), _BLOCK):
        read = tokens.read(start, min(start + _BLOCK, len(tokens)))
        found += (np.flatnonzero(read & END) + start + 1).tolist()
    return found


def _rows(ends: Sequence[int], size: int) -> list[list[tuple[int, int]]]:
    """The documents of each row, as where they start and stop."""
    rows: list[list[tuple[int, int]]] = []
    room, start = 0, 0
    for end in ends:
        stop = min(end, start + size)
        if stop - start > room:
            rows.append([])
            room = size
        rows[-1].append((start, stop))
        room -= stop - start
        start = end
    return rows
