"""Manifests for Kubernetes: of a Job, or of a JobSet, which starts all machines again together.

The settings of the run and the script that each machine runs are in a ConfigMap beside it, so that
only the folder of the run, and what its settings name, have to be on a volume.

A Job takes the exit code 0 for done, which a run also ends with where it was told to end. So the
script looks whether the run has come to its last step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml  # which flax needs, so it is here

from meshdsl.errors import MeshDSLError
from meshdsl.machine import Target
from meshdsl.submit.submission import GRACE, Submission

FILES = "/meshdsl"  # where a container has the ConfigMap
CONFIG = f"{FILES}/run.toml"
_PORT = 1234
# The label of a node of Google's with such chips.
_ACCELERATORS = {
    "v4": "tpu-v4-podslice",
    "v5e": "tpu-v5-lite-podslice",
    "v5p": "tpu-v5p-slice",
    "v6e": "tpu-v6e-slice",
    "tpu7x": "tpu7x",
}
_ON_ONE_HOST = {"v5e": 8, "v6e": 8}  # so many chips a host has, where it has all of a slice


@dataclass(frozen=True)
class Pods:
    """What the pods of a run are made of.

    Attributes:
      image: of the container.
      volumes: claims of volumes, by the path at which they are mounted.
      chdir: the directory in which the run starts; empty for that of the image.
    """

    image: str
    volumes: dict[str, str]
    chdir: str = ""

    def check(self, out: str) -> None:
        """Raise a MeshDSLError unless the folder of the run is on a volume."""
        if not any(out.startswith(f"{path.rstrip('/')}/") for path in self.volumes):
            at = ", ".join(self.volumes) or "none"
            raise MeshDSLError(f"--out {out}: is on none of the volumes ({at}); see --volume")


def hosts_of(target: Target) -> int:
    """How many hosts a TPU slice has.

    Raises:
      MeshDSLError: they are no TPUs that Google's Kubernetes has.
    """
    if target.chip.name not in _ACCELERATORS:
        known = ", ".join(_ACCELERATORS)
        raise MeshDSLError(f"--target {target.name}: expected a TPU slice, of one of {known}")
    chips = math.prod(target.shape)
    return 1 if chips <= _ON_ONE_HOST.get(target.chip.name, 4) else chips // 4


def job_manifest(job: Submission, pods: Pods, config: str) -> str:
    """A Job of machines with GPUs.

    An elastic one starts a pod that failed again by itself. Otherwise all have to be there, and a
    pod that fails ends the Job.

    Args:
      config: the text of the settings.
    """
    name = job.name
    count = {"parallelism": job.nodes, "completions": job.nodes}
    if job.least:
        pod = _pod(job, pods, {"restartPolicy": "OnFailure"}, [])
        parts = [{**count, "backoffLimit": 1_000_000, "template": {"spec": pod}}]
        services = []
    else:
        pod = _pod(
            job, pods, {"subdomain": name, "restartPolicy": "Never"}, _told(job, f"{name}-0.{name}")
        )
        parts = [
            {"completionMode": "Indexed", **count, "backoffLimit": 0, "template": {"spec": pod}}
        ]
        # It gives each pod a name, before the pods are ready.
        selects = {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {"job-name": name},
        }
        services = [_object("v1", "Service", name, {"spec": selects})]
    return _text(
        [_files(job, config), *services, _object("batch/v1", "Job", name, {"spec": parts[0]})]
    )


def jobset_manifest(
    job: Submission, pods: Pods, config: str, target: Target | None, restarts: int
) -> str:
    """A JobSet, of TPU slices or of machines with GPUs. When a pod fails, all start again.

    Args:
      config: the text of the settings.
      target: the TPU slices; None for machines with GPUs.
      restarts: so many times at most.
    """
    name, group = job.name, "slice" if target else "nodes"
    told = [] if target else _told(job, f"{name}-{group}-0-0.{name}")
    pod = _pod(job, pods, {"restartPolicy": "Never"}, told, target)
    spec = {
        "parallelism": job.nodes,
        "completions": job.nodes,
        "backoffLimit": 0,
        "template": {"spec": pod},
    }
    replicated = {
        "name": group,
        "replicas": target.slices if target else 1,
        "template": {"spec": spec},
    }
    what = {"failurePolicy": {"maxRestarts": restarts}, "replicatedJobs": [replicated]}
    found = _object("jobset.x-k8s.io/v1alpha2", "JobSet", name, {"spec": what})
    if target:  # one slice on one node pool
        exclusive = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"}
        found["metadata"]["annotations"] = exclusive
    return _text([_files(job, config), found])


def _pod(
    job: Submission,
    pods: Pods,
    how: dict[str, Any],
    told: Sequence[dict[str, Any]],
    target: Target | None = None,
) -> dict[str, Any]:
    """The specification of each pod.

    Args:
      how: what else it has.
      told: variables of the environment.
    """
    mounts = [{"name": "files", "mountPath": FILES}]
    volumes: list[dict[str, Any]] = [{"name": "files", "configMap": {"name": f"{job.name}-files"}}]
    for i, (path, claim) in enumerate(pods.volumes.items()):
        mounts.append({"name": f"volume-{i}", "mountPath": path})
        volumes.append({"name": f"volume-{i}", "persistentVolumeClaim": {"claimName": claim}})
    container: dict[str, Any] = {
        "name": "train",
        "image": pods.image,
        "command": ["bash", f"{FILES}/run.sh"],
        "volumeMounts": mounts,
    }
    if pods.chdir:
        container["workingDir"] = pods.chdir
    if told:
        container["env"] = list(told)
    spec: dict[str, Any] = {**how, "terminationGracePeriodSeconds": GRACE}
    if target:
        each = math.prod(target.shape) // job.nodes
        container["resources"] = {"limits": {"google.com/tpu": each}}
        spec |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
        spec["nodeSelector"] = {
            "cloud.google.com/gke-tpu-accelerator": _ACCELERATORS[target.chip.name],
            "cloud.google.com/gke-tpu-topology": "x".join(map(str, target.shape)),
        }
    elif job.gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": job.gpus}}
        # NCCL needs more shared memory than a container has.
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory"}})
    return {**spec, "containers": [container], "volumes": volumes}


def _told(job: Submission, first: str) -> list[dict[str, Any]]:
    """The variables by which the pods find each other; `run.sh` adds the number of each."""
    if job.nodes == 1:
        return []
    told = {"MESHDSL_COORDINATOR": f"{first}:{_PORT}", "MESHDSL_PROCESSES": str(job.nodes)}
    return [{"name": name, "value": value} for name, value in told.items()]


def _files(job: Submission, config: str) -> dict[str, Any]:
    """The ConfigMap with the settings and the script."""
    script = [
        "#!/bin/bash",
        # Each pod of a Job that is indexed has a number.
        '[ -n "$MESHDSL_PROCESSES" ] && export MESHDSL_PROCESS_ID=$JOB_COMPLETION_INDEX',
        "trap 'kill -TERM $!' TERM",
        f"{job.command('$(hostname -i)')} &",
        "wait $!; code=$?",
        "[ $code -gt 128 ] && { wait $!; code=$?; }  # the first wait ends when the signal comes",
        "[ $code -ne 0 ] && exit $code",
        f"{job.done()}  # not at its last step, it was told to end",
        "",
    ]
    data = {"run.toml": config, "run.sh": "\n".join(script)}
    return _object("v1", "ConfigMap", f"{job.name}-files", {"data": data})


def _object(version: str, kind: str, name: str, content: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **content}


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as such."""


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    ),
)


def _text(objects: Sequence[dict[str, Any]]) -> str:
    return yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, width=100)
