"""Types as these tests write them: `Tensor[batch, length]`.

`Tensor` alone, or `Any`, where nothing is known.
"""

import re

import meshdsl as md


def inferred(message: str) -> str:
    """The type in pyright's `Type of "..." is "..."`."""
    text = message.rsplit('" is "', 1)[1].removesuffix('"')
    text = (
        re.sub(r"Literal\['(\w+)'\]", r"\1", text)
        .replace("Unknown", "Any")
        .replace("*tuple[()]", "")
    )
    return text.replace("Tensor[*tuple[Any, ...]]", "Tensor")


def shown(value) -> str:
    """The type of a value."""
    if isinstance(value, (md.Tensor, md.Dim)):
        names = [d.name for d in value.dims] if isinstance(value, md.Tensor) else [value.name]
        return f"{type(value).__name__}[{', '.join(names)}]"
    if isinstance(value, tuple):
        return f"tuple[{', '.join(map(shown, value))}]"
    return type(value).__name__


def holds(text: str, value) -> bool:
    """Whether a value is of the type `text`."""
    text = re.sub(r"\bdict\[[^][]*\]", "dict", text)
    text = re.sub(r"\bTensor\[[^][]*\]", lambda tensor: tensor[0].replace("Any", "one"), text)
    text = re.escape(text).replace(r"\ ", " ")
    text = re.sub(r"\bTensor(?!\\\[)", r"Tensor\\[[^]]*\\]", text)
    text = re.sub(r"tuple\\\[(.*), \\\.\\\.\\\.\\\]", r"tuple\\[(\1(, )?)*\\]", text)
    return bool(
        re.fullmatch(re.sub(r"\bAny\b", r".*", re.sub(r"\bone\b", r"\\w+", text)), shown(value))
    )
