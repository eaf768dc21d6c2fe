"""The settings of a training run, as typed dataclasses with their defaults.

They are the only list of settings: the command line, the file of a run and the error messages all read it from here, see
`meshdsl.train.settings`. A key is the path of a field: `model.d_model`, `data.sources.web.weight`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from meshdsl.errors import MeshDSLError, nearest
from meshdsl.models.transformer import Config as Model
from meshdsl.train.settings import bounded, chosen

FLOATS = ("float32", "bfloat16", "float16")
OFFLOADS = ("optimizer", "activations")


@dataclass(frozen=True)
class Source:
    """One dataset of a mixture.

    Attributes:
      paths: files and folders.
      format: of the files; `auto` goes by their endings.
      field: of a JSONL object, or the column of a parquet file, that holds the text.
      dtype: of the tokens in a token file (`.bin`).
      weight: how often it is read, in proportion to the weights of the others.
      validation: files and folders that are held out; none: a part of `paths`, see `Data.validation`.
    """

    paths: tuple[str, ...] = ()
    format: str = chosen("auto", ("auto", "text", "jsonl", "parquet", "tokens"))
    field: str = "text"
    dtype: str = chosen("uint16", ("uint16", "uint32"))
    weight: float = bounded(1.0, above=0.0)
    validation: tuple[str, ...] = ()


@dataclass(frozen=True)
class Data:
    """What is read.

    Attributes:
      sources: datasets by name; none: the Python source of the running interpreter's standard library.
      tokenizer: `bytes`, or a Hugging Face `tokenizer.json`.
      validation: the part of the documents that is held out.
      separate: documents that share a sequence do not attend to each other.
      cache: the folder where tokenized text is kept; by default one in the user's cache.
      prefetch: batches that are read ahead.
    """

    sources: dict[str, Source] = field(default_factory=dict)
    tokenizer: str = "bytes"
    validation: float = bounded(0.05, least=0.0, below=1.0)
    separate: bool = False
    cache: str = ""
    prefetch: int = bounded(4, least=1)


@dataclass(frozen=True)
class Optimizer:
    """An optax optimizer by name, and what is done to gradients before it."""

    name: str = "adamw"
    learning_rate: float = bounded(0.0, least=0.0)  # at the peak; 0 means the optimizer's usual one
    weight_decay: float = bounded(0.1, least=0.0)  # of matrices only
    clip: float = bounded(1.0, least=0.0)  # global norm of the gradient; 0 means no clipping


@dataclass(frozen=True)
class Schedule:
    """The learning rate over the run: a linear warmup to the peak, then the shape.

    `wsd` (Hu et al., 2024) stays at the peak and falls linearly over the last part of the steps, `decay`.
    """

    shape: str = chosen("cosine", ("cosine", "linear", "constant", "wsd"))
    warmup: int = bounded(50, least=0)  # steps from 0 to the peak
    final: float = bounded(0.1, least=0.0)  # of the peak, where the run ends
    decay: float = bounded(0.2, above=0.0, below=1.0)  # of the steps, for `wsd`


@dataclass(frozen=True)
class Precision:
    """In which dtypes a step works.

    Attributes:
      params: of parameters at rest.
      compute: of activations, and of parameters where they are used and gathered.
      reduce: of gradients where they are summed over devices.
      output: of the logits that the loss is computed from.
      optimizer: of the optimizer's state.
      loss_scale: `none`, `dynamic`, or a number that the loss is multiplied by before gradients are taken, for float16.
      stochastic_rounding: parameters in bfloat16 are rounded up or down at random, by how near each is.
    """

    params: str = chosen("float32", ("float32", "bfloat16"))
    compute: str = chosen("float32", FLOATS)
    reduce: str = chosen("float32", FLOATS)
    output: str = chosen("float32", FLOATS)
    optimizer: str = chosen("float32", ("float32", "bfloat16"))
    loss_scale: str | float = "none"
    stochastic_rounding: bool = False

    def __post_init__(self) -> None:
        if self.loss_scale not in ("none", "dynamic") and not _positive(self.loss_scale):
            raise MeshDSLError(f"precision.loss_scale={self.loss_scale}: expected none, dynamic, or a number above 0")
        if self.stochastic_rounding and self.params != "bfloat16":
            raise MeshDSLError("precision.stochastic_rounding: is for precision.params=bfloat16")


def _positive(text: str | float) -> bool:
    try:
        return 0 < float(text) < math.inf
    except ValueError:
        return False


@dataclass(frozen=True)
class Checkpoint:
    """When checkpoints are written and which are kept. The last step is always saved."""

    every: int = bounded(200, least=0)  # steps; 0 means never by steps
    minutes: float = bounded(0.0, least=0.0)  # between two; 0 means never by time
    keep: int = bounded(2, least=1)  # the newest
    keep_every: int = bounded(0, least=0)  # those of steps that this divides are kept for good; 0 means none


@dataclass(frozen=True)
class Validation:
    every: int = bounded(0, least=0)  # steps; 0 means only at the end
    batches: int = bounded(16, least=1)  # of each dataset


@dataclass(frozen=True)
class Guard:
    """What is done about a run that goes wrong.

    Attributes:
      nonfinite: where the loss or the gradient is NaN or infinite: stop, skip the step's update, or go back to the newest checkpoint and pass over the batch.
      patience: so many such steps in a row, or roll-backs since the run was last started, stop it in any case.
      timeout: minutes after which a step that does not end is reported with the stacks of all threads, and the run is ended; 0 means never.
    """

    nonfinite: str = chosen("stop", ("stop", "skip", "rollback"))
    patience: int = bounded(10, least=1)
    timeout: float = bounded(30.0, least=0.0)


@dataclass(frozen=True)
class Log:
    """Who is told. `metrics.jsonl` has every step in any case."""

    every: int = bounded(10, least=1)  # steps between two printed lines, where there is no terminal
    tensorboard: bool = False
    wandb: str = ""  # the project; none: not used
    profile: str = ""  # the steps of which a trace is written, `10:15`


@dataclass(frozen=True)
class Sample:
    """The text that a run writes at its end."""

    prompt: str = "def "
    tokens: int = bounded(300, least=0)
    temperature: float = bounded(0.8, least=0.0)


@dataclass(frozen=True)
class Config:
    layout: str | dict = "data"  # a file, the name of a shipped layout, or the layout itself: `mesh`, `rules`, ...
    devices: int = bounded(0, least=0)  # 0 means what the layout's mesh asks for
    steps: int = bounded(400, least=1)
    batch: int = bounded(32, least=1)  # sequences in a step, all microbatches together
    microbatches: int = bounded(1, least=1)  # a step's batch is run in this many parts, one after the other
    seed: int = bounded(0, least=0, below=2**32)
    warm_start: str = ""  # a run, or a safetensors export, whose parameters this one begins with
    offload: tuple[str, ...] = ()  # what waits in the host's memory while it is not used: `optimizer`, `activations`
    model: Model = field(default_factory=Model)
    data: Data = field(default_factory=Data)
    optimizer: Optimizer = field(default_factory=Optimizer)
    schedule: Schedule = field(default_factory=Schedule)
    precision: Precision = field(default_factory=Precision)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    validation: Validation = field(default_factory=Validation)
    guard: Guard = field(default_factory=Guard)
    log: Log = field(default_factory=Log)
    sample: Sample = field(default_factory=Sample)

    def __post_init__(self) -> None:
        if self.batch % self.microbatches:
            raise MeshDSLError(f"batch={self.batch} does not divide into microbatches={self.microbatches}")
        for what in self.offload:
            if what not in OFFLOADS:
                raise MeshDSLError(f"offload: no `{what}`{nearest(what, OFFLOADS)}")
