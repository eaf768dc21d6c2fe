"""Images with labels: from folders, arrays, parquet files and functions."""

import io
import json
import sys

import numpy as np
import pytest
from PIL import Image

from meshdsl.errors import MeshDSLError
from meshdsl.train.data.image_sets import array_in
from tests.train.data.common import ROWS, refused, take, whole, write_bytes, write_table
from tests.train.data.families import Classifier, Denoiser, configured, opened, source

NAMES = ["ant", "bee", "cat", "dog"]
COUNT = 40


def pixels(number, height=4, width=3):
    """An image that tells which it is; its class is its number modulo 4."""
    return np.full((height, width), number, np.uint8)


def save(path, image):
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, image) if path.suffix == ".npy" else Image.fromarray(image).save(path)


def png(image):
    out = io.BytesIO()
    Image.fromarray(image).save(out, "PNG")
    return out.getvalue()


def write_folders(folder, ending="png"):
    for i in range(COUNT):
        save(folder / NAMES[i % 4] / f"{i:02}.{ending}", pixels(i))
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
    save(path / "image.npy", np.stack([pixels(i) for i in range(COUNT)]))
    save(path / "label.npy", np.arange(COUNT) % 4)
    return path


def write_parquet(path, cell=lambda i: {"bytes": png(pixels(i)), "path": None}, **columns):
    table = {"label": [i % 4 for i in range(COUNT)], "image": [cell(i) for i in range(COUNT)]}
    return write_table(path, **{**table, **columns})


def folders(ending="png"):
    return lambda at: write_folders(at / "images", ending)


def arrays(**how):
    return lambda at: write_arrays(at / "a.npz", **how)


def parquet(*cell, **columns):
    return lambda at: write_parquet(at / "a.parquet", *cell, **columns)


SETS = {
    "pictures": folders(),
    "jpeg": folders("jpeg"),
    "arrays in folders": folders("npy"),
    "npz": arrays(),
    "npz with names": arrays(names=True),
    "compressed npz": arrays(save=np.savez_compressed),
    "npy": lambda at: write_columns(at / "columns"),
    "parquet": parquet(),
    "parquet of bytes": parquet(lambda i: png(pixels(i))),
    "parquet of lists": parquet(lambda i: pixels(i).reshape(-1).tolist()),
    "parquet of lists of lists": parquet(
        lambda i: pixels(i).tolist(), label=[NAMES[i % 4] for i in range(COUNT)]
    ),
}
# Those whose labels are the names of classes.
NAMED = {"pictures", "jpeg", "arrays in folders", "npz with names", "parquet of lists of lists"}


def reads(path, family=None, **values):
    return configured(family or Classifier(), **{source("paths"): [str(path)], **values})


def numbers_of(batches):
    """Which images some batches have, of those that count."""
    found = whole(batches)
    real = found.get("label", found["image"][:, 0, 0, 0]) >= 0
    return np.rint(found["image"][real][:, 0, 0, 0] * 255).astype(int).tolist()


@pytest.mark.parametrize("name", SETS)
def test_images_come_with_their_labels_once_in_an_epoch(tmp_path, name):
    data = opened(reads(SETS[name](tmp_path)))
    batches = take(data.train(ROWS), 10)
    found, numbers = whole(batches), numbers_of(batches)
    assert found["image"].shape == (COUNT, 4, 3, 1) and found["image"].dtype == np.float32
    assert found["label"].shape == (COUNT,) and found["label"].dtype == np.int32
    assert sorted(numbers) == list(range(COUNT))
    assert found["label"].tolist() == [number % 4 for number in numbers]
    classes = " in 4 classes" if name in NAMED else ""
    assert data.describe() == f"data, images of 4 x 3 x 1{classes}:\n  a: 40 images; held out 0"


def test_images_of_a_function_are_those_of_a_file():
    settings = {source("dataset"): "tests.train.data.user_data:images"}
    batches = take(opened(configured(Classifier(), **settings)).train(ROWS), 10)
    assert numbers_of(batches) == whole(batches)["label"].tolist()
    with refused("example 0 has `image`, `label` and no `class`"):
        opened(configured(Classifier(), **settings, **{source("label"): "class"}))


