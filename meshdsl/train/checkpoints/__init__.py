"""Checkpoints of a run: asynchronous, sharded, atomic, and never trusted before they are checked.

Orbax writes the arrays, each device's part by the process that holds it, into a folder that gets its name when all is there.
Beside them lies a record: the state of the data, the dims of every array, and digests by which any damage is seen when the
checkpoint is read. Arrays are read straight into the shardings of the run that asks, which may have another layout, another
mesh, and another number of devices or processes.
"""

from meshdsl.train.checkpoints.checkpoints import Checkpoints as Checkpoints
from meshdsl.train.checkpoints.parameters import read_params as read_params
from meshdsl.train.checkpoints.parameters import warm_start as warm_start
from meshdsl.train.checkpoints.tree_leaves import named as named
