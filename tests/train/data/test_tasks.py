"""What every task promises: its fields, its order, its resumption, its part of each host."""

import json
from dataclasses import replace

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshdsl as md
from meshdsl.errors import MeshDSLError
from meshdsl.train.config import Config
from meshdsl.train.data import open_data, task_of
from meshdsl.train.data.batches import BatchRows
from meshdsl.train.data.device_batches import put_on_devices, rows_here
from meshdsl.train.data.held_out import divided, hashes_of_numbers
from tests.train.data.common import assert_batches, config, take, write_texts
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
from tests.train.data.test_pairs import write_jsonl

MODULE = "tests.train.data.user_data"


@pytest.fixture(scope="module")
def mixtures(tmp_path_factory):
    """For each task the settings of a mixture of two datasets, `a` and `b`."""
    folder = tmp_path_factory.mktemp("data")
    write_folders(folder / "folders")
    write_arrays(folder / "arrays.npz", names=True)
    pairs = [
        write_jsonl(folder / f"{i}.jsonl", [(f"{i} {j}", f"{j}") for j in range(25)]) for i in "ab"
    ]
    texts = [
        write_texts(folder / name, [f"{name} {i} ".encode() * 9 for i in range(9)]) for name in "ab"
    ]
    two = lambda key, *values: {
        f"data__sources__{name}__{key}": value for name, value in zip("ab", values, strict=True)
    }
    paths = lambda *values: two("paths", *([str(value)] for value in values))
    return {
        "text": (config().model, paths(*texts)),
        "images": (Classifier(), paths(folder / "folders", folder / "arrays.npz")),
        "pairs": (Translator(), paths(*pairs)),
        "examples": (Own(), two("dataset", f"{MODULE}:train_only", f"{MODULE}:more")),
    }


TASKS = ("text", "images", "pairs", "examples")


def mixture(mixtures, task, **values):
    family, settings = mixtures[task]
    return opened(configured(family, **settings, data__sources__b__weight=2.5, **values))


