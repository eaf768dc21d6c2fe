"""Evaluation by lm-evaluation-harness: its interface to a model, over any layout.

The harness gives tasks as requests of three kinds: how likely a continuation is, how likely a whole
text is, and what the model writes until a stop. https://github.com/EleutherAI/lm-evaluation-harness
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

import meshdsl as md
from meshdsl.extras import extra
from meshdsl.models.generate import Sampling
from meshdsl.train.chat import published_texts
from meshdsl.train.config import Config
from meshdsl.train.data.tokenizer import Tokenizer
from meshdsl.train.sample import Opened, continuations, text_length
from meshdsl.train.scoring import Scorer, Text

_USUAL = 256  # tokens that are written where a request does not say how many


class Requests:
    """Answers the requests of the harness.

    Args:
      config: of the run.
      opened: its model.
      batch: texts that are read at once.
    """

    def __init__(self, config: Config, opened: Opened, tokenizer: Tokenizer, batch: int):
        self._opened, self._tokenizer, self._batch = opened, tokenizer, batch
        self.texts = published_texts(config.data.tokenizer)
        self.length = text_length(config)
        self._scorer = Scorer(opened, self.length, batch)

    def loglikelihood(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[float, bool]]:
        """Of each pair of a context and a continuation: how likely the continuation is."""
        found = self._scorer.scores([self._pair(*pair) for pair in pairs])
        return [(score.logarithm, score.greedy) for score in found]

    def rolling(self, texts: Sequence[str]) -> list[float]:
        """Of each text: how likely all of it is, in windows where it is long.

        Each window has as much before the tokens that it scores as the model can read.
        """
        windows, of = [], []
        for i, text in enumerate(texts):
            tokens = [self._tokenizer.separator, *self._encoded(text)]
            for start in range(1, len(tokens), self.length):
                stop = min(start + self.length, len(tokens))
                windows.append(Text(tokens[max(0, stop - self.length - 1) : stop], stop - start))
                of.append(i)
        found = [0.0] * len(texts)
        for i, score in zip(of, self._scorer.scores(windows), strict=True):
            found[i] += score.logarithm
        return found

    def until(self, requests: Sequence[tuple[str, dict[str, Any]]]) -> list[str]:
        """What the model writes after each context, up to the first of the stops.

        A request may have `until`, `max_gen_toks`, `temperature` with `do_sample`, and `top_p`.
        """
        found: dict[int, str] = {}
        by_how = lambda i: (str(requests[i][1]), -len(requests[i][0]))
        order = sorted(range(len(requests)), key=by_how)
        start = 0
        while start < len(order):
            how = requests[order[start]][1]
            some = [i for i in order[start : start + self._batch] if requests[i][1] == how]
            written = self._written([requests[i][0] for i in some], how)
            found |= dict(zip(some, written, strict=True))
            start += len(some)
        return [found[i] for i in range(len(requests))]

    def _written(self, contexts: Sequence[str], how: dict[str, Any]) -> list[str]:
        count = min(int(how.get("max_gen_toks", _USUAL)), self.length - 1)
        stops = how.get("until") or []
        stops = [stops] if isinstance(stops, str) else [stop for stop in stops if stop]
        ends = (self._tokenizer.separator, *(self.texts.ends if self.texts else ()))
        warmth = float(how.get("temperature", 0.0)) if how.get("do_sample") else 0.0
        sampling = Sampling(warmth, top_p=float(how.get("top_p", 1.0)) if warmth else 1.0, end=ends)
        prompts = [
            (self._tokens(text) or [self._tokenizer.separator])[-(self.length - count) :]
            for text in contexts
        ]
        rows: list[list[int]] = [[] for _ in prompts]
        texts = [""] * len(prompts)
        done = [False] * len(prompts)
        for tokens in continuations(self._opened, prompts, count, jax.random.key(0), sampling):
            for i, token in enumerate(np.asarray(tokens).tolist()):
                if done[i] or token in ends:
                    done[i] = True
                    continue
                rows[i].append(token)
                texts[i] = self._tokenizer.decode(rows[i])
                done[i] = any(stop in texts[i] for stop in stops)
            if all(done):
                break
        return [_cut(text, stops) for text in texts]

    def _pair(self, context: str, continuation: str) -> Text:
        kept = len(context.rstrip())
        # A space belongs to the word after it, as tokenizers have it.
        context, continuation = context[:kept], context[kept:] + continuation
        before = self._tokens(context) if context else []
        every = self._tokens(context + continuation) if context else self._encoded(continuation)
        after = every[len(before) :]
        if not before or not after:
            before, after = [self._tokenizer.separator, *before], after or every[-1:]
        scored = min(len(after), self.length)
        return Text([*before, *after], scored)

    def _tokens(self, text: str) -> list[int]:
        """A text as the model was trained to read it, with the tokens that begin one."""
        if self.texts is not None:
            return self.texts.tokens(text)
        return self._encoded(text)

    def _encoded(self, text: str) -> list[int]:
        return [int(token) for token in self._tokenizer.encode(text)]


def _cut(text: str, stops: Sequence[str]) -> str:
    """`text` up to the first of the stops."""
    return text[: min([at for stop in stops if (at := text.find(stop)) >= 0], default=len(text))]


def language_model(requests: Requests) -> Any:
    """`requests` as a model of the harness."""
    with extra("eval", "meshdsl eval"):
        from lm_eval.api.model import LM  # pyright: ignore[reportMissingImports] (it is large)

    class MeshDSL(LM):
        """A run, under its layout."""

        def loglikelihood(self, requests: Any, **how: Any) -> Any:
            return answered.loglikelihood([each.args for each in requests])

        def loglikelihood_rolling(self, requests: Any, **how: Any) -> Any:
            return answered.rolling([each.args[0] for each in requests])

        def generate_until(self, requests: Any, **how: Any) -> Any:
            return answered.until([each.args for each in requests])

        @property
        def tokenizer_name(self) -> str:
            return "meshdsl"

        def chat_template(self, chat_template: Any = False) -> str:
            return "that of the tokenizer" if chat_template else ""

        def apply_chat_template(self, chat_history: Any, add_generation_prompt: bool = True) -> str:
            if answered.texts is None:
                raise md.MeshDSLError("--chat: the run has no tokenizer with a chat template")
            how = {"add_generation_prompt": add_generation_prompt}
            return answered.texts.rendered(chat_history, **how)

    answered = requests
    return MeshDSL()


def evaluate(requests: Requests, tasks: Sequence[str], **how: Any) -> dict[str, Any]:
    """What `lm_eval.simple_evaluate` says of the tasks.

    Args:
      how: `include`, a folder with tasks of the user's, and arguments of `simple_evaluate`.

    Raises:
      MeshDSLError: the harness is not installed, or does not know a task.
    """
    with extra("eval", "meshdsl eval"):
        import lm_eval  # pyright: ignore[reportMissingImports] (it is large)
        from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]
    manager = TaskManager(include_path=how.pop("include", None))
    run: Callable = lm_eval.simple_evaluate
    unknown = [task for task in tasks if not manager.match_tasks([task])]
    if unknown:
        raise md.MeshDSLError(
            f"--tasks: the harness knows no task `{unknown[0]}`; `lm-eval ls tasks` lists them, "
            "and --include FOLDER adds those of a folder"
        )
    return run(model=language_model(requests), tasks=list(tasks), task_manager=manager, **how)
