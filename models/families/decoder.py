"""Published transformers that write text: what their adapters have in common.

Most are like Llama. So this class reads and writes a Llama, and an adapter says what is different.
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
CLAMPED = "clamped"  # an activation of the gate and of what it multiplies
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "gelu": "gelu_exact",
    "gelu_python": "gelu_exact",
    "relu": "relu",
}
SPELLED = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())} | {CLAMPED: "silu"}
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
# Of a Llama; an adapter says which defaults are others.
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
KINDS = each(word(known=(FULL, LOCAL)), None)  # the setting `layer_types`, where layers differ
NO_HEAD_DIM = whole()  # `head_dim` of a class that has no such setting, but goes by it
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
      choices: what the style chooses otherwise than a Llama.
      activation: the name of the setting for the activation.
      biased: settings for biases, each with the layers that have them.
      fraction: which part of a head rotary positions turn, unless a file says it.
      fractions: a file may say so.
      ropes: the types of rotary positions that there are.
      divides: heads divide the residual stream, also where a file says `head_dim`.
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
        own = any(name.endswith("lm_head.weight") for name in tensors)
        told = {name: said[key] for key, names in self.biased.items() for name in names}
        always = self.choices.get("biases", ())
        made = {
            "style": self.name,
            "activation": self.choices.get("activation"),
            "tied": "yes" if said["tie_word_embeddings"] and not own else "no",
            "biases": tuple(name for name in BIASES if told.get(name, name in always)),
            **self.rotary(said),
            **self.windows(said),
        }
        if made["activation"] != CLAMPED:
            made["activation"] = ACTIVATIONS[said[self.activation]]
        if found.get("kv_heads") == found["heads"]:
            made["kv_heads"] = 0
        return made

    def rotary(self, said: Said) -> dict[str, Any]:
        """The settings of rotary positions."""
        table, name = rope.one_table(said)
        return self.rotary_of(table, name, said["max_position_embeddings"])

    def rotary_of(self, table: Mapping[str, Any], name: str, longest: int) -> dict[str, Any]:
        """The same of a table; see `rope.settings_of`."""
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
        """The window, and the pattern of the layers that have it."""
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
        if self.settings["layer_types"] is not KINDS:  # the window is of all layers
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
        """Whether a layer has the window, by its number, where a file says no `layer_types`."""
        return lambda layer: window is not None and layer >= said["max_window_layers"]

    def written(self, model: Any) -> dict[str, Any]:
        biases = set(model.choice("biases"))
        made: dict[str, Any] = {
            self.activation: SPELLED[model.choice("activation")],
            "tie_word_embeddings": model.tables_tied,
            **{name: set(each) <= biases for name, each in self.biased.items()},
        }
        made |= rope.written(model) if model.rotary else {}
        if "sliding_window" in self.settings:
            some = any(model.local_layers)
            made["sliding_window"] = model.window if some else None
            if "use_sliding_window" in self.settings:
                made["use_sliding_window"] = some
            if self.settings["layer_types"] is KINDS:
                made["layer_types"] = [LOCAL if local else FULL for local in model.local_layers]
                made["sliding_window"] = model.window if some else 4096  # which no layer has
        return made


class WithExperts(Decoder):
    """One whose layers have experts; `names` has their number, and how many a token uses."""

    names = EXPERTS_TOO
    terms = {**rope.TERMS, "router_groups": "n_group", "router_groups_used": "topk_group"}

    def more(self, said: Said, found: Said, tensors: Names) -> dict[str, Any]:
        normalise = bool(said.get("norm_topk_prob", True))
        return super().more(said, found, tensors) | {"router_normalise": normalise}

    def written(self, model: Any) -> dict[str, Any]:
        made = super().written(model)
        if "norm_topk_prob" in self.settings:
            made["norm_topk_prob"] = model.router_normalise
        return made


SILU = Setting(
    "silu or swish, the only activations of experts here",
    lambda value: value in ("silu", "swish"),
    "silu",
)


def with_experts(settings: Mapping[str, Setting], **others: Setting) -> dict[str, Setting]:
    """The settings of a family with experts, in which every layer has some."""
    return {**settings, "hidden_act": SILU, "decoder_sparse_step": only(1), **others}


def alternating(layer: int) -> bool:
    """Every second layer has the window, the first one among them."""
    return layer % 2 == 0


def _shortest(kinds: tuple[str, ...]) -> tuple[str, ...]:
    """The shortest beginning of `kinds` that gives all of it when it is repeated."""
    return next(
        kinds[:size]
        for size in range(1, len(kinds) + 1)
        if all(kind == kinds[i % size] for i, kind in enumerate(kinds))
    )
