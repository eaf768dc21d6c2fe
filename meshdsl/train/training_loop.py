"""The training run: from a configuration to a trained model in a folder.

Order matters here. Everything that can be refused (the data, the mesh, the layout against the model, the folder and the
checkpoint in it) is checked before anything is written. Then the loop keeps the devices busy: while a step runs, the host
reads the next batch and what the step before it measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import jax
from rich.console import Console

import meshdsl as md
from meshdsl import hosts
from meshdsl.hosts.signals import EXIT_CODES
from meshdsl.machine import chip_of
from meshdsl.models.sizes import step_flops
from meshdsl.train.checkpoints import Checkpoints, warm_start
from meshdsl.train.config import Config
from meshdsl.train.data import Corpus, open_data
from meshdsl.train.data.batches import Batches
from meshdsl.train.data.device_batches import rows_here
from meshdsl.train.evaluate import Evaluator
from meshdsl.train.folder import RunFolder
from meshdsl.train.interrupt import Stopping, stopping
from meshdsl.train.job import Arrays, Job
from meshdsl.train.optimizer import make_schedule, peak
from meshdsl.train.overview import describe, whole_bytes
from meshdsl.train.watchdog import Nonfinite, Watchdog, check_folder
from meshdsl.train.sample import sample_text
from meshdsl.train.settings import leaves
from meshdsl.train.step import State
from meshdsl.train.watch import Facts, Watch, bits_per_byte, check, perplexity

_TOKENIZING = 86400.0  # seconds until the last process has tokenized its copy of the text


def train(
    config: Config,
    layout: md.Layout,
    devices: list[jax.Device],
    folder: RunFolder,
    *,
    resume: bool,
    again: bool = False,
    executable: Path | None = None,
) -> int:
    """Start the run in `folder`, or go on with it; returns the exit code.

    Args:
      again: the command may have been given before, so that a run which is finished already is no mistake.
      executable: a file with the compiled step, which `meshdsl compile --save` wrote; without one the step is compiled.

    Raises:
      MeshDSLError: for data, layout, devices, model, folder or executable that cannot be used; nothing is written then.
    """
    config = replace(
        config, optimizer=replace(config.optimizer, learning_rate=peak(config.optimizer))
    )
    hosts.agree(
        "configuration",
        "\n".join([f"resume = {resume}", *(f"{key} = {value}" for key, value in leaves(config))]),
    )
    check(config.log, config.steps)
    if config.warm_start and not Path(config.warm_start).exists():
        raise md.MeshDSLError(f"warm_start={config.warm_start}: no such run, and no such file")
    if not resume:
        hosts.first_does(folder.refuse_used)
    job = Job(config, layout, md.make_mesh(layout, devices))
    loaded = job.load(executable) if executable else None
    console = hosts.console()
    corpus = open_data(
        config, report=console.print
    )  # after all that is quick to refuse: it may tokenize for hours
    hosts.agree("data", f"{corpus.describe()}\n{corpus.tokenizer.digest}", patience=_TOKENIZING)
    batches = corpus.train(rows_here(job.batch["tokens"]))
    held_out = corpus.validation(rows_here(job.held_out["tokens"]))
    with ExitStack() as stack:
        lock = stack.enter_context(
            ExitStack()
        )  # left last: nobody else may come in while a checkpoint is still being written
        stack.callback(batches.close)
        checkpoints = stack.enter_context(
            closing(Checkpoints(folder.checkpoints, config.checkpoint, report=console.print))
        )
        done = checkpoints.check(job.state) or 0
        if done >= config.steps and again:
            console.print(f"{folder.path} is finished, at step {done} of {config.steps}")
            return 0
        if done >= config.steps:
            raise md.MeshDSLError(
                f"{folder.path} is at step {done} of {config.steps}; set more --steps to go on"
            )
        room = max(1, config.checkpoint.keep + 1 - checkpoints.kept)
        hosts.first_does(lambda: check_folder(folder.path, whole_bytes(job.state) * room))
        token = hosts.first_does(lambda: lock.enter_context(folder.held()))
        hosts.agree(
            f"--out {folder.path}, which must be one folder for all,",
            f"token {folder.token(token)}",
        )
        if not resume:
            hosts.first_does(folder.refuse_used)  # once more, now that nobody else can come in
        console.print(describe(layout, job.mesh, job.state, job.program().collectives))
        console.print(f"\n{corpus.describe()}\n")
        if executable:
            console.print(f"the compiled step is that of {executable}")
        run = Run(job, corpus, console, folder, checkpoints, batches, held_out, loaded)
        started = run.start(done)
        hosts.first_does(
            lambda: folder.begin(config)
        )  # only now: a resume that is refused must leave the configuration as it was
        return run.to_the_end(*started)


@dataclass
class Run:
    """A run that nothing stands in the way of any more."""

    job: Job
    corpus: Corpus
    console: Console
    folder: RunFolder
    checkpoints: Checkpoints
    batches: Batches
    held_out: dict[str, list[Arrays]]
    loaded: Callable | None = None  # the compiled step

    def start(self, done: int) -> tuple[State, int]:
        """The state to go on from and how many steps led to it: of the newest good checkpoint where there is one, else the first."""
        if not done:
            if self.folder.metrics.exists():
                self.console.print(
                    f"no checkpoint in {self.folder.checkpoints}: the run begins again"
                )
            return self.first_state(), 0
        state, position = self.checkpoints.restore(self.job.state)
        self.batches.set_state(position)
        done = int(state.step)
        self.console.print(f"resumed after step {done}")
        return state, done

    def first_state(self) -> State:
        config = self.job.config
        state = self.job.step.init(jax.random.key(config.seed))
        if config.warm_start:
            params, report = warm_start(Path(config.warm_start), state.params)
            self.console.print(report)
            state = state.replace(params=params)
        return state

    def to_the_end(self, state: State, done: int) -> int:
        """Train from `state`, which `done` steps led to; returns the exit code."""
        step = self.loaded or self._compiled()
        with stopping() as stop:
            state, done, ending = self.steps(step, state, done, stop)
            self.checkpoints.close()  # what is said to be saved is on disk
        if done == self.job.config.steps and stop.wish:  # of this process, perhaps of no other one
            text = f"meshdsl: {stop.wish} after step {done}, the last one, which is saved"
            return hosts.report_and_end(text, EXIT_CODES[stop.wish])
        if ending:
            again = f"meshdsl train --resume --out {self.folder.path}"
            saved = (
                f"after step {done}, which is saved" if done else "before a first step was saved"
            )
            self.console.print(f"{ending} {saved}; to go on: {again}")
            return EXIT_CODES[ending]
        if self.job.config.sample.tokens:
            self.console.print(
                f"\nsample:\n{sample_text(self.job, state.params, self.corpus.tokenizer)}\n"
            )
        self.console.print(f"saved in {self.folder.path}")
        return 0

    def _compiled(self) -> Callable:
        start = time.perf_counter()
        step = self.job.lowered.compile()
        self.console.print(f"compiled in {time.perf_counter() - start:.1f} s")
        return step

    def steps(
        self, step: Callable, state: State, done: int, stop: Stopping
    ) -> tuple[State, int, str | None]:
        """Run the steps after `done`, but none after the one in which `stop` asks to end. The last one is saved.

        Returns:
          The state, the steps that led to it, and what ended the run before its time: "preempted", "interrupted" or None.
        """
        config, job = self.job.config, self.job
        ending = None
        with (
            Watch(
                self.facts(done), self.folder, config.log, self.console, done, config.steps
            ) as watch,
            Watchdog(config.guard.timeout, self.folder.path) as dog,
        ):
            guard = Nonfinite(
                config.guard, self.folder.path, dynamic=config.precision.loss_scale == "dynamic"
            )
            while done < config.steps and not ending:
                with watch.spent("input"):
                    arrays = next(self.batches)
                    batch = job.place(arrays)
                state, measured = step(state, batch)
                done += 1
                guard.keep(done, arrays)
                record = watch.step(done, measured)
                if record:  # of a step that has ended: this one has only been begun
                    dog.beat(done)
                ending = (
                    stop.at(done) if done < config.steps else None
                )  # after its last step a run is finished, whatever came
                last = bool(ending) or done == config.steps
                validate = done == config.steps or _due(done, config.validation.every)
                save = last or self.checkpoints.due(done)
                verdict = guard.judge(record)
                if verdict == "go" and (validate or save):
                    verdict = guard.judge(
                        watch.settle()
                    )  # of this very step: what is saved is known to be finite
                if verdict == "rollback":
                    state = None  # there may be no room for two
                    state, done = self.back()
                    watch.rewind(done)
                    dog.beat(done)
                    continue
                if validate:
                    with watch.spent("validation"):
                        watch.note(done, self.validate(state, done))
                if save:
                    with watch.spent("checkpoint"):
                        self.checkpoints.save(done, state, self.batches.get_state())
                if validate or save:
                    dog.beat(done)
        return state, done, ending

    def back(self) -> tuple[State, int]:
        """The newest checkpoint, or the first state. The data go on where they are, past the batch that was no good (Chowdhery et al., 2022, section 5.1)."""
        if self.checkpoints.latest is None:
            state, done = self.first_state(), 0
        else:
            state, _ = self.checkpoints.restore(self.job.state)
            done = int(state.step)
        self.console.print(
            f"rolled back to step {done}; the data go on after the batch that was no good"
        )
        return state, done

    def facts(self, done: int) -> Facts:
        config, mesh = self.job.config, self.job.mesh
        tokens = config.batch * config.model.length
        chip = chip_of(mesh.devices.flat[0])
        return Facts(
            tokens=tokens,
            flops=step_flops(config.model, tokens, config.model.length),
            peak_flops=chip.flops if chip else None,
            devices=mesh.size,
            learning_rate=make_schedule(
                config.schedule, config.optimizer.learning_rate, config.steps
            ),
            before=self.batches.get_state()["rows"] * config.model.length - done * tokens,
            bytes_per_token=self.corpus.train_bytes_per_token,
        )

    def validate(self, state: State, done: int) -> dict[str, float]:
        """Losses on the held-out text of each dataset, printed and as a part of the step's record."""
        losses = self.evaluator.losses(state.params, self.held_out)
        values: dict[str, float] = {}
        for name, loss in losses.items():
            found = {"loss": loss, "perplexity": perplexity(loss)}
            if per_token := self.corpus.bytes_per_token[name]:
                found["bits_per_byte"] = bits_per_byte(loss, per_token)
            bits = f", {found['bits_per_byte']:.3f} bits/byte" if per_token else ""
            which = f" on {name}" if len(losses) > 1 else ""
            self.console.print(f"step {done}: validation loss{which} {loss:.4f} nats/token{bits}")
            prefix = f"validation/{name}/" if len(losses) > 1 else "validation_"
            values |= {prefix + key: value for key, value in found.items()}
        return values

    @cached_property
    def evaluator(self) -> Evaluator:
        return Evaluator(self.job)


def _due(step: int, every: int) -> bool:
    return bool(every) and step % every == 0
