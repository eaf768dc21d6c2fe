"""The clusters in which processes find each other by themselves: SLURM, Open MPI, GKE, Cloud TPU.

JAX knows how to join each of them. Here it is only detected whether this process was started by
one, together with other processes. Kubernetes without TPUs is not among them: JAX would ask its API
server, which takes a package and a permission, where three variables in the manifest are enough
(see docs/launch.md).
"""

from __future__ import annotations

import os
import re
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass

# Under `srun` all of these are set, under `sbatch` alone they are not.
_SLURM = (
    "SLURM_JOB_ID",
    "SLURM_STEP_NODELIST",
    "SLURM_NTASKS",
    "SLURM_PROCID",
    "SLURM_LOCALID",
)
_METADATA = "computeMetadata/v1/instance/attributes"


@dataclass(frozen=True)
class Cluster:
    """How this process was started, together with others.

    Attributes:
      name: what the cluster is called in messages.
      method: the `cluster_detection_method` of `jax.distributed.initialize`.
      processes: how many processes there are.
      devices: which of the visible GPUs this process uses; empty: all of them.
    """

    name: str
    method: str
    processes: int
    devices: tuple[int, ...] = ()


def find_cluster(environment: Mapping[str, str] = os.environ) -> Cluster | None:
    """The cluster of which this process is one of several; None where there is none."""
    found = (
        _slurm(environment)
        or _open_mpi(environment)
        or _gke(environment)
        or _cloud_tpu(environment)
    )
    return found if found and found.processes > 1 else None


def _slurm(environment: Mapping[str, str]) -> Cluster | None:
    if not all(name in environment for name in _SLURM):
        return None
    # Such as 8(x2),4: eight on each of two machines, four on the third.
    of_step = environment.get("SLURM_STEP_TASKS_PER_NODE")
    tasks = of_step or environment.get("SLURM_TASKS_PER_NODE") or "1"
    here = int(re.split(r"\D", tasks)[0])
    bound = any(name in environment for name in ("SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK"))
    devices = () if bound else _gpus(int(environment["SLURM_LOCALID"]), here, environment)
    return Cluster("SLURM", "slurm", int(environment["SLURM_NTASKS"]), devices)


def _open_mpi(environment: Mapping[str, str]) -> Cluster | None:
    if "OMPI_COMM_WORLD_SIZE" not in environment:
        return None
    local, here = (
        int(environment.get(f"OMPI_COMM_WORLD_LOCAL_{name}", default))
        for name, default in (("RANK", 0), ("SIZE", 1))
    )
    return Cluster(
        "Open MPI",
        "ompi",
        int(environment["OMPI_COMM_WORLD_SIZE"]),
        _gpus(local, here, environment),
    )


def _gpus(local: int, here: int, environment: Mapping[str, str]) -> tuple[int, ...]:
    """The GPUs of one process, as positions among those that are visible on its machine.

    JAX by itself would give each process one GPU; here they share all that are visible.

    Args:
      local: the number of the process on its machine.
      here: how many processes the machine runs.
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    each = len(visible.split(",")) // here if visible else 1
    return tuple(range(local * each, (local + 1) * each)) if here > 1 else ()


def _gke(environment: Mapping[str, str]) -> Cluster | None:
    hosts = environment.get("TPU_PROCESS_ADDRESSES") or environment.get("TPU_WORKER_HOSTNAMES")
    if not hosts:
        return None
    return Cluster(
        "GKE", "gketpu", len(hosts.split(",")) * int(environment.get("MEGASCALE_NUM_SLICES") or 1)
    )


def _cloud_tpu(environment: Mapping[str, str]) -> Cluster | None:
    # JAX sets this variable when it is imported, where no TPU is attached.
    if "TPU_SKIP_MDS_QUERY" in environment:
        return None
    server = environment.get("GCE_METADATA_IP", "metadata.google.internal")
    workers = _metadata(server, "worker-network-endpoints")
    if not workers:
        return None
    slices = re.search(r"MEGASCALE_NUM_SLICES:\s*'?(\d+)", _metadata(server, "tpu-env"))
    return Cluster("Cloud TPU", "gcetpu", len(workers.split(",")) * int(slices[1] if slices else 1))


def _metadata(server: str, name: str) -> str:
    """What Google's metadata server says of this machine under `name`; empty for nothing."""
    request = urllib.request.Request(
        f"http://{server}/{_METADATA}/{name}", headers={"Metadata-Flavor": "Google"}
    )
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.read().decode()
    except OSError:
        return ""
