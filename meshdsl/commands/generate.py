"""`meshdsl generate`: texts that a trained model writes, as they come."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from meshdsl import hosts
from meshdsl.commands.flags import count
from meshdsl.commands.lookup import find_layout, pick_devices
from meshdsl.errors import MeshDSLError

if TYPE_CHECKING:
    from meshdsl.train.data.tokenizer import Tokenizer

_SHARED = (
    "tokens",
    "temperature",
    "top_k",
    "top_p",
    "seed",
    "layout",
    "step",
)  # what all processes must have alike, beside prompts
_TOKENS = 200  # where nothing is said, and the model is long enough


def add(commands) -> None:
    parser = commands.add_parser(
        "generate",
        help="write texts with a trained model",
        epilog="Without --prompt or --prompts, the standard input is the prompt.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a run")
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--prompt",
        action="append",
        metavar="TEXT",
        help="what to continue; several of them make a batch",
    )
    source.add_argument("--prompts", type=Path, metavar="FILE", help="a prompt in each line")
    parser.add_argument(
        "--tokens",
        type=count,
        metavar="N",
        help=f"how many tokens to write ({_TOKENS}, or as many as fit the model)",
    )
    parser.add_argument(
        "--temperature",
        type=float,
        default=0.8,
        metavar="T",
        help="0 takes the likeliest token (0.8)",
    )
    parser.add_argument(
        "--top-k",
        type=int,
        default=0,
        metavar="K",
        help="draw from the K likeliest tokens only; 0: from all (0)",
    )
    parser.add_argument(
        "--top-p",
        type=float,
        default=1.0,
        metavar="P",
        help="draw from the likeliest that have the probability P together only (1)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="another one draws other texts (0)"
    )
    parser.add_argument(
        "--layout", help="a layout file, or the name of a shipped one; by default that of the run"
    )
    parser.add_argument(
        "--devices",
        type=count,
        metavar="N",
        help="so many devices; by default what the layout's mesh asks for",
    )
    parser.add_argument(
        "--step",
        type=int,
        metavar="N",
        help="the checkpoint of this step; by default the newest good one",
    )
    parser.add_argument(
        "--json", action="store_true", help="one line of JSON for each prompt, when all are done"
    )
    hosts.add_flags(parser)
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace, settings: list[str]) -> int:
    if settings:
        raise MeshDSLError(
            f"{settings[0]}: a run keeps its settings; a prompt that looks like one can be a line of --prompts FILE"
        )
    _check_sampling(arguments)
    texts = _texts(arguments)

    from meshdsl.train.data.tokenizer import load_tokenizer
    from meshdsl.train.folder import RunFolder

    folder = RunFolder(arguments.run)
    config = folder.stored_config()
    tokenizer = load_tokenizer(config.data.tokenizer)
    if tokenizer.vocab > config.model.vocab:
        raise MeshDSLError(
            f"data.tokenizer: `{tokenizer.name}` has {tokenizer.vocab} tokens, and the model has {config.model.vocab}; it was trained with another"
        )
    prompts = [
        [int(token) for token in tokenizer.encode(text)] or [tokenizer.separator] for text in texts
    ]
    wanted = _how_many(prompts, arguments.tokens, config.model.length)
    hosts.join(arguments.coordinator, arguments.processes, arguments.process_id)
    if hosts.count() > 1 and not (arguments.prompt or arguments.prompts):
        raise MeshDSLError(
            "several processes have no standard input in common: give --prompt or --prompts"
        )
    hosts.agree(
        "flags and prompts",
        "\n".join([*(f"{name}={getattr(arguments, name)}" for name in _SHARED), *texts]),
    )
    layout = find_layout(arguments.layout or config.layout)
    devices = pick_devices(layout, 0 if arguments.layout else config.devices, arguments.devices)

    import jax

    from meshdsl.mesh import make_mesh
    from meshdsl.models.generate import Sampling
    from meshdsl.train.sample import continuations, open_model

    mesh = make_mesh(layout, devices)
    step, model = open_model(folder, config, layout, mesh, arguments.step, report=_warn)
    how = Sampling(arguments.temperature, arguments.top_k, arguments.top_p, tokenizer.separator)
    rows = continuations(model, prompts, wanted, jax.random.key(arguments.seed), how, layout, mesh)
    if not hosts.first():
        for _ in rows:  # the other processes compute, and say nothing
            pass
    elif arguments.json:
        _print_json(rows, texts, tokenizer, {"step": step, "seed": arguments.seed})
    else:
        _print_as_it_comes(rows, texts, tokenizer)
    return 0


def _warn(line: str) -> None:
    if hosts.first():
        print(line, file=sys.stderr)


def _check_sampling(arguments: argparse.Namespace) -> None:
    for flag, value, legal, holds in (
        ("--seed", arguments.seed, "at least 0 and less than 2**32", 0 <= arguments.seed < 2**32),
        (
            "--temperature",
            arguments.temperature,
            "at least 0",
            0 <= arguments.temperature < float("inf"),
        ),
        ("--top-k", arguments.top_k, "at least 0", arguments.top_k >= 0),
        ("--top-p", arguments.top_p, "above 0 and at most 1", 0 < arguments.top_p <= 1),
    ):
        if not holds:
            raise MeshDSLError(f"{flag} {value:g}: must be {legal}")


def _texts(arguments: argparse.Namespace) -> list[str]:
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


def _how_many(prompts: Sequence[Sequence[int]], wanted: int | None, length: int) -> int:
    """How many tokens are written after each prompt."""
    longest = max(range(len(prompts)), key=lambda i: len(prompts[i]))
    size = len(prompts[longest])
    said = f"prompt {longest + 1}" if len(prompts) > 1 else "the prompt"
    said = f"{said} has {size} token{'s' if size > 1 else ''}, and the model's length is {length}"
    if size >= length:
        raise MeshDSLError(f"{said}; a prompt has at most {length - 1}")
    if wanted and size + wanted > length:
        raise MeshDSLError(f"--tokens {wanted}: {said}; at most {length - size} more fit")
    return wanted or min(_TOKENS, length - size)


def _print_as_it_comes(
    rows: Iterable[Sequence[int]], texts: list[str], tokenizer: Tokenizer
) -> None:
    """One text after another: of the first that has not ended what comes is printed at once, what comes of the others waits."""
    from meshdsl.train.sample import printable

    header = "--- {} of {} ---\n" if len(texts) > 1 else ""
    waiting = [header.format(i, len(texts)) + text for i, text in enumerate(texts, 1)]
    streams, open_ = [tokenizer.stream() for _ in texts], [True] * len(texts)
    turns = iter(range(len(texts)))
    turn = next(turns)

    def show(turn: int | None) -> int | None:
        while turn is not None:
            print(printable(waiting[turn]), end="" if open_[turn] else "\n", flush=True)
            waiting[turn] = ""
            if open_[turn]:
                break
            turn = next(turns, None)
        return turn

    turn = show(turn)
    for row in rows:
        for i, token in enumerate(map(int, row)):
            if open_[i]:
                open_[i] = token != tokenizer.separator
                waiting[i] += streams[i](token) if open_[i] else streams[i].rest()
        turn = show(turn)
    for i, stream in enumerate(streams):
        if open_[i]:
            open_[i] = False
            waiting[i] += stream.rest()
    show(turn)


def _print_json(
    rows: Iterable[Sequence[int]], texts: list[str], tokenizer: Tokenizer, about: dict[str, int]
) -> None:
    written: list[list[int]] = [[] for _ in texts]
    for row in rows:
        for tokens, token in zip(written, map(int, row), strict=True):
            tokens.append(token)
    for text, tokens in zip(texts, written, strict=True):
        ended = tokenizer.separator in tokens
        tokens = tokens[: tokens.index(tokenizer.separator)] if ended else tokens
        print(
            json.dumps(
                {"prompt": text, "text": tokenizer.decode(tokens), "tokens": tokens, "ended": ended}
                | about,
                ensure_ascii=False,
            )
        )
