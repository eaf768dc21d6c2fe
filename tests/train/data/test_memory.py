"""Memory does not grow with the corpus: text is read in blocks, and what is kept is mapped."""

import gzip
import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

PROGRAM = """
import re, sys, threading, time
import numpy as np
from meshdsl.train.data import open_data
from tests.train.data.common import reads, take
from tests.train.data.families import Classifier, Translator, configured

def watch():
    while True:
        # Without pages of mapped files, which the system takes back when it needs them.
        with open("/proc/self/status") as file:
            seen.append(int(re.search(r"RssAnon:\\s+(\\d+) kB", file.read())[1]) // 1024)
        time.sleep(0.005)

kind, *paths, cache = sys.argv[1:]
seen = []
families = {"pairs": Translator(), "images": Classifier(height=64, width=64)}
threading.Thread(target=watch, daemon=True).start()
for path in paths:
    seen = []
    settings = {"data__cache": cache, "data__sources__a__paths": [path]}
    family = families.get(kind)
    config = reads(path, data__cache=cache) if family is None else configured(family, **settings)
    take(open_data(config).train(np.arange(4)), 20)
    print(max(seen))
"""


def lines(path, size):
    """JSONL of documents, compressed."""
    document = json.dumps({"text": "a line of some text\n" * 200}) + "\n"
    with gzip.open(path, "wt", compresslevel=1) as out:
        for _ in range(size // len(document)):
            out.write(document)


def pairs(path, size):
    schema = pyarrow.schema(dict.fromkeys(("source", "target"), "string"))
    with parquet.ParquetWriter(path, schema) as out:
        for at in range(0, size, 2**20):
            texts = [f"{at + i} " + "some words " * 400 for i in range(2**7)]
            out.write_table(pyarrow.table(dict.fromkeys(schema.names, texts), schema))


def images(path, size):
    """Images as the bytes of `.npy` files."""
    cell = io.BytesIO()
    np.save(cell, np.ones((64, 64), np.uint8))
    schema = pyarrow.schema({"image": pyarrow.binary(), "label": pyarrow.int64()})
    with parquet.ParquetWriter(path, schema) as out:
        for _ in range(0, size, 2**20):
            table = {"image": [cell.getvalue()] * 2**8, "label": [1] * 2**8}
            out.write_table(pyarrow.table(table, schema))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell")
@pytest.mark.parametrize(
    ("write", "ending"),
    [
        (lines, "jsonl.gz"),
        pytest.param(pairs, "parquet", marks=pytest.mark.slow),
        pytest.param(images, "parquet", marks=pytest.mark.slow),
    ],
)
def test_memory_does_not_grow_with_the_corpus(tmp_path, write, ending):
    small, large = tmp_path / f"small.{ending}", tmp_path / f"large.{ending}"
    write(small, 24 * 2**20)  # fills what is read at once
    write(large, 96 * 2**20)
    words = [sys.executable, "-c", PROGRAM, write.__name__, small, large, tmp_path / "cache"]
    found = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert not found.returncode, found.stderr
    before, after = map(int, found.stdout.split())
    # What allocators keep differs by up to 40 MiB between runs; a corpus in memory would be 72.
    assert after - before < 48, f"{after - before} MiB more for 72 MiB"
