"""The commands that look at the machine that they run on."""

from pathlib import Path

from meshdsl_cli.declare import Command, Flag
from meshdsl_cli.flags import SEVERAL_PROCESSES, count, seconds

CALIBRATE = Command(
    "calibrate",
    help="measure the devices and the network that are there, as a file for --hardware",
    function="meshdsl.commands.calibrate:calibrate_machine",
    flags=(
        Flag(
            "--out FILE",
            "the hardware file to write",
            Path,
            missing="say which file to write, with --out, for example --out mine.toml",
        ),
        Flag("--target NAME", "a name for the chip in the file; by default that of the table"),
        Flag(
            "--devices N",
            "so many virtual CPU devices, 8 by default; where there is an accelerator, its first "
            "ones",
            count,
        ),
        Flag(
            "--seconds N",
            "how long to measure (%(default)s); a few sizes are timed in any case",
            seconds,
            default=120.0,
        ),
        SEVERAL_PROCESSES,
    ),
)


DOCTOR = Command(
    "doctor",
    help="what is installed here, which devices there are, and what is wrong with it",
    function="meshdsl.commands.doctor:examine",
    epilog="As a job of several processes, `srun meshdsl doctor` say, it also says whether they "
    "meet, and have the same versions. The exit code is 1 where something is wrong.",
)
