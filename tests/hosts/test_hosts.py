"""Several processes: how they find each other, agree, and end. Each test runs two real ones."""

import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from meshdsl import MeshDSLError, hosts
from meshdsl.hosts.agree import _difference
from meshdsl.hosts.clusters import Cluster, find_cluster
from meshdsl.hosts.join import VARIABLES, join

ROOT = Path(__file__).parents[2]
JOINED = """
    import sys, time
    from meshdsl import Layout, MeshDSLError, hosts, make_mesh
    hosts.join(*sys.argv[1:2], *map(int, sys.argv[2:]), patience=60)
    me = hosts.index()
"""
COLLECTIVE = """
    import jax, numpy as np
    mesh = jax.sharding.Mesh(jax.devices(), "x")
    split, whole = (jax.NamedSharding(mesh, jax.P(*axes)) for axes in ("x", ""))
    ones = jax.make_array_from_callback((2,), split, lambda at: np.ones(1, np.float32))
    total = jax.jit(lambda x: x.sum(), out_shardings=whole)
"""


def free_port(least: int = 0) -> int:
    """A port that nobody listens on; the first one from `least` on."""
    for port in range(least, 2**16):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("localhost", port))
            return probe.getsockname()[1]
    raise AssertionError("no free port")


def begin(*parts: str, slurm: bool = False) -> list[subprocess.Popen]:
    """Two processes that run the parts of a program.

    Its arguments say how they meet, or an environment such as `srun` makes.
    """
    code = "".join(textwrap.dedent(part) for part in parts)
    at = f"localhost:{free_port()}"
    told = [[at, "2", str(i)] for i in range(2)]
    cluster = [{}, {}]
    if slurm:  # JAX takes the port from the number of the job
        task = {"SLURM_JOB_ID": str(free_port(65535 - 2**12 + 1)), "SLURM_NTASKS": "2"}
        task |= {"SLURM_STEP_NODELIST": "localhost", "SLURM_STEP_TASKS_PER_NODE": "2"}
        cluster = [
            task | {f"SLURM_{name}": str(i) for name in ("PROCID", "LOCALID")} for i in (0, 1)
        ]
        told = [[], []]
    usual = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
    usual["TPU_SKIP_MDS_QUERY"] = "1"
    how = {"cwd": ROOT, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return [
        subprocess.Popen([sys.executable, "-c", code, *told[i]], env=usual | cluster[i], **how)
        for i in range(2)
    ]


def finish(processes: list[subprocess.Popen], seconds: int = 60) -> list[tuple[int, str, str]]:
    """For each the exit code, what it printed and what it reported."""
    try:
        printed = [process.communicate(timeout=seconds) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, *each) for process, each in zip(processes, printed, strict=True)]


def test_two_processes_agree_or_all_hear_who_differs():
    asks = """
    print(hosts.count(), me, hosts.first())
    hosts.console().print("the first speaks")
    hosts.agree("configuration", "steps = 4")
    print(hosts.first_does(lambda: print("done once") or {"process": me}))
    def refuse():
        raise MeshDSLError("the folder is in use")
    layout = Layout.from_dict({"mesh": {"data": "rest", "dcn": {"replica": 2}}})
    print([device.process_index for device in make_mesh(layout).devices.flat])
    for ask in (
        lambda: hosts.first_does(refuse),
        lambda: hosts.agree("configuration", f"steps = 4\\nseed = {me}\\n"),
        lambda: me or hosts.agree("data", "rows = 4", patience=0.5),
    ):
        try:
            ask()
        except MeshDSLError as error:
            print(error)
    """
    both = finish(begin(JOINED, asks, slurm=True))
    differs = "configuration differs between processes, and must be the same in all 2: `seed = 0` "
    differs += "in process 0; `seed = 1` in process 1"
    refused = ["the folder is in use", differs]
    late = (
        "data: process 1 of 2 did not come in 0.5 s to compare it with the others; still at work, "
    )
    said = ["2 0 True", "the first speaks", "done once", "{'process': 0}", "[0, 1]", *refused]
    assert both[0][1].splitlines() == [*said, f"{late}or hanging?"], both
    assert both[1][1].splitlines() == ["2 1 False", "{'process': 0}", "[0, 1]", *refused], both
    assert [code for code, _, _ in both] == [0, 0]


REFUSED = "sys.exit(hosts.report_and_end('meshdsl train: no such file', 2))"
RAISED = "raise KeyError('lost')"


