"""What a published model's folder says of its texts: where they begin and end, and how it chats.

texts = PublishedTexts(folder)        # with tokenizer.json, generation_config.json and so on
texts.tokens("The sea")               # as its authors have it: with the token that begins one
texts.chat("Why is the sea salty?")   # a question, as its chat template writes it
texts.ends                            # the tokens after which a text is done
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from meshdsl.errors import MeshDSLError
from meshdsl.extras import extra
from meshdsl.schema import Setting, read, read_object, table, tokens

Message = Mapping[str, Any]  # with a role and content
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")
_TOKEN = Setting(
    "a text, or an object with its `content`",
    lambda value: isinstance(value.get("content") if isinstance(value, dict) else value, str),
    None,
)
_ENDS = {"eos_token_id": tokens(None), "text_config": table(None)}


class PublishedTexts:
    """The small files of a published model.

    Args:
      folder: where they are.

    Attributes:
      ends: the tokens after which a text is done, as `generation_config.json` says, or else
        `config.json`.

    Raises:
      MeshDSLError: a file is damaged.
    """

    def __init__(self, folder: Path):
        with extra("train"):
            import tokenizers
        self._folder = folder
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # the library raises no narrower one
            raise MeshDSLError(f"{folder / 'tokenizer.json'}: {error}") from None
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self.ends = _ends(folder)

    def tokens(self, text: str) -> list[int]:
        """A text to go on with, with the tokens that its authors put before each text."""
        return self._tokenizer.encode(text).ids

    def chat(self, question: str) -> list[int]:
        """The tokens of a conversation that has a question, and then begins the answer.

        Raises:
          MeshDSLError: there is no chat template, or it refuses the question.
        """
        messages = [{"role": "user", "content": question}]
        text = self.rendered(messages, add_generation_prompt=True)
        # The template has written the tokens that begin a text.
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def rendered(self, messages: Sequence[Message], **how: Any) -> str:
        """A conversation as the chat template writes it.

        Args:
          messages: each with a `role` and `content`.
          how: other variables of the template, such as `add_generation_prompt`.

        Raises:
          MeshDSLError: there is no chat template, it is no template of Jinja, or it refuses the
            messages.
        """
        with extra("chat", "--chat"):
            import jinja2  # pyright: ignore[reportMissingImports]
        said = _said(self._folder / "tokenizer_config.json", _TOKENIZER)
        source = self._template(said)
        special = {name: _text(said[name]) for name in _SPECIAL if said[name]}
        try:
            template = _environment().from_string(source)
            return template.render(messages=list(messages), **special, **how)
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise MeshDSLError(f"{self._folder}: the chat template fails: {error}") from None

    def _template(self, said: Mapping[str, Any]) -> str:
        file = self._folder / "chat_template.jinja"
        if file.is_file():
            return file.read_text(encoding="utf-8")
        found = said["chat_template"]
        if isinstance(found, list):  # several by name
            found = {each["name"]: each["template"] for each in found}.get("default")
        if found is None:
            raise MeshDSLError(
                f"--chat: {self._folder} has no chat template, neither chat_template.jinja nor in "
                "tokenizer_config.json; leave out --chat"
            )
        return found


def published_texts(tokenizer: str) -> PublishedTexts | None:
    """The small files of the published model that a tokenizer is of; None where there are none.

    Args:
      tokenizer: the setting `data.tokenizer`.
    """
    path = Path(tokenizer)
    folder = path if path.is_dir() else path.parent
    beside = ("generation_config.json", "config.json", "tokenizer_config.json")
    if tokenizer == "bytes" or not any((folder / name).is_file() for name in beside):
        return None
    return PublishedTexts(folder) if (folder / "tokenizer.json").is_file() else None


def _ends(folder: Path) -> tuple[int, ...]:
    for name in ("generation_config.json", "config.json"):
        said = _said(folder / name, _ENDS)
        inner = read(_ENDS, said["text_config"] or {}, f"{folder / name}: text_config")
        found = inner["eos_token_id"] if said["eos_token_id"] is None else said["eos_token_id"]
        if found is not None:
            return tuple(found) if isinstance(found, list) else (found,)
    return ()


def _said(path: Path, settings: Mapping[str, Setting]) -> dict[str, Any]:
    """The settings in a JSON file; the defaults where there is no such file."""
    return read(settings, read_object(path) if path.is_file() else {}, path)


def _text(token: Any) -> str:
    """A special token, which is written as a text or as an object with it."""
    return token["content"] if isinstance(token, dict) else token


def _is_template(found: Any) -> bool:
    """Whether a file has a chat template, or a list of several by name."""
    if not isinstance(found, list):
        return isinstance(found, str)
    named = [each for each in found if isinstance(each, dict)]
    texts = [isinstance(each.get(key), str) for each in named for key in ("name", "template")]
    return len(named) == len(found) and all(texts)


_TOKENIZER = {
    **dict.fromkeys(_SPECIAL, _TOKEN),
    "chat_template": Setting("a text, or objects with `name` and `template`", _is_template, None),
}


def _environment() -> Any:
    """What published templates are written for: a sandbox with a few functions."""
    import jinja2  # pyright: ignore[reportMissingImports]
    from jinja2 import nodes  # pyright: ignore[reportMissingImports]
    from jinja2.ext import Extension, loopcontrols  # pyright: ignore[reportMissingImports]
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # pyright: ignore[reportMissingImports]

    class Generation(Extension):
        """Marks what an assistant says; the text is the same without the marks."""

        tags = {"generation"}  # noqa: RUF012  (as Jinja declares it)

        def parse(self, parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def refuse(message: str):
        raise jinja2.TemplateError(message)

    def to_json(value, indent=None, separators=None, sort_keys=False, ensure_ascii=False) -> str:
        how = {"indent": indent, "separators": separators, "sort_keys": sort_keys}
        return json.dumps(value, ensure_ascii=ensure_ascii, **how)

    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    made.filters["tojson"] = to_json
    made.globals["raise_exception"] = refuse
    made.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return made
