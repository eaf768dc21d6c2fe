"""`join`: how a process finds the others that run the same command."""

from __future__ import annotations

import atexit
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import jax
from jax._src import cache_key

from meshdsl.errors import MeshDSLError
from meshdsl.hosts import store
from meshdsl.hosts.clusters import Cluster, find_cluster
from meshdsl.hosts.ending import end_together, follow_launcher
from meshdsl.hosts.heartbeat import Heartbeat, end_where_one_is_missed
from meshdsl.hosts.relay import Relay
from meshdsl.hosts.signals import heard

# Seconds without a sign of life after which JAX aborts the others. It gives and counts signs at
# half of them, so it may be as early as after half of them. `heartbeat` is faster.
HEARTBEAT = 150
PATIENCE = 300  # seconds in which all processes must have come
# Variables of the environment that say what the flags and the arguments of `join` say.
VARIABLES = ("MESHDSL_COORDINATOR", "MESHDSL_PROCESSES", "MESHDSL_PROCESS_ID")


def join(
    coordinator: str | None = None,
    processes: int | None = None,
    process_id: int | None = None,
    *,
    patience: int = PATIENCE,
) -> None:
    """Meet the other processes that run this command; call it before JAX makes its devices.

    Where the others are is said by the arguments, else by `VARIABLES` in the environment, else by
    the cluster that started this process. Where nothing says that there are others, or there is one
    process in all, this does nothing.

    Args:
      coordinator: `host:port`, where process 0 listens.
      processes: how many there are.
      process_id: which one this is, counted from 0.
      patience: seconds to wait for the others. Where they do not come in time, the program ends
        with a line on stderr and exit code 2.

    Raises:
      MeshDSLError: the arguments are incomplete or make no sense, the port is in use, or nobody
        listens at the coordinator.
    """
    if store.joined():
        return
    follow_launcher()
    given = _given_or_from_environment(coordinator, processes, process_id)
    cluster = None if given else find_cluster()
    if given[1] == 1 if given else cluster is None:
        return
    jax.config.update("jax_enable_preemption_service", False)  # it would swallow SIGTERM
    relay = Relay()
    with heard(signal.SIGINT), store.meeting(), relay.between():
        if given:
            _check_coordinator(*given, patience)
            _use_gloo()
            _initialize(*given, patience)
        elif cluster:
            _use_gloo()
            _initialize_in(cluster, patience)
    end_together(end_where_one_is_missed)
    heartbeat = Heartbeat()
    heartbeat.start()
    relay.watch()
    atexit.register(relay.end)  # what is registered last is called first
    atexit.register(heartbeat.end)


def _given_or_from_environment(*given: str | int | None) -> tuple[str, int, int] | None:
    """Coordinator, processes and process id: as given, else from the environment, else None.

    Raises:
      MeshDSLError: some of the three are missing, or are not what they should be.
    """
    names = ("--coordinator", "--processes", "--process-id")
    if all(value is None for value in given):
        names, given = VARIABLES, tuple(os.environ.get(name) for name in VARIABLES)
    missing = [name for name, value in zip(names, given, strict=True) if value in (None, "")]
    if len(missing) == len(names):
        return None
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise MeshDSLError(
            f"{names[0]}, {names[1]} and {names[2]} go together: "
            f"{' and '.join(missing)} {verb} missing"
        )
    coordinator, *numbers = map(str, given)
    if not re.fullmatch(r"\S+:[1-9]\d{0,4}", coordinator):
        raise MeshDSLError(f"{names[0]} {coordinator}: expected host:port, such as 10.0.0.1:1234")
    if not numbers[0].isdecimal() or int(numbers[0]) < 1:
        raise MeshDSLError(f"{names[1]} {numbers[0]}: expected a whole number of at least 1")
    processes = int(numbers[0])
    if not numbers[1].isdecimal() or int(numbers[1]) >= processes:
        raise MeshDSLError(
            f"{names[2]} {numbers[1]}: processes are counted from 0, "
            f"so that of {processes} the last is {processes - 1}"
        )
    return coordinator, processes, int(numbers[1])


