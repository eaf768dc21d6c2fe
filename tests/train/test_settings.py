"""Settings: parsed by type, refused by name, written and read back unchanged."""

import dataclasses
import tomllib

import pytest

from meshdsl.errors import MeshDSLError
from meshdsl.train.config import Config, Source
from meshdsl.train.settings import commented_toml, leaves, override, read, to_toml


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("model.d_model=64", 64),
        ("optimizer.name=lion", "lion"),
        ("optimizer.learning_rate=3e-4", 3e-4),
        ("offload=optimizer,activations", ["optimizer", "activations"]),
        ('offload=["optimizer", "activations"]', ["optimizer", "activations"]),
        ("data.separate=true", True),
        ("precision.loss_scale=1e30", "1e30"),
    ],
)
def test_a_setting_is_parsed_by_the_type_of_its_field(setting, value):
    assert dict(leaves(override(Config(), [setting])))[setting.partition("=")[0]] == value


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


@pytest.mark.parametrize("text, value", [("1024", 1024.0), ('"dynamic"', "dynamic"), ("1e4", 1e4)])
def test_a_field_may_be_of_several_types(tmp_path, text, value):
    (tmp_path / "config.toml").write_text(f"[precision]\nloss_scale = {text}\n")
    assert read(tmp_path / "config.toml", Config()).precision.loss_scale == value


def test_of_one_key_the_last_setting_holds_and_only_all_together_have_to_be_consistent():
    assert override(Config(), ["steps=3", "steps=4"], steps=5).steps == 4
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
        ("checkpoint=3", "`checkpoint` is a group of settings; set one of `checkpoint.every`, `ch"),
        ("optimizer.settings=3", "`optimizer.settings` is a table of settings by name; set `opt"),
        ("data.sources=web", "`data.sources` is a table of settings by name; set `data.sources.N"),
        ("data.sources.web=a", "`data.sources.web` is a table of settings by name; set `data.sou"),
        ("data.sources.web.path=a", "no setting `data.sources.web.path`; did you mean `data.sour"),
        ("data.sources.web.format=json", "arrow, tokens, chat, folders or arrays; did you mean `j"),
        ("data.sources.web.weight=-1", "data.sources.web.weight=-1.0: must be at least 0.0"),
        ("data.sources.web.dtype=int16", "expected uint16 or uint32; did you mean `uint16`?"),
        ("steps=many", "steps=many: expected a whole number"),
        ("steps=1.5", "steps=1.5: expected a whole number"),
        ("data.separate=maybe", "data.separate=maybe: expected true or false"),
        ("optimizer.clip=x", "optimizer.clip=x: expected a number"),
        ("steps=-1", "steps=-1: must be at least 1"),
        ("optimizer.clip=nan", "optimizer.clip=nan: must be at least 0"),
        ("data.validation=1", "data.validation=1.0: must be less than 1"),
        ("schedule.shape=cosin", "expected cosine, linear, constant or wsd; did you mean `cosine`"),
        ("precision.compute=bf16", "expected float32, bfloat16 or float16; did you mean `bfloat1"),
        ("precision.loss_scale=big", "expected none, dynamic, or a number above 0"),
        ("precision.stochastic_rounding=true", "is for precision.params=bfloat16"),
        ('offload=["optimizer"', 'offload=["optimizer": expected a list of texts'),
        ("seed=4294967296", "seed=4294967296: must be less than 4294967296"),
        ("mesh.data=4", "no setting `mesh.data`; `meshdsl train --print-config` shows all"),
        ("offload=optimiser", "offload: no `optimiser`; did you mean `optimizer`?"),
        ("guard.nonfinite=ignore", "guard.nonfinite=ignore: expected stop, skip or rollback"),
        ("model.style=gpt3", "model.style=gpt3: expected deepseek_v2, "),
        ("microbatches=5", "batch=32 does not divide into microbatches=5"),
    ],
)
def test_a_bad_setting_is_refused_with(setting, text):
    with pytest.raises(MeshDSLError) as error:
        override(Config(), [setting])
    assert text in str(error.value)


LAYOUT = {"name": "mine", "mesh": {"data": "rest"}, "rules": [{"rule": "a -> b", "uneven": "pad"}]}
SETTINGS = [
    [],
    ["model.layers=3", 'sample.prompt=a "b" # c\n', "offload=optimizer", "layout=fsdp"],
    ["data.sources.web.paths=x", "data.sources.web.weight=2", "data.sources.b c.dtype=uint32"],
    [
        *("optimizer.settings.b1=0.8", "optimizer.settings.mu_dtype=bfloat16"),
        "optimizer.groups.head.settings.betas=[0.9, 0.99]",
    ],
]


@pytest.mark.parametrize("write", [to_toml, commented_toml])
@pytest.mark.parametrize("settings", SETTINGS)
def test_a_written_configuration_reads_back_equal(tmp_path, write, settings):
    config = override(Config(), settings)
    for each in (config, dataclasses.replace(config, layout=LAYOUT)):
        (tmp_path / "config.toml").write_text(write(each))
        assert read(tmp_path / "config.toml", Config()) == each


def test_settings_of_an_optimizer_are_whatever_it_has():
    config = override(Config(), SETTINGS[-1])
    assert config.optimizer.settings == {"b1": 0.8, "mu_dtype": "bfloat16"}
    assert config.optimizer.groups["head"].settings == {"betas": [0.9, 0.99]}
    with pytest.raises(MeshDSLError, match="^optimizer.average=0.9: needs precision.optimizer"):
        override(Config(), ["optimizer.average=0.9", "precision.optimizer=bfloat16"])


def test_a_source_that_says_nothing_is_still_a_source(tmp_path):
    (tmp_path / "config.toml").write_text("[data.sources.web]\n")
    assert read(tmp_path / "config.toml", Config()).data.sources == {"web": Source()}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "No such file"),
        ("steps = ", "not TOML"),
        ("stebs = 3", "no setting `stebs`; did you mean `steps`?"),
        ("steps = 'three'", "steps=three: expected a whole number"),
        ("steps = true", "steps=True: expected a whole number"),
        ("[data.sources.web]\npaths = 'a'", "data.sources.web.paths=a: expected a list of texts"),
        ("[data.sources.web]\npath = ['a']", "did you mean `data.sources.web.paths`?"),
        ("layout = 3", "layout=3: expected text"),
        ("[modle]", "no table `modle`; did you mean `model`?"),
        ("[model.extra]", "no table `extra`"),
        ("[steps]", "no table `steps`"),
    ],
)
def test_a_bad_configuration_file_is_refused_with(tmp_path, content, text):
    path = tmp_path / "config.toml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(MeshDSLError) as error:
        read(path, Config())
    assert str(error.value).startswith(f"{path}: ") and text in str(error.value)


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
    for key, values in {
        "data.validation": "at least 0 and less than 1",
        "schedule.shape": "cosine, linear, constant or wsd",
        "data.separate": "true or false",
        "offload": "any of optimizer, activations, attention, qkv, hidden",
    }.items():
        assert said[key].endswith(f"Legal: {values}.")


def test_a_dataset_is_explained_where_there_is_none():
    text = commented_toml(Config())
    example = text[text.index("# [data.sources.NAME]") :].partition("\n\n# An ")[0]
    lines = "\n".join(line.removeprefix("# ") for line in example.splitlines())
    found = tomllib.loads(lines)["data"]["sources"]["NAME"]
    assert set(found) == {key for key, _ in leaves(Source())}


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
