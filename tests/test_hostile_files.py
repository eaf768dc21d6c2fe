"""Files that are damaged or hostile are read right, or are one clear error.

A file of each kind that meshdsl reads is changed at random: bytes are flipped, cut off, repeated;
numbers become huge, negative or NaN; names lead out of the folder; brackets nest deeply. Whatever
comes of it, the reader gives a value or raises a MeshDSLError in one line, soon, and within little
memory. 300 changes by default, 10,000 with HYPOTHESIS_PROFILE=nightly.
"""

import gzip
import json
import random
import re
import resource
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import meshdsl as md
from meshdsl import MeshDSLError
from meshdsl.commands.run_view import view_of
from meshdsl.machine.chips import chips
from meshdsl.predict.compiler import executables
from meshdsl.tools.run_page import run_page
from meshdsl.train.checkpoints import manifest
from meshdsl.train.checkpoints.named_parameters import adapters_of, averages_of, parameters_of
from meshdsl.train.checkpoints.newest import newest_complete
from meshdsl.train.checkpoints.safetensors_files import TensorFiles
from meshdsl.train.checkpoints.saved_arrays import verify
from meshdsl.train.config import Config
from meshdsl.train.data.conversations import _messages
from meshdsl.train.data.documents import documents, read_rows
from meshdsl.train.data.fields import decoded
from meshdsl.train.data.files import File, find_files
from meshdsl.train.data.image_sets import array_images
from meshdsl.train.data.remote import with_files_here
from meshdsl.train.data.sequences import Tokens, token_file_ranges
from meshdsl.train.data.tokenizer import load_tokenizer
from meshdsl.train.published import published_settings
from meshdsl.train.settings import override
from meshdsl.train.settings import read as read_settings
from meshdsl.train.watch.curves import panels, read_runs
from meshdsl.train.watch.goodput import goodput
from meshdsl.train.watch.standing import RunReader
from meshdsl.train.watch.standing_text import standing_lines
from tests.nightly import NIGHTLY
from tests.train.checkpoints.states import ONE, make_state, opened
from tests.train.checkpoints.states import saved as saved_states
from tests.train.data.common import save_tokenizer, write_table, write_tokens
from tests.train.data.test_images import png

CHANGES = 10_000 if NIGHTLY else 300
ROOT = Path(__file__).parents[1]
WORDS = {
    "d_model": 8, "n_head": 2, "n_layer": 1, "n_positions": 16, "vocab_size": 32, "n_embd": 8,
}  # fmt: skip


def safetensors(folder):
    tensors = {"a": np.ones((2, 3), np.float32), "b": np.zeros(5, np.int8)}
    save_file(tensors, folder / "model.safetensors", {"dims": '{"a": [["x", 2], ["y", 3]]}'})
    return folder / "model.safetensors"


def read_safetensors(path):
    files = TensorFiles(path)
    for name, leaf in files.leaves.items():
        files.read(name, tuple(slice(0, size) for size in leaf["shape"]))


def safetensors_index(folder):
    safetensors(folder)
    index = folder / "model.safetensors.index.json"
    names = dict.fromkeys("ab", "model.safetensors")
    index.write_text(json.dumps({"metadata": {"total_size": 29}, "weight_map": names}))
    return index


def published(folder):
    safetensors(folder)
    path = folder / "config.json"
    path.write_text(
        json.dumps({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], **WORDS})
    )
    return path


def read_tokenizer(path):
    found = load_tokenizer(str(path))
    found.decode(found.encode("ab a <|endoftext|> z").tolist())


def checkpoint(folder):
    there = folder / "4"
    there.mkdir()
    (there / "d").write_bytes(b"12345")
    leaves = {"params.a": {"is": "[x=2] float32", "dims": [["x", 2]], "shape": [2]}}
    leaves["params.a"] |= {"dtype": "float32"}
    manifest.write(there, manifest.made(4, leaves, {"params.a": 7}, {"rows": 8}))
    return there / manifest.FILE


def read_checkpoint(path):
    """With a CRC that fits what is there, as whoever changes a file on purpose would write it."""
    text = path.read_bytes().partition(b"\n")[2].removesuffix(b"\n")
    path.write_bytes(b"%08x\n%s\n" % (zlib.crc32(text), text))
    verify(path.parent)
    found = newest_complete(path.parents[1]).manifest
    parameters_of(found), adapters_of(found), averages_of(found)
    manifest.size_in_bytes(found)


def read_metrics(path):
    panels(read_runs([path.parent]), ["loss"], "step", 1)


def read_events(path):
    standing = RunReader("a", path.parent).standing(2e9)
    list(standing_lines(standing, 80))
    run_page([view_of(standing)], 2e9)
    goodput(path.parent)