def test_an_array_that_is_not_compressed_is_not_read_into_memory(tmp_path):
    for path in (write_arrays(tmp_path / "a.npz"), write_columns(tmp_path / "columns")):
        array = array_in(path, "image")
        assert isinstance(array.base, np.memmap) and not array.flags.owndata
        np.testing.assert_array_equal(array[7], pixels(7))


def test_names_of_fields_are_settings(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.zeros((8, 4, 3)), y=np.arange(8))
    data = opened(reads(path, **{source("field"): "x", source("label"): "y"}))
    assert "8 images" in data.describe()


def test_a_model_that_asks_for_images_alone_gets_them_from_any_folder(tmp_path):
    save(write_folders(tmp_path / "images") / "at the top.png", pixels(99))
    data = opened(reads(tmp_path / "images", Denoiser(), data__validation=0.3))
    assert list(next(data.train(ROWS))) == ["image"]
    held_out = numbers_of(data.validation(ROWS)["a"])
    assert len(set(held_out)) == len(held_out), "whole batches only, each image once"


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
    before = set(numbers_of(opened(config).validation(ROWS)["a"]))
    assert {number % 4 for number in before} == {0, 1, 2, 3} and 5 < len(before) < 30
    if name == "pictures":
        save(tmp_path / "images" / "ant" / "77.png", pixels(77))
        after = set(numbers_of(opened(config).validation(ROWS)["a"]))
        assert before <= after <= before | {77}


def test_classes_of_several_datasets_are_numbered_together(tmp_path):
    for name, classes in {"a": ("cat", "ant"), "b": ("cat", "bee")}.items():
        for each in classes:
            for i in range(4):
                save(tmp_path / name / each / f"{i}.npy", pixels(ord(each[0])))
    values = {f"data__sources__{name}__paths": [str(tmp_path / name)] for name in "ab"}
    batches = take(opened(configured(Classifier(), **values)).train(ROWS), 8)
    assert numbers_of(batches) == [ord("abc"[label]) for label in whole(batches)["label"]]


def test_names_that_are_numbers_are_in_the_order_of_the_numbers(tmp_path):
    for name in ("0", "2", "10"):
        for i in range(3):
            save(tmp_path / name / f"{i}.npy", pixels(int(name)))
    batches = take(opened(reads(tmp_path)).train(ROWS), 3)
    assert numbers_of(batches) == [[0, 2, 10][label] for label in whole(batches)["label"]]


@pytest.mark.parametrize("name", ["pictures", "npz", "parquet"])
def test_a_run_does_not_go_on_with_other_images(tmp_path, name):
    config = reads(SETS[name](tmp_path))
    state = json.loads(json.dumps(opened(config).train(ROWS).get_state()))
    opened(config).train(ROWS).set_state(state)
    digest = opened(config).digest
    if name == "pictures":
        save(tmp_path / "images" / "ant" / "00.png", pixels(0) + 1)
    elif name == "npz":
        arrays(label=np.zeros(COUNT, int))(tmp_path)
    else:
        parquet(lambda i: png(pixels(i + (i == 7))))(tmp_path)
    assert opened(config).digest != digest
    with refused("this run began with other data: a was 40 of 40 images"):
        opened(config).train(ROWS).set_state(state)


def test_parquet_is_unpacked_once(tmp_path):
    path, cache = write_parquet(tmp_path / "a.parquet"), tmp_path / "cache"
    for _ in range(2):
        opened(reads(path, data__cache=str(cache)))
    (entry,) = [each for each in cache.iterdir() if each.is_dir()]
    (entry / "rows.arrow").write_bytes(b"short")
    batches = take(opened(reads(path, data__cache=str(cache))).train(ROWS), 10)
    assert len(set(numbers_of(batches))) == COUNT


# -- mistakes --------------------------------------------------------------------------------------


def with_file(name, content):
    """Pictures in folders, one of which has this content."""

    def write(at):
        write_bytes(write_folders(at / "images") / name, content)
        return at / "images"

    return write


def file(name):
    return lambda at: write_bytes(at / name, b"no such thing")


def one_picture(at):
    return write_folders(at / "images") / "ant" / "00.png"


def empty(at):
    (at / "images" / "ant").mkdir(parents=True)
    return at / "images"


def unknown_class(at):
    save(at / "more" / "eel" / "0.npy", pixels(0))
    return write_folders(at / "images")


