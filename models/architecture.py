"""The choices that make a transformer: each choice is a setting, and a style is a set of defaults.

    Architecture(style="qwen3", layers=36, d_model=4096)   # as Qwen3 chooses
    Architecture(style="llama", query_norm="head")         # as Llama, with one thing of Qwen3

A choice that a style makes has the value "style" until it is set. Numbers belong to a size rather
than to a style, and have their own defaults.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import meshdsl as md
from meshdsl.fields import bounded, chosen, listed
from meshdsl.layers.norm import EPSILON
from meshdsl.layers.rotary import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    Scaling,
    YarnScaling,
)
from meshdsl.layers.router import SCORES
from meshdsl.models.families import ADAPTERS
from meshdsl.models.families.decoder import BIASES, CLAMPED, Decoder
from meshdsl.models.families.rope import SCALINGS
from meshdsl.models.setting_checks import STYLE, check

ACTIVATIONS: dict[str, Callable[[md.Tensor], md.Tensor]] = {
    "gelu": md.gelu,
    "gelu_exact": lambda x: md.gelu(x, approximate=False),
    "silu": md.silu,
    "relu": md.relu,
}
LLAMA: dict[str, Any] = {
    "norm": "rms",
    "norm_from_one": "no",
    "norm_place": "before",
    "query_norm": "none",
    "positions": "rotary",
    "mlp": "gated",
    "activation": "silu",
    "biases": (),
    "tied": "no",
    "embedding_scale": "one",
    "sinks": "no",
    "router_bias": "no",
}
# The adapter of each style has the choices in which the style differs from Llama.
STYLES = {
    name: {**LLAMA, **adapter.choices}
    for name, adapter in ADAPTERS.items()
    if isinstance(adapter, Decoder)
}


def _of_style(*known: str) -> Any:
    """A field that is one of `known`, or left to the style."""
    return chosen(STYLE, (STYLE, *known))


@dataclass(frozen=True)
class Architecture(md.Family):
    """Sizes and choices of a transformer, all of which change what it computes.

    A choice whose value is `style` is made by the style.

    Attributes:
      style: the family of models whose choices are the defaults.
      layers: how many blocks there are, those of `dense_layers` among them.
      d_model: the size of the residual stream.
      heads: heads of queries; it divides `d_model`, unless `head_dim` is set.
      kv_heads: heads of keys and values, which divide `heads`; 0: as many as `heads`.
      head_dim: the size of a head; 0: `d_model / heads`.
      latent: the number of features from which keys and values are computed, and which alone are
        kept in decoding (latent attention, DeepSeek-V2); 0: keys and values are computed from
        `d_model`. With `latent`, `head_dim` counts the features of a head that rotary positions do
        not turn.
      query_latent: with `latent`, the number of features from which queries are computed; 0: they
        are computed from `d_model`.
      turned: with `latent`, how many features of a head rotary positions turn.
      value_dim: with `latent`, the size of the values of a head; 0: `head_dim`.
      d_ff: the size between the matrices of the feed-forward layer; 0: 4 times `d_model` in `gpt2`,
        and 8/3 of it, rounded up to a multiple of 64, in `llama` and wherever there is a gate.
      vocab: how many tokens there are; at least as many as the tokenizer has.
      length: tokens in the longest sequence, which learned positions are made for.
      rotary_base: base of the wavelengths of rotary positions (Su et al., 2021), in `llama`.
      norm_epsilon: what norms add to the mean square or the variance before they take its root.
      norm: the kind of norms: root mean square alone, or LayerNorm.
      norm_from_one: norms multiply by one plus their weights, as in Gemma. Not with LayerNorm.
      norm_place: whether a sublayer has its norm `before` it, or `after` it, ahead of the sum, as
        in OLMo 2, or in `both` places, as in Gemma 2.
      query_norm: whether queries and keys are normalised before they are turned: over each `head`,
        as in Qwen3, or over all `heads` at once, as in OLMo 2.
      positions: `rotary` positions turn queries and keys; `learned` ones are added to the
        embedding.
      rotary_local_base: the base in layers with a window; 0: the same.
      rotary_fraction: the fraction of the features of a head that rotary positions turn.
      rotary_scaling: how wavelengths are made longer for sequences that are longer than those of
        training: all alike (`linear`), as in Llama 3.1 (`llama3`), by YaRN (`yarn`), by a factor
        for each (`longrope`), or by a base that grows with the text (`dynamic`). With
        `rotary_local_base`, in layers without a window.
      rotary_factor: how many times as long the wavelengths, or sequences, become.
      rotary_length: the length of sequences in training, for every scaling but `linear`.
      rotary_low: wavelengths that fit fewer times than this into `rotary_length` are made longer by
        the whole factor.
      rotary_high: wavelengths that fit more often than this stay as they are: 4 in Llama 3.1, 32 in
        YaRN. In between, the factor changes gradually: in YaRN along a line over the pairs of
        features that are turned.
      rotary_whole: whether that line begins and ends at whole numbers of pairs; not in gpt-oss.
      rotary_gain: the factor of cosine and sine in YaRN; 0: one plus a tenth of the logarithm of
        `rotary_factor`. In `longrope` too; 0: 1.
      rotary_score_gain: with `latent`, scores are multiplied by the square of
        `1 + rotary_score_gain / 10 * log(rotary_factor)`, which is `mscale_all_dim` of DeepSeek.
      rotary_short: the factors of wavelengths for `longrope`, in texts of at most `rotary_length`
        tokens; one for each pair of features that is turned.
      rotary_long: these factors in longer texts.
      mlp: the feed-forward layer: two matrices (`plain`), or three with a gate (`gated`).
      activation: the activation of the feed-forward layer. `gelu` is the usual approximation by a
        tanh, and `clamped` the activation of gpt-oss, with `activation_limit` and
        `activation_slope`.
      activation_limit: the largest absolute value of the gate and of its factor.
      activation_slope: the slope of the sigmoid of the gate.
      biases: which linear layers have biases: any of query, key, value, out and mlp.
      tied: the output layer shares the table of the embedding.
      embedding_scale: embeddings are multiplied by the `root` of `d_model`, as in Gemma.
      sinks: each head has one more score, without a value, so that it may attend to nothing.
      attention_softcap: scores of attention are bounded to it by a tanh; 0: they are not.
      logit_softcap: logits are bounded to it by a tanh; 0: they are not.
      query_scale: scores are divided by the square root of this number; 0: of `head_dim`.
      window: in local layers a position sees those that are less than this many away; 0: all.
      pattern: which layers are `local` and which `global`; it repeats until all layers have a kind.
      causal: positions see themselves and those before them only.
      parallel: whether both sublayers of a block read the input of the block, with one norm that
        they share (`shared`), or with a norm each (`separate`); `none`: one after the other.
      dense_layers: how many blocks at the beginning have no experts.
      dense_d_ff: the size between the matrices in these blocks; 0: `d_ff`.
      experts: how many feed-forward layers of the size `d_ff` a block has, of which each token uses
        a few; 0: one layer for all tokens.
      experts_used: how many experts a token uses.
      experts_shared: the size between the matrices of a further expert that all tokens use; 0:
        there is no such expert.
      experts_shared_gate: whether the result of this further expert is multiplied by the sigmoid of
        a product with the token, as in Qwen2-MoE.
      capacity: the room of each expert, as a multiple of its fair share of the tokens of a
        sequence. Tokens that find no room are left out; 0: no token is left out.
      router_scores: the scores by which the router ranks experts: a `softmax` over all of them, or
        a `sigmoid` for each, as in DeepSeek-V3.
      router_normalise: whether the weights of the experts of a token are divided by their sum.
      router_scale: a factor of these weights.
      router_groups: into how many groups the experts are divided.
      router_groups_used: how many groups a token uses; 0: all.
      router_bias: the router's logits have biases, as in gpt-oss.
      router_offset: offsets that balance the load are added to the scores that choose experts, as
        in DeepSeek-V3.
    """

    style: str = chosen("llama", tuple(STYLES))
    layers: int = bounded(4, least=1)
    d_model: int = bounded(128, least=1)
    heads: int = bounded(8, least=1)
    kv_heads: int = bounded(0, least=0)
    head_dim: int = bounded(0, least=0)
    latent: int = bounded(0, least=0)
    query_latent: int = bounded(0, least=0)
    turned: int = bounded(0, least=0)
    value_dim: int = bounded(0, least=0)
    d_ff: int = bounded(0, least=0)
    vocab: int = bounded(256, least=1)
    length: int = bounded(128, least=1)
    rotary_base: float = bounded(10_000.0, above=1)
    # The default stays as it is: a run's configuration without this key is of a model with 1e-5.
    norm_epsilon: float = bounded(EPSILON, above=0, below=1)
    norm: str = _of_style("rms", "layer")
    norm_from_one: str = _of_style("yes", "no")
    norm_place: str = _of_style("before", "after", "both")
    query_norm: str = _of_style("none", "head", "heads")
    positions: str = _of_style("rotary", "learned")
    rotary_local_base: float = bounded(0.0, least=0)
    rotary_fraction: float = bounded(1.0, above=0)
    rotary_scaling: str = chosen("none", SCALINGS)
    rotary_factor: float = bounded(1.0, above=0)
    rotary_length: int = bounded(0, least=0)
    rotary_low: float = bounded(1.0, above=0)
    rotary_high: float = bounded(4.0, above=0)
    rotary_whole: bool = True
    rotary_gain: float = bounded(0.0, least=0)
    rotary_score_gain: float = bounded(0.0, least=0)
    rotary_short: tuple[float, ...] = ()
    rotary_long: tuple[float, ...] = ()
    mlp: str = _of_style("plain", "gated")
    activation: str = _of_style(*ACTIVATIONS, CLAMPED)
    activation_limit: float = bounded(7.0, above=0)
    activation_slope: float = bounded(1.702, above=0)
    biases: tuple[str, ...] = listed((STYLE,), (STYLE, *BIASES))
    tied: str = _of_style("yes", "no")
    embedding_scale: str = _of_style("one", "root")
    sinks: str = _of_style("yes", "no")
    attention_softcap: float = bounded(0.0, least=0)
    logit_softcap: float = bounded(0.0, least=0)
    query_scale: float = bounded(0.0, least=0)
    window: int = bounded(0, least=0)
    pattern: tuple[str, ...] = listed(("local",), ("local", "global"))
    causal: bool = True
    parallel: str = chosen("none", ("none", "shared", "separate"))
    dense_layers: int = bounded(0, least=0)
    dense_d_ff: int = bounded(0, least=0)
    experts: int = bounded(0, least=0)
    experts_used: int = bounded(2, least=1)
    experts_shared: int = bounded(0, least=0)
    experts_shared_gate: bool = False
    capacity: float = bounded(0.0, least=0)
    router_scores: str = chosen("softmax", SCORES)
    router_normalise: bool = True
    router_scale: float = bounded(1.0, above=0)
    router_groups: int = bounded(1, least=1)
    router_groups_used: int = bounded(0, least=0)
    router_bias: str = _of_style("yes", "no")
    router_offset: bool = False

    def __post_init__(self):
        super().__post_init__()
        check(self)

    def choice(self, name: str) -> Any:
        """The value of the setting `name`, or the style's choice if that value is `style`."""
        value = getattr(self, name)
        return STYLES[self.style][name] if value in (STYLE, (STYLE,)) else value

    @property
    def rotary(self) -> bool:
        """Whether positions turn queries and keys."""
        return self.choice("positions") == "rotary"

    @property
    def gated(self) -> bool:
        """Whether the feed-forward layer has a gate."""
        return self.choice("mlp") == "gated"

    @property
    def tables_tied(self) -> bool:
        """Whether the output layer shares the table of the embedding."""
        return self.choice("tied") == "yes"

    @property
    def head_size(self) -> int:
        return self.head_dim or self.d_model // self.heads

    @property
    def rotary_dim(self) -> md.Dim:
        """The features of a head that rotary positions turn."""
        if self.latent:
            return md.Dim("turned", self.turned)
        return md.Dim("head_dim", int(self.head_size * self.rotary_fraction))

    @property
    def scaling(self) -> Scaling | None:
        """The scaling of the wavelengths of rotary positions; None for none."""
        if self.rotary_scaling == "none":
            return None
        factor, length = self.rotary_factor, self.rotary_length
        if self.rotary_scaling == "linear":
            return LinearScaling(factor)
        if self.rotary_scaling == "llama3":
            return Llama3Scaling(factor, length, self.rotary_low, self.rotary_high)
        if self.rotary_scaling == "dynamic":
            return DynamicScaling(factor, length)
        if self.rotary_scaling == "longrope":
            gain = self.rotary_gain or 1.0
            return LongScaling(tuple(self.rotary_short), tuple(self.rotary_long), length, gain)
        gain = self.rotary_gain or (1 + 0.1 * math.log(factor) if factor > 1 else 1.0)
        return YarnScaling(
            factor,
            length,
            fast=self.rotary_high,
            slow=self.rotary_low,
            gain=gain,
            whole=self.rotary_whole,
        )

    @property
    def by_text(self) -> bool:
        """Whether rotary positions depend on how long a text is."""
        return self.rotary and self.rotary_scaling in ("longrope", "dynamic")

    @property
    def local_layers(self) -> tuple[bool, ...]:
        """For each layer whether it is local, that is, has the window."""
        turns = -(-self.layers // len(self.pattern))
        return tuple(
            bool(self.window) and kind == "local" for kind in (self.pattern * turns)[: self.layers]
        )

    @property
    def dims(self) -> dict[str, md.Dim]:
        """Every dim of the model but `batch`, by name."""
        grouped = 0 < self.kv_heads < self.heads
        sizes = {
            **({"first_layers": self.dense_layers} if self.dense_layers else {}),
            "layers": self.layers - self.dense_layers,
            "d_model": self.d_model,
            **(
                {"kv_heads": self.kv_heads, "group": self.heads // self.kv_heads}
                if grouped
                else {"heads": self.heads}
            ),
            "head_dim": self.head_size,
            **self._latent_dims,
            "d_ff": self.d_ff
            or (-(-8 * self.d_model // (3 * 64)) * 64 if self.gated else 4 * self.d_model),
            **({"experts": self.experts} if self.experts else {}),
            "vocab": self.vocab,
            "length": self.length,
            "memory": self.length,
            "queries": self.length,
            **({} if self.rotary else {"positions": self.length}),
        }
        return {name: md.Dim(name, size) for name, size in sizes.items()}

    @property
    def _latent_dims(self) -> dict[str, int]:
        if not self.latent:
            return {}
        sizes = {"latent": self.latent, "query_latent": self.query_latent, "turned": self.turned}
        sizes["value_dim"] = self.value_dim or self.head_size
        return {name: size for name, size in sizes.items() if size}

    def step_flops(self, rows: int) -> tuple[float, float]:
        """FLOPs of a step: causal attention counted half, and in full.

        Six per token and parameter of a matrix (two forward, four backward), and as many for each
        pair of positions that meet in attention; what is recomputed does not count (Chowdhery et
        al., 2022, appendix B). Looking up an embedding is no product; an output layer that shares
        its table is one. In layers with a window only pairs within it meet.
        """
        d, tokens = {name: dim.size for name, dim in self.dims.items()}, rows * self.length
        mlp = self.layers * (3 if self.gated else 2) * d["d_model"] * d["d_ff"]
        if self.experts:  # the experts that a token uses, and the router
            widths = 3 * (d["d_ff"] * self.experts_used + self.experts_shared)
            with_router = d["d_model"] * (widths + self.experts + self.experts_shared_gate)
            dense = 3 * d["d_model"] * (self.dense_d_ff or d["d_ff"])
            mlp = d["layers"] * with_router + self.dense_layers * dense
        weights, both = self._attention_sizes(d)
        matrices = self.layers * weights + mlp + d["d_model"] * d["vocab"]
        near = min(self.window, self.length)
        seen = 2 * near - near * (near - 1) / self.length  # twice the mean number in a window
        pairs = sum(min(seen, self.length) if local else self.length for local in self.local_layers)
        attention = self.heads * both * pairs
        half = attention / 2 if self.causal else attention
        return 6.0 * tokens * (matrices + half), 6.0 * tokens * (matrices + attention)

    def _attention_sizes(self, d: dict[str, int]) -> tuple[int, int]:
        """The weights of a layer's attention; the features of a head's key and value together."""
        if not self.latent:
            kv = (self.kv_heads or self.heads) * d["head_dim"]
            return d["d_model"] * (2 * self.heads * d["head_dim"] + 2 * kv), 2 * d["head_dim"]
        key = d["head_dim"] + self.turned
        to_latent = d["d_model"] * self.query_latent
        queries = to_latent + (self.query_latent or d["d_model"]) * self.heads * key
        remembered = d["d_model"] * (self.latent + self.turned)
        keys_and_values = self.latent * self.heads * (d["head_dim"] + d["value_dim"])
        out = d["d_model"] * self.heads * d["value_dim"]
        return queries + remembered + keys_and_values + out, key + d["value_dim"]