@pytest.mark.parametrize(
    "fault, code, told",
    [
        (REFUSED, 2, "process 1: meshdsl train: no such file"),
        pytest.param(RAISED, 1, "process 1: KeyError: 'lost'", marks=pytest.mark.slow),
    ],
    ids=["refused", "raised"],
)
def test_an_error_in_one_process_ends_all_under_its_number(fault, code, told):
    fails = f"""
    total(ones).block_until_ready()
    if me == 1:
        {fault}
    total(ones).block_until_ready()  # the other one never comes to this
    """
    both = finish(begin(JOINED, COLLECTIVE, fails))
    assert [each[0] for each in both] == [code, code], both
    # Process 0 says it too: its output is what a user looks at.
    assert told in both[0][2] and told in both[1][2]


def test_a_process_finds_what_process_0_has_compiled(tmp_path):
    act = f"""
    hits = []
    jax.monitoring.register_event_listener(lambda name, **kw: hits.append(name))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_compilation_cache_dir", {str(tmp_path)!r})
    compiled = hosts.first_goes_ahead(total.lower(ones).compile)
    print(float(compiled(ones)), "/jax/compilation_cache/cache_hits" in hits)
    """
    found = finish(begin(JOINED, COLLECTIVE, act))
    assert [(code, out) for code, out, _ in found] == [(0, "2.0 False\n"), (0, "2.0 True\n")], found


@pytest.mark.slow
def test_when_nobody_reads_on_all_end_quietly():
    prints = """
    from meshdsl.commands import train
    from meshdsl_cli import main
    def work(arguments):
        while True:
            hosts.console().print("a step")
            time.sleep(0.01)
    train.train_model = work
    sys.exit(main(["train"]))
    """
    both = begin(JOINED, prints)
    assert both[0].stdout.readline() == "a step\n"
    both[0].stdout.close()
    assert [(process.wait(60), process.stderr.read()) for process in both] == [(0, ""), (0, "")]


def test_all_stop_after_the_same_step_whoever_got_the_signal():
    steps = """
    import time
    from meshdsl.train.interrupt import stopping
    with stopping() as stop:
        for step in range(1, 1000):
            total(ones).block_until_ready()
            if step == 3:
                print("running", flush=True)
            if why := stop.reason_to_stop(step):
                break
            time.sleep(0.01 * (1 + me))
    print(why, step)
    """
    both = begin(JOINED, COLLECTIVE, steps)
    for process in both:
        while process.stdout.readline() != "running\n":
            assert process.poll() is None, process.stderr.read()
    both[1].send_signal(signal.SIGTERM)
    found = finish(both)
    assert found[0][1] == found[1][1] and found[0][1].startswith("preempted "), found
    assert [each[0] for each in found] == [0, 0]


def test_ctrl_c_ends_a_process_that_waits_for_the_others():
    code = "import sys; from meshdsl import hosts; hosts.join(sys.argv[1], 2, 0)"
    port = free_port()
    how = {"cwd": ROOT, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, "-c", code, f"localhost:{port}"]
    with subprocess.Popen(command, env=os.environ | {"JAX_PLATFORMS": "cpu"}, **how) as process:
        while process.poll() is None:  # until it listens, and has begun to wait
            with suppress(OSError), socket.create_connection(("localhost", port), timeout=1):
                break
            time.sleep(0.05)
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        reported = process.communicate(timeout=20)[1]
    assert (process.returncode, reported) == (130, "meshdsl: interrupted; nothing more was saved\n")


