"""Images with labels: from folders, arrays, parquet files and functions."""

import io
import json
import sys

import numpy as np
import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet

from meshdsl.errors import MeshDSLError
from meshdsl.train.data import image_sets
from tests.train.data.common import take
from tests.train.data.families import Classifier, Denoiser, Own, configured, opened, source, whole

ROWS = np.arange(4)
NAMES = ["ant", "bee", "cat", "dog"]
COUNT = 40


def pixels(number, height=4, width=3):
    """An image that tells which it is; its class is its number modulo 4."""
    return np.full((height, width), number, np.uint8)


def png(array):
    out = io.BytesIO()
    Image.fromarray(array).save(out, "PNG")
    return out.getvalue()


def write_folders(folder, ending="png"):
    for i in range(COUNT):
        path = folder / NAMES[i % 4] / f"{i:02}.{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        if ending == "npy":
            np.save(path, pixels(i))
        else:
            Image.fromarray(pixels(i)).save(path)
    (folder / "ant" / "readme.txt").write_text("is passed over")
    return folder


def write_arrays(path, names=False, save=np.savez, **other):
    labels = np.arange(COUNT) % 4
    arrays = {
        "image": np.stack([pixels(i) for i in range(COUNT)]),
        "label": np.array(NAMES)[labels] if names else labels,
    }
    save(path, **{**arrays, **other})
    return path


def write_columns(path):
    path.mkdir()
    np.save(path / "image.npy", np.stack([pixels(i) for i in range(COUNT)]))
    np.save(path / "label.npy", np.arange(COUNT) % 4)
    return path


def write_parquet(path, cell=lambda i: {"bytes": png(pixels(i)), "path": None}, **columns):
    table = {"label": [i % 4 for i in range(COUNT)], "image": [cell(i) for i in range(COUNT)]}
    parquet.write_table(pyarrow.table({**table, **columns}), path, row_group_size=7)
    return path


SETS = {
    "pictures": lambda folder: write_folders(folder / "images"),
    "jpeg": lambda folder: write_folders(folder / "images", "jpeg"),
    "arrays in folders": lambda folder: write_folders(folder / "images", "npy"),
    "npz": lambda folder: write_arrays(folder / "a.npz"),
    "npz with names": lambda folder: write_arrays(folder / "a.npz", names=True),
    "compressed npz": lambda folder: write_arrays(folder / "a.npz", save=np.savez_compressed),
    "npy": lambda folder: write_columns(folder / "columns"),
    "parquet": lambda folder: write_parquet(folder / "a.parquet"),
    "parquet of bytes": lambda folder: write_parquet(
        folder / "a.parquet", lambda i: png(pixels(i))
    ),
    "parquet of lists": lambda folder: write_parquet(
        folder / "a.parquet", lambda i: pixels(i).reshape(-1).tolist()
    ),
    "parquet of lists of lists": lambda folder: write_parquet(
        folder / "a.parquet",
        lambda i: pixels(i).tolist(),
        label=[NAMES[i % 4] for i in range(COUNT)],
    ),
}

# Those whose labels are the names of classes.
NAMED = {
    *("pictures", "jpeg", "arrays in folders", "npz with names", "parquet of lists of lists"),
}  # fmt: skip


def reads(path, family=None, **values):
    return configured(family or Classifier(), **{source("paths"): [str(path)], **values})


@pytest.mark.parametrize("name", SETS)
def test_images_come_with_their_labels_once_in_an_epoch(tmp_path, name):
    data = opened(reads(SETS[name](tmp_path)))
    found = whole(take(data.train(ROWS), 10))
    assert found["image"].shape == (COUNT, 4, 3, 1) and found["image"].dtype == np.float32
    assert found["label"].shape == (COUNT,) and found["label"].dtype == np.int32
    numbers = np.rint(found["image"][:, 0, 0, 0] * 255).astype(int)
    assert sorted(numbers.tolist()) == list(range(COUNT))
    np.testing.assert_array_equal(found["label"], numbers % 4)
    classes = " in 4 classes" if name in NAMED else ""
    assert data.describe() == f"data, images of 4 x 3 x 1{classes}:\n  a: 40 images; held out 0"


