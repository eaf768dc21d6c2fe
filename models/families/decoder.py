"""Published transformers that write text: what their adapters have in common.

Most of them are like Llama. So `Decoder` reads and writes a Llama, and the adapter of another
family overrides what is different in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from meshdsl.errors import MeshDSLError
from meshdsl.models.families import rope
from meshdsl.models.families.adapter import MOST, Adapter, Names, Said
from meshdsl.models.families.rope import FULL, LOCAL
from meshdsl.schema import Setting, each, number, only, switch, whole, word

BIASES = ("query", "key", "value", "out", "mlp")
QKV, ATTENTION = BIASES[:3], BIASES[:4]
CLAMPED = "clamped"  # an activation that also changes the factor that the gate multiplies
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "gelu": "gelu_exact",
    "gelu_python": "gelu_exact",
    "relu": "relu",
}
# Their name of each of our activations; where they have several, the first of `ACTIVATIONS`.
THEIRS = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())} | {CLAMPED: "silu"}
NAMES = {
    "vocab": "vocab_size",
    "d_model": "hidden_size",
    "d_ff": "intermediate_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "length": "max_position_embeddings",
    "norm_epsilon": "rms_norm_eps",
}
EXPERTS_TOO = {**NAMES, "experts": "num_experts", "experts_used": "num_experts_per_tok"}
ONLY_FULL = Setting(
    f"{FULL} for all layers, because this family has no others",
    lambda value: isinstance(value, list) and all(kind == FULL for kind in value),
    None,
)
# The settings and defaults of a Llama.
SETTINGS: dict[str, Setting] = {
    "vocab_size": whole(32_000),
    "hidden_size": whole(4096),
    "intermediate_size": whole(11_008),
    "num_hidden_layers": whole(32, most=MOST),
    "num_attention_heads": whole(32),
    "num_key_value_heads": whole(None),
    "head_dim": whole(None),
    "max_position_embeddings": whole(2048),
    "rms_norm_eps": number(1e-6, above=0),
    "hidden_act": word("silu", tuple(ACTIVATIONS)),
    "tie_word_embeddings": switch(False),
    "layer_types": ONLY_FULL,
    "use_bidirectional_attention": only(None, False),
    "is_causal": only(True),
    "num_experts": only(None),
    "num_local_experts": only(None),
    "mlp_only_layers": only(None, []),
    "clip_qkv": only(None),
    "text_config": only(None),
    **rope.SETTINGS,
}
KINDS = each(word(known=(FULL, LOCAL)), None)  # `layer_types` of a family whose layers differ
NO_HEAD_DIM = whole()  # `head_dim` of a class that has no such setting, and yet uses the value
SHARED_MLP = {
    "mlp.gate_proj": ("mlp.gate",),
    "mlp.up_proj": ("mlp.up",),
    "mlp.down_proj": ("mlp.down",),
}
NORMS_BEFORE = {"input_layernorm": ("attention_norm",), "post_attention_layernorm": ("mlp_norm",)}
PROJECTIONS = {
    "self_attn.q_proj": ("attention.query",),
    "self_attn.k_proj": ("attention.key",),
    "self_attn.v_proj": ("attention.value",),
    "self_attn.o_proj": ("attention.out",),
}
QUERY_NORMS = {
    "self_attn.q_norm": ("attention.query_norm",),
    "self_attn.k_norm": ("attention.key_norm",),
}


class Decoder(Adapter):
    """A published transformer that writes text; `name` is its style.

    Attributes:
      choices: our settings that the style sets otherwise than Llama does.
      activation: the name of their setting for the activation.
      biased: their settings for biases, each with the linear layers that then have biases.
      fraction: the fraction of a head that rotary positions turn.
      fractions: whether a file may set another fraction.
      ropes: the types of rotary positions that a file may ask for.
      divides: whether `hidden_size` divides into the heads, even if a file sets `head_dim`.
    """

    family = "transformer"
    settings = SETTINGS
    names = NAMES
    tables: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "model.embed_tokens": ("embedding",),
        "model.norm": ("norm",),
        "lm_head": ("head",),
    }
    layers: ClassVar[Mapping[str, tuple[str, ...]]] = {**PROJECTIONS, **SHARED_MLP, **NORMS_BEFORE}
    prefix = "model.layers."
    terms: ClassVar[Mapping[str, str]] = rope.TERMS
    choices: ClassVar[Mapping[str, Any]] = {}
    activation: ClassVar[str] = "hidden_act"
    biased: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    fraction: ClassVar[float] = 1.0
    fractions: ClassVar[bool] = False
    ropes: ClassVar[tuple[str, ...]] = rope.SCALINGS[1:]
    divides: ClassVar[bool] = False

    def more(self, said: Said, found: Said, tensors: Names) -> dict[str, Any]:
        if self.divides and found["d_model"] % found["heads"]:
            raise MeshDSLError(
                f"config.json: hidden_size={found['d_model']} does not divide into "
                f"num_attention_heads={found['heads']}"
            )
        has_head = any(name.endswith("lm_head.weight") for name in tensors)
        told = {name: said[key] for key, names in self.biased.items() for name in names}
        always = self.choices.get("biases", ())
        ours = {
            "style": self.name,
            "activation": self.choices.get("activation"),
            "tied": "yes" if said["tie_word_embeddings"] and not has_head else "no",
            "biases": tuple(name for name in BIASES if told.get(name, name in always)),
            **self.rotary(said),
            **self.windows(said),
        }
        if ours["activation"] != CLAMPED:
            ours["activation"] = ACTIVATIONS[said[self.activation]]
        if found.get("kv_heads") == found["heads"]:
            ours["kv_heads"] = 0
        return ours

    def rotary(self, said: Said) -> dict[str, Any]:
        """Our settings of rotary positions."""
        table, name = rope.one_table(said)
        return self.rotary_of(table, name, said["max_position_embeddings"])

    def rotary_of(self, table: Mapping[str, Any], name: str, longest: int) -> dict[str, Any]:
        """Our settings of rotary positions, from their table with this name.

        Args:
          longest: how many tokens the longest sequence has.
        """
        kind = rope.kind_of(table, name, self.ropes)
        found = rope.settings_of(kind, table, name, longest)
        fraction = found["rotary_fraction"]
        if fraction != self.fraction and not self.fractions:
            raise MeshDSLError(
                f"config.json: partial_rotary_factor={fraction} is not known of a "
                f"{self.architecture}; {self.fraction:g} is"
            )
        return found

    def windows(self, said: Said) -> dict[str, Any]:
        """Our settings of the window, and of the pattern of the layers that have it."""
        kinds, layers = said.get("layer_types"), said[self.names["layers"]]
        if kinds is not None and len(kinds) != layers:
            raise MeshDSLError(
                f"config.json: layer_types has {len(kinds)} layers; expected "
                f"{self.names['layers']}={layers}"
            )
        if "sliding_window" not in self.settings:
            return {}
        window, name = said["sliding_window"], "sliding_window=null"
        if not said.get("use_sliding_window", True):
            window, name = None, "use_sliding_window=false"
        if self.settings["layer_types"] is not KINDS:  # all layers have the window
            return {"window": window} if window else {}
        if kinds is None:
            usual = self.usual_window(said, window)
            kinds = [LOCAL if usual(i) else FULL for i in range(layers)]
        if LOCAL not in kinds:
            return {}
        if not window:
            raise MeshDSLError(f"config.json: layer_types has {LOCAL}, and {name}")
        pattern = ["local" if kind == LOCAL else "global" for kind in kinds]
        return {"window": window, "pattern": _shortest(tuple(pattern))}

    def usual_window(self, said: Said, window: int | None) -> Callable[[int], bool]:
        """Whether a layer has the window, by its number, for files without `layer_types`."""
        return lambda layer: window is not None and layer >= said["max_window_layers"]

    def written(self, model: Any) -> dict[str, Any]:
        biases = set(model.choice("biases"))
        theirs: dict[str, Any] = {
            self.activation: THEIRS[model.choice("activation")],
            "tie_word_embeddings": model.tables_tied,
            **{name: set(each) <= biases for name, each in self.biased.items()},
        }
        theirs |= rope.written(model) if model.rotary else {}
        if "sliding_window" in self.settings:
            some = any(model.local_layers)
            theirs["sliding_window"] = model.window if some else None
            if "use_sliding_window" in self.settings:
                theirs["use_sliding_window"] = some
            if self.settings["layer_types"] is KINDS:
                theirs["layer_types"] = [LOCAL if local else FULL for local in model.local_layers]
                theirs["sliding_window"] = model.window if some else 4096  # a number is required
        return theirs


class WithExperts(Decoder):
    """A transformer with experts; `names` has their number, and how many a token uses."""

    names = EXPERTS_TOO
    terms = {**rope.TERMS, "router_groups": "n_group", "router_groups_used": "topk_group"}

    def more(self, said: Said, found: Said, tensors: Names) -> dict[str, Any]:
        normalise = bool(said.get("norm_topk_prob", True))
        return super().more(said, found, tensors) | {"router_normalise": normalise}

    def written(self, model: Any) -> dict[str, Any]:
        theirs = super().written(model)
        if "norm_topk_prob" in self.settings:
            theirs["norm_topk_prob"] = model.router_normalise
        return theirs


SILU = Setting(
    "silu or swish, the only activations of experts here",
    lambda value: value in ("silu", "swish"),
    "silu",
)


def with_experts(settings: Mapping[str, Setting], **others: Setting) -> dict[str, Setting]:
    """`settings`, for a family with experts in every layer, and `others`."""
    return {**settings, "hidden_act": SILU, "decoder_sparse_step": only(1), **others}


def alternating(layer: int) -> bool:
    """Whether a layer has the window, where every second one does, the first one included."""
    return layer % 2 == 0


def _shortest(kinds: tuple[str, ...]) -> tuple[str, ...]:
    """The shortest beginning of `kinds` that gives `kinds` when it is repeated."""
    return next(
        kinds[:size]
        for size in range(1, len(kinds) + 1)
        if all(kind == kinds[i % size] for i, kind in enumerate(kinds))
    )
