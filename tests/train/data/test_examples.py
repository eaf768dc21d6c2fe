"""Datasets that functions of a user's give, for a model of any fields."""

import numpy as np
import pytest

from meshdsl.errors import MeshDSLError
from tests.train.data.common import ROWS, refused, take, whole
from tests.train.data.families import Own, configured, opened, source

HERE = "tests.train.data.user_data"


def reads(name, family=None, **values):
    name = name if ":" in name else f"{HERE}:{name}"
    return configured(family or Own(), **{source("dataset"): name, **values})


@pytest.mark.parametrize("name", ["train_only", "source", "mapped", "tensors"])
def test_anything_of_random_access_gives_the_same_batches(name):
    found = whole(take(opened(reads(name)).train(ROWS), 10))
    assert sorted(found["id"].tolist()) == list(range(40))
    assert list(found) == ["vector", "id"], "what the model does not ask for is left out"
    assert found["vector"].dtype == np.float32 and found["id"].dtype == np.int32
    np.testing.assert_array_equal(found["vector"][:, 0], found["id"])
    expected = whole(take(opened(reads("train_only")).train(ROWS), 10))
    np.testing.assert_array_equal(found["id"], expected["id"])


def test_numbers_become_those_of_the_model():
    half = next(opened(reads("train_only", Own(("vector features=3 bfloat16", "id")))).train(ROWS))
    assert half["vector"].dtype.name == "bfloat16"


def test_a_file_is_as_good_as_a_module(tmp_path):
    text = "[{'vector': [0., i, 1.], 'id': i} for i in range(9)] if subset == 'train' else None"
    (tmp_path / "mine.py").write_text(f"def rows(subset):\n    return {text}\n")
    data = opened(reads(f"{tmp_path / 'mine.py'}:rows"))
    assert data.describe() == "data, examples of `vector`, `id`:\n  a: 9 examples; held out 0"


def test_a_dataset_that_brings_its_validation_trains_on_all_of_the_rest():
    data = opened(reads("both", data__validation=0.5))
    assert "a: 40 examples; held out 6" in data.describe()
    (batches,) = data.validation(ROWS).values()
    assert whole(batches)["id"].tolist() == [0, 1, 3, 5], "one whole batch, spread evenly"


def test_of_a_dataset_without_validation_a_part_is_held_out():
    data = opened(reads("train_only", data__validation=0.3))
    held_out = whole(data.validation(ROWS)["a"])["id"].tolist()
    count = int(data.describe().partition("a: ")[2].split()[0])
    trained = set(whole(take(data.train(ROWS), count))["id"].tolist())
    assert not trained & set(held_out) and len(trained) == count
    assert len(held_out) % 4 == 0 and 4 <= len(held_out) <= 40 - count < 24


def test_a_run_goes_on_with_the_same_dataset_only():
    state = opened(reads("train_only")).train(ROWS).get_state()
    opened(reads("source")).train(ROWS).set_state(state)
    with refused("began with other data: a was 40 of 40 examples ("):
        opened(reads("more")).train(ROWS).set_state(state)


BY_NUMBER = "and needs to give examples by their numbers (a list, a grain MapDataset"
MISTAKES = {
    "stream": ["called with 'train' it gives a grain IterDataset, ", BY_NUMBER, "to_iter_dataset"],
    "generated": ["called with 'train' it gives an object of type generator, ", BY_NUMBER],
    "one_dict": ["called with 'train' it gives an object of type dict, ", BY_NUMBER],
    "endless": ["a dataset without end; leave out `.repeat()`, because a run repeats its data"],
    "filtered": ["(train): example 0 is a dict of arrays, not None; a MapDataset that is filtered"],
    "fails": ["called with 'train' it raised KeyError in user_data.py:", "'images'"],
    "no_argument": ["called with 'train' it raised TypeError: no_argument() takes 0 positional"],
    "nothing": ["called with 'train' it gives no examples"],
    "NOT_A_FUNCTION": ["expected a function that is called with 'train' and 'validation', not 3"],
    "train_onli": ["has no `train_onli`; did you mean `train_only`?"],
    "misspelt": [
        "example 0 has `vectors`, `id` and no field `vector`, which is in the model's batch; did "
        "you mean `vectors`?"
    ],
    "wrong_shape": [
        "(train): example 0: `vector` is [4] float64, and a row of the model's batch is "
        "[features=3] float32"
    ],
    "wrong_dtype": ["`id` is [] float64, and a row of the model's batch is [] int32"],
    "words": ["`vector` is no array of numbers but <U3, and a row of the model's batch is"],
    "too_large": ["`id` is [] int64 with numbers that int32 does not hold, and a row of"],
    "other_dims": ["`vector` is [channels=3] float32, and a row of the model's batch is [features"],
    "lists": ["example 0 is a dict of arrays, not of type list"],
    "random": ["example 0 is another one each time it is read, so that a run could not go on"],
    "no_such_module:rows": ["there is no module `no_such_module` on Python's path"],
    "/no/such/file.py:rows": ["there is no file /no/such/file.py"],
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_dataset_that_cannot_be_used_is_refused(name):
    called = name if ":" in name else f"{HERE}:{name}"
    with refused(f"data.sources.a.dataset={called}", *MISTAKES[name]):
        opened(reads(name))


def test_an_error_in_a_later_example_is_one_that_names_it():
    batches = opened(reads("fails_later")).train(ROWS)
    text = r"\(train\): example \d raised RuntimeError in user_data.py"
    with pytest.raises(MeshDSLError, match=text):
        take(batches, 3)


def test_too_few_held_out_examples_for_a_batch_are_refused():
    with refused(
        "data: of `a` 6 are held out, which are less than the 8 of a batch (batch / microbatches); "
        "set a larger data.validation, or data.validation=0 to hold out nothing"
    ):
        opened(reads("both", batch=16, microbatches=2))


WHERE = "data.sources.a: "
SOURCES = {
    "data: nothing to read; set data.sources.NAME.dataset": {},
    f"{WHERE}no dataset; set data.sources.a.dataset": {"weight": 2.0},
    f"{WHERE}the task `examples` reads no files; set data.sources.a.dataset to a function": {
        "paths": ["x.npz"]
    },
    f"{WHERE}either data.sources.a.dataset or data.sources.a.paths is set, not both": {
        "paths": ["x"],
        "dataset": f"{HERE}:both",
    },
    "data.sources.a.dataset=rows.py: expected `my_package.my_module:Name` or `my_file.py:Name`": {
        "dataset": "rows.py"
    },
}


@pytest.mark.parametrize("text", SOURCES)
def test_sources_without_a_function_are_refused(text):
    with refused(text):
        opened(configured(Own(), **{source(key): value for key, value in SOURCES[text].items()}))