def _check_coordinator(coordinator: str, processes: int, process_id: int, patience: int) -> None:
    """Raise a MeshDSLError where JAX would crash.

    In process 0, because the port is in use; in others, because nobody is reached at `coordinator`
    in `patience` seconds.
    """
    host, port = coordinator.rsplit(":", 1)
    if process_id == 0:
        with closing(socket.socket()) as probe:
            # A port whose old connections are still closing is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", int(port)))
            except OSError as error:
                raise MeshDSLError(
                    f"coordinator {coordinator}: process 0 cannot listen on port {port}: "
                    f"{error.strerror}; choose another port"
                ) from None
        return
    until = time.monotonic() + patience
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
            return
        except OSError as error:
            if time.monotonic() > until:
                why = error.strerror or str(error)
                raise MeshDSLError(
                    f"coordinator {coordinator}: process {process_id} of {processes} could not "
                    f"reach it in {patience} s ({why}); is process 0 running there, and is the "
                    "port open between the machines?"
                ) from None
            time.sleep(0.2)


def _initialize(coordinator: str, processes: int, process_id: int, patience: int) -> None:
    late = (
        f"process {process_id}: coordinator {coordinator}: not all {processes} processes have come "
        f"in {patience} s; is each of them started, with --processes {processes} and a "
        "--process-id of its own?"
    )
    with _end_after(patience, late):
        jax.distributed.initialize(
            coordinator,
            processes,
            process_id,
            cluster_detection_method="deactivate",
            initialization_timeout=2 * patience,
            heartbeat_timeout_seconds=HEARTBEAT,
        )


def _initialize_in(cluster: Cluster, patience: int) -> None:
    what = f"{cluster.name} with {cluster.processes} processes"
    late = f"{what}: not all of them have come in {patience} s; is each of them started?"
    try:
        with _end_after(patience, late):
            jax.distributed.initialize(
                cluster_detection_method=cluster.method,
                local_device_ids=cluster.devices,
                initialization_timeout=2 * patience,
                heartbeat_timeout_seconds=HEARTBEAT,
            )
    except (RuntimeError, ValueError) as error:
        raise MeshDSLError(
            f"{what}: JAX cannot join them: {' '.join(str(error).split())}"
        ) from None


@contextmanager
def _end_after(seconds: int, text: str) -> Iterator[None]:
    """A context in which this process ends, with `text`, if the context takes longer than that.

    JAX, which is given twice the time, would end it with a stack trace.
    """

    def give_up() -> None:
        print(text, file=sys.stderr, flush=True)
        os._exit(2)

    timer = threading.Timer(seconds, give_up)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _name_programs_alike() -> None:
    """Let a process on CPUs find in JAX's cache what process 0, which alone writes there, compiled.

    JAX names a program by what it calls the topology of its devices, among other things. On CPUs
    that differs between the processes of a run, though they all run the same compiled program. So
    kinds of devices stand in its place, as they do where a platform has no topology.
    """
    if hasattr(cache_key, "_hash_devices"):
        cache_key._hash_accelerator_config = cache_key._hash_devices


def _use_gloo() -> None:
    """Let CPUs of several processes talk through gloo; of no concern to GPUs and TPUs."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # JAX adds its options to `jax.config` when it is imported, which a type checker cannot see.
    platforms = jax.config.jax_platforms  # pyright: ignore[reportAttributeAccessIssue]
    if platforms != "cpu" and "JAX_NUM_CPU_DEVICES" not in os.environ:
        return
    _name_programs_alike()
    # Gloo reports each of its connections on the standard output, in every process. So Python gets
    # a copy of the standard output to print to, and gloo's reports go to nowhere.
    sys.stdout.flush()
    sys.stdout = os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
