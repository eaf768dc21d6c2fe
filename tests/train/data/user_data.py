"""Functions that give datasets, as a user would write them."""

import grain
import numpy as np

import meshdsl as md


def numbered(count, offset=0.0):
    return [
        {"vector": np.full(3, i + offset), "id": np.int64(i), "name": f"row {i}"}
        for i in range(count)
    ]


def both(subset):
    return numbered({"train": 40, "validation": 6}[subset])


def train_only(subset):
    return numbered(40) if subset == "train" else None


def more(subset):
    return numbered(20, 0.5) if subset == "train" else []


class Source(grain.sources.RandomAccessDataSource):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return numbered(40)[index]

    def __repr__(self):
        return "Source()"


def source(subset):
    return Source() if subset == "train" else None


def mapped(subset):
    rows = grain.MapDataset.source(numbered(40))
    return rows.map(lambda row: row | {"vector": row["vector"]}) if subset == "train" else None


def tensors(subset):
    features = md.Dim("features", 3)
    rows = [row | {"vector": md.tensor(row["vector"], (features,))} for row in numbered(40)]
    return rows if subset == "train" else None


def images(subset):
    """Images whose pixels are their labels."""
    rows = [{"image": np.full((4, 3), i % 10, np.uint8), "label": i % 10} for i in range(40)]
    return rows if subset == "train" else None


# -- mistakes --------------------------------------------------------------------------------------


def stream(subset):
    return mapped("train").to_iter_dataset()


def endless(subset):
    return mapped("train").repeat()


def filtered(subset):
    return mapped("train").filter(lambda row: row["id"] > 0)


def generated(subset):
    yield from numbered(4)


def one_dict(subset):
    return {"vector": np.zeros((4, 3))}


def fails(subset):
    return {}["images"]


def no_argument():
    return numbered(4)


def nothing(subset):
    return []


CHANGES = {
    "misspelt": lambda row: {"vectors": row["vector"], "id": 0},
    "wrong_shape": lambda row: row | {"vector": np.zeros(4)},
    "wrong_dtype": lambda row: row | {"id": 0.5},
    "words": lambda row: row | {"vector": "abc"},
    "too_large": lambda row: row | {"id": 2**40},
    "other_dims": lambda row: row | {"vector": md.tensor(np.zeros(3), (md.Dim("channels", 3),))},
    "lists": lambda row: [1, 2, 3],
}
for name, change in CHANGES.items():
    globals()[name] = lambda subset, change=change: list(map(change, numbered(9)))


class Nine:
    """Nine rows, each of which a function gives."""

    def __init__(self, row):
        self.row = row

    def __len__(self):
        return 9

    def __getitem__(self, index):
        return {"vector": self.row(index), "id": index}


def random(subset):
    return Nine(lambda index: np.random.default_rng().random(3))


def fails_later(subset):
    def row(index):
        if index not in (0, 8):
            raise RuntimeError(f"no row {index}")
        return np.zeros(3)

    return Nine(row) if subset == "train" else None


NOT_A_FUNCTION = 3
