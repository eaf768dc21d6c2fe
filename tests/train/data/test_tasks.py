"""What every task promises: its fields, its order, its resumption, its part of each host."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshdsl as md
from meshdsl.train.config import Config
from meshdsl.train.data import open_data, task_of
from meshdsl.train.data.batches import Batches
from meshdsl.train.data.held_out import divided, hashes_of_numbers
from tests.train.data.common import (
    ROWS,
    assert_batches,
    config,
    of_rows,
    refused,
    take,
    whole,
    write_table,
    write_texts,
)
from tests.train.data.families import (
    Classifier,
    Own,
    Strange,
    Towers,
    Translator,
    configured,
    opened,
)
from tests.train.data.test_images import write_arrays, write_folders

MODULE = "tests.train.data.user_data"
TASKS = ("text", "images", "pairs", "examples")


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    """Opens, for a task, a mixture of two datasets, `a` and `b`."""
    folder = tmp_path_factory.mktemp("data")
    write_folders(folder / "folders")
    write_arrays(folder / "arrays.npz", names=True)
    texts, pairs = [], []
    for name in "ab":
        texts.append(write_texts(folder / name, [f"{name} {i} ".encode() * 9 for i in range(9)]))
        columns = {"source": [f"{name} {i}" for i in range(25)], "target": list("mnopq") * 5}
        pairs.append(write_table(folder / f"{name}.jsonl", **columns))
    paths = lambda both: ("paths", [[str(path)] for path in both])
    sets = {
        "text": (config().model, *paths(texts)),
        "images": (Classifier(), *paths([folder / "folders", folder / "arrays.npz"])),
        "pairs": (Translator(), *paths(pairs)),
        "examples": (Own(), "dataset", [f"{MODULE}:train_only", f"{MODULE}:more"]),
    }
    found = {}

    def opens(task, weight=2.5, **values):
        key = (task, weight, *values.items())
        if key not in found:
            family, name, each = sets[task]
            values |= {
                f"data__sources__{at}__{name}": it for at, it in zip("ab", each, strict=True)
            }
            found[key] = opened(configured(family, **values, data__sources__b__weight=weight))
        return found[key]

    return opens


@pytest.mark.parametrize("task", TASKS)
@settings(max_examples=settings.default.max_examples // 5)
@given(
    owners=st.lists(st.sets(st.integers(0, 3), max_size=3), min_size=8, max_size=8),
    step=st.integers(0, 30),
    batch=st.sampled_from([2, 4, 16]),
)
def test_rows_have_one_order_for_any_hosts_and_any_batches(mixture, task, owners, step, batch):
    data = mixture(task, batch=8)
    everything = data.train(np.arange(8))
    take(everything, step)
    state = json.loads(json.dumps(everything.get_state()))
    assert state["rows"] == 8 * step
    expected = take(everything, 2)
    for host in set().union(*owners):
        rows = np.array([row for row, hosts in enumerate(owners) if host in hosts])
        batches = data.train(rows)
        next(batches)  # another host may have read other batches before
        batches.set_state(state)
        assert_batches(take(batches, 2), of_rows(expected, rows))
    other = mixture(task, batch=batch).train(np.arange(batch))
    other.set_state(state)
    assert_batches([whole(take(other, 16 // batch))], [whole(expected)])
    assert other.get_state() == everything.get_state()


@pytest.mark.parametrize("task", TASKS)
def test_every_host_of_the_same_data_says_the_same(mixture, task):
    one, same = mixture(task), mixture(task, data__validation=0.0)
    assert one is not same and one.digest == same.digest and one.describe() in one.digest
    assert "a (28.6%): " in one.describe() and "b (71.4%): " in one.describe()
    assert one.digest != mixture(task, weight=1.0).digest


@pytest.mark.parametrize("task", TASKS)
def test_held_out_rows_are_the_same_every_time_and_on_every_host(mixture, task):
    data = mixture(task, data__validation=0.3)
    every, again, part = (data.validation(np.array(rows)) for rows in (ROWS, ROWS, [2, 0]))
    assert list(every) == ["a", "b"]
    for name, batches in every.items():
        assert len(batches) >= 1
        assert_batches(list(again[name]), list(batches))
        assert_batches(list(part[name]), of_rows(batches, [2, 0]))


def test_a_task_is_that_of_the_family_or_of_the_settings():
    assert task_of(Config()).name == "text" and task_of(Config()).unit == "token"
    units = [task_of(configured(each())).unit for each in (Classifier, Towers, Own)]
    assert units == ["image", "pair", "example"]
    assert task_of(configured(Classifier(), data__task="examples")).name == "examples"
    with refused("data.task=image: no such task; did you mean `images`?"):
        task_of(configured(Own(), data__task="image"))

    class Odd(Own):
        task = "sound"

    with pytest.raises(md.MeshDSLError) as error:
        task_of(replace(Config(), model=Odd()))
    known = "`examples`, `images`, `pairs`, `text`"
    assert str(error.value) == f"Odd.task=sound: no such task; known: {known}"


ROW = md.Dim("batch", 2)
FIELDS = [
    (
        "images",
        Strange(("label",)),
        "data.task=images: the batch of the model Strange has `label` and no `image`, which is "
        "what the task `images` gives; another task is chosen by data.task",
    ),
    (
        "images",
        Strange(("image h=4 w=4", "labels")),
        "data.task=images: the batch of the model Strange has a field `labels`, and the task "
        "`images` gives `image`, `label`; did you mean `label`?; the task `examples` gives any "
        "field",
    ),
    (
        "images",
        Strange(("image h=4 w=4", "label h=4 w=4")),
        "data.task=images: `label` has the dim of the rows and signed whole numbers, as int32, "
        "and the model's batch has [batch=2, h=4, w=4] and int32",
    ),
    (
        "text",
        Strange(("tokens l=4 float32",)),
        "data.task=text: `tokens` has the dims of rows and of a sequence and signed whole numbers",
    ),
    (
        "text",
        Strange(("tokens l=4", "segments l=4")),
        "has a field `segments`, and the task `text` gives `tokens`, `targets`; ",
    ),
    (
        "text",
        Strange(("tokens l=4", "targets m=4")),
        "data.task=text: `targets` is int32 [batch=2, l=4] like `tokens`, and the model's batch "
        "has int32 [batch=2, m=4]",
    ),
    (
        "pairs",
        Strange(("source l=4", "target_length")),
        "data.task=pairs: `target_length` says how long `target` is, which the model's batch does "
        "not have",
    ),
    (
        "pairs",
        Strange(("source l=4", "tokens m=4", "targets n=4")),
        "data.task=pairs: `tokens` and `targets` have the same dims, and those of the model's "
        "batch are [batch=2, m=4] and [batch=2, n=4]",
    ),
]


@pytest.mark.parametrize(("task", "family", "text"), FIELDS)
def test_a_batch_of_fields_that_the_task_does_not_give_is_refused(task, family, text):
    settings = configured(family, data__task=task)
    with refused(text):
        task_of(settings).fields(settings, ROW)


def test_fields_are_those_of_the_family_and_text_may_have_more():
    settings = config(data__separate=True)
    fields = task_of(settings).fields(settings, ROW)
    assert list(fields) == ["tokens", "targets", "segments", "positions"]
    assert task_of(settings).units_per_row(fields) == 8
    images = configured(Classifier())
    fields = task_of(images).fields(images, ROW)
    assert list(fields) == ["image", "label"] and task_of(images).units_per_row(fields) == 1


def test_what_is_said_of_a_validation(mixture):
    measured, text = {"loss": 1.0, "accuracy": 0.971, "margin": 12.3456}, task_of(Config())
    data = mixture("text", data__validation=0.5)
    derived = text.derived(measured, data, "a")
    assert derived == pytest.approx({"perplexity": np.e, "bits_per_byte": 1 / np.log(2)})
    said = "validation loss on a 1.0000 nats/token, 1.443 bits/byte, accuracy 97.1%, margin 12.35"
    assert text.words({**measured, **derived}, " on a") == said
    assert text.words({"loss": 1.0}) == "validation loss 1.0000 nats/token"
    images = task_of(configured(Classifier()))
    assert images.words(measured) == "validation loss 1.0000, accuracy 97.1%, margin 12.35"
    assert images.derived(measured, data, "a") == {}
    pairs = task_of(configured(Translator())).derived(measured, mixture("pairs"), "a")
    assert pairs == {"perplexity": pytest.approx(np.e)}


def test_only_text_has_a_default_which_is_the_standard_library():
    corpus = open_data(Config())
    batch = next(corpus.train(np.arange(32)))
    assert batch["tokens"].shape == batch["targets"].shape == (32, 128)
    assert corpus.bytes_per_token == {"python": 1.0} and corpus.train_bytes_per_token == 1.0
    assert "data, by the tokenizer bytes of 256 tokens:\n  python: " in corpus.describe()
    held_out = corpus.validation(np.arange(32))
    assert {name: len(batches) for name, batches in held_out.items()} == {"python": 16}
    for family in (Classifier(), Translator()):
        with refused("data: nothing to read; set data.sources.NAME.paths"):
            opened(configured(family))


@given(count=st.integers(1, 300), fraction=st.floats(0, 0.99))
def test_rows_are_divided_and_what_is_held_out_stays_so(count, fraction):
    train, held_out = divided(hashes_of_numbers(count), fraction)
    assert sorted([*train, *held_out]) == list(range(count))
    more, kept = divided(hashes_of_numbers(count + 50), fraction)
    # Where everything was on one side, the end was held out instead.
    by_hash = set(np.flatnonzero(hashes_of_numbers(count) < np.uint64(int(fraction * 2**64))))
    if set(held_out) == by_hash and 0 < len(by_hash):
        assert set(held_out) <= set(kept) and set(train) <= set(more)


def test_about_the_fraction_is_held_out():
    assert 900 < len(divided(hashes_of_numbers(10_000), 0.1)[1]) < 1100


class Recorded:
    """Rows that are numbers, and which of them were read."""

    def __init__(self):
        self.read = []

    def __len__(self):
        return 1000

    def __getitem__(self, number):
        self.read.append(number)
        return number


def test_a_host_reads_its_own_rows_and_no_others():
    def batches(rows):
        recorded, collate = Recorded(), lambda numbers: {"number": np.array(numbers)}
        how = {"ahead": 1, "of": {}}
        found = Batches({"a": recorded}, {"a": 1.0}, 3, 8, rows, collate, **how)
        numbers = [batch["number"] for batch in take(found, 9)]
        found.close()
        return numbers, recorded.read

    expected = [numbers[[1, 4]].tolist() for numbers in batches(range(8))[0]]
    found, read = batches([1, 4])
    assert [numbers.tolist() for numbers in found] == expected
    flat = [number for batch in expected for number in batch]
    assert read[: len(flat)] == flat and len(read) <= len(flat) + 4, "two batches ahead at most"