def read_documents(path):
    for file in find_files([str(path)]):
        for document in documents(file, "text"):
            b"".join(document)


def read_chat(path):
    for row in read_rows(File(path, "chat", 0, 0), ["messages"]):
        _messages(row.values[0], "messages", row.where)


def hardware(folder):
    path = folder / "hardware.toml"
    path.write_text(
        (ROOT / "meshdsl/machine/hardware.toml").read_text()[:2000].rpartition("\n[")[0]
    )
    return path


def executable(folder):
    path = folder / "step.bin"
    header = dict.fromkeys([*executables.Provenance.__dataclass_fields__, "program", "sha256"], "x")
    header |= {"format": executables._FORMAT, "bytes": 3}
    path.write_bytes(json.dumps(header).encode() + b"\nabc")
    return path


def read_token_file(path):
    ranges = token_file_ranges(find_files([str(path)]), "uint16", 0.2)[0]
    tokens = Tokens(ranges, below=50)
    if len(tokens):
        tokens.read(0, len(tokens))


def orbax(folder):
    saved_states(folder, {1: make_state(ONE)})
    # What each process wrote lies beside it, and is not read any more.
    return max((folder / "checkpoints/1/d").iterdir(), key=lambda path: path.stat().st_size)


def read_orbax(path):
    """With a manifest that fits the files, as whoever changes one on purpose would write it."""
    there = next(each for each in path.parents if each.name == "1")
    about = there / manifest.FILE
    found = json.loads(about.read_text().partition("\n")[2])
    text = json.dumps(found | {"files": manifest._files(there)}).encode()
    about.write_bytes(b"%08x\n%s\n" % (zlib.crc32(text), text))
    opened(there.parents[1], lambda text: None).restore(make_state(ONE))


def read_gzipped(path):
    settings = {"data.cache": str(path.parent / "cache"), "data.sources.a.paths": (str(path),)}
    with_files_here(override(Config(), **settings))


SAID = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
CONFIG = 'steps = 4\nlayout = "fsdp"\n[model]\nlayers = 2\n[data.sources.a]\npaths = []'
METRICS = {"step": range(1, 5), "loss": [2.0] * 4, "tokens": [8] * 4, "seconds": [0.1] * 4}
EVENTS = {
    "time": [1e9, 1e9 + 5, 1e9 + 9, 1e9 + 12],
    "event": ["start", "first_step", "rollback", "slow"],
    "step": range(4),
    "steps": [9, 0, 2, 0],
    "startup_seconds": [0.0, 5.0, 0.0, 0.0],
    "startup_import_seconds": [0.0, 5.0, 0.0, 0.0],
    "seconds": [0.5] * 4,
    "processes": [[1]] * 4,
    "hosts": [["b"]] * 4,
}


def named(name, write):
    """What writes a file of this name, and gives its path."""

    def written(folder):
        write(folder / name)
        return folder / name

    return written


def bytes_of(name, content):
    return named(name, lambda path: path.write_bytes(content))


def table(name, **columns):
    return named(name, lambda path: write_table(path, **columns))


PIXELS = np.arange(192, dtype=np.uint8).reshape(8, 8, 3)
TEXTS = ["one", "two \u00e9"]
LINES = table("a.jsonl", text=TEXTS)
ARRAY = named("a.npy", lambda path: np.save(path, np.arange(12.0).reshape(3, 4)))
ARRAYS = {"image": np.zeros((4, 2, 2)), "label": np.arange(4)}
FSDP = (ROOT / "layouts/fsdp-tensor.toml").read_bytes()
read_image = lambda path: decoded(path.read_bytes(), f"`{path}`")
# For each kind what writes a file, and what reads it.
KINDS = {
    "safetensors": (safetensors, read_safetensors),
    "safetensors index": (safetensors_index, read_safetensors),
    "layout": (bytes_of("my.toml", FSDP), md.Layout.load),
    "configuration": (
        bytes_of("config.toml", CONFIG.encode()),
        lambda path: read_settings(path, Config()),
    ),
    "published": (published, lambda path: published_settings(path.parent)),
    "tokenizer": (
        named("tokenizer.json", lambda path: save_tokenizer(path, 260, "<|endoftext|>", "ab a")),
        read_tokenizer,
    ),
    "checkpoint": (checkpoint, read_checkpoint),
    "metrics": (table("metrics.jsonl", **METRICS), read_metrics),
    "events": (table("events.jsonl", **EVENTS), read_events),
    "jsonl": (LINES, read_documents),
    "chat": (table("chat.jsonl", messages=[SAID]), read_chat),
    "parquet": (table("a.parquet", text=TEXTS), read_documents),
    "arrow": (table("a.arrow", text=TEXTS), read_documents),
    "hardware": (hardware, chips),
    "executable": (executable, lambda path: executables._read(path, trusted=False)),
    "tokens": (named("a.bin", lambda path: write_tokens(path, np.arange(40))), read_token_file),
    "image": (bytes_of("a.png", png(PIXELS)), read_image),
    "npy": (ARRAY, read_image),
    "npz": (
        named("a.npz", lambda path: np.savez(path, **ARRAYS)),
        lambda path: array_images([str(path)], "image", "label").read(0),
    ),
    "orbax": (orbax, read_orbax),
    "gzipped": (bytes_of("a.txt.gz", gzip.compress(b"one two three " * 9)), read_gzipped),
}
TOKENS = [
    b"null", b"true", b"-1", b"0", b"1e999", b"NaN", b"99999999999999999999", b"9" * 5000, b'""',
    b'"../../secret"', b'"/etc/passwd"', b"[]", b"{}", b"[" * 3000, b'{"a":' * 3000, b"\xff\xfe",
    b"\x00", b'"\\ud800"', b"4294967296", b"0.5", b'"a" -> "b"',
]  # fmt: skip
VALUE = re.compile(rb'"[^"\n]*"|-?\d+(?:\.\d+)?|true|false|null')


