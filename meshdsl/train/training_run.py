"""`run`: a training run, from a configuration to a trained model in a folder.

Everything that can be refused is checked before anything is written: the configuration, the data,
the mesh, the layout against the model, the folder and the checkpoints in it. What is quick to check
comes first. Then `TrainingLoop` takes the steps.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import jax

import meshdsl as md
from meshdsl import hosts
from meshdsl.extras import check_extra
from meshdsl.family.by_name import family_name
from meshdsl.machine import chip_of
from meshdsl.predict.compiler.executables import compile_cache
from meshdsl.program.program import Program
from meshdsl.train.checkpoints import Checkpoints
from meshdsl.train.checkpoints.copies import copies_of
from meshdsl.train.checkpoints.tree_leaves import named_arrays
from meshdsl.train.config import Config
from meshdsl.train.deterministic import check_deterministic
from meshdsl.train.elastic_settings import MEMORY_EVERY
from meshdsl.train.exchange_lines import exchange_lines, sent_by_workers
from meshdsl.train.few_bits import with_formats
from meshdsl.train.folder import RunFolder, check_folder
from meshdsl.train.job import Job
from meshdsl.train.optimizer import peak
from meshdsl.train.overview import describe, whole_bytes
from meshdsl.train.phases import phases_of
from meshdsl.train.plan import Plan
from meshdsl.train.prepared import Prepared
from meshdsl.train.settings import leaves
from meshdsl.train.startup import Startup
from meshdsl.train.training_loop import Ended, TrainingLoop
from meshdsl.train.watch import check
from meshdsl.train.watch.events import Events
from meshdsl.train.watch.ledger import (
    WriteLedger,
    check_ledger,
    check_steps,
    figures_of,
    ledger_of,
)

if TYPE_CHECKING:
    from rich.console import Console

_PREPARING = 86400.0  # seconds until the last process has tokenized its copy of the text


def run(
    config: Config,
    # JAX's types declare the class jax.Device as a variable.
    devices: list[jax.Device],  # pyright: ignore[reportInvalidTypeForm]
    folder: RunFolder,
    *,
    resume: bool,
    again: bool = False,
    executable: Path | None = None,
    trust_executable: bool = False,
    startup: Startup | None = None,
    ledger: WriteLedger | None = None,
    hardware: Path | None = None,
) -> Ended:
    """Start the run in `folder`, or go on with it, until it ends.

    Args:
      resume: go on with the run in the folder, instead of starting one.
      again: the command may have been given before, so it is no mistake if the run is finished.
      executable: a file with the compiled step, which `meshdsl compile --save` wrote; without one
        the step is compiled.
      trust_executable: load it even if others than this user could have written it.
      startup: has measured what came before.
      ledger: measure a few steps, put them beside the estimate, and write this report by `ledger`.
      hardware: a file with the figures of the devices, for that estimate; without one those of the
        hardware table, if it has any.

    Raises:
      MeshDSLError: the data, layout, devices, model, folder or executable cannot be used. Nothing
        has been written then.
    """
    check_extra("train")
    startup = startup or Startup()
    optimizer = replace(config.optimizer, learning_rate=peak(config.optimizer))
    config = replace(config, optimizer=optimizer)
    _check_config(config, resume)
    if ledger:
        check_ledger(config.log)
    if not resume:
        hosts.first_does(folder.refuse_used)
    target = figures_of(devices, hardware) if ledger else None
    precision, formats = with_formats(
        config.precision, chip_of(devices[0]), folder.stored_config if resume else None
    )
    config = replace(config, precision=precision)
    relayouts = hosts.first_does(folder.relayouts) if resume else []
    phases = phases_of(config, relayouts)
    if len(phases) > 1 and (executable or ledger):
        flag = "--executable: has one step" if executable else "--ledger: is of one step"
        raise md.MeshDSLError(f"{flag}, and this run has {len(phases)} phases")
    console = hosts.console()
    plan = Plan(config, devices, console.print, relayouts)
    prepared = plan.phases
    choices = [each.choice for each in prepared.values()]
    hosts.agree("the choice of settings that are auto", "\n".join(choices))
    job = prepared[1].job
    if config.deterministic:
        check_deterministic(job.mesh, executable is not None)
    loaded_step = job.load(executable, trusted=trust_executable) if executable else None
    with ExitStack() as stack:
        # The folder is locked below, and unlocked after all else: nobody may come in while a
        # checkpoint is still being written.
        lock = stack.enter_context(ExitStack())
        every = config.elastic.get(MEMORY_EVERY, 0)
        copies = copies_of(folder.copies, every, console.print)
        checkpoints = Checkpoints(
            folder.checkpoints,
            **asdict(config.checkpoint),
            forgets="workers" if config.local.workers else "dropped",
            report=console.print,
            copies=copies,
        )
        stack.enter_context(closing(checkpoints))
        if copies:
            copies.check_room(named_arrays(job.state))
        startup.done("prepare")
        # After all that is quick to refuse, because it may tokenize for hours.
        digests = [each.data.digest for each in prepared.values()]
        hosts.agree("data", "\n".join(digests), patience=_PREPARING)
        for each in prepared.values():
            _ = each.held_out
        startup.done("data")
        done = checkpoints.check(job.state) or 0
        if done >= config.steps:
            where = f"at step {done} of {config.steps}"
            if not again:
                raise md.MeshDSLError(f"{folder.path} is {where}; set more --steps to go on")
            console.print(f"{folder.path} is finished, {where}")
            return Ended(job)
        if ledger:
            check_steps(done, config.steps)
        _lock_folder(folder, lock, job, checkpoints)
        if not resume:
            hosts.first_does(folder.refuse_used)  # once more, because nobody else can come in now
        now = plan.after(done)
        program = now.job.program()
        chosen = "\n".join(filter(None, dict.fromkeys([formats, *now.chosen])))
        _print_overview(console, now, program, executable, chosen)
        if config.compile_cache:
            stack.enter_context(compile_cache(folder.compiled, console.print))
        title = f"{family_name(config.model)}, batch {config.batch}"
        events = stack.enter_context(Events(folder.events if hosts.first() else None))
        loop = TrainingLoop(
            *(plan, now, console, folder, checkpoints, startup),
            events=events,
            loaded=loaded_step,
            ledger=partial(ledger_of, title, program, target, ledger) if ledger else None,
        )
        stack.enter_context(closing(loop))
        startup.done("prepare")
        state, done = loop.initial_state(done)
        startup.done("restore" if done else "initialize")
        # Only here, because a resume that is refused must leave the folder as it was.
        if not executable:
            loop.prove(lambda: program)
        hosts.first_does(lambda: folder.write_config(config, chosen))
        if changed := hosts.first_does(folder.note_versions):
            console.print(f"other versions than before, so bits may differ: {', '.join(changed)}")
        where = {"processes": hosts.count(), "devices": now.job.mesh.size}
        events.started(startup, done, config.steps, folder.metrics, **where)
        return loop.train_to_end(state, done)


def _check_config(config: Config, resume: bool) -> None:
    """Raise a MeshDSLError unless all processes have one configuration, which a run can follow."""
    settings = [f"resume = {resume}", *(f"{key} = {value}" for key, value in leaves(config))]
    hosts.agree("configuration", "\n".join(settings))
    check(config.log, config.steps)
    if config.warm_start and not Path(config.warm_start).exists():
        raise md.MeshDSLError(f"warm_start={config.warm_start}: no such run, and no such file")


def _lock_folder(folder: RunFolder, lock: ExitStack, job: Job, checkpoints: Checkpoints) -> None:
    """Keep other commands out of the folder until `lock` is closed.

    Raises:
      MeshDSLError: the checkpoints have no room there, another command has locked the folder, or
        the processes do not see one and the same folder.
    """
    room = max(1, job.config.checkpoint.keep + 1 - checkpoints.kept)
    hosts.first_does(lambda: check_folder(folder.path, whole_bytes(job.state) * room))
    token = hosts.first_does(lambda: lock.enter_context(folder.locked()))
    hosts.agree(
        f"--out {folder.path}, which must be one folder for all,",
        f"token {folder.wait_for_token(token)}",
    )


def _print_overview(
    console: Console,
    now: Prepared,
    program: Program,
    executable: Path | None,
    choice: str,
) -> None:
    job, data = now.job, now.data
    if now.phase.count > 1:
        console.print(now.phase.words)
    exchange = exchange_lines(job.config.local, sent_by_workers(job))
    console.print(describe(job.layout, job.mesh, job.state, program.collectives, exchange))
    if choice:
        console.print(f"\n{choice}")
    console.print(f"\n{data.describe()}\n")
    if executable:
        console.print(f"the compiled step is that of {executable}")
