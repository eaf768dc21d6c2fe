"""Files that lack settings, or have wrong ones: read as `transformers` does, or one error."""

import json
import random
import re

import numpy as np
import pytest

import meshdsl as md
from meshdsl.models.families import ADAPTERS, TYPES
from meshdsl.models.families.adapter import EVERY
from meshdsl.models.published import family_of
from tests.models.derived import (
    brief,
    files,
    ours,
    recorded,
    refused_or,
    theirs,
    unlike,
    without_each,
)

FILES = files()
REMOVED = object()
HUGE = 2**31 - 1
VALUES = (
    REMOVED,
    None,
    "a\nb",
    True,
    HUGE,
    float("nan"),
    False,
    -3,
    0,
    1.5,
    -0.5,
    [],
    [None],
    [["a"]],
    {},
    {"a": {"b": 1}},
)
NESTED = ("rope_parameters", "rope_scaling", "text_config", "quantization_config")


def test_what_a_file_does_not_say_is_as_recorded():
    table, accepted = recorded(), 0
    for _, name, said in without_each():
        try:
            found = ours(said)
        except md.MeshDSLError:
            continue
        assert table[name] is not None, f"{name}: is accepted, and transformers refuses it"
        assert unlike(brief(found), table[name]) is None, name
        accepted += 1
    assert accepted > 800


@pytest.mark.slow
def test_what_a_file_does_not_say_is_what_transformers_derives():
    pytest.importorskip("transformers")
    for _, name, said in without_each():
        agree(name, said)


@pytest.mark.slow
def test_a_file_that_transformers_writes_says_the_same(tmp_path):
    transformers = pytest.importorskip("transformers")
    for name, said in FILES.items():
        (tmp_path / "config.json").write_text(json.dumps(said))
        transformers.AutoConfig.from_pretrained(tmp_path).save_pretrained(tmp_path / "again")
        found = ours(json.loads((tmp_path / "again/config.json").read_text()))
        assert unlike(found, theirs(said)) is None, name


def agree(name, said):
    """Whether a file is accepted; an AssertionError where `transformers` reads it otherwise."""
    found = refusal = None
    try:
        found = ours(said)
    except md.MeshDSLError as error:
        refusal = str(error)
    if found is None:
        assert re.fullmatch(r"config\.json: .+", refusal), f"{name}: {refusal}"
        return False
    wanted = refused_or(theirs, said)
    assert wanted is not None, f"{name}: is accepted, and transformers refuses it"
    other = unlike(found, wanted)
    assert other is None, f"{name}: {other} is {found.get(other)}, not {wanted.get(other)}"
    return True


def changed():
    """Files with one value changed, also in the tables that they have, with a name."""
    for name, said in FILES.items():
        keys = {*said, "model_type"}
        if "text_config" not in said:
            keys |= {*EVERY, *TYPES[said["model_type"]].settings}
        for key in sorted(keys):
            for value in VALUES:
                yield f"{name}, {key}={value!r}", key, value, with_value(said, key, value)
        for outer in NESTED:
            for key in sorted(said.get(outer) or ()):
                for value in VALUES:
                    inner = with_value(said[outer], key, value)
                    yield f"{name}, {outer}.{key}={value!r}", key, value, {**said, outer: inner}


def with_value(said, key, value):
    rest = {name: each for name, each in said.items() if name != key}
    return rest if value is REMOVED else {**rest, key: value}


def test_a_malformed_file_is_one_line_that_names_the_setting():
    cases = random.Random(0).sample(list(changed()), 2500)
    said_of = {}
    for name, key, value, said in cases:
        try:
            family_of(said)
        except md.MeshDSLError as error:
            said_of[name] = key, value, str(error)
    assert len(said_of) > 500
    for name, (key, value, error) in said_of.items():
        assert re.fullmatch(r"config\.json: .+", error), f"{name}: {error}"
        if isinstance(value, str | list | dict) and value and key != "model_type":
            assert key in error, f"{name}: {error}"


@pytest.mark.slow
def test_a_changed_file_is_refused_or_read_as_transformers_does():
    pytest.importorskip("transformers")
    accepted = 0
    for name, key, value, said in random.Random(1).sample(list(changed()), 5000):
        setting = TYPES[FILES[name.rpartition(", ")[0]]["model_type"]].settings.get(key)
        if value == HUGE:  # whose rotary positions take too much memory
            continue
        if setting is None or not setting.floating or type(value) is not int:
            accepted += agree(name, said)  # a whole number is a number here, and not always there
    assert accepted > 500


YARN = FILES["llama, yarn"]["rope_parameters"]
SCALED = {"rope_type": "linear", "factor": 8.0}
LONG = FILES["phi3, longrope"]["rope_parameters"]