def changed(content, draw):
    """The content of a file with one to three random changes."""
    for _ in range(draw.randint(1, 3)):
        at, end = sorted(draw.randrange(len(content) + 1) for _ in range(2))
        kind = draw.randrange(6)
        if kind == 0 and content:
            content = bytearray(content)
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        elif kind == 1:
            content = content[:at]
        elif kind == 2:
            content = content[:at] + content[end:]
        elif kind == 3:
            content = content[:end] + content[at:]
        else:
            values = list(VALUE.finditer(bytes(content)))
            if values:
                at, end = draw.choice(values).span()
            content = content[:at] + draw.choice(TOKENS) + content[end:]
        content = bytes(content)
    return content


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_file_is_read_right_or_is_one_error(kind, tmp_path):
    write, read = KINDS[kind]
    path = write(tmp_path)
    content = path.read_bytes()
    read(path)
    said = []
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    for seed in range(CHANGES // len(KINDS)):
        path.write_bytes(changed(content, random.Random(f"{kind} {seed}")))
        try:
            read(path)
        except MeshDSLError as error:
            said.append(str(error))
        except Exception as error:
            raise AssertionError(f"{kind} {seed}: {path.read_bytes()[:300]}") from error
    assert all("\n" not in text and len(text) < 20_000 for text in said), said
    assert said, "no change of this file is an error"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 512 * 1024  # KiB
    assert time.monotonic() - began < 60


def test_an_index_leads_to_no_file_outside_of_its_folder(tmp_path):
    (tmp_path / "in").mkdir()
    safetensors(tmp_path)
    for name in ("../model.safetensors", str(tmp_path / "model.safetensors")):
        index = tmp_path / "in/model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": {"a": name}}))
        with pytest.raises(MeshDSLError, match="expected one beside it"):
            TensorFiles(index)


@pytest.mark.parametrize(
    ("kind", "read"),
    [
        (LINES, lambda path: find_files([str(path.parent)])),
        (safetensors, lambda path: TensorFiles(path.parent)),
        (ARRAY, lambda path: array_images([str(path.parent)], "a", None)),
    ],
    ids=["text", "weights", "array"],
)
def test_a_link_out_of_a_folder_is_refused(kind, read, tmp_path):
    (tmp_path / "in").mkdir()
    file = kind(tmp_path)
    (tmp_path / "in" / file.name).symlink_to(file)
    with pytest.raises(MeshDSLError, match=f"is a link to `.*{file.name}`, outside of `.*in`"):
        read(tmp_path / "in" / file.name)


def test_a_cache_of_hugging_face_has_links(tmp_path):
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshots/1a").mkdir(parents=True)
    file = safetensors(tmp_path / "blobs").rename(tmp_path / "blobs/5f")
    (tmp_path / "snapshots/1a/model.safetensors").symlink_to("../../blobs/5f")
    assert file.exists() and set(TensorFiles(tmp_path / "snapshots/1a").leaves) == {"a", "b"}


def test_a_checkpoint_with_a_link_out_of_it_is_damaged(tmp_path):
    data = orbax(tmp_path)
    data.rename(tmp_path / "elsewhere")
    data.symlink_to(tmp_path / "elsewhere")
    assert f"is a link to {tmp_path / 'elsewhere'}, outside of the checkpoint" in verify(
        tmp_path / "checkpoints/1"
    )
