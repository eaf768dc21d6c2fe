"""Settings: parsed by type, refused by name, written and read back unchanged."""

import pytest

from meshdsl.errors import MeshDSLError
from meshdsl.train import config as configuration
from meshdsl.train.config import Config, override


def test_settings_are_parsed_by_the_type_of_their_field():
    config = override(
        Config(), ["model.d_model=64", "optimizer.name=lion", "optimizer.learning_rate=3e-4", "data.paths=a,b"]
    )
    assert config.model.d_model == 64
    assert config.optimizer.name == "lion"
    assert config.optimizer.learning_rate == 3e-4
    assert config.data.paths == ("a", "b")


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
        ("checkpoint=3", "`checkpoint` is a group of settings; set one of `checkpoint.every`, `checkpoint.keep`"),
        ("steps=many", "steps=many: expected a whole number"),
        ("steps=1.5", "steps=1.5: expected a whole number"),
        ("optimizer.clip=x", "optimizer.clip=x: expected a number"),
        ("steps=-1", "steps=-1: must be at least 1"),
        ("optimizer.clip=nan", "optimizer.clip=nan: must be at least 0"),
        ("data.validation=1", "data.validation=1.0: must be less than 1"),
        ("model.style=gpt3", "model: no style 'gpt3'; did you mean `gpt2`?"),
        ("model.vocab=100", "model.vocab=100: must be at least 256, as tokens are bytes"),
        ("microbatches=5", "batch=32 does not divide into microbatches=5"),
    ],
)
def test_a_bad_setting_is_refused_with(setting, text):
    with pytest.raises(MeshDSLError) as error:
        override(Config(), [setting])
    assert text in str(error.value)


def test_a_written_configuration_reads_back_equal(tmp_path):
    config = override(Config(), ["model.layers=3", "data.paths=x.txt", "sample.prompt=a \"b\"\n"])
    configuration.write(config, tmp_path / "config.toml")
    assert configuration.read(tmp_path / "config.toml") == config


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("steps = ", "not TOML"),
        ("stebs = 3", "no setting `stebs`; did you mean `steps`?"),
        ("steps = 'three'", "steps=three: expected a whole number"),
        ("steps = true", "steps=True: expected a whole number"),
        ("data.paths = 'a'", "data.paths=a: expected a list of texts"),
    ],
)
def test_a_bad_configuration_file_is_refused_with(tmp_path, content, text):
    path = tmp_path / "config.toml"
    path.write_text(content)
    with pytest.raises(MeshDSLError) as error:
        configuration.read(path)
    assert text in str(error.value)
    assert str(path) in str(error.value)


def test_a_configuration_file_that_is_not_there_is_one_error(tmp_path):
    with pytest.raises(MeshDSLError, match="No such file"):
        configuration.read(tmp_path / "config.toml")
