"""Settings: parsed by type, refused by name, written and read back unchanged."""

import dataclasses
import tomllib

import pytest

from meshdsl.errors import MeshDSLError
from meshdsl.train.commented_toml import commented_toml
from meshdsl.train.config import Config, Source
from meshdsl.train.settings import leaves, override, read, to_toml


def test_settings_are_parsed_by_the_type_of_their_field():
    config = override(
        Config(),
        [
            "model.d_model=64",
            "optimizer.name=lion",
            "optimizer.learning_rate=3e-4",
            "offload=optimizer,activations",
            "data.separate=true",
        ],
    )
    assert config.model.d_model == 64
    assert config.optimizer.name == "lion"
    assert config.optimizer.learning_rate == 3e-4
    assert config.offload == ("optimizer", "activations")
    assert config.data.separate is True


def test_a_list_may_be_written_as_in_a_file():
    assert override(Config(), ['offload=["optimizer", "activations"]']).offload == (
        "optimizer",
        "activations",
    )


def test_a_table_by_name_grows_where_a_name_is_new():
    config = override(
        Config(),
        ["data.sources.web.paths=a,b", "data.sources.web.weight=3", "data.sources.code.paths=c"],
    )
    assert config.data.sources == {
        "web": Source(paths=("a", "b"), weight=3.0),
        "code": Source(paths=("c",)),
    }
    config = override(config, ["data.sources.web.weight=0.5"])
    assert config.data.sources["web"] == Source(paths=("a", "b"), weight=0.5)
    assert ("data.sources.code.paths", ["c"]) in list(leaves(config))


@pytest.mark.parametrize(
    "text, value",
    [
        ("loss_scale = 1024", 1024.0),
        ('loss_scale = "dynamic"', "dynamic"),
        ("loss_scale = 1e4", 1e4),
    ],
)
def test_a_field_may_be_of_several_types(tmp_path, text, value):
    (tmp_path / "config.toml").write_text(f"[precision]\n{text}\n")
    assert read(tmp_path / "config.toml", Config()).precision.loss_scale == value
    assert override(Config(), ["precision.loss_scale=1e30"]).precision.loss_scale == "1e30"


def test_the_last_of_two_settings_of_one_key_holds():
    assert override(Config(), ["steps=3", "steps=4"]).steps == 4


def test_only_all_settings_together_have_to_be_consistent():
    config = override(Config(), ["model.d_model=36", "model.heads=6", "microbatches=5", "batch=10"])
    assert (config.model.heads, config.batch) == (6, 10)


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("steps", "setting `steps`: expected key=value"),
        ("stebs=3", "no setting `stebs`; did you mean `steps`?"),
        ("model.d_modle=64", "no setting `model.d_modle`; did you mean `model.d_model`?"),
        ("modle.d_model=64", "no setting `modle.d_model`; did you mean `model.d_model`?"),
        ("model.d_model.size=64", "no setting `model.d_model.size`; did you mean `model.d_model`?"),
        (
            "checkpoint=3",
            (
                "`checkpoint` is a group of settings; set one of `checkpoint.every`, "
                "`checkpoint.minutes`"
            ),
        ),
        (
            "data.sources=web",
            "`data.sources` is a table of settings by name; set `data.sources.NAME.paths`",
        ),
        (
            "data.sources.web=a",
            "`data.sources.web` is a table of settings by name; set `data.sources.NAME.paths`",
        ),
        (
            "data.sources.web.path=a",
            "no setting `data.sources.web.path`; did you mean `data.sources.web.paths`?",
        ),
        (
            "data.sources.web.format=json",
            (
                "data.sources.web.format=json: expected auto, text, jsonl, parquet, arrow, "
                "tokens, chat, folders or arrays; did you mean `jsonl`?"
            ),
        ),
        ("data.sources.web.weight=0", "data.sources.web.weight=0.0: must be more than 0.0"),
        (
            "data.sources.web.dtype=int16",
            "data.sources.web.dtype=int16: expected uint16 or uint32; did you mean `uint16`?",
        ),
        ("steps=many", "steps=many: expected a whole number"),
        ("steps=1.5", "steps=1.5: expected a whole number"),
        ("data.separate=maybe", "data.separate=maybe: expected true or false"),
        ("optimizer.clip=x", "optimizer.clip=x: expected a number"),
        ("steps=-1", "steps=-1: must be at least 1"),
        ("optimizer.clip=nan", "optimizer.clip=nan: must be at least 0"),
        ("data.validation=1", "data.validation=1.0: must be less than 1"),
        (
            "schedule.shape=cosin",
            (
                "schedule.shape=cosin: expected cosine, linear, constant or wsd; did you "
                "mean `cosine`?"
            ),
        ),
        (
            "precision.compute=bf16",
            (
                "precision.compute=bf16: expected float32, bfloat16 or float16; did you mean "
                "`bfloat16`?"
            ),
        ),
        (
            "precision.loss_scale=big",
            "precision.loss_scale=big: expected none, dynamic, or a number above 0",
        ),
        (
            "precision.stochastic_rounding=true",
            "precision.stochastic_rounding: is for precision.params=bfloat16",
        ),
        ('offload=["optimizer"', 'offload=["optimizer": expected a list of texts'),
        ("seed=4294967296", "seed=4294967296: must be less than 4294967296"),
        ("mesh.data=4", "no setting `mesh.data`; `meshdsl train --print-config` shows all"),
        ("offload=optimiser", "offload: no `optimiser`; did you mean `optimizer`?"),
        ("guard.nonfinite=ignore", "guard.nonfinite=ignore: expected stop, skip or rollback"),
        (
            "model.style=gpt3",
            "model.style=gpt3: expected deepseek_v2, deepseek_v3, gemma2, gemma3, glm, glm4, gpt2, "
            "gpt_oss, llama, mistral, mixtral, olmo2, olmoe, phi3, qwen2, qwen3, qwen2_moe or "
            "qwen3_moe; did you mean `gpt2`?",
        ),
        ("microbatches=5", "batch=32 does not divide into microbatches=5"),
    ],
)
def test_a_bad_setting_is_refused_with(setting, text):
    with pytest.raises(MeshDSLError) as error:
        override(Config(), [setting])
    assert text in str(error.value)


