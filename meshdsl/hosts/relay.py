"""The connection to process 0, through a relay in this process, so that its end is seen first.

Process 0 holds the store. Where it is killed its connections break, and JAX's client then aborts
the process that it is in, within 0.2 seconds and with a C++ stack trace. JAX offers no way to be
told instead. So the client of each other process is connected to a relay, a few threads of the same
process that pass bytes on. When process 0 breaks the connection, the client still has its own, and
waits, while the relay ends this process with one sentence.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress

from jax._src.lib import _jax  # pyright: ignore[reportPrivateImportUsage]

from meshdsl.hosts.ending import end_alone
from meshdsl.hosts.heartbeat import MISSED, missed

_DIRECT = "no_grpc_proxy"  # the variable with the hosts that gRPC asks no proxy for the way to
_DYING = 0.5  # seconds after which a process whose connections broke listens no more
_REACHED = 5.0  # seconds in which a process that lives answers


class Relay:
    """Passes on what JAX's client and process 0 say to each other, and sees when the latter dies.

    Until `watch` is called, and after `end`, an end of the connection is passed on as such.
    """

    def __init__(self) -> None:
        self._watching = False
        self._coordinator = ("", 0)

    @contextmanager
    def between(self) -> Iterator[None]:
        """A context in which the client that JAX makes is connected through this relay.

        It is connected directly in process 0, and where JAX proves who it is by TLS, because the
        certificate is that of the other machine.
        """
        make = _jax.get_distributed_runtime_client

        def through_relay(address: str, process: int, *args, **how):
            if process and not how.get("mtls_cert_file"):
                address = self._listen(address)
            return make(address, process, *args, **how)

        _jax.get_distributed_runtime_client = through_relay
        try:
            yield
        finally:
            _jax.get_distributed_runtime_client = make

    def watch(self) -> None:
        """From here on the end of a connection to process 0 is its death."""
        self._watching = True

    def end(self) -> None:
        """Say that this process ends properly, and process 0 too."""
        self._watching = False

    def _listen(self, coordinator: str) -> str:
        host, port = coordinator.rsplit(":", 1)
        self._coordinator = (host.strip("[]"), int(port))
        server = socket.create_server(("127.0.0.1", 0))
        direct = os.environ.get(_DIRECT) or os.environ.get("no_proxy")
        os.environ[_DIRECT] = f"{direct},127.0.0.1" if direct else "127.0.0.1"
        _in_thread(self._accept, server)
        return f"127.0.0.1:{server.getsockname()[1]}"

    def _accept(self, server: socket.socket) -> None:
        while True:
            client, _ = server.accept()
            try:
                coordinator = socket.create_connection(self._coordinator, _REACHED)
            except OSError:  # process 0 does not listen yet; the client tries again
                client.close()
                continue
            for end in (client, coordinator):
                end.settimeout(None)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _in_thread(self._pass_on, client, coordinator)
            _in_thread(self._pass_on, coordinator, client)

    def _pass_on(self, of: socket.socket, to: socket.socket) -> None:
        """Pass on what is said until a connection ends, and then its end too.

        The connection to process 0 ends where it is read, and where it is written to: whichever of
        the two sees it first, the client's own stays open until it is known why.
        """
        with suppress(OSError):
            while said := of.recv(2**16):
                to.sendall(said)
        self._end_if_lost()
        for end in (of, to):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _end_if_lost(self) -> None:
        """End this process if process 0 is dead.

        Where a connection alone broke, the client makes another one.
        """
        if not self._watching:
            return
        time.sleep(_DYING)
        try:
            with closing(socket.create_connection(self._coordinator, _REACHED)):
                return
        except OSError as error:
            why = error.strerror or str(error)
        if self._watching:
            end_alone(missed([0], f"its connection broke ({why})"), MISSED)


def _in_thread(do: Callable, *args) -> None:
    threading.Thread(target=do, args=args, name="meshdsl relay", daemon=True).start()
