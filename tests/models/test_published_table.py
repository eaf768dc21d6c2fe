"""The table of families in docs/published.md says what is compared with `transformers`."""

from collections import Counter
from pathlib import Path

from tests.models import test_published, test_published_encoders

NAMES = {
    "gpt2": "GPT-2",
    "llama": "Llama 2 and 3",
    "mistral": "Mistral",
    "qwen2": "Qwen2 and Qwen2.5",
    "qwen3": "Qwen3",
    "gemma2": "Gemma 2",
    "gemma3": "Gemma 3 (text)",
    "phi3": "Phi-3",
    "olmo2": "OLMo 2",
    "mixtral": "Mixtral",
    "qwen2_moe": "Qwen2-MoE",
    "qwen3_moe": "Qwen3-MoE",
    "olmoe": "OLMoE",
    "gpt_oss": "gpt-oss",
    "deepseek_v2": "DeepSeek-V2",
    "deepseek_v3": "DeepSeek-V3",
    "glm": "GLM-4 of 2024",
    "glm4": "GLM-4 of 2025",
    "bert": "BERT",
    "vit": "ViT",
    "t5": "T5",
}
BEGIN, END = "<!-- families -->\n", "<!-- end of families -->\n"


def table() -> str:
    """The rows of the table, of the cases that are tested."""
    lines = ["| family | configurations | logits within | gradients | tested by |"]
    lines.append("| --- | --- | --- | --- | --- |")
    for module in (test_published, test_published_encoders):
        of_style = lambda name: name.split(",")[0].split(" ")[0]
        slopes = {of_style(name) for name in module.GRADIENTS}
        for style, count in Counter(map(of_style, module.CASES)).items():
            file = Path(module.__file__).name
            within = f"{module.TOLERANCE:g}"
            gradients = within if style in slopes else ""
            command = f"`pytest tests/models/{file} -m slow -k {style}`"
            lines.append(f"| {NAMES[style]} | {count} | {within} | {gradients} | {command} |")
    return "\n".join(lines) + "\n"


def test_the_page_has_the_families_that_are_compared():
    page = Path(__file__).parents[2] / "docs/published.md"
    found = page.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    assert found.strip() == table().strip()
