"""Checkpoints of a run, or of any tree: written while it goes on, and checked before they are used.

Orbax writes the arrays: each process writes what its own devices hold, into a folder that gets its
final name only when it is complete. Beside the arrays lies a manifest, `meshdsl.json`: the state of
the data, the dims of every array, and digests that show any damage when the checkpoint is read.

Arrays are read straight into the shardings of the run that asks for them. That run may have another
layout, another mesh and another number of devices or processes than the run that wrote them.

Launchers of an elastic run keep copies of the state in memory too (`copies`, `keeper`), which are
read in the same way.
"""

from meshdsl.train.checkpoints.checkpoints import Checkpoints as Checkpoints
from meshdsl.train.checkpoints.checkpoints import Restored as Restored
from meshdsl.train.checkpoints.parameters import read_params as read_params
from meshdsl.train.checkpoints.parameters import warm_start as warm_start
from meshdsl.train.checkpoints.tree_leaves import named_leaves as named_leaves
