"""Scores of texts, and answers to an evaluation's requests, under any layout."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshdsl as md
from meshdsl.errors import MeshDSLError
from meshdsl.train.config import Config
from meshdsl.train.data.tokenizer import load_tokenizer
from meshdsl.train.harness import Requests, _cut
from meshdsl.train.job import Job
from meshdsl.train.sample import Opened
from meshdsl.train.scoring import Scorer, Text
from meshdsl.train.settings import override
from meshdsl.train.stored_layout import find_layout
from meshdsl_cli import main
from tests.commands.test_generate import make_run
from tests.helpers import only
from tests.train.common import TINY

TEXTS = [Text([5, 9, 11, 200], 2), Text(list(range(40, 62)), 3), Text([1, 2], 1)]


def opened(layout_name: str):
    """The settings of a tiny run, and its model before training, under a layout."""
    layout = find_layout(layout_name)
    mesh = md.make_mesh(layout)
    config = override(Config(), [*TINY, "data.tokenizer=bytes"])
    job = Job(config, layout, mesh)
    params = job.step.init(jax.random.key(0)).params
    return config, Opened(config.model, params, layout, mesh)


def expected(config, model, text: Text) -> tuple[float, bool]:
    tokens = list(text.tokens)[-17:]
    dims = md.Dim("batch", 1), md.Dim("length", len(tokens) - 1)
    logits = model(md.tensor(np.array([tokens[:-1]], np.int32), dims))
    logits = md.transpose(logits, ("batch", "length", "vocab")).array[0]
    logarithms = jax.nn.log_softmax(logits.astype(jnp.float32))[-text.scored :]
    wanted = np.array(tokens[-text.scored :])
    greedy = bool((np.asarray(logarithms).argmax(-1) == wanted).all())
    return float(sum(logarithms[i, token] for i, token in enumerate(wanted))), greedy


@pytest.mark.parametrize("layout", only([], ["single", "fsdp", "tensor"], ["single", "tensor"]))
def test_scores_are_those_of_the_model_alone(layout):
    config, found = opened(layout)
    scores = Scorer(found, 16, batch=2).scores(TEXTS)
    alone = jax.tree.map(np.asarray, found.model)
    for score, text in zip(scores, TEXTS, strict=True):
        logarithm, greedy = expected(config, alone, text)
        assert score.logarithm == pytest.approx(logarithm, rel=1e-5)
        assert score.greedy == greedy


@pytest.mark.slow
def test_requests_are_answered():
    config, found = opened("fsdp")
    asked = Requests(config, found, load_tokenizer("bytes"), 8)
    (first, _), (again, _), (empty, _) = asked.loglikelihood(
        [("ab ", "c"), ("ab", " c"), ("", "c")]
    )
    assert first == again and empty < 0
    # A text longer than the model is scored in windows, each token once.
    text = "the quick brown fox jumps over"
    [whole] = asked.rolling([text])
    ids = [0, *text.encode()]
    scorer = Scorer(found, 16, batch=8)
    parts = [Text(ids[:17], 16), Text(ids[-17:], 14)]
    assert whole == pytest.approx(sum(each.logarithm for each in scorer.scores(parts)), rel=1e-6)
    how = {"until": ["\n"], "max_gen_toks": 5}
    written = asked.until([("abc", how), ("x", {"max_gen_toks": 3}), ("abcd", how)])
    assert len(written) == 3 and written[0] == asked.until([("abc", how)])[0]


def test_a_text_ends_at_the_first_of_the_stops():
    assert _cut("one\ntwo. three", [". ", "\n"]) == "one"
    assert _cut("one", ["x"]) == "one" and _cut("one", []) == "one"


def test_what_cannot_be_scored_is_one_error():
    scorer = Scorer(opened("single")[1], 16)
    for text in (Text([1], 1), Text([1, 2], 0), Text(list(range(20)), 17)):
        with pytest.raises(MeshDSLError, match="cannot have"):
            scorer.scores([text])


@pytest.mark.slow
def test_a_task_of_local_files(tmp_path, capsys):
    pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed")
    run = make_run(tmp_path / "run", "model.vocab=300")
    lines = [{"question": f"{i}+1=", "choices": ["a", "bc"], "answer": i % 2} for i in range(6)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "sums.yaml").write_text(
        "task: sums\ndataset_path: json\ndataset_kwargs:\n  data_files:\n"
        f"    test: {tmp_path / 'data.jsonl'}\ntest_split: test\noutput_type: multiple_choice\n"
        'doc_to_text: "{{question}}"\ndoc_to_choice: "{{choices}}"\ndoc_to_target: "{{answer}}"\n'
        "metric_list:\n  - metric: acc\n"
    )
    out = tmp_path / "found.json"
    words = [str(run.path), "--tasks", "sums", "--include", str(tmp_path / "tasks")]
    assert main(["eval", *words, "--out", str(out), "--layout", "tensor"]) == 0
    assert "sums" in capsys.readouterr().out
    found = json.loads(out.read_text())
    assert found["step"] == 5 and 0 <= found["results"]["sums"]["acc"] <= 1
    assert main(["eval", *words[:2], "absent", *words[3:]]) == 2
    assert "--tasks: the harness knows no task `absent`" in capsys.readouterr().err