@pytest.mark.parametrize(
    "name, change, said",
    [
        ("mixtral", {"hidden_act": "gelu"}, 'hidden_act="gelu": expected silu or swish, the only'),
        ("olmoe", {"hidden_act": "relu"}, 'hidden_act="relu": expected silu or swish, the only'),
        ("olmoe", {"head_dim": 8}, "head_dim=8: norms of queries have the size of the residual"),
        (
            "deepseek_v3",
            {"first_k_dense_replace": 3},
            "first_k_dense_replace=3: leaves no layer with experts of num_hidden_layers=3",
        ),
        (
            "deepseek_v2",
            {"n_routed_experts": 4},
            "n_routed_experts=4 in n_group=3, of which topk_group=2, do not give each token "
            "num_experts_per_tok=3",
        ),
        ("mistral", {"layer_types": ["full_attention"] * 3}, "a mistral with it is a ministral"),
        ("phi3", {"rope_scaling": SCALED}, "rope_type=linear: rotary positions of this type are"),
        (
            "llama",
            {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
            "rope_scaling of rope_type=llama3: says no `low_freq_factor`",
        ),
        (
            "llama",
            {"rope_parameters": {**YARN, "attention_factor": 0}},
            "rope_parameters of rope_type=yarn: attention_factor=0: expected a number of more than",
        ),
        (
            "qwen2",
            {"layer_types": ["sliding_attention"] * 3},
            "layer_types has sliding_attention, and use_sliding_window=false",
        ),
        (
            "llama",
            {"model_type": "lama"},
            "the architecture `lama` is not known; did you mean `llama`?",
        ),
        ("llama", {"hidden_act": "gleu"}, "hidden_act=gleu is not known; did you mean `gelu`?"),
        (
            "llama",
            {"rope_scaling": {"rope_type": "axial"}},
            "rope_type=axial: rotary positions of this type are not known here; linear, llama3, "
            "yarn, longrope and dynamic are",
        ),
        (
            "llama",
            {"partial_rotary_factor": 0.5},
            "partial_rotary_factor=0.5 is not known of a Llama",
        ),
        (
            "llama",
            {"quantization_config": {"quant_method": "gptq"}},
            "quantization_config: quant_method=gptq is not known here; fp8 and mxfp4 are",
        ),
        ("llama", {"vocab_size": None}, "vocab_size=null: expected a whole number of at least 1"),
        (
            "deepseek_v3",
            {"topk_method": "greedy"},
            'topk_method="greedy": expected "noaux_tc", which',
        ),
        (
            "deepseek_v3",
            {"moe_layer_freq": 2},
            "moe_layer_freq=2: expected 1, which alone is known",
        ),
        ("deepseek_v3", {"scoring_func": "softmax"}, 'scoring_func="softmax": expected "sigmoid",'),
        ("deepseek_v3", {"rope_interleave": False}, "rope_interleave=false: expected true, which"),
        (
            "deepseek_v3",
            {"attention_bias": True},
            "attention_bias=true: expected false, which alone",
        ),
        ("gpt2", {"is_causal": False}, "is_causal=false: expected true, which alone is known here"),
        ("vit", {"id2label": {"cat": 0}}, 'id2label={"cat": 0}: expected a name for the number of'),
        ("vit", {"patch_size": 5}, "not cut into square patches of patch_size=5"),
        ("llama", {"rms_norm_eps": 1.0}, "rms_norm_eps is more than 0 and less than 1, not 1.0"),
        ("phi3", {"rope_scaling": {**LONG, "short_factor": [1]}}, "short_factor has 1 factors"),
        ("gemma3", {"rope_scaling": {"rope_type": "new"}}, "rope_scaling: rope_type=new: rotary"),
        (
            "qwen2",
            {"num_hidden_layers": 2**31 - 1},
            "num_hidden_layers=2147483647: expected a whole number of at least 1 and at most 10000",
        ),
        (
            "olmoe",
            {"num_experts": 10_001},
            "num_experts=10001: expected a whole number of at least",
        ),
        (
            "deepseek_v2",
            {"qk_rope_head_dim": 3},
            "needs an even number of features that are turned, not qk_rope_head_dim=3",
        ),
        ("gpt2", {"hidden_size": 40}, "hidden_size=40 and n_embd=48 are the same setting"),
        ("llama", {"hidden_size": 50}, "hidden_size=50 does not divide into num_attention_heads=4"),
    ],
)
def test_a_refusal_names_the_setting_at_fault(name, change, said):
    with pytest.raises(md.MeshDSLError, match=re.escape(said)):
        family_of({**FILES[name], **change})


def test_what_follows_from_other_settings_is_as_transformers_derives_it():
    older = {**FILES["qwen2_moe, plain"], "num_hidden_layers": 5, "max_window_layers": 4}
    assert ours(older)["windows"] == [7, None, 7, None, None]
    gemma = {**FILES["gemma2"], "layer_types": None, "sliding_window_pattern": 3}
    assert ours(gemma)["windows"] == [5, None, 5]
    t5 = ours({**FILES["t5"], "dense_act_fn": "gelu", "is_gated_act": True})
    assert (t5["activation"], t5["gated"]) == ("gelu_exact", True)
    steep = ours({**FILES["gpt_oss"], "rope_theta": 1.5})["rope"][0]
    assert np.allclose(steep[:2], [1 / 32, 0.0282375626], rtol=1e-6)
    both = {**FILES["llama, yarn"], "rope_scaling": SCALED}
    alone = {**FILES["llama"], "rope_scaling": SCALED}
    assert ours(both)["rope"] == ours(alone)["rope"] != ours(FILES["llama, yarn"])["rope"]


@pytest.mark.parametrize("style", ADAPTERS)
def test_every_family_has_a_file_here(style):
    assert any(TYPES[said["model_type"]].name == style for said in FILES.values())
