"""Files of Hugging Face, without `transformers`: settings, names and shapes, read and written."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import meshdsl as md
from meshdsl.commands.checkpoint import described_parameters
from meshdsl.models.places import places
from meshdsl.models.published import config_of, family_of, form_of
from meshdsl.models.sizes import SIZES
from meshdsl.models.transformer import Config
from meshdsl.train.checkpoints.hugging_face import PublishedTensors
from meshdsl.train.checkpoints.safetensors_files import TensorFiles
from meshdsl.train.config import Config as Run
from meshdsl.train.published import published_settings
from meshdsl.train.settings import override
from meshdsl_cli import main


def settings_of(config):
    return family_of(config)[1]


SMALL = {
    "layers": 3,
    "d_model": 8,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 6,
    "d_ff": 12,
    "vocab": 16,
    "length": 32,
}


def small(style, **other):
    sizes = {**SMALL, **({"kv_heads": 0, "head_dim": 2} if style == "gpt2" else {})}
    return override(
        Run(), (), **{f"model.{k}": v for k, v in {"style": style, **sizes, **other}.items()}
    )


def drawn(config):
    """Random tensors by their names in files of Hugging Face."""
    like = described_parameters(config)
    form, shapes = form_of(config.model), {n: tuple(leaf["shape"]) for n, leaf in like.items()}
    found = places(form, shapes)
    random = np.random.default_rng(0)
    shapes = {
        place.name.format(layer): place.shape
        for place in found.values()
        for layer in range(config.model.layers if "{}" in place.name else 1)
    }
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def folder_of(config, path, tensors):
    path.mkdir()
    save_file(tensors, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(config_of(config.model)))
    return path


def written(path, style, change=lambda tensors: None, **other):
    """A small model in a folder, its tensors changed: its configuration, tensors and folder."""
    config = small(style, **other)
    tensors = drawn(config)
    change(tensors)
    return config, tensors, folder_of(config, path / "there", tensors)


def there_and_back(path, folder):
    """The tensors that an import and an export of it make of a folder."""
    assert main(["import", "hf", str(folder), "--out", str(path / "run")]) == 0
    assert main(["export", "hf", str(path / "run"), "--out", str(path / "back")]) == 0
    return load_file(path / "back/model.safetensors")


@pytest.mark.parametrize("name", SIZES)
def test_settings_of_every_size_come_back_from_its_config_json(name):
    model = Config(**SIZES[name])
    said = json.loads(json.dumps(config_of(model)))
    assert config_of(Config(**settings_of(said))) == said  # which compares what both compute


def test_published_configurations_are_read_as_the_sizes_by_name():
    llama = {
        "model_type": "llama", "hidden_act": "silu", "hidden_size": 4096,
        "intermediate_size": 14336, "max_position_embeddings": 131072, "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3",
        },
        "rope_theta": 500000.0, "tie_word_embeddings": False, "vocab_size": 128256,
    }  # fmt: skip
    gemma = {
        "model_type": "gemma3_text", "attn_logit_softcapping": None, "head_dim": 256,
        "final_logit_softcapping": None, "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 1152, "intermediate_size": 6912, "max_position_embeddings": 32768,
        "num_attention_heads": 4, "num_hidden_layers": 26, "num_key_value_heads": 1,
        "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000,
        "rope_scaling": None, "rope_theta": 1000000, "sliding_window": 512,
        "sliding_window_pattern": 6, "vocab_size": 262144,
    }  # fmt: skip
    for said, name in ((llama, "llama3.1-8b"), (gemma, "gemma3-1b")):
        assert config_of(Config(**settings_of(said))) == config_of(Config(**SIZES[name]))


@pytest.mark.parametrize("style", ["gpt2", "phi3", "gemma3"])
def test_tensors_come_in_and_go_out_bit_by_bit(style, tmp_path):
    config, tensors, folder = written(tmp_path, style)
    back = there_and_back(tmp_path, folder)
    assert back.keys() == tensors.keys()
    assert all(np.array_equal(back[name], tensors[name]) for name in tensors)
    again = json.loads((tmp_path / "back/config.json").read_text())
    assert settings_of(again) == settings_of(config_of(config.model))


def test_several_files_with_an_index_are_written_and_read(tmp_path):
    config, _, folder = written(tmp_path, "qwen3", biases=())
    for made, out in (("there", "a"), ("back", "b")):
        assert main(["import", "hf", str(tmp_path / made), "--out", str(tmp_path / out)]) == 0
        words = ["--out", str(tmp_path / "back"), "--limit", "2e-6"]
        assert out == "b" or main(["export", "hf", str(tmp_path / out), *words]) == 0
    assert len(list((tmp_path / "back").glob("model-*.safetensors"))) > 3
    again = PublishedTensors(TensorFiles(tmp_path / "back"), "qwen3", described_parameters(config))
    there = PublishedTensors(TensorFiles(folder), "qwen3", described_parameters(config))
    for name in there.leaves:
        assert np.array_equal(there.read(name, ()), again.read(name, ()))


def unreachable(name, allow_patterns):
    raise OSError("no route\nto host")


def hub(download):
    """What stands for huggingface_hub."""
    return SimpleNamespace(snapshot_download=download)


def test_a_model_is_imported_from_where_the_hub_puts_it(tmp_path, monkeypatch):
    config = small("llama")
    asked = []

    def download(name, allow_patterns):
        asked.append((name, "*.safetensors" in allow_patterns, "*.bin" in allow_patterns))
        return str(folder_of(config, tmp_path / "cache", drawn(config)))

    monkeypatch.setitem(sys.modules, "huggingface_hub", hub(download))
    assert main(["import", "hf", "--from", "some/model", "--out", str(tmp_path / "run")]) == 0
    assert asked == [("some/model", True, False)] and (tmp_path / "run/hugging_face").is_dir()


@pytest.mark.parametrize(
    "words, library, said",
    [
        (["--from", "some/model"], None, "--from: needs huggingface_hub, which is not installed"),
        (
            ["--from", "some/model"],
            hub(unreachable),
            "meshdsl import: --from some/model: no route\n",
        ),
        ([], None, "import hf: takes a FOLDER or --from ORG/NAME, and one of the two"),
        (["a", "--from", "b/c"], None, "takes a FOLDER or --from ORG/NAME, and one of the two"),
    ],
)
def test_a_download_that_cannot_be_is_one_error(
    words, library, said, tmp_path, monkeypatch, capsys
):
    monkeypatch.setitem(sys.modules, "huggingface_hub", library)
    assert main(["import", "hf", *words, "--out", str(tmp_path / "run")]) != 0
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("style", ["gpt2", "phi3"])
def test_any_slice_of_a_parameter_is_read_alone(style, tmp_path):
    config, _, folder = written(tmp_path, style)
    tensors = PublishedTensors(TensorFiles(folder), style, described_parameters(config))
    random = np.random.default_rng(1)
    for name, leaf in tensors.leaves.items():
        whole = tensors.read(name, ())
        assert list(whole.shape) == leaf["shape"]
        begins = [random.integers(0, size) for size in leaf["shape"]]
        index = tuple(
            slice(int(begin), int(random.integers(begin + 1, size + 1)))
            for begin, size in zip(begins, leaf["shape"], strict=True)
        )
        assert np.array_equal(tensors.read(name, index), whole[index]), name


def test_a_matrix_has_its_heads_and_features_where_they_belong(tmp_path):
    config, there, folder = written(tmp_path, "phi3")
    tensors = PublishedTensors(TensorFiles(folder), "phi3", described_parameters(config))
    fused = there["model.layers.1.self_attn.qkv_proj.weight"]  # 24 rows of queries, 12 of keys
    query = tensors.read("blocks.layer.attention.query.weight", ())  # layers, d_model, 2, 2, 6
    assert np.array_equal(query[1, :, 1, 0, :], fused[12:18].T)
    value = tensors.read("blocks.layer.attention.value.weight", ())  # layers, d_model, 2, 6
    assert np.array_equal(value[1, :, 1, :], fused[24 + 12 + 6 :].T)


def test_norms_of_an_older_bert_have_other_names(tmp_path):
    sizes = {"layers": 2, "d_model": 8, "heads": 2, "d_ff": 12, "vocab": 16, "length": 32}
    config = override(
        Run(), (), **{"model.family": "bert", **{f"model.{k}": v for k, v in sizes.items()}}
    )
    there = drawn(config)
    older = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    renamed = {
        next((n.replace(a, b) for a, b in older.items() if n.endswith(a)), n): tensor
        for n, tensor in there.items()
    }
    assert sum(name.endswith(("gamma", "beta")) for name in renamed) == 12
    back = there_and_back(tmp_path, folder_of(config, tmp_path / "there", renamed))
    assert all(np.array_equal(back[name], there[name]) for name in there)


WRONG = (None, True, -1, "x", [], ["x"], {}, {"a": ["b"]})


def test_what_is_wrong_with_a_folder_is_one_line(tmp_path, capsys):
    _, _, folder = written(tmp_path, "llama")
    about, index = folder / "config.json", folder / "model.safetensors.index.json"
    said = json.loads(about.read_text())
    cases = [(about, {**said, "vocab_size": value}, "config.json: vocab_size=") for value in WRONG]
    cases += [
        (about, {**said, "quantization_config": {"quant_method": value}}, "quant_method=")
        for value in WRONG[1:]
    ]
    cases += [(about, {**said, "id2label": 5, "vocab_size": -1}, "config.json: vocab_size=-1")]
    good = dict.fromkeys(load_file(folder / "model.safetensors"), "model.safetensors")
    cases += [(index, {"weight_map": value}, "weight_map=") for value in WRONG if value != {}]
    cases += [
        (index, {"weight_map": {**good, "lm_head.weight": value}}, "weight_map=")
        for value in WRONG
        if value != "x"
    ]
    for file, content, expected in cases:
        about.write_text(json.dumps(said))
        index.unlink(missing_ok=True)
        file.write_text(json.dumps(content))
        assert main(["import", "hf", str(folder), "--out", str(tmp_path / "run")]) != 0
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and expected in error and str(folder) in error, error
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("own", [False, True])
def test_an_output_layer_in_the_files_is_one_of_its_own_unless_it_is_a_copy(own, tmp_path):
    head = lambda t: {"lm_head.weight": t["model.embed_tokens.weight"] + np.float32(own)}
    _, _, folder = written(tmp_path, "llama", lambda t: t.update(head(t)), tied="yes")
    model = published_settings(folder)
    assert model["model.tied"] == ("no" if own else "yes")
    assert main(["import", "hf", str(folder), "--out", str(tmp_path / "run")]) == 0
    assert f'tied = "{model["model.tied"]}"' in (tmp_path / "run/config.toml").read_text()


def test_the_files_of_the_model_are_told_from_others_beside_them(tmp_path):
    _, tensors, folder = written(tmp_path, "llama")
    save_file({"other": np.zeros(2, np.float32)}, folder / "consolidated.safetensors")
    (folder / "pytorch_model.bin.index.json").write_text("{}")
    assert TensorFiles(folder).leaves.keys() == tensors.keys()
    index = {"weight_map": {"lm_head.weight": "consolidated.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    said = "its index has `lm_head.weight` in consolidated.safetensors, which lacks it"
    with pytest.raises(md.MeshDSLError, match=said):
        TensorFiles(folder)


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda t: t.pop("model.norm.weight"), "missing: `model.norm.weight`"),
        (
            lambda t: t.update({"model.extra.weight": np.zeros(2, np.float32)}),
            "not of this model: `model.extra.weight`",
        ),
        (
            lambda t: t.update({"lm_head.weight": np.zeros((15, 8), np.float32)}),
            "of another shape: `lm_head.weight [15, 8] instead of [16, 8]`",
        ),
    ],
)
def test_one_error_names_a_tensor_that_does_not_fit(change, said, tmp_path, capsys):
    _, _, folder = written(tmp_path, "llama", change)
    assert main(["import", "hf", str(folder), "--out", str(tmp_path / "run")]) != 0
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_what_their_files_cannot_say_is_not_written():
    with pytest.raises(md.MeshDSLError, match=r"model.query_norm: a llama of Hugging Face has no"):
        config_of(small("llama", query_norm="head").model)


def test_a_model_of_more_tensors_than_any_file_has_is_refused_soon(tmp_path):
    _, _, folder = written(tmp_path, "llama")
    like = described_parameters(small("mixtral", experts=10_000, layers=10_000))
    with pytest.raises(md.MeshDSLError, match=r"missing: .*, and \d+ more"):
        PublishedTensors(TensorFiles(folder), "mixtral", like)
