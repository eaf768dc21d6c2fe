"""The task `text`: sequences of tokens, of which each predicts the next."""

from __future__ import annotations

from collections.abc import Mapping

from meshdsl.dims import Dim
from meshdsl.dims import show as show_dims
from meshdsl.errors import MeshDSLError
from meshdsl.tensor import Tensor
from meshdsl.train.config import Config
from meshdsl.train.data.corpus import Corpus
from meshdsl.train.data.dataset import open_datasets
from meshdsl.train.data.mixture import Data
from meshdsl.train.data.task import Fields, Report, Task, check_kind, known_fields, say_validation
from meshdsl.train.data.tokenizer import Tokenizer, load_tokenizer
from meshdsl.train.watch.units import bits_per_byte, perplexity

_ALWAYS = ("tokens", "targets")
_SEPARATE = ("segments", "positions")


class TextTask(Task):
    """Sequences of tokens: `tokens` and `targets` (batch, length; int32).

    With `data.separate` also `segments` and `positions`, like `tokens`.
    """

    name, unit = "text", "token"

    def fields(self, config: Config, rows: Dim) -> dict[str, Tensor]:
        known = (*_ALWAYS, *(_SEPARATE if config.data.separate else ()))
        fields = known_fields(self.name, config, rows, known, "tokens")
        if config.data.separate:
            fields |= dict.fromkeys(_SEPARATE, fields["tokens"])
        for name, field in fields.items():
            check_kind(self.name, name, field, "the dims of rows and of a sequence", 1)
            if field.dims != fields["tokens"].dims or field.dtype != "int32":
                raise MeshDSLError(
                    f"data.task=text: `{name}` is int32 {show_dims(fields['tokens'].dims)} like "
                    f"`tokens`, and the model's batch has {field.dtype} {show_dims(field.dims)}"
                )
        return fields

    def units_per_row(self, fields: Fields) -> int:
        return fields["tokens"].dims[-1].size

    def open(self, config: Config, fields: Fields, report: Report) -> Corpus:
        tokenizer = fitting_tokenizer(config)
        return Corpus(config, fields, tokenizer, open_datasets(config, tokenizer, report))

    def derived(self, measured: Mapping[str, float], data: Data, name: str) -> dict[str, float]:
        found = {"perplexity": perplexity(measured["loss"])}
        if per_token := data.bytes_per_token.get(name):
            found["bits_per_byte"] = bits_per_byte(measured["loss"], per_token)
        return found

    def words(self, measured: Mapping[str, float], which: str = "") -> str:
        bits = measured.get("bits_per_byte")
        unit = " nats/token" if bits is None else f" nats/token, {bits:.3f} bits/byte"
        reported = {k: v for k, v in measured.items() if k not in ("perplexity", "bits_per_byte")}
        return say_validation(reported, which, unit)


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
