"""The settings of a training run, as typed dataclasses with their defaults.

They are the only list of settings: the command line, the file of a run and the error messages all
read it from here, see `meshdsl.train.settings`. (The groups `Precision` and `Local` stand in files
of their own, `precision_settings` and `local_settings`.) The key of a setting is the path of its
field: `model.d_model`, `data.sources.web.weight`.

To add a setting, add a field to the dataclass of its group, `Guard` say, and an entry for it to the
`Attributes:` of the docstring. `bounded`, `chosen` and `listed` say which values it may have:

    grace: float = bounded(5.0, least=0.0)

That is all: `guard.grace=3` is a setting. `meshdsl train --print-config` writes the entry of the
docstring above it, followed by the values that it may have. A condition on several settings
together is checked in `__post_init__`. A setting that the compiled step depends on is also named in
`meshdsl.train.job`, `_OF_STEP`, so that a saved step of another value is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from meshdsl.errors import MeshDSLError, nearest
from meshdsl.family import Family
from meshdsl.family.by_name import DEFAULT, family_name, find_family
from meshdsl.fields import ClassChoice, bounded, chosen, listed
from meshdsl.ops.checkpoint import ATTENTION, HIDDEN, QKV
from meshdsl.train.elastic_settings import check_elastic
from meshdsl.train.local_settings import Local
from meshdsl.train.phase_settings import last_step
from meshdsl.train.precision_settings import Precision

FORMATS = ("auto", "text", "jsonl", "parquet", "arrow", "tokens", "chat", "folders", "arrays")
# The optimizer's state, and save points of layers: what each layer gets, and those of `remat`.
OFFLOADS = ("optimizer", "activations", ATTENTION, QKV, HIDDEN)


@dataclass(frozen=True)
class Source:
    """One dataset of a mixture.

    Attributes:
      paths: files and folders to read; with a protocol, as `s3://bucket/corpus`, they are brought
        to the cache, and those that end in .gz, .bz2, .xz or .zst are unpacked there.
      dataset: a function that gives a dataset, as `my_module:name` or `my_file.py:name`, instead of
        `paths`. It is called with `train` and with `validation`.
      format: how the files are written; `auto` goes by their endings. `chat`: messages in JSONL or
        tables, of which what the assistant says is trained on.
      field: the field of a JSONL object, the column of a parquet file or the name of an array that
        is read; empty: `text`, `messages`, `image` or, of pairs, `source`.
      label: the name of what belongs to `field`, in the same way; empty: `label`, or, of pairs,
        `target`.
      dtype: the type of the tokens in a token file (`.bin`).
      weight: how often it is read, in proportion to the weights of the other datasets; 0: not
        before a phase gives it a weight.
      validation: files and folders that are held out; with none, a part of `paths` is, see
        `data.validation`.
    """

    paths: tuple[str, ...] = ()
    dataset: str = ""
    format: str = chosen("auto", FORMATS)
    field: str = ""
    label: str = ""
    dtype: str = chosen("uint16", ("uint16", "uint32"))
    weight: float = bounded(1.0, least=0.0)
    validation: tuple[str, ...] = ()


@dataclass(frozen=True)
class Data:
    """What is read.

    Attributes:
      task: what a batch is: `text`, `images`, `pairs` or `examples`; empty: what the model's family
        is made for.
      sources: datasets by name; with none, the Python source of the running interpreter's
        standard library.
      tokenizer: `bytes`, or the path of a Hugging Face `tokenizer.json`.
      validation: the part of the documents or examples that is held out, as a fraction.
      separate: whether documents that share a sequence are kept from attending to each other.
      cache: the folder where tokenized text and unpacked images are kept; empty: one in the user's
        cache.
      prefetch: how many batches are read ahead.
    """

    task: str = ""
    sources: dict[str, Source] = field(default_factory=dict)
    tokenizer: str = "bytes"
    validation: float = bounded(0.05, least=0.0, below=1.0)
    separate: bool = False
    cache: str = ""
    prefetch: int = bounded(4, least=1)


@dataclass(frozen=True)
class Group:
    """Parameters that are trained with settings of their own.

    Attributes:
      parameters: patterns of their names, as `blocks.*.weight`; `*` stands for any characters. The
        last pattern that matches a name counts, and one that begins with `!` takes names out again.
      name: which optimizer; empty: that of the other parameters.
      settings: of that optimizer.
      learning_rate: the rate at the peak of the schedule; 0: that of the other parameters.
      weight_decay: of the matrices among them, times the learning rate; -1: that of the other
        parameters.
    """

    parameters: tuple[str, ...] = ()
    name: str = ""
    settings: dict = field(default_factory=dict)
    learning_rate: float = bounded(0.0, least=0.0)
    weight_decay: float = bounded(-1.0, least=-1.0)


@dataclass(frozen=True)
class Optimizer:
    """An optax optimizer by name, and what is done to gradients before it.

    Attributes:
      name: which optimizer: `adamw`, `adafactor`, `lion`, `sgd`, `muon`, any other of optax or
        optax.contrib by its name, or a function of your own that makes one, as `my_module:make` or
        `my_file.py:make`.
      settings: of that optimizer, as arguments of its function: `b1 = 0.8`.
      learning_rate: the rate at the peak of the schedule; 0: the optimizer's usual one.
      weight_decay: of matrices, times the learning rate; other parameters do not decay. It is for
        optimizers that have one.
      average: keeps an average of the parameters over the steps, in which the average so far counts
        this much, as 0.999; validation is by the average then. 0: none is kept.
      clip: the global norm that gradients are clipped to; 0: they are not clipped.
      groups: by name, parameters that have settings of their own.
    """

    name: str = "adamw"
    settings: dict = field(default_factory=dict)
    learning_rate: float = bounded(0.0, least=0.0)
    weight_decay: float = bounded(0.1, least=0.0)
    average: float = bounded(0.0, least=0.0, below=1.0)
    clip: float = bounded(1.0, least=0.0)
    groups: dict[str, Group] = field(default_factory=dict)


@dataclass(frozen=True)
class Lora:
    """Adapters of low rank (Hu et al., 2021, "LoRA") that are trained beside frozen matrices.

    Attributes:
      parameters: patterns of the names of matrices that get one, as `blocks.*.weight`; none: there
        are no adapters. With adapters nothing else is trained but what `frozen` takes out by `!`.
      rank: of each.
      alpha: what an adapter computes is times alpha / rank.
    """

    parameters: tuple[str, ...] = ()
    rank: int = bounded(8, least=1)
    alpha: float = bounded(16.0, above=0.0)


@dataclass(frozen=True)
class Schedule:
    """The learning rate over the run: a linear warmup to the peak, then the shape.

    Attributes:
      shape: how it falls after the warmup. `wsd` (Hu et al., 2024) stays at the peak and falls
        linearly over the last part of the steps, `decay`.
      warmup: steps from 0 to the peak.
      final: the rate where the run ends, as a fraction of the peak.
      decay: the part of the steps after the warmup in which `wsd` falls, as a fraction.
      fall: four numbers: from the first step to the second the rate falls linearly from the third
        to the fourth, as fractions of the peak, and then stays there, whatever `shape` says. None:
        by `shape`. A phase with `optimizer.learning_rate = { decay_to = ... }` sets it.
    """

    shape: str = chosen("cosine", ("cosine", "linear", "constant", "wsd"))
    warmup: int = bounded(50, least=0)
    final: float = bounded(0.1, least=0.0)
    decay: float = bounded(0.2, above=0.0, below=1.0)
    fall: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.fall and (len(self.fall) != 4 or not 0 < self.fall[0] < self.fall[1]):
            raise MeshDSLError(
                f"schedule.fall={list(self.fall)}: expected the steps before and at its end, and "
                "the rates there as fractions of the peak"
            )


@dataclass(frozen=True)
class Checkpoint:
    """When checkpoints are written and which are kept. The last step is always saved.

    Attributes:
      every: steps between two checkpoints; 0: none by steps.
      minutes: minutes between two checkpoints; 0: none by time.
      keep: how many of the newest are kept.
      keep_every: checkpoints of steps that this number divides are kept for good; 0: none are.
    """

    every: int = bounded(200, least=0)
    minutes: float = bounded(0.0, least=0.0)
    keep: int = bounded(2, least=1)
    keep_every: int = bounded(0, least=0)


@dataclass(frozen=True)
class Validation:
    """When the loss on held-out text is measured. It is at the end of the run in any case.

    Attributes:
      every: steps between two measurements; 0: only at the end.
      batches: how many batches of each dataset are measured.
    """

    every: int = bounded(0, least=0)
    batches: int = bounded(16, least=1)


@dataclass(frozen=True)
class Guard:
    """What is done about a run that goes wrong.

    Attributes:
      nonfinite: what happens where the loss or the gradient is NaN or infinite: the run stops,
        skips the step's update, or goes back to the newest checkpoint and passes over the batch.
      patience: so many such steps in a row, or roll-backs since the run was last started, stop it
        in any case.
      timeout: minutes after which a step that does not end is reported with the stacks of all
        threads, and the run is ended; 0: never.
      repeat: before each step that this number divides its gradients are computed twice, and every
        device has to come to the same bits; 0: never.
    """

    nonfinite: str = chosen("stop", ("stop", "skip", "rollback"))
    patience: int = bounded(10, least=1)
    timeout: float = bounded(30.0, least=0.0)
    repeat: int = bounded(0, least=0)


@dataclass(frozen=True)
class Log:
    """Who is told. `metrics.jsonl` has every step in any case.

    Attributes:
      every: steps between two printed lines, where there is no terminal.
      tensorboard: whether the folder of the run gets files for TensorBoard.
      wandb: the project at Weights & Biases that is told; empty: none.
      mlflow: the address of MLflow and the experiment that is told, as `https://host:5000/name`;
        empty: none.
      profile: the first and last step of a trace, as `10:15`; empty: no trace.
    """

    every: int = bounded(10, least=1)
    tensorboard: bool = False
    wandb: str = ""
    mlflow: str = ""
    profile: str = ""


@dataclass(frozen=True)
class Sample:
    """The text that a run writes at its end.

    Attributes:
      prompt: what it begins with.
      tokens: how many tokens are written after the prompt.
      temperature: logits are divided by it before a token is drawn; 0: the most likely token is
        taken.
    """

    prompt: str = "def "
    tokens: int = bounded(300, least=0)
    temperature: float = bounded(0.8, least=0.0)


FAMILY = ClassChoice(
    "family",
    find_family,
    family_name,
    "the family of models: one of those that come with meshdsl, or one of your own as "
    "`my_package.my_module:Name` or `my_model.py:Name`. The settings below are those of the "
    "family.",
)


_UNITS = {"MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_MEMORY = re.compile(rf"(\d+(?:\.\d+)?) ?(%|{'|'.join(_UNITS)})")


def memory_bytes(text: str, capacity: int | None) -> int | None:
    """The bytes that a setting `memory` stands for; None for a share of an unknown `capacity`.

    Raises:
      MeshDSLError: it is spelled otherwise, or is nothing or more than there is.
    """
    found = _MEMORY.fullmatch(text)
    if not found or not float(found[1]) or (found[2] == "%" and float(found[1]) > 100):
        raise MeshDSLError(
            f"memory={text}: expected a share of up to 100%, as 80%, or bytes, as 60GiB"
        )
    if found[2] != "%":
        return int(float(found[1]) * _UNITS[found[2]])
    return None if capacity is None else int(float(found[1]) / 100 * capacity)


@dataclass(frozen=True)
class Config:
    """A run of `meshdsl train`. A file of settings needs only those that it changes.

    Attributes:
      layout: a layout file, the name of a shipped layout (`meshdsl layouts`), or a table with the
        keys of a layout file, as `mesh` and `rules`.
      devices: how many devices to use; 0: as many as the layout's mesh asks for.
      steps: how many steps the run has.
      batch: rows in a step (sequences, images, ...), all microbatches together.
      microbatches: parts in which a step's batch is run, one after the other; it divides `batch`.
      seed: the seed of parameters, dropout and the order of the data.
      warm_start: the folder of a run, or a safetensors file, whose parameters this one begins with;
        empty: none.
      frozen: patterns of the names of parameters that are not trained, as `blocks.*.weight`. The
        last pattern that matches a name counts, and one that begins with `!` takes names out again.
      offload: what waits in the host's memory while it is not used: the state of the optimizer, and
        of each layer what goes in (`activations`), what attention gives (`attention`), queries,
        keys and values (`qkv`), and what the feed-forward layer begins with (`hidden`).
      deterministic: whether the run must give the same bits each time, on the same devices with the
        same versions; GPUs are slower then.
      proof: whether the step is compared, as an expression, with that of one device: `tell` prints
        what is proved, `require` starts no run whose step is not proved, `off` compares nothing.
      compile_cache: whether compiled programs are kept in the folder of the run, so that a restart
        need not compile them.
      memory: how much of a device's memory a step may fill by its estimate, where settings of the
        model that are `auto` are chosen: a share, as `80%`, or bytes, as `60GiB`.
      phase: phases of the run, in their order: each says by `until` which step is its last, and
        which settings change from its first step on.
      elastic: of a run whose number of devices may change: `devices`, the number that `batch` and
        `microbatches` are for; for numbers of devices sizes of mesh axes, or a layout; and
        `memory_every`, the steps between two copies of the state in the memory of the hosts.
    """

    layout: str | dict = "data"
    devices: int = bounded(0, least=0)
    steps: int = bounded(400, least=1)
    batch: int = bounded(32, least=1)
    microbatches: int = bounded(1, least=1)
    seed: int = bounded(0, least=0, below=2**32)
    warm_start: str = ""
    frozen: tuple[str, ...] = ()
    offload: tuple[str, ...] = listed((), OFFLOADS)
    deterministic: bool = False
    proof: str = chosen("tell", ("tell", "require", "off"))
    compile_cache: bool = True
    memory: str = "80%"
    model: Family = field(
        default_factory=lambda: find_family(DEFAULT)(), metadata={"class": FAMILY}
    )
    data: Data = field(default_factory=Data)
    optimizer: Optimizer = field(default_factory=Optimizer)
    lora: Lora = field(default_factory=Lora)
    local: Local = field(default_factory=Local)
    schedule: Schedule = field(default_factory=Schedule)
    precision: Precision = field(default_factory=Precision)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    validation: Validation = field(default_factory=Validation)
    guard: Guard = field(default_factory=Guard)
    log: Log = field(default_factory=Log)
    sample: Sample = field(default_factory=Sample)
    phase: tuple[dict, ...] = ()
    elastic: dict = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.phase:
            usual = Config.__dataclass_fields__["steps"].default
            object.__setattr__(self, "steps", last_step(self.phase, self.steps, usual))
        if self.batch % self.microbatches:
            raise MeshDSLError(
                f"batch={self.batch} does not divide into microbatches={self.microbatches}"
            )
        if self.local.workers:
            self._check_workers()
        for what in self.offload:
            if what not in OFFLOADS:
                raise MeshDSLError(f"offload: no `{what}`{nearest(what, OFFLOADS)}")
        memory_bytes(self.memory, None)
        check_elastic(self.elastic)
        if self.optimizer.average and self.precision.optimizer != "float32":
            raise MeshDSLError(
                f"optimizer.average={self.optimizer.average}: needs precision.optimizer=float32, "
                "because an average in fewer bits does not move"
            )

    def _check_workers(self) -> None:
        """Raise a MeshDSLError for settings that are not for workers."""
        workers = self.local.workers
        if self.batch % (workers * self.microbatches):
            of = f" of {self.microbatches} microbatches" if self.microbatches > 1 else ""
            raise MeshDSLError(
                f"batch={self.batch} does not divide over local.workers={workers}{of}"
            )
        for setting, value in (
            ("optimizer.average", self.optimizer.average),
            ("guard.repeat", self.guard.repeat),
            ("offload=optimizer", "optimizer" in self.offload),
        ):
            if value:
                raise MeshDSLError(f"{setting}: is not there yet with local.workers={workers}")
