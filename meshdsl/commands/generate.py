"""`meshdsl generate`: texts that a trained model writes, as they come."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import jax

from meshdsl import hosts
from meshdsl.commands.lookup import pick_devices
from meshdsl.commands.printed_texts import print_as_it_comes, print_json
from meshdsl.errors import MeshDSLError
from meshdsl.mesh import make_mesh
from meshdsl.models.generate import Sampling
from meshdsl.train.answers import answers, answers_prompts, lengths
from meshdsl.train.chat import published_texts
from meshdsl.train.config import Config
from meshdsl.train.data.tokenizer import Tokenizer, load_tokenizer
from meshdsl.train.folder import RunFolder
from meshdsl.train.sample import check_generates, continuations, open_model, text_length
from meshdsl.train.stored_layout import find_layout
from meshdsl_cli.commands.running import USUAL_TOKENS

# Flags that all processes must have alike, beside the prompts.
_ALIKE = ("tokens", "chat", "temperature", "top_k", "top_p", "seed", "layout", "step", "weights")


def generate_texts(arguments: argparse.Namespace) -> int:
    """Continue prompts with the model of a run, or answer them, and print the texts.

    Raises:
      MeshDSLError: a flag has no legal value, a prompt is too long, there is no such run,
        checkpoint or layout, or there are fewer devices than wanted.
    """
    _check_sampling(arguments)
    texts = _prompt_texts(arguments)
    folder = RunFolder(arguments.run)
    config = folder.config_at(arguments.step)
    if not (does_answer := answers_prompts(config)):
        check_generates(config)
    tokenizer = tokenizer_of(config)
    published = published_texts(config.data.tokenizer)
    if arguments.chat and published is None:
        raise MeshDSLError(
            f"--chat: {arguments.run} has no tokenizer of a published model, whose chat template "
            "it takes"
        )
    encode = tokenizer.encode
    if published is not None:
        encode = published.chat if arguments.chat else published.tokens
    prompts = [[int(token) for token in encode(text)] or [tokenizer.separator] for text in texts]
    if does_answer:
        count = _tokens_to_answer(prompts, arguments.tokens, *lengths(config))
    else:
        count = _tokens_to_write(prompts, arguments.tokens, text_length(config))
    _meet(arguments, texts)
    layout = find_layout(arguments.layout or config.layout)
    devices = pick_devices(layout, 0 if arguments.layout else config.devices, arguments.devices)
    mesh = make_mesh(layout, devices)
    where = folder, config, layout, mesh, arguments.step
    step, opened = open_model(*where, report=_warn, weights=arguments.weights)
    ends = (tokenizer.separator, *(() if published is None else published.ends))
    how = Sampling(arguments.temperature, arguments.top_k, arguments.top_p, ends)
    write = answers if does_answer else continuations
    rows = write(opened, prompts, count, jax.random.key(arguments.seed), how)
    if not hosts.first():
        for _ in rows:  # the other processes compute, and say nothing
            pass
    elif arguments.json:
        print_json(rows, texts, tokenizer, {"step": step, "seed": arguments.seed}, ends)
    else:
        print_as_it_comes(rows, [""] * len(texts) if does_answer else texts, tokenizer, ends)
    return 0


def _check_sampling(arguments: argparse.Namespace) -> None:
    """Raise a MeshDSLError unless the flags about sampling have legal values."""
    seed, temperature = arguments.seed, arguments.temperature
    for flag, value, legal, holds in (
        ("--seed", seed, "at least 0 and less than 2**32", 0 <= seed < 2**32),
        ("--temperature", temperature, "at least 0", 0 <= temperature < float("inf")),
        ("--top-k", arguments.top_k, "at least 0", arguments.top_k >= 0),
        ("--top-p", arguments.top_p, "above 0 and at most 1", 0 < arguments.top_p <= 1),
    ):
        if not holds:
            raise MeshDSLError(f"{flag} {value:g}: must be {legal}")


def _prompt_texts(arguments: argparse.Namespace) -> list[str]:
    """The prompts: those of the flags, or else the standard input."""
    if arguments.prompt:
        return arguments.prompt
    if arguments.prompts:
        try:
            texts = arguments.prompts.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise MeshDSLError(
                f"--prompts {arguments.prompts}: {getattr(error, 'strerror', None) or error}"
            ) from None
        if not texts:
            raise MeshDSLError(f"--prompts {arguments.prompts}: has no lines")
        return texts
    if sys.stdin is None or sys.stdin.isatty():
        raise MeshDSLError(
            "no prompt: give --prompt TEXT, --prompts FILE, or a text on the standard input"
        )
    return [sys.stdin.read().removesuffix("\n")]


def tokenizer_of(config: Config) -> Tokenizer:
    """The tokenizer that the run was trained with."""
    tokenizer = load_tokenizer(config.data.tokenizer)
    known = getattr(config.model, "vocab", tokenizer.vocab)
    if tokenizer.vocab > known:
        raise MeshDSLError(
            f"data.tokenizer: `{tokenizer.name}` has {tokenizer.vocab} tokens, and the model has "
            f"{known}; it was trained with another"
        )
    return tokenizer


def _tokens_to_write(prompts: Sequence[Sequence[int]], wanted: int | None, length: int) -> int:
    """How many tokens are written after each prompt.

    Args:
      prompts: the tokens of each.
      wanted: what the user asks for; by default `USUAL_TOKENS`, or as many as fit.
      length: how many the model can read, prompt included.

    Raises:
      MeshDSLError: the longest prompt leaves no room for one token, or for as many as are wanted.
    """
    longest = max(range(len(prompts)), key=lambda i: len(prompts[i]))
    size = len(prompts[longest])
    said = f"prompt {longest + 1}" if len(prompts) > 1 else "the prompt"
    said = f"{said} has {size} token{'s' if size > 1 else ''}, and the model's length is {length}"
    if size >= length:
        raise MeshDSLError(f"{said}; a prompt has at most {length - 1}")
    if wanted and size + wanted > length:
        raise MeshDSLError(f"--tokens {wanted}: {said}; at most {length - size} more fit")
    return wanted or min(USUAL_TOKENS, length - size)


def _tokens_to_answer(
    prompts: Sequence[Sequence[int]], wanted: int | None, source: int, length: int
) -> int:
    """How many tokens an answer has at most.

    Args:
      prompts, wanted: as of `_tokens_to_write`.
      source: the most tokens of a prompt.
      length: those of an answer.

    Raises:
      MeshDSLError: a prompt is too long, or more tokens are wanted than an answer can have.
    """
    for number, prompt in enumerate(prompts, 1):
        if len(prompt) > source:
            raise MeshDSLError(
                f"prompt {number} has {len(prompt)} tokens, and the model reads at most {source}"
            )
    if wanted and wanted > length:
        raise MeshDSLError(f"--tokens {wanted}: an answer of the model has at most {length}")
    return wanted or min(USUAL_TOKENS, length)


def _meet(arguments: argparse.Namespace, texts: Sequence[str]) -> None:
    """Meet the other processes, if there are any, and agree with them on flags and prompts."""
    hosts.join(arguments.coordinator, arguments.processes, arguments.process_id)
    if hosts.count() > 1 and not (arguments.prompt or arguments.prompts):
        raise MeshDSLError(
            "several processes have no standard input in common: give --prompt or --prompts"
        )
    flags = [f"{name}={getattr(arguments, name)}" for name in _ALIKE]
    hosts.agree("flags and prompts", "\n".join([*flags, *texts]))


def _warn(line: str) -> None:
    if hosts.first():
        print(line, file=sys.stderr)
