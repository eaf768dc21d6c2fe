"""What a published family is: its settings in a `config.json`, and its tensors.

Each file beside this one has the adapter of a family, or of a few that are alike. `ADAPTERS` in
`meshdsl.models.families` names them all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, ClassVar

from meshdsl.errors import MeshDSLError
from meshdsl.schema import Setting, as_word, each, only, read, shown, table, tokens, whole, word

Modules = Mapping[str, tuple[str, ...]]
"""Modules of a file by name; for each the modules here that are in it, one after another."""
Said = Mapping[str, Any]
"""Settings with their values."""
Names = Collection[str]
"""Names of tensors in files, or of parameters here."""

MOST = 10_000  # layers, or experts, of a model; published ones have less than a tenth
QUANTIZATION = {
    "quant_method": word(None),
    "weight_block_size": each(whole(), None, count=2),
}
_METHODS = ("fp8", "mxfp4")  # how files may store tensors in fewer bits
_DTYPES = ("float32", "bfloat16", "float16", "float64", "float8_e4m3fn", "float8_e5m2")
# Of every family, whatever else its files say.
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
      name: of the family here; for a transformer the style.
      types: each `model_type` of the family in a `config.json`; the first one is written.
      family: the setting `model.family`.
      architecture: the class of `transformers` that reads the files.
      settings: what a `config.json` may say, with types and defaults of the class of `transformers`
        that reads it.
      aliases: other names of settings.
      names: the settings here that a file has as they are, with their names there.
      terms: other settings here, with their names there, for errors.
      tables: the modules outside of layers.
      layers: the modules of a layer.
      prefix: of the names of a layer's tensors, before its number.
      stack: the stack here that the layers are of.
      outs_first: matrices are `[outs, ins]`, and not the other way round.
      bare: parameters that are not of a module: the name here, and how many dims of size 1 their
        tensor has in front.
      vectors: the same of a layer, where nothing is of size 1 in front.
      by_head: modules that have for each head the outs of one module here after another.
      pairs: modules here of which rotary positions turn features that are neighbours there, and
        which part of the features of a head is turned.
      apart: modules whose matrices have each dim that is contracted as a dim of its own.
      unused: what the names of tensors begin with that a model here has no use for.
      copies: tensors that are copies of others, by name.
      older: endings of names in older files, with those that they have in the tables here.
      experts: for each tensor of experts our names in the layer of the parameters in it, where the
        experts are a dim. It is of one expert where its name has `{}` for the number, else of all.
      ahead: files may have layers after the last one, which predict tokens further ahead.
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
        """The settings here of the model that a `config.json` describes.

        Args:
          tensors: the names of the tensors in its files, without copies, which say more where a
            setting is missing.

        Raises:
          MeshDSLError: the file has a value that is not legal, or asks for what is not known here.
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
        """The settings here that a file has under no name, or otherwise than here.

        Args:
          said: the value of each of `settings`.
          found: the settings here that `names` has.
          tensors: as for `read`.
        """
        raise NotImplementedError

    def written(self, model: Any) -> dict[str, Any]:
        """What the `config.json` of a model says beside `names`, `model_type` and architecture."""
        raise NotImplementedError

    def stacks(self, parameters: Names) -> Iterator[tuple[str, str, Modules]]:
        """Each stack of layers here, with the prefix and the modules that it has there.

        Stacks of one prefix are numbered one after another.

        Args:
          parameters: the names of the model's parameters.
        """
        yield self.stack, self.prefix, self.layers

    def not_read(self, parameters: Names) -> tuple[str, ...]:
        """What the names of tensors begin with that the model of these parameters does not read."""
        return self.unused

    def _by_one_name(self, config: Said) -> dict[str, Any]:
        """The object of a file, where each setting has one name."""
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