def test_images_of_a_function_are_those_of_a_file(tmp_path):
    function = "tests.train.data.user_data:images"
    data = opened(configured(Classifier(), **{source("dataset"): function}))
    found = whole(take(data.train(ROWS), 10))
    np.testing.assert_array_equal(np.rint(found["image"][:, 0, 0, 0] * 255), found["label"])
    wrong = configured(Classifier(), **{source("dataset"): function, source("label"): "class"})
    with pytest.raises(MeshDSLError, match=r"example 0 has `image`, `label` and no `class`$"):
        opened(wrong)


def test_an_array_that_is_not_compressed_is_not_read_into_memory(tmp_path):
    for path in (write_arrays(tmp_path / "a.npz"), write_columns(tmp_path / "columns")):
        array = image_sets.array_in(path, "image")
        assert isinstance(array.base, np.memmap) and not array.flags.owndata
        np.testing.assert_array_equal(array[7], pixels(7))


def test_names_of_fields_are_settings(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.zeros((8, 4, 3)), y=np.arange(8))
    data = opened(reads(path, **{source("field"): "x", source("label"): "y"}))
    assert "8 images" in data.describe()


def test_a_model_that_asks_for_images_alone_gets_them_from_any_folder(tmp_path):
    write_folders(tmp_path / "images")
    Image.fromarray(pixels(99)).save(tmp_path / "images" / "at the top.png")
    data = opened(reads(tmp_path / "images", Denoiser(), data__validation=0.3))
    assert list(next(data.train(ROWS))) == ["image"]
    (batches,) = data.validation(ROWS).values()
    held_out = whole(batches)["image"][:, 0, 0, 0]
    assert len(set(held_out.tolist())) == len(held_out), "whole batches only, each image once"


def test_the_last_batch_of_validation_is_filled_up_with_labels_that_do_not_count(tmp_path):
    path = write_arrays(tmp_path / "a.npz")
    data = opened(reads(path, data__sources__a__validation=[str(path)], batch=16))
    (batches,) = data.validation(np.arange(16)).values()
    found = whole(batches)
    assert len(batches) == 3 and (found["label"][COUNT:] == -1).all()
    np.testing.assert_array_equal(found["label"][:COUNT], np.arange(COUNT) % 4)
    assert (found["image"][COUNT:] == 0).all()


@pytest.mark.parametrize("name", ["pictures", "npz", "parquet"])
def test_a_part_of_every_class_is_held_out_and_stays_so_when_images_are_added(tmp_path, name):
    config = reads(SETS[name](tmp_path), data__validation=0.4)
    data = opened(config)
    before = whole(data.validation(ROWS)["a"])
    real = before["label"] >= 0
    assert set(before["label"][real]) == {0, 1, 2, 3} and 5 < real.sum() < 30
    if name == "pictures":
        Image.fromarray(pixels(77)).save(tmp_path / "images" / "ant" / "77.png")
        after = whole(opened(config).validation(ROWS)["a"])
        numbers = [
            set(np.rint(each["image"][each["label"] >= 0][:, 0, 0, 0] * 255))
            for each in (before, after)
        ]
        assert numbers[0] <= numbers[1] | {77.0} and numbers[1] - numbers[0] <= {77.0}


def test_classes_of_several_datasets_are_numbered_together(tmp_path):
    for name, classes in {"a": ("cat", "ant"), "b": ("cat", "bee")}.items():
        for each in classes:
            (tmp_path / name / each).mkdir(parents=True)
            for i in range(4):
                np.save(tmp_path / name / each / f"{i}.npy", pixels(ord(each[0])))
    values = {f"data__sources__{name}__paths": [str(tmp_path / name)] for name in "ab"}
    data = opened(configured(Classifier(), **values))
    found = whole(take(data.train(ROWS), 8))
    numbers = np.array([ord("a"), ord("b"), ord("c")])[found["label"]]
    np.testing.assert_array_equal(np.rint(found["image"][:, 0, 0, 0] * 255), numbers)


def test_names_that_are_numbers_are_in_the_order_of_the_numbers(tmp_path):
    for name in ("0", "2", "10"):
        (tmp_path / name).mkdir()
        for i in range(3):
            np.save(tmp_path / name / f"{i}.npy", pixels(int(name)))
    found = whole(take(opened(reads(tmp_path)).train(ROWS), 3))
    numbers = np.array([0, 2, 10])[found["label"]]
    np.testing.assert_array_equal(np.rint(found["image"][:, 0, 0, 0] * 255), numbers)