@pytest.mark.parametrize(
    "settings",
    [
        [],
        ["model.layers=3", 'sample.prompt=a "b"\n', "offload=optimizer"],
        [
            "data.sources.web.paths=x.txt",
            "data.sources.web.weight=2",
            "data.sources.b-c.format=jsonl",
        ],
    ],
)
def test_a_written_configuration_reads_back_equal(tmp_path, settings):
    config = override(Config(), settings)
    (tmp_path / "config.toml").write_text(to_toml(config))
    assert read(tmp_path / "config.toml", Config()) == config


def test_a_source_that_says_nothing_is_still_a_source(tmp_path):
    (tmp_path / "config.toml").write_text("[data.sources.web]\n")
    assert read(tmp_path / "config.toml", Config()).data.sources == {"web": Source()}


def test_a_layout_stands_in_the_configuration_as_it_is(tmp_path):
    (tmp_path / "config.toml").write_text(
        '[layout]\nname = "mine"\nmesh = {data = "rest"}\nrules = ["batch -> data"]\n'
    )
    config = read(tmp_path / "config.toml", Config())
    assert config.layout == {"name": "mine", "mesh": {"data": "rest"}, "rules": ["batch -> data"]}
    assert override(config, ["layout=fsdp"]).layout == "fsdp"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("steps = ", "not TOML"),
        ("stebs = 3", "no setting `stebs`; did you mean `steps`?"),
        ("steps = 'three'", "steps=three: expected a whole number"),
        ("steps = true", "steps=True: expected a whole number"),
        ("[data.sources.web]\npaths = 'a'", "data.sources.web.paths=a: expected a list of texts"),
        (
            "[data.sources.web]\npath = ['a']",
            "no setting `data.sources.web.path`; did you mean `data.sources.web.paths`?",
        ),
        ("layout = 3", "layout=3: expected text"),
        ("[modle]", "no table `modle`; did you mean `model`?"),
        ("[model.extra]", "no table `extra`"),
        ("[steps]", "no table `steps`"),
    ],
)
def test_a_bad_configuration_file_is_refused_with(tmp_path, content, text):
    path = tmp_path / "config.toml"
    path.write_text(content)
    with pytest.raises(MeshDSLError) as error:
        read(path, Config())
    assert text in str(error.value)
    assert str(path) in str(error.value)


