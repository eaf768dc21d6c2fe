"""Data: what is read, as which tokens, what is held out, and in which order batches of it come.

Files are documents (`files`, `documents`), tokens are made of them once (`tokenizers`, `cache`) or lie in token files already (`tokens`), windows of
`length` tokens are cut from those (`windows`), and a batch is so many windows in the order of the mixture (`corpus`). A batch is a function of
(files, tokenizer, seed, step) and of nothing else: layouts, devices and processes never change what a step reads. `place` puts it on the devices.
"""

from meshdsl.train.data.corpus import Corpus, open_data
from meshdsl.train.data.tokenizer import load_tokenizer

__all__ = ["Corpus", "load_tokenizer", "open_data"]
