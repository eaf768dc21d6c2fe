"""Losses over answers that do not all count."""

import jax.numpy as jnp
import numpy as np
import pytest

import meshdsl as md
from meshdsl.layers import classification_loss
from tests.helpers import data, dims

BATCH, CLASSES = dims(batch=8, classes=4)


@pytest.mark.parametrize("rules", [[], ["batch -> data", "classes -> model"]])
def test_the_mean_is_over_answers_of_at_least_0(rules):
    logits = data(BATCH, CLASSES)
    answers = np.array([0, 1, 2, 3, 3, -1, -1, 0], np.int32)

    def measures(logits, answers):
        loss, report = classification_loss(logits, answers, "classes")
        return loss, loss.value, report["accuracy"].value

    layout = md.Layout(rules, mesh={"data": 2, "model": 2})
    loss, mean, accuracy = md.lower(measures, layout)(logits, md.tensor(answers, (BATCH,)))
    array, counts = np.asarray(logits.array), answers >= 0
    nats = np.log(np.exp(array).sum(1)) - array[np.arange(8), answers]
    assert loss.count.item() == 6
    assert mean.item() == pytest.approx(nats[counts].mean(), rel=1e-5)
    assert accuracy.item() == pytest.approx((array.argmax(1) == answers)[counts].mean())


def test_where_no_answer_counts_the_mean_is_0():
    answers = md.tensor(jnp.full(8, -1), (BATCH,))
    loss, report = classification_loss(data(BATCH, CLASSES), answers, CLASSES)
    assert loss.value.item() == report["accuracy"].value.item() == 0
