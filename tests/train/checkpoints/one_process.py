"""One of two processes that save and restore together; `test_processes.py` starts them.

Arguments: port, process, the folder of the run, and `save` or `restore`.
"""

import json
import sys
from pathlib import Path

import jax

port, index, run, act = sys.argv[1:]
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"localhost:{port}", 2, int(index))

import numpy as np

from meshdsl.train.checkpoints.digest import digests
from meshdsl.train.checkpoints.manifest import Damaged
from meshdsl.train.checkpoints.saved_arrays import SavedArrays
from meshdsl.train.checkpoints.tree_leaves import named_arrays
from tests.train.checkpoints.states import FSDP, make_state, opened

said, due = [], []
checkpoints = opened(Path(run), said.append, keep=2, every=0, minutes=1e-4)
if act == "save":
    for step in (2, 4, 6):
        state = make_state(FSDP, seed=step)
        checkpoints.save(step, state, {"next_index": step})
    due = [checkpoints.due(step) for step in range(1, 6)]
    checkpoints.close()
else:
    read = SavedArrays.read

    def read_but_for_6(stored, like):
        """What a process meets whose part of step 6 is damaged; only the second one does."""
        if index == "1" and stored.folder.name == "6":
            raise Damaged("`params.up` cannot be read: a broken disk")
        return read(stored, like)

    SavedArrays.read = read_but_for_6
    state, _, _ = checkpoints.restore(make_state(FSDP))
numbers = np.asarray(digests(named_arrays(state))).tolist()
print(json.dumps({"digests": numbers, "latest": checkpoints.latest, "due": due, "said": said}))