def test_a_launched_process_ends_with_its_launcher():
    pipe, hold = os.pipe()
    code = (
        "import time; from meshdsl.hosts.ending import follow_launcher; follow_launcher(); "
        "print('here', flush=True); time.sleep(60)"
    )
    environment = {**os.environ, "MESHDSL_LAUNCHER": str(pipe)}
    how = {"env": environment, "pass_fds": [pipe], "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], **how) as process:
        assert process.stdout.readline() == "here\n"
        os.close(hold)
        assert process.wait(30) == 1
    os.close(pipe)


def test_one_process_agrees_with_itself_and_prints_an_error_as_it_is(capsys):
    done = []
    hosts.join()
    hosts.agree("configuration", "steps = 4")
    assert hosts.first_does(lambda: done.append(1) or "done") == "done"
    assert (hosts.count(), hosts.index(), hosts.first(), done) == (1, 0, True, [1])
    assert hosts.report_and_end("meshdsl train: no such file", 2) == 2
    assert capsys.readouterr().err == "meshdsl train: no such file\n"


TOGETHER = "--coordinator, --processes and --process-id go together: "


@pytest.mark.parametrize(
    "given, message",
    [
        (("here:1", None, None), f"{TOGETHER}--processes and --process-id are missing"),
        (("here:1", 2, None), "--process-id is missing"),
        (("here", 2, 0), "--coordinator here: expected host:port, such as 10.0.0.1:1234"),
        (("here:1", 0, 0), "--processes 0: expected a whole number of at least 1"),
        (
            ("here:1", 2, 2),
            "--process-id 2: processes are counted from 0, so that of 2 the last is",
        ),
        (("here:1", 2, -1), "--process-id -1: processes are counted from 0"),
        (
            ("nowhere.invalid:1", 2, 1),
            "nowhere.invalid:1: process 1 of 2 could not reach it in 0 s",
        ),
    ],
)
def test_how_a_process_cannot_join(given, message):
    with pytest.raises(MeshDSLError, match=re.escape(message)):
        join(*given, patience=0)


def test_the_port_of_the_coordinator_must_be_free():
    with closing(socket.socket()) as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = f"process 0 cannot listen on port {port}: Address already in use"
        with pytest.raises(MeshDSLError, match=f"coordinator localhost:{port}: {said}"):
            join(f"localhost:{port}", 2, 0)


def test_the_environment_says_the_same_as_the_flags(monkeypatch):
    for name, value in zip(VARIABLES, ("localhost:1", "2", "2"), strict=True):
        monkeypatch.setenv(name, value)
    with pytest.raises(MeshDSLError, match="MESHDSL_PROCESS_ID 2: processes are counted from 0"):
        join()


SLURM = "SLURM_JOB_ID=7 SLURM_STEP_NODELIST=node[1-2] SLURM_PROCID=5 SLURM_LOCALID=1"
EIGHT = "CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7"
MPI = "OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2"
FOUR = "SLURM_NTASKS=8 SLURM_STEP_TASKS_PER_NODE=4(x2)"
CLUSTERS = {
    "none": ("", None),
    "a process per node": (
        f"{SLURM} SLURM_NTASKS=2 SLURM_STEP_TASKS_PER_NODE=1(x2) {EIGHT}",
        Cluster("SLURM", "slurm", 2),
    ),
    "four per node": (f"{SLURM} {FOUR} {EIGHT}", Cluster("SLURM", "slurm", 8, (2, 3))),
    "own GPUs": (f"{SLURM} {FOUR} SLURM_GPUS_PER_TASK=2", Cluster("SLURM", "slurm", 8)),
    "one task": (f"{SLURM} SLURM_NTASKS=1", None),
    "sbatch without srun": (f"{SLURM} {FOUR}".replace("SLURM_STEP_NODELIST", "X"), None),
    "mpirun": (MPI, Cluster("Open MPI", "ompi", 4, (1,))),
    "GKE": ("TPU_WORKER_HOSTNAMES=a,b,c,d TPU_WORKER_ID=1", Cluster("GKE", "gketpu", 4)),
    "GKE slices": (
        "TPU_WORKER_HOSTNAMES=a,b MEGASCALE_NUM_SLICES=3",
        Cluster("GKE", "gketpu", 6),
    ),
    "one host": ("TPU_WORKER_HOSTNAMES=localhost", None),
}


@pytest.mark.parametrize("variables, expected", CLUSTERS.values(), ids=CLUSTERS)
def test_clusters_are_seen_by_their_variables(variables, expected):
    given = dict(each.split("=") for each in variables.split())
    assert find_cluster({"TPU_SKIP_MDS_QUERY": "1"} | given) == expected


HOSTS = {"worker-network-endpoints": "a,b"}
SLICES = {"tpu-env": "ZONE: 'x'\nMEGASCALE_NUM_SLICES: '12'\n"}


@pytest.mark.parametrize(
    "attributes, expected",
    [
        (HOSTS, Cluster("Cloud TPU", "gcetpu", 2)),
        (HOSTS | SLICES, Cluster("Cloud TPU", "gcetpu", 24)),
        ({"worker-network-endpoints": "a"}, None),
        ({}, None),
    ],
    ids=["a pod", "slices", "one host", "no metadata"],
)
def test_a_tpu_pod_is_seen_by_its_metadata(attributes, expected):
    class Metadata(BaseHTTPRequestHandler):
        def do_GET(self):
            value = attributes.get(self.path.rsplit("/", 1)[1])
            self.send_response(200 if value else 404)
            self.end_headers()
            self.wfile.write((value or "").encode())

        def log_message(self, *words):
            pass

    with HTTPServer(("localhost", 0), Metadata) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        assert find_cluster({"GCE_METADATA_IP": f"localhost:{server.server_port}"}) == expected
        server.shutdown()


def test_who_differs_is_said_in_one_line():
    hashes = {str(i): "b" if i in (3, 7) else "a" for i in range(12)}
    found = _difference("data", hashes, {"a": "files = 3\nrows = 5", "b": "files = 3"})
    assert found == (
        "data differs between processes, and must be the same in all 12: `rows = 5` in "
        "processes 0, 1, 2, 4, 5, 6, 8, 9 and 2 more; nothing there in processes 3, 7"
    )
