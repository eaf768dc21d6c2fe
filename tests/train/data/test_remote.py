"""Files that are fetched, unpacked or of Arrow are read as plain ones are."""

import bz2
import gzip
import json
import lzma

import fsspec
import pyarrow
import pytest

from meshdsl.errors import MeshDSLError
from meshdsl.train.config import Config
from meshdsl.train.data import remote
from meshdsl.train.data.documents import documents
from meshdsl.train.data.files import find_files
from meshdsl.train.data.remote import with_files_here
from meshdsl.train.folder import RunFolder
from meshdsl.train.settings import override

TEXTS = ["one", "two", "drei"]
JSONL = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()


def read(tmp_path, *paths, **how):
    settings = {f"data.sources.a.{name}": value for name, value in how.items()}
    config = override(
        Config(),
        [f"data.cache={tmp_path / 'cache'}"],
        **{"data.sources.a.paths": tuple(map(str, paths)), **settings},
    )
    source = with_files_here(config).data.sources["a"]
    files = find_files(source.paths, source.format)
    return [b"".join(text).decode() for file in files for text in documents(file, "text")]


def test_compressed_files_are_unpacked_once(tmp_path):
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(JSONL[:10]) + gzip.compress(JSONL[10:]))
    assert read(tmp_path, tmp_path / "b.jsonl.gz") == TEXTS
    [entry] = [path for path in (tmp_path / "cache" / "files").iterdir() if path.is_dir()]
    before = (entry / "b.jsonl").stat().st_mtime_ns
    assert read(tmp_path, tmp_path / "b.jsonl.gz") == TEXTS
    assert (entry / "b.jsonl").stat().st_mtime_ns == before


@pytest.mark.parametrize(("ending", "pack"), [("bz2", bz2.compress), ("xz", lzma.compress)])
def test_other_compressions(tmp_path, ending, pack):
    (tmp_path / f"b.jsonl.{ending}").write_bytes(pack(JSONL[:10]) + pack(JSONL[10:]))
    assert read(tmp_path, tmp_path / f"b.jsonl.{ending}") == TEXTS


def test_a_folder_may_have_both(tmp_path):
    folder = tmp_path / "data"
    (folder / "in").mkdir(parents=True)
    (folder / "in" / "a.jsonl.gz").write_bytes(gzip.compress(JSONL))
    (folder / "b.txt").write_text("plain")
    assert read(tmp_path, folder) == ["plain", *TEXTS]
    (folder / "in" / "a.jsonl").write_bytes(JSONL)
    with pytest.raises(MeshDSLError, match="which is there as well"):
        read(tmp_path, folder)


def test_a_remote_name_that_leads_out_of_the_cache_is_refused(tmp_path, monkeypatch):

    class Hostile:
        exists = isdir = staticmethod(lambda path: True)
        find = staticmethod(lambda path: [f"{path}/../../evil.txt"])
        info = staticmethod(lambda path: {"size": 3})

    monkeypatch.setattr(fsspec, "url_to_fs", lambda path: (Hostile(), "bucket"))
    with pytest.raises(MeshDSLError, match=r"called `\.\./\.\./evil\.txt`, which leads out of it"):
        read(tmp_path, "s3://bucket")


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_a_file_that_unpacks_to_too_much_is_refused(ending, tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "_ANY_SIZE", 1 << 20)
    packed = gzip.compress(b"a" * (8 << 20))
    if ending == ".zst":
        zstandard = pytest.importorskip("zstandard", reason="zstandard is not installed")
        packed = zstandard.ZstdCompressor().compress(b"a" * (8 << 20))
    (tmp_path / f"b.txt{ending}").write_bytes(packed)
    with pytest.raises(MeshDSLError, match=r"unpacks to more than 1,[0-9,]+; if that is right, un"):
        read(tmp_path, tmp_path / f"b.txt{ending}")
    assert not [each for each in (tmp_path / "cache").rglob("b.txt*") if each.is_file()]


def test_a_plain_file_beside_a_compressed_one_is_read(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(JSONL))
    (folder / "b.txt").symlink_to(tmp_path / "b.txt")
    (tmp_path / "b.txt").write_text("plain")
    with pytest.raises(MeshDSLError, match="outside of"):
        read(tmp_path, folder)
    (folder / "b.txt").unlink()
    (tmp_path / "b.txt").rename(folder / "b.txt")
    assert read(tmp_path, folder) == [*TEXTS, "plain"]


def test_zstandard(tmp_path):
    zstandard = pytest.importorskip("zstandard", reason="zstandard is not installed")
    pack = zstandard.ZstdCompressor().compress
    (tmp_path / "b.jsonl.zst").write_bytes(pack(JSONL[:10]) + pack(JSONL[10:]))
    assert read(tmp_path, tmp_path / "b.jsonl.zst") == TEXTS


def test_paths_with_a_protocol_are_fetched(tmp_path):
    memory = fsspec.filesystem("memory")
    memory.pipe("/corpus/x/a.jsonl.gz", gzip.compress(JSONL))
    memory.pipe("/corpus/b.txt", b"plain")
    assert read(tmp_path, "memory://corpus") == ["plain", *TEXTS]
    assert read(tmp_path, "memory://corpus/x/a.jsonl.gz") == TEXTS
    (tmp_path / "c.txt").write_text("here")
    assert read(tmp_path, f"file://{tmp_path / 'c.txt'}") == ["here"]


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


def test_a_damaged_file_is_one_error_and_leaves_nothing(tmp_path):
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"x" * 1000)[:-9])
    with pytest.raises(MeshDSLError, match=r"b.txt.gz` cannot be read: "):
        read(tmp_path, tmp_path / "b.txt.gz")
    assert not [path for path in (tmp_path / "cache" / "files").iterdir() if path.is_dir()]


@pytest.mark.parametrize("kind", ["stream", "file"])
def test_arrow(tmp_path, kind):
    folder = tmp_path / "dataset"
    folder.mkdir()
    table = pyarrow.table({"text": TEXTS, "number": [1, 2, 3]})
    make = {"stream": pyarrow.ipc.new_stream, "file": pyarrow.ipc.new_file}[kind]
    with make(str(folder / "data-00000-of-00001.arrow"), table.schema) as out:
        out.write_table(table, max_chunksize=2)
    for name in ("state.json", "dataset_info.json"):
        (folder / name).write_text("{}")
    assert read(tmp_path, folder) == TEXTS
    (tmp_path / "other").write_bytes((folder / "data-00000-of-00001.arrow").read_bytes())
    assert read(tmp_path, tmp_path / "other", format="arrow") == TEXTS
    file = find_files([str(folder)])[0]
    with pytest.raises(MeshDSLError, match="no column `txt`; did you mean `text`"):
        list(documents(file, "txt"))
    with pytest.raises(MeshDSLError, match="row 1: `number` is 1, not text"):
        list(documents(file, "number"))
    (folder / "data-00000-of-00001.arrow").write_bytes(b"no arrow at all")
    with pytest.raises(MeshDSLError, match="not Arrow, or damaged"):
        list(documents(find_files([str(folder)])[0], "text"))


def test_a_run_keeps_paths_with_a_protocol_as_they_are(tmp_path):
    config = override(Config(), ["data.sources.a.paths=s3://bucket/x,here.txt"])
    RunFolder(tmp_path / "run").write_config(config)
    paths = RunFolder(tmp_path / "run").stored_config().data.sources["a"].paths
    assert paths[0] == "s3://bucket/x" and paths[1].endswith("/here.txt") and paths[1][0] == "/"