@pytest.mark.parametrize("name", ["pictures", "npz", "parquet"])
def test_a_run_does_not_go_on_with_other_images(tmp_path, name):
    config = reads(SETS[name](tmp_path))
    batches = opened(config).train(ROWS)
    state = json.loads(json.dumps(batches.get_state()))
    opened(config).train(ROWS).set_state(state)
    digest = opened(config).digest
    if name == "pictures":
        Image.fromarray(pixels(0) + 1).save(tmp_path / "images" / "ant" / "00.png")
    elif name == "npz":
        write_arrays(tmp_path / "a.npz", label=np.zeros(COUNT, int))
    else:
        write_parquet(tmp_path / "a.parquet", lambda i: png(pixels(i + (i == 7))))
    assert opened(config).digest != digest
    with pytest.raises(MeshDSLError, match="this run began with other data: a was 40 of 40 images"):
        opened(config).train(ROWS).set_state(state)


def test_parquet_is_unpacked_once(tmp_path):
    path, cache = write_parquet(tmp_path / "a.parquet"), tmp_path / "cache"
    for _ in range(2):
        opened(reads(path, data__cache=str(cache)))
    (entry,) = [each for each in cache.iterdir() if each.is_dir()]
    (entry / "rows.arrow").write_bytes(b"short")
    found = whole(take(opened(reads(path, data__cache=str(cache))).train(ROWS), 10))
    assert len(set(found["image"][:, 0, 0, 0].tolist())) == COUNT


# -- mistakes --------------------------------------------------------------------------------------


def damaged(folder):
    write_folders(folder / "images")
    path = folder / "images" / "ant" / "00.png"
    path.write_bytes(path.read_bytes()[:40])
    return folder / "images"


def no_picture(folder):
    write_folders(folder / "images")
    (folder / "images" / "ant" / "00.png").write_bytes(b"this is text")
    return folder / "images"


def at_the_top(folder):
    write_folders(folder / "images")
    Image.fromarray(pixels(0)).save(folder / "images" / "x.png")
    return folder / "images"


def one_picture(folder):
    return write_folders(folder / "images") / "ant" / "00.png"


def empty(folder):
    (folder / "images" / "ant").mkdir(parents=True)
    return folder / "images"


def unknown_class(folder):
    write_folders(folder / "images")
    (folder / "more" / "eel").mkdir(parents=True)
    np.save(folder / "more" / "eel" / "0.npy", pixels(0))
    return folder / "images"


def file(name, content=b"no such thing"):
    def write(folder):
        (folder / name).write_bytes(content)
        return folder / name

    return write


def arrays(**other):
    return lambda folder: write_arrays(folder / "a.npz", **other)


