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

from meshdsl.errors import MeshDSLError
from meshdsl.train.chat import PublishedTexts, published_texts
from meshdsl.train.data.documents import read_rows
from meshdsl.train.data.files import File
from meshdsl.train.data.sequences import CHAT, END, SAID
from meshdsl.train.data.tokenizer import FileTokenizer, Tokenizer

MESSAGES = "messages"  # the field that holds them, where the settings name none
ANSWERS = "assistant"
_TEMPLATES = ("chat_template.jinja", "tokenizer_config.json")
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
        self._texts: PublishedTexts = texts
        self._tokenizer = FileTokenizer(tokenizer.name, with_special=True)
        path = Path(tokenizer.name)
        folder = path if path.is_dir() else path.parent
        written = [folder / name for name in _TEMPLATES]
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
        return self._tokenizer.encode(text).astype(np.uint32) | np.uint32(CHAT | bit)


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
