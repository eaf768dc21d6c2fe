"""The published families that are known here: each line that imports an adapter is one of them."""

from meshdsl.models.families.adapter import Adapter
from meshdsl.models.families.bert import Bert as Bert
from meshdsl.models.families.deepseek import DeepseekV2 as DeepseekV2
from meshdsl.models.families.deepseek import DeepseekV3 as DeepseekV3
from meshdsl.models.families.gemma import Gemma2 as Gemma2
from meshdsl.models.families.gemma import Gemma3 as Gemma3
from meshdsl.models.families.glm import Glm as Glm
from meshdsl.models.families.glm import Glm4 as Glm4
from meshdsl.models.families.gpt2 import GPT2 as GPT2
from meshdsl.models.families.gpt_oss import GptOss as GptOss
from meshdsl.models.families.llama import Llama as Llama
from meshdsl.models.families.mistral import Mistral as Mistral
from meshdsl.models.families.mistral import Mixtral as Mixtral
from meshdsl.models.families.olmo import Olmo2 as Olmo2
from meshdsl.models.families.olmo import Olmoe as Olmoe
from meshdsl.models.families.phi3 import Phi3 as Phi3
from meshdsl.models.families.qwen import Qwen2 as Qwen2
from meshdsl.models.families.qwen import Qwen3 as Qwen3
from meshdsl.models.families.qwen_moe import Qwen2Moe as Qwen2Moe
from meshdsl.models.families.qwen_moe import Qwen3Moe as Qwen3Moe
from meshdsl.models.families.t5 import T5 as T5
from meshdsl.models.families.vit import ViT as ViT

ADAPTERS: dict[str, Adapter] = {
    known.name: known()
    for known in list(globals().values())
    if isinstance(known, type) and issubclass(known, Adapter) and known is not Adapter
}
"""The adapter of each family, by its name here."""
TYPES = {kind: adapter for adapter in ADAPTERS.values() for kind in adapter.types}
"""The same by each `model_type` of a `config.json`."""
