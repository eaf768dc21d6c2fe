"""The command that hands runs to clusters."""

from pathlib import Path

from meshdsl_cli.declare import Command, Flag
from meshdsl_cli.flags import TARGET, count

_CONFIG = Flag("config CONFIG.toml", "the settings of the run", Path)
_OUT = Flag(
    "--out FOLDER", "the folder of the run, on a file system of all machines", Path, required=True
)
_NODES = Flag("--nodes N", "how many machines", count, required=True)
_GPUS = Flag("--gpus N", "GPUs of each machine", count)
_ELASTIC = Flag(
    "--elastic MIN", "go on with so many machines, while others are lost or not there yet", count
)
_DRY_RUN = Flag("--dry-run", "print what the cluster would be given")
_IMAGE = Flag("--image IMAGE", "with meshdsl in it", required=True)
_VOLUME = Flag(
    "--volume CLAIM:PATH", "mount the volume of a claim at a path, as shared:/shared", several=True
)
_CHDIR = Flag("--chdir PATH", "where the run starts, and finds a model of your own")

SUBMIT = Command(
    "submit",
    help="hand a training run to SLURM or Kubernetes",
    parts=(
        Command(
            "slurm",
            help="as a batch job, which goes back into the queue until the run is done",
            function="meshdsl.commands.submit:to_slurm",
            settings=True,
            flags=(
                _CONFIG,
                _OUT,
                _NODES,
                _GPUS,
                Flag("--time TIME", "after which SLURM ends the job, as 24:00:00"),
                Flag(
                    "--sbatch OPTION",
                    "another option, as --sbatch=--partition=gpu",
                    any_text=True,
                    several=True,
                ),
                Flag(
                    "--each KEY=VALUE,...",
                    "an array of runs, one for each value of a setting, as seed=0,1,2",
                    any_text=True,
                ),
                _ELASTIC,
                _DRY_RUN,
            ),
        ),
        Command(
            "jobset",
            help="as a JobSet of Kubernetes, of TPU slices or of machines with GPUs",
            function="meshdsl.commands.submit:to_jobset",
            settings=True,
            flags=(
                _CONFIG,
                _OUT,
                TARGET.but(help="TPU slices, as v6e:4x4, on Google's Kubernetes"),
                Flag("--slices N", "so many of them", count, default=1),
                _NODES.but(required=False, help="how many machines, where they have no TPUs"),
                _GPUS,
                _IMAGE,
                _VOLUME,
                _CHDIR,
                Flag("--restarts N", "at most (%(default)s)", count, default=100),
                _DRY_RUN,
            ),
        ),
        Command(
            "k8s",
            help="as a Job of Kubernetes, of machines with GPUs",
            function="meshdsl.commands.submit:to_kubernetes",
            settings=True,
            flags=(
                *(_CONFIG, _OUT, _NODES, _GPUS, _IMAGE, _VOLUME, _CHDIR),
                *(_ELASTIC, _DRY_RUN),
            ),
        ),
    ),
)