MISTAKES = {
    "missing": (lambda folder: folder / "no", {}, "no file or folder `{path}`"),
    "empty": (empty, {}, "nothing to read in `{path}`"),
    "a picture": (one_picture, {}, "`{path}`: images are read from a folder with a folder for"),
    "no folder": (
        one_picture,
        {source("format"): "folders"},
        "`{path}` is no folder with a folder for each class",
    ),
    "at the top": (at_the_top, {}, "x.png` lies in no folder of a class; expected `{path}/CLASS/x"),
    "damaged": (damaged, {}, "ant/00.png`: no image, or damaged: "),
    "no picture": (no_picture, {}, "00.png`: no image, or damaged: not a picture that Pillow can"),
    "size": (
        SETS["pictures"],
        {"model__height": 5},
        "00.png`: the image is 4 x 3, and the model's batch has [height=5, width=3, color=1]",
    ),
    "size of an array": (
        SETS["npz"],
        {"model__height": 5},
        "`{path}` image 0: the image is 4 x 3, and the model's batch has [height=5, width=3, color",
    ),
    "size in parquet": (
        SETS["parquet"],
        {"model__height": 5},
        "`{path}` row 1: the image is 4 x 3, and the model's batch has [height=5, width=3, color=1",
    ),
    "classes": (
        SETS["pictures"],
        {"model__classes": 3},
        "data: the images are of 4 classes, more than model.classes=3; set model.classes=4",
    ),
    "labels": (
        SETS["npz"],
        {"model__classes": 3},
        "`{path}` image 3: its label is not less than model.classes=3",
    ),
    "labels in parquet": (
        SETS["parquet"],
        {"model__classes": 3},
        "`{path}` row 4: its label is not less than model.classes=3",
    ),
    "a negative label": (
        arrays(label=np.arange(COUNT) - 1),
        {},
        "`{path}` image 0: its label is less than 0",
    ),
    "labels of floats": (
        arrays(label=np.arange(COUNT) / 2),
        {},
        "image 0: a label is the number of a class, not [] float64",
    ),
    "another class is held out": (
        unknown_class,
        {"validation": "more"},
        "0.npy`: no images of the class `eel` are trained on",
    ),
    "no npz": (file("a.npz"), {}, "`{path}`: no arrays, or damaged: "),
    "no array": (
        arrays(),
        {source("field"): "images"},
        "`{path}`: no array `images`; did you mean `image`?",
    ),
    "other lengths": (
        arrays(label=np.zeros(7, int)),
        {},
        "`{path}`: `label` has the shape (7,), and `image` has 40 images",
    ),
    "objects": (
        arrays(label=np.array([{}] * COUNT)),
        {},
        "`{path}`: no arrays, or damaged: Object",
    ),
    "no column": (
        lambda folder: write_parquet(folder / "a.parquet"),
        {source("field"): "images"},
        "`{path}`: no column `images`; did you mean `image`?",
    ),
    "no parquet": (file("a.parquet"), {}, "`{path}`: not parquet, or damaged: "),
    "paths": (
        lambda folder: write_parquet(
            folder / "a.parquet", lambda i: {"bytes": None, "path": f"{i}.png"}
        ),
        {},
        "`{path}` row 1: the column `image` has the path of a file, `0.png`, and not its bytes",
    ),
    "a column of text": (
        lambda folder: write_parquet(folder / "a.parquet", lambda i: "x"),
        {},
        "row 1: the column `image` has 'x'; expected the bytes of an image, a struct with `bytes`",
    ),
    "gaps": (
        lambda folder: write_parquet(folder / "a.parquet", label=[0, None] * 20),
        {},
        "`{path}` row 2: the column `label` has None; expected the name of a class, or its number",
    ),
    "a format of text": (
        SETS["npz"],
        {source("format"): "jsonl"},
        "the task `images` does not read the format jsonl; it reads folders, arrays and parquet",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_images_that_cannot_be_used_are_refused(tmp_path, name):
    write, values, text = MISTAKES[name]
    path, values = write(tmp_path), dict(values)
    if "validation" in values:
        values[source("validation")] = [str(tmp_path / values.pop("validation"))]
    with pytest.raises(MeshDSLError) as error:
        opened(reads(path, **values))
    assert text.format(path=path) in str(error.value), error.value
    assert str(error.value).startswith(("data: ", "data.sources.a: "))


def test_an_image_of_another_size_is_refused_when_it_is_read(tmp_path):
    folder = write_folders(tmp_path / "images")
    Image.fromarray(pixels(5, 9, 9)).save(folder / "bee" / "05.png")
    with pytest.raises(MeshDSLError, match=r"bee/05\.png`: the image is 9 x 9, and the model's"):
        take(opened(reads(folder)).train(ROWS), 10)


def test_names_and_numbers_do_not_mix(tmp_path):
    values = {
        "data__sources__a__paths": [str(write_arrays(tmp_path / "a.npz"))],
        "data__sources__b__paths": [str(write_folders(tmp_path / "images"))],
    }
    with pytest.raises(MeshDSLError) as error:
        opened(configured(Classifier(), **values))
    assert str(error.value) == (
        "data: the labels of `b` are names, and those of `a` are numbers; give both in one of "
        "these ways"
    )


def test_too_few_images_for_a_batch_are_refused(tmp_path):
    with pytest.raises(MeshDSLError) as error:
        opened(reads(write_arrays(tmp_path / "a.npz"), batch=64))
    assert str(error.value) == (
        "data: 40 images of `a` for training are less than one batch=64; give more data, or set a "
        "smaller batch"
    )


def test_pictures_without_pillow_name_what_to_install_and_arrays_need_it_not(tmp_path, monkeypatch):
    pictures, arrays = (write_folders(tmp_path / ending, ending) for ending in ("png", "npy"))
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(
        MeshDSLError, match=r"needs PIL, which is not installed; pip install .meshdsl\[images\]"
    ):
        opened(reads(pictures))
    opened(reads(arrays))


def test_a_family_of_other_fields_has_another_task():
    with pytest.raises(MeshDSLError) as error:
        opened(configured(Own(), data__task="images"))
    assert str(error.value) == (
        "data.task=images: the batch of the model Own has a field `vector`, and the task `images` "
        "gives `image`, `label`; the task `examples` gives any field"
    )