@pytest.mark.parametrize("task", TASKS)
@settings(max_examples=settings.default.max_examples // 3)
@given(
    owners=st.lists(st.sets(st.integers(0, 3), max_size=3), min_size=8, max_size=8),
    step=st.integers(0, 30),
    batch=st.sampled_from([2, 4, 16]),
)
def test_rows_have_one_order_for_any_hosts_and_any_batches(mixtures, task, owners, step, batch):
    data = mixture(mixtures, task, batch=8)
    everything = data.train(np.arange(8))
    take(everything, step)
    state = json.loads(json.dumps(everything.get_state()))
    assert state["rows"] == 8 * step
    expected = take(everything, 2)
    for host in set().union(*owners):
        rows = np.array([row for row, hosts in enumerate(owners) if host in hosts])
        batches = data.train(rows)
        batches.set_state(state)
        assert_batches(
            take(batches, 2), [{name: each[rows] for name, each in b.items()} for b in expected]
        )
    other = mixture(mixtures, task, batch=batch).train(np.arange(batch))
    other.set_state(state)
    found = take(other, 16 // batch)
    for name in expected[0]:
        np.testing.assert_array_equal(
            np.concatenate([each[name] for each in found]),
            np.concatenate([each[name] for each in expected]),
        )


@pytest.mark.parametrize("task", TASKS)
def test_every_host_of_the_same_data_says_the_same(mixtures, task):
    one, same = (mixture(mixtures, task) for _ in range(2))
    assert one.digest == same.digest and one.describe() in one.digest
    assert "a (28.6%): " in one.describe() and "b (71.4%): " in one.describe()
    assert one.digest != opened(configured(mixtures[task][0], **mixtures[task][1])).digest


@pytest.mark.parametrize("task", TASKS)
def test_held_out_rows_are_the_same_every_time_and_on_every_host(mixtures, task):
    data = mixture(mixtures, task, data__validation=0.3)
    every, again, part = (
        data.validation(np.array(rows)) for rows in ([0, 1, 2, 3],) * 2 + ([2, 0],)
    )
    assert list(every) == ["a", "b"]
    for name, batches in every.items():
        assert len(batches) >= 1
        assert_batches(list(again[name]), list(batches))
        expected = [{key: each[[2, 0]] for key, each in batch.items()} for batch in batches]
        assert_batches(list(part[name]), expected)


def test_a_task_is_that_of_the_family_or_of_the_settings():
    assert task_of(Config()).name == "text" and task_of(Config()).unit == "token"
    assert [task_of(configured(each())).unit for each in (Classifier, Towers, Own)] == [
        "image",
        "pair",
        "example",
    ]
    assert task_of(configured(Classifier(), data__task="examples")).name == "examples"
    with pytest.raises(
        MeshDSLError, match=r"^data\.task=image: no such task; did you mean `images`\?"
    ):
        task_of(configured(Own(), data__task="image"))

    class Odd(Own):
        task = "sound"

    with pytest.raises(MeshDSLError) as error:
        task_of(replace(Config(), model=Odd()))
    assert str(error.value) == (
        "Odd.task=sound: no such task; known: `examples`, `images`, `pairs`, `text`"
    )


ROWS = md.Dim("batch", 2)
FIELDS = {
    "no image": (
        "images",
        Strange(("label",)),
        "data.task=images: the batch of the model Strange has `label` and no `image`, which is "
        "what the task `images` gives; another task is chosen by data.task",
    ),
    "a misspelt field": (
        "images",
        Strange(("image:hw", "labels")),
        "data.task=images: the batch of the model Strange has a field `labels`, and the task "
        "`images` gives `image`, `label`; did you mean `label`?; the task `examples` gives any "
        "field",
    ),
    "labels of pixels": (
        "images",
        Strange(("image:hw", "label:hw")),
        "data.task=images: `label` has the dim of the rows and signed whole numbers, as int32, "
        "and the model's batch has [batch=2, h=4, w=4] and int32",
    ),
    "tokens of floats": (
        "text",
        Strange(("tokens:l",), "float32"),
        "data.task=text: `tokens` has the dims of rows and of a sequence and signed whole numbers",
    ),
    "segments": (
        "text",
        Strange(("tokens:l", "segments:l")),
        "has a field `segments`, and the task `text` gives `tokens`, `targets`; ",
    ),
    "other targets": (
        "text",
        Strange(("tokens:l", "targets:m")),
        "data.task=text: `targets` is int32 [batch=2, l=4] like `tokens`, and the model's batch "
        "has int32 [batch=2, m=4]",
    ),
    "lengths of nothing": (
        "pairs",
        Strange(("source:l", "target_length")),
        "data.task=pairs: `target_length` says how long `target` is, which the model's batch does "
        "not have",
    ),
    "other targets of a pair": (
        "pairs",
        Strange(("source:l", "tokens:m", "targets:n")),
        "data.task=pairs: `tokens` and `targets` have the same dims, and those of the model's "
        "batch are [batch=2, m=4] and [batch=2, n=4]",
    ),
}


@pytest.mark.parametrize("name", FIELDS)
def test_a_batch_of_fields_that_the_task_does_not_give_is_refused(name):
    task, family, text = FIELDS[name]
    settings = configured(family, data__task=task)
    with pytest.raises(MeshDSLError) as error:
        task_of(settings).fields(settings, ROWS)
    assert text in str(error.value)


def test_fields_are_those_of_the_family_and_text_may_have_more():
    settings = config(data__separate=True)
    fields = task_of(settings).fields(settings, ROWS)
    assert list(fields) == ["tokens", "targets", "segments", "positions"]
    assert task_of(settings).units_per_row(fields) == 8
    images = configured(Classifier())
    fields = task_of(images).fields(images, ROWS)
    assert list(fields) == ["image", "label"] and task_of(images).units_per_row(fields) == 1


def test_what_is_said_of_a_validation(mixtures):
    measured, text = {"loss": 1.0, "accuracy": 0.971, "margin": 12.3456}, task_of(Config())
    data = mixture(mixtures, "text", data__validation=0.5)
    derived = text.derived(measured, data, "a")
    assert derived == pytest.approx({"perplexity": np.e, "bits_per_byte": 1 / np.log(2)})
    said = "validation loss on a 1.0000 nats/token, 1.443 bits/byte, accuracy 97.1%, margin 12.35"
    assert text.words({**measured, **derived}, " on a") == said
    assert text.words({"loss": 1.0}) == "validation loss 1.0000 nats/token"
    images = task_of(configured(Classifier()))
    assert images.words(measured) == "validation loss 1.0000, accuracy 97.1%, margin 12.35"
    assert images.derived(measured, data, "a") == {}
    pairs = mixture(mixtures, "pairs")
    task = task_of(configured(Translator()))
    assert task.derived(measured, pairs, "a") == {"perplexity": pytest.approx(np.e)}


def test_the_default_is_text_and_only_text_has_one():
    assert open_data(Config()).tokenizer is not None
    for family in (Classifier(), Translator()):
        with pytest.raises(
            MeshDSLError, match=r"^data: nothing to read; set data\.sources\.NAME\.pa"
        ):
            opened(configured(family))


def test_text_reads_files_of_text():
    for key, value, said in (
        ("dataset", f"{MODULE}:both", "the task `text` reads files, not the function tests.train."),
        (
            "format",
            "folders",
            "does not read the format folders; it reads text, jsonl, parquet, arrow,",
        ),
    ):
        values = {"data__sources__a__paths": ["x"]} if key == "format" else {}
        with pytest.raises(MeshDSLError, match=said):
            open_data(config(**{f"data__sources__a__{key}": value}, **values))


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


def test_a_host_reads_its_own_rows_and_no_others():
    read = []

    class Recorded:
        def __len__(self):
            return 1000

        def __getitem__(self, number):
            read.append(number)
            return number

    collate = lambda rows: {"number": np.array(rows)}
    batches = lambda rows: BatchRows({"a": Recorded()}, {"a": 1.0}, 3, 8, rows, collate)
    everything = [batches(range(8))[i]["number"] for i in range(5)]
    read.clear()
    found = [batches([1, 4])[i]["number"] for i in range(5)]
    expected = [batch[[1, 4]].tolist() for batch in everything]
    assert [batch.tolist() for batch in found] == expected
    assert read == [number for batch in expected for number in batch]


def test_fields_of_any_dims_go_to_the_devices_that_need_them():
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    layout = md.Layout(["height -> data", "batch -> data, model"], mesh={"data": 4, "model": 2})
    fields = Classifier().batch(md.Dim("batch", 8))
    like = {
        name: field.replace(
            array=jax.ShapeDtypeStruct(
                field.array.shape, field.dtype, sharding=md.shardings(field, layout, mesh).array
            )
        )
        for name, field in fields.items()
    }
    rows = rows_here(like)
    np.testing.assert_array_equal(rows, np.arange(8))
    arrays = {
        name: np.arange(field.size).reshape(field.array.shape).astype(field.dtype)
        for name, field in fields.items()
    }
    for name, placed in put_on_devices(arrays, like).items():
        np.testing.assert_array_equal(placed.array, arrays[name])
        assert (
            placed.array.sharding == like[name].array.sharding and placed.dims == fields[name].dims
        )
