"""Published models have the published number of parameters, and the FLOPs of the usual formula."""

import jax
import pytest

from meshdsl.commands.settings import model_values
from meshdsl.errors import MeshDSLError
from meshdsl.models.sizes import SIZES
from meshdsl.models.transformer import Config, Transformer

# From the models' papers and published weights.
PARAMETERS = {
    "gpt2-124m": 124_439_808,
    "gpt2-355m": 354_823_168,
    "gpt2-774m": 774_030_080,
    "gpt2-1.5b": 1_557_611_200,
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
}


def test_every_size_has_a_published_count():
    assert set(SIZES) == set(PARAMETERS)


@pytest.mark.parametrize("name", SIZES)
def test_a_size_has_the_published_number_of_parameters(name):
    config = Config(**SIZES[name])
    shapes = jax.eval_shape(lambda key: Transformer.init(key, config), jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == PARAMETERS[name]


@pytest.mark.parametrize("name", SIZES)
def test_a_size_has_the_published_epsilon(name):
    assert SIZES[name]["norm_epsilon"] == 1e-5


def test_flops_are_six_per_parameter_of_a_matrix_and_as_much_per_pair_of_positions():
    config = Config(style="gpt2", layers=2, d_model=8, heads=2, vocab=32, length=4)
    matrices = 2 * (4 * 8 * 8 + 2 * 8 * 32) + 8 * 32
    pairs = 2 * 2 * 8 * 4  # layers, two products, d_model, length
    assert config.step_flops(rows=3) == (
        6 * 12 * (matrices + pairs / 2),
        6 * 12 * (matrices + pairs),
    )


def test_grouped_queries_share_keys_and_a_llama_has_three_matrices_in_its_mlp():
    config = Config(
        style="llama", layers=1, d_model=8, heads=4, kv_heads=2, d_ff=16, vocab=32, length=1
    )
    matrices = 8 * (8 + 8 + 4 + 4) + 3 * 8 * 16 + 8 * 32
    assert config.step_flops(rows=1)[1] == 6 * (matrices + 2 * 8)


def test_an_unknown_size_is_named_with_the_nearest():
    with pytest.raises(MeshDSLError, match="no model `llama3-8`; did you mean `llama3-8b`?"):
        model_values("llama3-8")


def test_a_style_is_a_model_of_any_size():
    assert model_values("gpt2") == {"model.family": "transformer", "model.style": "gpt2"}
