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


def misspelt(subset):
    return [{"vectors": row["vector"], "id": 0} for row in numbered(9)]


def wrong_shape(subset):
    return [row | {"vector": np.zeros(4)} for row in numbered(9)]


def wrong_dtype(subset):
    return [row | {"id": 0.5} for row in numbered(9)]


def words(subset):
    return [row | {"vector": "abc"} for row in numbered(9)]


def too_large(subset):
    return [row | {"id": 2**40} for row in numbered(9)]


def other_dims(subset):
    other = md.tensor(np.zeros(3), (md.Dim("channels", 3),))
    return [row | {"vector": other} for row in numbered(9)]


def lists(subset):
    return [[1, 2, 3]] * 9


def random(subset):
    class Rows:
        def __len__(self):
            return 9

        def __getitem__(self, index):
            return {"vector": np.random.default_rng().random(3), "id": index}

    return Rows()


def fails_later(subset):
    class Rows:
        def __len__(self):
            return 9

        def __getitem__(self, index):
            if index == 0 or index == 8:
                return {"vector": np.zeros(3), "id": index}
            raise RuntimeError(f"no row {index}")

    return Rows() if subset == "train" else None


NOT_A_FUNCTION = 3
