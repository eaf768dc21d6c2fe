"""Data: what a batch is, which files it is read from, what is held out, and the order of rows.

A `task` says what a batch is: `text`, `images`, `pairs` or `examples` (`tasks`). It opens datasets,
which give rows by their numbers, and makes batches of rows. The rest is the same for every task: a
mixture of datasets (`mixture`), whose rows are shuffled and interleaved (`batches`), and which go
to the devices that need them (`device_batches`).

Text comes from files of documents (`files`, `documents`). It is tokenized once (`tokenizer`,
`cache`), or the files hold tokens already. The tokens are cut into sequences of the model's length
(`sequences`).

A batch is a function of (files, tokenizer, seed, step) and of nothing else: layouts, devices and
processes never change what a step reads.
"""

from meshdsl.train.data.mixture import Data
from meshdsl.train.data.task import Task
from meshdsl.train.data.tasks import open_data, task_of
from meshdsl.train.data.tokenizer import load_tokenizer

__all__ = ["Data", "Task", "load_tokenizer", "open_data", "task_of"]
