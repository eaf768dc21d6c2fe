"""How `meshdsl generate` prints its texts: as they come, or as JSON when all are done."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from meshdsl.train.data.tokenizer import Tokenizer
from meshdsl.train.sample import printable


def print_as_it_comes(
    rows: Iterable[Iterable[int]],
    texts: Sequence[str],
    tokenizer: Tokenizer,
    ends: Sequence[int],
) -> None:
    """Print the texts one after another, each with its prompt.

    What comes of the first text that has not ended is printed at once; what comes of the others
    waits for their turn.

    Args:
      rows: the next token of every text, until all have ended.
      texts: the prompts.
      ends: the tokens after which a text is done.
    """
    header = "--- {} of {} ---\n" if len(texts) > 1 else ""
    waiting = [header.format(i, len(texts)) + text for i, text in enumerate(texts, 1)]
    streams, going, turn = [tokenizer.stream() for _ in texts], set(range(len(texts))), 0

    def show() -> None:
        nonlocal turn
        while turn < len(texts):
            print(printable(waiting[turn]), end="" if turn in going else "\n", flush=True)
            waiting[turn] = ""
            if turn in going:
                return
            turn += 1

    show()
    for row in rows:
        for i, token in enumerate(map(int, row)):
            if i in going and token in ends:
                going.remove(i)
                waiting[i] += streams[i].rest()
            elif i in going:
                waiting[i] += streams[i](token)
        show()
    for i in going:
        waiting[i] += streams[i].rest()
    going.clear()
    show()


def print_json(
    rows: Iterable[Iterable[int]],
    texts: Sequence[str],
    tokenizer: Tokenizer,
    about: dict[str, int],
    ends: Sequence[int],
) -> None:
    """Print a line of JSON for each text, with its prompt, its tokens and whether it ended.

    Args:
      rows: the next token of every text, until all have ended.
      texts: the prompts.
      about: what else each line says.
      ends: as for `print_as_it_comes`.
    """
    written: list[list[int]] = [[] for _ in texts]
    for row in rows:
        for tokens, token in zip(written, map(int, row), strict=True):
            tokens.append(token)
    for text, tokens in zip(texts, written, strict=True):
        size = next((i for i, token in enumerate(tokens) if token in ends), len(tokens))
        ended, tokens = size < len(tokens), tokens[:size]
        said = {"prompt": text, "text": tokenizer.decode(tokens), "tokens": tokens, "ended": ended}
        print(json.dumps(said | about, ensure_ascii=False))
