"""The clusters in which processes find each other by themselves.

JAX knows how to join each of them; here it is only seen that there is one, with more than one process. Kubernetes without TPUs is not among them:
JAX would ask its API server, which needs a package and a permission, where three variables in the manifest do (see docs/launch.md).
"""

from __future__ import annotations

import os
import re
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass

_SLURM = (
    "SLURM_JOB_ID",
    "SLURM_STEP_NODELIST",
    "SLURM_NTASKS",
    "SLURM_PROCID",
    "SLURM_LOCALID",
)  # all of them under `srun`, and not under `sbatch` alone
_METADATA = "computeMetadata/v1/instance/attributes"


@dataclass(frozen=True)
class Cluster:
    """How this process was started, together with others.

    Attributes:
      name: for messages.
      method: `cluster_detection_method` of `jax.distributed.initialize`.
      processes: how many there are.
      devices: which of the visible GPUs are this process's; none: all.
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
    tasks = (
        environment.get("SLURM_STEP_TASKS_PER_NODE")
        or environment.get("SLURM_TASKS_PER_NODE")
        or "1"
    )  # such as 8(x2),4
    here = int(re.match(r"\d+", tasks)[0])
    own = any(name in environment for name in ("SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK"))
    devices = () if own else _share(int(environment["SLURM_LOCALID"]), here, environment)
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
        _share(local, here, environment),
    )


def _share(local: int, here: int, environment: Mapping[str, str]) -> tuple[int, ...]:
    """The GPUs of process `local` of `here` on this machine, as positions among the visible ones. JAX would take one for each."""
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
    if (
        "TPU_SKIP_MDS_QUERY" in environment
    ):  # JAX sets it as it is imported, where no TPU is attached
        return None
    server = environment.get("GCE_METADATA_IP", "metadata.google.internal")
    workers = _attribute(server, "worker-network-endpoints")
    if not workers:
        return None
    slices = re.search(r"MEGASCALE_NUM_SLICES:\s*'?(\d+)", _attribute(server, "tpu-env"))
    return Cluster("Cloud TPU", "gcetpu", len(workers.split(",")) * int(slices[1] if slices else 1))


def _attribute(server: str, name: str) -> str:
    """A text that Google's metadata server has of this machine; empty where there is none."""
    request = urllib.request.Request(
        f"http://{server}/{_METADATA}/{name}", headers={"Metadata-Flavor": "Google"}
    )
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.read().decode()
    except OSError:
        return ""