def test_a_configuration_file_that_is_not_there_is_one_error(tmp_path):
    with pytest.raises(MeshDSLError, match="No such file"):
        read(tmp_path / "config.toml", Config())


def _comments(text):
    """The comment above each setting in a commented file, by dotted key."""
    found, group, above = {}, "", []
    for line in text.splitlines():
        if line.startswith("["):
            group, above = line.strip("[]") + ".", []
        elif line.startswith("#"):
            above.append(line.removeprefix("# "))
        elif line and (key := line.partition(" = ")[0]) != line:
            found[group + key], above = " ".join(above), []
        else:
            above = []
    return found


@pytest.mark.parametrize("settings", [[], ["data.sources.b-c.paths=x", 'sample.prompt=a "#b"\n']])
def test_every_setting_is_printed_with_what_it_is_and_the_values_that_it_may_have(settings):
    config = override(Config(), settings)
    said = _comments(commented_toml(config))
    assert {key for key, _ in leaves(config)} == {key.replace('"', "") for key in said}
    assert all(len(comment) > 10 and comment.endswith(".") for comment in said.values()), said
    assert said["batch"] == (
        "Rows in a step (sequences, images, ...), all microbatches together. Legal: at least 1."
    )
    assert said["data.validation"].endswith("Legal: at least 0 and less than 1.")
    assert said["schedule.shape"].endswith("Legal: cosine, linear, constant or wsd.")
    assert said["data.separate"].endswith("Legal: true or false.")
    assert said["offload"].endswith("Legal: any of optimizer, activations, attention, qkv, hidden.")
    assert said["model.norm_epsilon"].endswith("Legal: more than 0 and less than 1.")


def test_a_dataset_is_explained_where_there_is_none():
    text = commented_toml(Config())
    example = text[text.index("# [data.sources.NAME]") :].partition("\n\n# An ")[0]
    lines = "\n".join(line.removeprefix("# ") for line in example.splitlines())
    found = tomllib.loads(lines)["data"]["sources"]["NAME"]
    assert set(found) == {key for key, _ in leaves(Source())}


@pytest.mark.parametrize(
    "settings",
    [
        [],
        ["model.layers=3", 'sample.prompt=a "b" # c\n', "offload=optimizer", "layout=fsdp"],
        ["data.sources.web.paths=x", "data.sources.web.weight=2", "data.sources.b c.dtype=uint32"],
    ],
)
def test_a_commented_configuration_reads_back_equal(tmp_path, settings):
    config = override(Config(), settings)
    rules = [{"rule": "a -> data", "uneven": "pad"}]
    table = {"name": "mine", "mesh": {"data": "rest"}, "rules": rules}
    for each in (config, dataclasses.replace(config, layout=table)):
        (tmp_path / "config.toml").write_text(commented_toml(each))
        assert read(tmp_path / "config.toml", Config()) == each


def test_a_setting_that_no_docstring_tells_of_is_printed_with_its_legal_values(tmp_path):
    path = tmp_path / "untold.py"
    path.write_text(
        "from dataclasses import dataclass\n\nimport meshdsl as md\n\n\n"
        "@dataclass(frozen=True)\nclass Untold(md.Family):\n"
        '    """A family."""\n\n    on: bool = False\n'
        "    def batch(self, rows): ...\n    def init(self, key): ...\n"
        "    def loss(self, model, batch, key): ...\n"
    )
    config = override(Config(), [f"model.family={path}:Untold"])
    assert "# Legal: true or false.\non = false\n" in commented_toml(config)


def test_settings_of_an_optimizer_are_whatever_it_has(tmp_path):
    texts = ["optimizer.settings.b1=0.8", "optimizer.settings.mu_dtype=bfloat16"]
    group = ["optimizer.groups.head.settings.betas=[0.9, 0.99]"]
    config = override(Config(), [*texts, *group])
    assert config.optimizer.settings == {"b1": 0.8, "mu_dtype": "bfloat16"}
    assert config.optimizer.groups["head"].settings == {"betas": [0.9, 0.99]}
    for written in (to_toml(config), commented_toml(config)):
        (tmp_path / "config.toml").write_text(written)
        assert read(tmp_path / "config.toml", Config()) == config
    with pytest.raises(MeshDSLError, match="^optimizer.average=0.9: needs precision.optimizer"):
        override(Config(), ["optimizer.average=0.9", "precision.optimizer=bfloat16"])
