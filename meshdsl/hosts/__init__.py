"""Several processes that run one program together: how they find each other, agree, and end.

Every process runs the same command and holds its share of the devices. Process 0 speaks for all of
them: the others print nothing but their own errors, each under the number of its process. What the
processes must agree on goes through the key-value store of JAX's coordination service, which
process 0 holds. So no devices are involved and nothing is gathered. In a program of one process
all of this does nothing.

    hosts.join(...)                          # meet the other processes
    hosts.agree("configuration", text)       # refuse to go on unless all have the same text
    hosts.first_does(folder.refuse_used)     # process 0 does it, all get the result or the error
    hosts.console().print("a line")          # printed once
"""

from meshdsl.hosts.agree import agree, first_does, first_goes_ahead
from meshdsl.hosts.console import console
from meshdsl.hosts.ending import report_and_end
from meshdsl.hosts.join import join
from meshdsl.hosts.store import count, first, index

__all__ = [
    "agree",
    "console",
    "count",
    "first",
    "first_does",
    "first_goes_ahead",
    "index",
    "join",
    "report_and_end",
]