TALL, FEW = {"model__height": 5}, {"model__classes": 3}
SIZE = "the image is 4 x 3, and the model's batch has [height=5, width=3, color=1]"
MISTAKES = {
    "empty": (empty, "nothing to read in `{path}`"),
    "a picture": (one_picture, "`{path}`: images are read from a folder with a folder for"),
    "no folder": (
        one_picture,
        "`{path}` is no folder with a folder for each class",
        {source("format"): "folders"},
    ),
    "at the top": (
        with_file("x.png", png(pixels(0))),
        "x.png` lies in no folder of a class; expected `{path}/CLASS/x",
    ),
    "damaged": (
        with_file("ant/00.png", png(pixels(0))[:40]),
        "ant/00.png`: no image, or damaged: ",
    ),
    "no picture": (
        with_file("ant/00.png", b"this is text"),
        "00.png`: no image, or damaged: not a picture that Pillow can",
    ),
    "size": (SETS["pictures"], f"00.png`: {SIZE}", TALL),
    "classes": (
        SETS["pictures"],
        "data: the images are of 4 classes, more than model.classes=3; set model.classes=4",
        FEW,
    ),
    "labels": (
        SETS["npz"],
        "`{path}` image 3: its label is not less than model.classes=3",
        FEW,
    ),
    "a negative label": (
        arrays(label=np.arange(COUNT) - 1),
        "`{path}` image 0: its label is less than 0",
    ),
    "labels of floats": (
        arrays(label=np.arange(COUNT) / 2),
        "image 0: a label is the number of a class, not [] float64",
    ),
    "another class is held out": (
        unknown_class,
        "0.npy`: no images of the class `eel` are trained on",
        {"validation": "more"},
    ),
    "no npz": (file("a.npz"), "`{path}`: no arrays, or damaged: "),
    "no array": (arrays(), "`{path}`: no array `images`; did you", {source("field"): "images"}),
    "no column": (parquet(), "`{path}`: no column `images`; did", {source("field"): "images"}),
    "other lengths": (
        arrays(label=np.zeros(7, int)),
        "`{path}`: `label` has the shape (7,), and `image` has 40 images",
    ),
    "objects": (arrays(label=np.array([{}] * COUNT)), "`{path}`: no arrays, or damaged: Object"),
    "paths": (
        parquet(lambda i: {"bytes": None, "path": f"{i}.png"}),
        "`{path}` row 1: the column `image` has the path of a file, `0.png`, and not its bytes",
    ),
    "a column of text": (
        parquet(lambda i: "x"),
        "row 1: the column `image` has 'x'; expected the bytes of an image, a struct with `bytes`",
    ),
    "gaps": (
        parquet(label=[0, None] * 20),
        "`{path}` row 2: the column `label` has None; expected the name of a class, or its number",
    ),
    "too few": (
        SETS["npz"],
        "data: 40 images of `a` for training are less than one batch=64; give more data, or set a "
        "smaller batch",
        {"batch": 64},
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_images_that_cannot_be_used_are_refused(tmp_path, name):
    write, text, *values = MISTAKES[name]
    path, values = write(tmp_path), dict(*values)
    if "validation" in values:
        values[source("validation")] = [str(tmp_path / values.pop("validation"))]
    with refused(text.format(path=path)):
        opened(reads(path, **values))


def test_an_image_of_another_size_is_refused_when_it_is_read(tmp_path):
    folder = write_folders(tmp_path / "images")
    save(folder / "bee" / "05.png", pixels(5, 9, 9))
    with pytest.raises(MeshDSLError, match=r"bee/05\.png`: the image is 9 x 9, and the model's"):
        take(opened(reads(folder)).train(ROWS), 10)


def test_names_and_numbers_do_not_mix(tmp_path):
    values = {"data__sources__b__paths": [str(write_folders(tmp_path / "images"))]}
    with refused(
        "data: the labels of `b` are names, and those of `a` are numbers; give both in one of "
        "these ways"
    ):
        opened(reads(write_arrays(tmp_path / "a.npz"), **values))


def test_pictures_without_pillow_name_what_to_install_and_arrays_need_it_not(tmp_path, monkeypatch):
    pictures, others = (write_folders(tmp_path / ending, ending) for ending in ("png", "npy"))
    monkeypatch.setitem(sys.modules, "PIL", None)
    with refused('needs PIL, which is not installed; pip install "meshdsl[images]"'):
        opened(reads(pictures))
    opened(reads(others))
