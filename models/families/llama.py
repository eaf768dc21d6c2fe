"""Llama 2 and 3."""

from __future__ import annotations

from meshdsl.models.families.decoder import ATTENTION, SETTINGS, Decoder
from meshdsl.schema import switch


class Llama(Decoder):
    """Llama 2 and 3, and what is published in their form."""

    name = "llama"
    types = ("llama",)
    architecture = "LlamaForCausalLM"
    settings = {**SETTINGS, "attention_bias": switch(False), "mlp_bias": switch(False)}
    biased = {"attention_bias": ATTENTION, "mlp_bias": ("mlp",)}
    divides = True
