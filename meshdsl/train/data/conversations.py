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
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from meshdsl.errors import MeshDSLError
from meshdsl.extras import extra
from meshdsl.train.chat import PublishedTexts, published_texts
from meshdsl.train.data.file_rows import read_rows
from meshdsl.train.data.files import File
from meshdsl.train.data.sequences import CHAT, END, NO_TOKEN, SAID
from meshdsl.train.data.tokenizer import Tokenizer
from meshdsl.train.data.tokens import Tokens

MESSAGES = "messages"  # the field that holds them, where the settings name none
ANSWERS = "assistant"
_TEMPLATES = ("chat_template.jinja", "tokenizer_config.json")
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
        for where, (found,), line in read_rows(file, [field]):
            if not line:
                # A table has every key in every message, with nothing where a message has none.
                found = _without_nothing(found)
                line = json.dumps(found, default=str).encode()
            messages = _messages(found, field, where)
            try:
                yield line, list(self._written(messages))
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
        self._ends = _ends(tokens)
        self._first = _first_of_rows(self._ends, length + 1)

    def __len__(self) -> int:
        return len(self._first) - 1

    def __getitem__(self, index: int) -> np.ndarray:
        """Row `index`, int32 [length + 1], with NO_TOKEN after the last token."""
        out, at = np.full(self.length + 1, NO_TOKEN, np.int32), 0
        for document in range(self._first[index], self._first[index + 1]):
            start = int(self._ends[document - 1]) if document else 0
            stop = min(int(self._ends[document]), start + self.length + 1)
            out[at : at + stop - start] = self.tokens.read(start, stop)
            at += stop - start
        return out


def _ends(tokens: Tokens) -> np.ndarray:
    """Where each document ends, after its last token."""
    found = [np.zeros(0, np.int64)]
    for start in range(0, len(tokens), _BLOCK):
        read = tokens.read(start, min(start + _BLOCK, len(tokens)))
        found.append(np.flatnonzero(read & END) + start + 1)
    return np.concatenate(found)


def _first_of_rows(ends: np.ndarray, size: int) -> np.ndarray:
    """The number of the first document of each row, and behind them that of all documents."""
    lengths = np.minimum(np.diff(ends, prepend=0), size)
    first, room = array("q"), 0
    for document, length in enumerate(lengths):
        if length > room:
            first.append(document)
            room = size
        room -= length
    first.append(len(ends))
    return np.asarray(first)
