"""Data: which files are read, how they become tokens, what is held out, and the order of batches.

Files hold documents (`files`, `documents`). Their text is tokenized once (`tokenizer`, `cache`), or
they are token files already (`tokens`). The tokens are cut into sequences of the model's length
(`sequences`), and a batch is a number of sequences in the order of the mixture (`batches`,
`corpus`). `device_batches` puts a batch on the devices.

A batch is a function of (files, tokenizer, seed, step) and of nothing else: layouts, devices and
processes never change what a step reads.
"""

from meshdsl.train.data.corpus import Corpus, open_data
from meshdsl.train.data.tokenizer import load_tokenizer

__all__ = ["Corpus", "load_tokenizer", "open_data"]
