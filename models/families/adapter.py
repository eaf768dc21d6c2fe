"""What an adapter says of a published family: its settings in a `config.json`, and its tensors.

Each file of this folder has the adapter of a family, or of a few that are alike. `ADAPTERS` in
`meshdsl.models.families` names them all. In what follows *our* names of settings and parameters are
those of models here, and *their* names are those of the published files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, ClassVar

from meshdsl.errors import MeshDSLError
from meshdsl.schema import Setting, as_word, each, only, read, shown, table, tokens, whole, word

Modules = Mapping[str, tuple[str, ...]]
"""Their modules by name; for each one our modules whose parameters it has, one after another."""
Said = Mapping[str, Any]
"""The values of settings, by name."""
Names = Collection[str]
"""Names of tensors in files, or of our parameters."""

MOST = 10_000  # layers, or experts, of a model; published ones have less than a tenth
QUANTIZATION = {
    "quant_method": word(None),
    "weight_block_size": each(whole(), None, count=2),
}
_METHODS = ("fp8", "mxfp4")  # how files may store tensors in fewer bits
_DTYPES = ("float32", "bfloat16", "float16", "float64", "float8_e4m3fn", "float8_e5m2")
# Settings that the files of every family may have.
EVERY = {
    "quantization_config": table(None),
    "architectures": each(word(), None),
    "add_cross_attention": only(False),
    "per_layer_config": only(None),
    "dtype": word(None, _DTYPES),
    "torch_dtype": word(None, _DTYPES),
    "bos_token_id": whole(None, least=-1),
    "pad_token_id": whole(None, least=-1),
    "eos_token_id": tokens(None),
}


class Adapter:
    """A published family.

    Attributes:
      name: our name of the family; for a transformer the style.
      types: the values of `model_type` in a `config.json` of the family. The first one is written.
      family: the value of our setting `model.family`.
      architecture: the class of `transformers` that reads the files.
      settings: the settings that a `config.json` may have, with types and with the defaults of the
        class of `transformers` that reads it.
      aliases: other names of their settings.
      names: our settings that a file has with the same values, each with their name.
      terms: our other settings, each with their name, for errors.
      tables: their modules outside of layers.
      layers: their modules of a layer.
      prefix: the beginning of the names of a layer's tensors, before its number.
      stack: our stack of layers.
      outs_first: whether their matrices are `[outs, ins]`. If not, they are `[ins, outs]`.
      bare: their tensors that are not of a module: our name of each, and how many dims of size 1
        the tensor has in front of ours.
      vectors: their tensors in a layer that are not of a module: our name of each.
      by_head: their modules that have several of ours head by head: for each head the outs of one
        of our modules after those of another.
      pairs: our modules whose features rotary positions turn in pairs, where they pair neighbours
        and we do not; with the fraction of the features of a head that is turned.
      apart: their modules whose matrices have each contracted dim as a dim of its own.
      unused: the beginnings of the names of tensors that our model does not need.
      copies: their tensors that are copies of others, by name.
      older: endings of names in older files, each with the ending in `tables` and `layers`.
      experts: their tensors of experts; for each one our names, within the layer, of the parameters
        that it has, which have a dim of experts. If its name has `{}`, for the number of an expert,
        it is of one expert, else of all.
      ahead: whether files may have layers after the last one, which predict tokens further ahead.
    """

    name: ClassVar[str]
    types: ClassVar[tuple[str, ...]]
    family: ClassVar[str]
    architecture: ClassVar[str]
    settings: ClassVar[Mapping[str, Setting]]
    aliases: ClassVar[Mapping[str, str]] = {}
    names: ClassVar[Mapping[str, str]]
    terms: ClassVar[Mapping[str, str]] = {}
    tables: ClassVar[Modules]
    layers: ClassVar[Modules]
    prefix: ClassVar[str]
    stack: ClassVar[str] = "blocks"
    outs_first: ClassVar[bool] = True
    bare: ClassVar[Mapping[str, tuple[str, int]]] = {}
    vectors: ClassVar[Mapping[str, str]] = {}
    by_head: ClassVar[tuple[str, ...]] = ()
    pairs: ClassVar[Mapping[str, float]] = {}
    apart: ClassVar[tuple[str, ...]] = ()
    unused: ClassVar[tuple[str, ...]] = ()
    copies: ClassVar[Mapping[str, str]] = {}
    older: ClassVar[Mapping[str, str]] = {}
    experts: ClassVar[Modules] = {}
    ahead: ClassVar[bool] = False

    def read(self, config: Said, tensors: Names = ()) -> dict[str, Any]:
        """Our settings of the model that a `config.json` describes.

        Args:
          tensors: the names of the tensors in its files, without copies. They decide where a
            setting is missing.

        Raises:
          MeshDSLError: the file has a value that is not legal, or asks for a feature that our
            models lack.
        """
        said = read({**EVERY, **self.settings}, self._by_one_name(config), "config.json")
        if quantized := said["quantization_config"]:
            method = read(QUANTIZATION, quantized, "config.json: quantization_config")
            if method["quant_method"] not in _METHODS:
                raise MeshDSLError(
                    "config.json: quantization_config: "
                    f"quant_method={as_word(method['quant_method'])} is not known here; "
                    f"{' and '.join(_METHODS)} are"
                )
        found = {ours: said.get(name) for ours, name in self.names.items()}
        found = {name: value for name, value in found.items() if value is not None}
        return found | self.more(said, found, tensors)

    def more(self, said: Said, found: Said, tensors: Names) -> dict[str, Any]:
        """Our settings that `names` does not have, computed from theirs.

        Args:
          said: the value of each of their `settings`.
          found: the values of our settings that `names` has.
          tensors: as for `read`.
        """
        raise NotImplementedError

    def written(self, model: Any) -> dict[str, Any]:
        """Their settings of `model`, without those of `names`, the `model_type` and the class."""
        raise NotImplementedError

    def stacks(self, parameters: Names) -> Iterator[tuple[str, str, Modules]]:
        """Our stacks of layers, each with their prefix and their modules.

        The layers of stacks with the same prefix are numbered one after another.

        Args:
          parameters: our names of the model's parameters.
        """
        yield self.stack, self.prefix, self.layers

    def not_read(self, parameters: Names) -> tuple[str, ...]:
        """The beginnings of names of tensors that the model of these parameters does not need."""
        return self.unused

    def _by_one_name(self, config: Said) -> dict[str, Any]:
        """The settings of a file, with `aliases` replaced by the names that they stand for."""
        said = dict(config)
        for alias, name in self.aliases.items():
            if alias not in said:
                continue
            value = said.pop(alias)
            if said.setdefault(name, value) != value:
                raise MeshDSLError(
                    f"config.json: {alias}={shown(value)} and {name}={shown(said[name])} are the "
                    "same setting, and differ"
                )
        return said
