"""Published models have the published number of parameters."""

import jax
import pytest

from meshdsl.commands.settings import model_values
from meshdsl.errors import MeshDSLError
from meshdsl.models.sizes import SIZES
from meshdsl.models.transformer import Config, Transformer
from tests.helpers import only

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
    "llama3.1-8b": 8_030_261_248,
    "llama3.1-70b": 70_553_706_496,
    "llama3.1-405b": 405_853_388_800,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "mistral-7b-v0.1": 7_241_732_096,
    "mistral-7b-v0.3": 7_248_023_552,
    "mistral-nemo-12b": 12_247_782_400,
    "qwen2-0.5b": 494_032_768,
    "qwen2-1.5b": 1_543_714_304,
    "qwen2-7b": 7_615_616_512,
    "qwen2-72b": 72_706_203_648,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "gemma2-2b": 2_614_341_888,
    "gemma2-9b": 9_241_705_984,
    "gemma2-27b": 27_227_128_320,
    "gemma3-270m": 268_098_176,
    "gemma3-1b": 999_885_952,
    "gemma3-4b": 3_880_263_168,  # of 4_300_079_472 with what reads images
    "gemma3-12b": 11_766_034_176,
    "gemma3-27b": 27_009_346_304,
    "phi3-mini": 3_821_079_552,
    "phi3-medium": 13_960_238_080,
    "phi4-14b": 14_659_507_200,
    "olmo2-1b": 1_484_916_736,
    "olmo2-7b": 7_298_617_344,
    "olmo2-13b": 13_716_198_400,
    "olmo2-32b": 32_234_279_936,
    "mixtral-8x7b": 46_702_792_704,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "qwen2-57b-a14b": 57_408_658_944,  # 57.4 billion by its authors
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v2-236b": 235_741_434_880,
    "deepseek-v3-671b": 671_026_419_200,  # without the layer that predicts a token further ahead
    "olmoe-1b-7b": 6_919_161_856,
}


def test_every_size_has_a_published_count():
    assert set(SIZES) == set(PARAMETERS)


# One size of each style, and those of GPT-2 and the first Llamas.
QUICK = [name for name in SIZES if name.startswith(("gpt2", "llama2", "llama3-"))]
QUICK += ["qwen2.5-7b", "qwen3-8b", "gemma3-1b", "olmo2-7b"]


@pytest.mark.parametrize("name", only(QUICK, SIZES))
def test_a_size_has_the_published_number_of_parameters(name):
    config = Config(**SIZES[name])
    shapes = jax.eval_shape(lambda key: Transformer.init(key, config), jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == PARAMETERS[name]


def test_the_first_sizes_have_the_published_epsilon():
    for name in SIZES:
        if name.startswith(("gpt2", "llama", "mistral", "phi")):
            assert SIZES[name]["norm_epsilon"] == 1e-5
        elif name.startswith(("gemma", "qwen3", "olmo2")):
            assert SIZES[name]["norm_epsilon"] == 1e-6


def test_an_unknown_size_is_named_with_the_nearest():
    with pytest.raises(MeshDSLError, match="no model `llama3-8`; did you mean `llama3-8b`?"):
        model_values("llama3-8")


def test_a_style_is_a_model_of_any_size():
    assert model_values("gpt2") == {"model.family": "transformer", "model.style": "gpt2"}
