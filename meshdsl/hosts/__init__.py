"""Several processes that run one program together: how they find each other, agree, and end.

Every process runs the same command and holds its share of the devices. Process 0 speaks for all of them: the others print nothing but
their own errors, each under the number of its process. What they must agree on goes through the key-value store of JAX's coordination
service, which process 0 holds: no devices are involved, nothing is gathered, and in one process all of this does nothing.
"""

from meshdsl.hosts.agree import agree, first_does
from meshdsl.hosts.ending import ended
from meshdsl.hosts.join import console, join
from meshdsl.hosts.store import count, first, index

__all__ = [
    "agree",
    "console",
    "count",
    "ended",
    "first",
    "first_does",
    "index",
    "join",
]
