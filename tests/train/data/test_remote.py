"""Files that are fetched or unpacked are read as plain ones are."""

import bz2
import gzip
import json
import lzma

import fsspec
import pytest

from meshdsl.errors import MeshDSLError
from meshdsl.train.config import Config
from meshdsl.train.data import remote
from meshdsl.train.data.documents import documents
from meshdsl.train.data.files import find_files
from meshdsl.train.data.remote import with_files_here
from meshdsl.train.settings import override
from tests.train.data.common import refused, write_bytes

TEXTS = ["one", "two", "drei"]
JSONL = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()


def zstd(content):
    zstandard = pytest.importorskip("zstandard", reason="zstandard is not installed")
    return zstandard.ZstdCompressor().compress(content)


PACK = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": zstd}


def read(tmp_path, path):
    """The documents at a path, and the folders of the cache that files were brought to."""
    settings = {"data.cache": str(tmp_path / "cache"), "data.sources.a.paths": (str(path),)}
    source = with_files_here(override(Config(), **settings)).data.sources["a"]
    return [
        b"".join(text).decode()
        for file in find_files(source.paths, source.format)
        for text in documents(file, "text")
    ]


def brought(tmp_path):
    """What is in the cache, and when it was written."""
    files = (tmp_path / "cache" / "files").rglob("*")
    return {path: path.stat().st_mtime_ns for path in files if path.suffix != ".lock"}


@pytest.mark.parametrize("ending", PACK)
def test_compressed_files_are_unpacked_once(tmp_path, ending):
    pack, path = PACK[ending], tmp_path / f"b.jsonl.{ending}"
    path.write_bytes(pack(JSONL[:10]) + pack(JSONL[10:]))
    assert read(tmp_path, path) == TEXTS
    before = brought(tmp_path)
    assert read(tmp_path, path) == TEXTS and brought(tmp_path) == before


def test_a_folder_may_have_plain_and_compressed_files(tmp_path):
    folder = tmp_path / "data"
    (folder / "in").mkdir(parents=True)
    write_bytes(folder / "in" / "a.jsonl.gz", gzip.compress(JSONL))
    write_bytes(folder / "b.txt", b"plain")
    assert read(tmp_path, folder) == ["plain", *TEXTS]
    (folder / "b.txt").rename(tmp_path / "b.txt")
    (folder / "b.txt").symlink_to(tmp_path / "b.txt")
    with refused("outside of"):
        read(tmp_path, folder)
    (folder / "b.txt").unlink()
    write_bytes(folder / "in" / "a.jsonl", JSONL)
    with refused("which is there as well"):
        read(tmp_path, folder)


def test_a_remote_name_that_leads_out_of_the_cache_is_refused(tmp_path, monkeypatch):
    class Hostile:
        exists = isdir = staticmethod(lambda path: True)
        find = staticmethod(lambda path: [f"{path}/../../evil.txt"])
        info = staticmethod(lambda path: {"size": 3})

    monkeypatch.setattr(fsspec, "url_to_fs", lambda path: (Hostile(), "bucket"))
    with refused("called `../../evil.txt`, which leads out of it"):
        read(tmp_path, "s3://bucket")


@pytest.mark.parametrize("ending", ["gz", "zst"])
def test_a_file_that_unpacks_to_too_much_is_refused(ending, tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "ANY_SIZE", 1 << 20)
    path = write_bytes(tmp_path / f"b.txt.{ending}", PACK[ending](b"a" * (8 << 20)))
    with refused("unpacks to more than 1,", "; if that is right, unpack it yourself"):
        read(tmp_path, path)
    assert not brought(tmp_path)


def test_a_damaged_file_is_one_error_and_leaves_nothing(tmp_path):
    path = write_bytes(tmp_path / "b.txt.gz", gzip.compress(b"x" * 1000)[:-9])
    with refused("b.txt.gz` cannot be read: "):
        read(tmp_path, path)
    assert not brought(tmp_path)


def test_paths_with_a_protocol_are_fetched(tmp_path):
    memory = fsspec.filesystem("memory")
    memory.pipe("/corpus/x/a.jsonl.gz", gzip.compress(JSONL))
    memory.pipe("/corpus/b.txt", b"plain")
    assert read(tmp_path, "memory://corpus") == ["plain", *TEXTS]
    assert read(tmp_path, "memory://corpus/x/a.jsonl.gz") == TEXTS
    path = write_bytes(tmp_path / "c.txt", b"here")
    assert read(tmp_path, f"file://{path}") == ["here"]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("memory://absent", "data.sources.a: no file or folder `memory://absent`"),
        ("nosuch://bucket/x", "data.sources.a: `nosuch://bucket/x` cannot be read: "),
    ],
)
def test_what_cannot_be_fetched_is_one_error(tmp_path, path, said):
    with pytest.raises(MeshDSLError) as error:
        read(tmp_path, path)
    assert str(error.value).startswith(said)
