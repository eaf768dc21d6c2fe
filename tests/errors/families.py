"""Errors of a model of the user's: of its family, its batch, its loss and its task."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

import meshdsl as md
from meshdsl.family.by_name import find_family
from meshdsl.fields import bounded, chosen
from meshdsl.mesh import abstract_mesh
from meshdsl.train.config import Config
from meshdsl.train.job import Job
from meshdsl.train.settings import override

VOCAB, WIDTH, LENGTH = md.Dim("vocab", 256), md.Dim("width", 8), md.Dim("length", 16)


class Right(md.Family):
    """A model without a mistake, but that it is no dataclass."""

    def batch(self, rows):
        field = md.abstract((rows, LENGTH), jnp.int32)
        return {"tokens": field, "targets": field}

    def init(self, key):
        return {"table": md.parameter(jax.random.normal(key, (256, 8)), (VOCAB, WIDTH))}

    def loss(self, model, batch, key):
        return md.mean(md.take(model["table"], batch["tokens"], "vocab"))


def family(mistake: str, **changes) -> type[md.Family]:
    """`Right` as a frozen dataclass, but for one mistake."""
    made = type(mistake, (Right,), {"__doc__": "A model with a mistake.", **changes})
    return dataclass(frozen=True)(made)


def step(*settings: str, layout: md.Layout | None = None, **changes):
    """What `explain` does first with a model that has a mistake: its step is traced."""
    config = Config(model=family("Wrong", **changes)(), batch=8)
    layout = md.Layout() if layout is None else layout
    return Job(override(config, settings), layout, abstract_mesh(layout.mesh)).program()


def named(name: str, found):
    """`found` by its name, as the setting `model.family` asks for it."""
    globals()[name] = found
    return find_family(f"{__name__}:{name}")


@dataclass(frozen=True)
class Bounds(Right):
    """Settings with bounds."""

    size: int = bounded(4, least=1)
    kind: str = chosen("relu", ("relu", "gelu"))


@dataclass
class Thawed(Right):
    """Not frozen."""


@dataclass(frozen=True)
class Required(Right):
    """A setting without a default."""

    size: int


@dataclass(frozen=True)
class Lists(Right):
    """A setting that no text can spell."""

    sizes_of_layers: list = None


@dataclass(frozen=True)
class Nothing(md.Family):
    """Settings alone."""


@dataclass(frozen=True)
class Named(Right):
    """A setting with the name that picks the class."""

    family: str = ""


def mean_of(name: str):
    """A loss that asks the batch for a field."""
    return lambda self, model, batch, key: md.mean(batch[name])


def loss(result):
    """A loss function that returns `result(batch)`."""
    return lambda self, model, batch, key: result(batch)


def floats(batch) -> md.Tensor:
    return md.cast(batch["tokens"], jnp.float32)


ERRORS = [
    # The family.
    (
        lambda: find_family("transformr"),
        "model.family=transformr: no such family; did you mean `transformer` … my_file.py:Name",
    ),
    (lambda: named("mean_of", mean_of), "a family is a class that inherits from md.Family"),
    (
        lambda: named("Right", Right),
        "a family is a frozen dataclass; write @dataclass(frozen=True) above it",
    ),
    (
        lambda: named("Thawed", Thawed),
        "a family is a frozen dataclass; write @dataclass(frozen=True) above it",
    ),
    (lambda: named("Required", Required), "the setting `size` needs a default"),
    (
        lambda: named("Keyless", family("Keyless", loss=lambda self, model, batch: batch)),
        "loss(model, batch, key) is how `loss` is called, and yours cannot be: too many",
    ),
    (
        lambda: named("Lists", Lists),
        "the setting `sizes_of_layers` is to be text, a number, true or false, or a tuple of",
    ),
    (lambda: named("Named", Named), "a setting cannot be called `family`, which names the class"),
    (lambda: named("Nothing", Nothing), "it has no `batch`; see md.Family"),
    (lambda: Bounds(size=0), "model: size is at least 1, not 0"),
    (lambda: Bounds(kind="rel"), "model: no kind 'rel'; did you mean `relu`?"),
    # The batch.
    (
        lambda: step(batch=lambda self, rows: [rows]),
        "Wrong.batch: gives Tensors by name, not of type list",
    ),
    (
        lambda: step(batch=lambda self, rows: {"tokens": (rows, LENGTH)}),
        "Wrong.batch: `tokens` is a Tensor made by md.abstract(dims, dtype), not of type tuple",
    ),
    (
        lambda: step(batch=lambda self, rows: {"tokens": md.abstract((LENGTH, rows), jnp.int32)}),
        "Wrong.batch: the first dim of `tokens` is that of the rows, batch=8 … [length=16, "
        "batch=8]",
    ),
    (
        lambda: step(loss=mean_of("target")),
        "the batch has no field `target`; did you mean `targets`?",
    ),
    (
        lambda: step(batch=lambda self, rows: {"image": md.abstract((rows, LENGTH))}),
        "data.task=text … Wrong has a field `image` … `tokens`, `targets` … `examples`",
    ),
    (lambda: step(task="image"), "Wrong.task=image: no such task; did you mean `images`?"),
    (lambda: step("data.task=txt"), "data.task=txt: no such task; did you mean `text`?"),
    # The model.
    (
        lambda: step(init=lambda self, key: {"table": jax.random.normal(key, (256, 8))}),
        "Wrong.init: a model is made of parameters … `table` is an array of shape (256, 8)",
    ),
    (
        lambda: step(init=lambda self, key: {"table": md.tensor(jnp.ones(8), (WIDTH,))}),
        "`table` is a Tensor that is none; md.parameter makes one",
    ),
    (
        lambda: step(init=lambda self, key: {"rate": 0.5}),
        "Wrong.init: a model is made of parameters, and `rate` is 0.5",
    ),
    (lambda: step(init=lambda self, key: {}), "Wrong.init: the model has no parameters"),
    (
        lambda: step(loss=loss(lambda batch: md.mean(floats(batch), "lenght"))),
        "no dim `lenght` in [batch=8, length=16]; did you mean `length`?",
    ),
    (
        lambda: step(
            layout=md.Layout(["widht -> model"], mesh={"model": 2}, name="layout my.toml")
        ),
        "my.toml, rule 1: no dim `widht` … did you mean `width`?",
    ),
    # The loss.
    (
        lambda: step(loss=loss(lambda batch: md.mean(floats(batch), "length"))),
        "Wrong.loss: the loss has the dims [batch=8], and is to have none; take md.mean",
    ),
    (
        lambda: step(loss=loss(lambda batch: None)),
        "Wrong.loss: the loss is a Tensor or an Average, not None",
    ),
    (
        lambda: step(loss=loss(lambda batch: (md.mean(floats(batch)), md.mean(floats(batch))))),
        "Wrong.loss: the report is a dict of Tensors by name, not of type Tensor",
    ),
    (
        lambda: step(loss=loss(lambda batch: (md.mean(floats(batch)), {"ids": batch["tokens"]}))),
        "Wrong.loss: `ids` of the report has the dims [batch=8, length=16]",
    ),
    (
        lambda: step(loss=loss(lambda batch: md.Average(floats(batch), md.sum(floats(batch))))),
        "Wrong.loss: the loss has the dims [batch=8, length=16], and is to have none",
    ),
    (
        lambda: step(loss=loss(lambda b: (md.mean(floats(b)), {"step": md.mean(floats(b))}))),
        "Wrong.loss: the report cannot use the name `step`, which a run uses",
    ),
    (
        lambda: step("precision.output=bfloat16"),
        "Wrong: its loss does not take `output`, so it cannot be bfloat16; see md.Family.loss",
    ),
]
