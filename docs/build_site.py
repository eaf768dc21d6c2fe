"""What the site has besides the pages in this folder, as hooks of MkDocs.

Pages that stand elsewhere in the repository (README.md is the first page), the tutorial with what
it prints, and the reference, which is made of docstrings. Links to files that are no pages become
plain text.
"""

import importlib
import inspect
import pkgutil
import posixpath
import re
import sys
import tempfile
from pathlib import Path

import nbformat
from mkdocs.structure.files import File
from nbclient import NotebookClient

import meshdsl as md

ROOT = Path(__file__).parents[1]
# Pages of the site, and the files of the repository that they are.
ELSEWHERE = {
    "index.md": "README.md",
    "results.md": "benchmarks/RESULTS.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
    "changelog.md": "CHANGELOG.md",
}
# Packages whose public names are documented on a page each.
PACKAGES = {
    "layers": ("Layers", "meshdsl.layers"),
    "models": ("Models", "meshdsl.models"),
    "training": ("Training", "meshdsl.train"),
    "machines": ("Machines", "meshdsl.machine"),
    "testing": ("Testing", "meshdsl.testing"),
}
# Classes that functions of the language return.
RETURNED = (
    "meshdsl.lowering.lower.Lowered",
    "meshdsl.program.program.Program",
    "meshdsl.tools.show.Shown",
)
LINK = re.compile(r"\[([^\[\]]*)\]\(([^)\s:]+)\)")  # and the end of an image


def on_files(files, config):
    """Add the pages that do not stand in the folder of the documentation."""

    def add(name: str, content: str) -> None:
        files.append(File.generated(config, name, content=content))

    for name, source in ELSEWHERE.items():
        add(name, (ROOT / source).read_text(encoding="utf-8"))
    add("tutorial.md", tutorial())
    add("reference/language.md", language())
    for name, (title, package) in PACKAGES.items():
        add(f"reference/{name}.md", f"# {title}\n\n{documented(package, submodules=True)}")
    return files


def on_page_markdown(markdown, page, config, files):
    """Point links, which are those of the repository, to the pages of the site."""
    source = ELSEWHERE.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    pages = {file: name for name, file in ELSEWHERE.items()}
    pages["docs/tutorial.ipynb"] = "tutorial.md"

    def relinked(match: re.Match) -> str:
        text, target = match.groups()
        path, _, anchor = target.partition("#")
        if not path:
            return match[0]
        file = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if file not in pages and not file.startswith("docs/"):
            return text
        name = pages.get(file, file.removeprefix("docs/"))
        name = posixpath.relpath(name, posixpath.dirname(page.file.src_uri) or ".")
        return f"[{text}]({name}{'#' * bool(anchor)}{anchor})"

    return LINK.sub(relinked, markdown)


def language() -> str:
    """The page of every public name, one section for each file that makes them."""
    sections: dict[str, list[str]] = {}
    made_from_a_table = []

    def list_function(found, name: str, section: str) -> None:
        if hasattr(sys.modules[found.__module__], name):
            sections.setdefault(section, []).append(f"{found.__module__}.{name}")
        else:
            made_from_a_table.append(found)

    for name in md.__all__:
        found = getattr(md, name)
        if inspect.ismodule(found):
            for inner in found.__all__:
                list_function(getattr(found, inner), inner, found.__name__)
        else:
            list_function(found, name, found.__module__)
    for path in RETURNED:
        sections.setdefault(path.rpartition(".")[0], []).append(path)
    text = ["# Every public name\n", "Each name is one of `md`, after `import meshdsl as md`.\n"]
    for section in sorted(sections):
        title = section.rpartition(".")[2].replace("_", " ").capitalize()
        text.append(f"## {title}\n")
        text += [documented(path) for path in sections[section]]
    text.append("## Functions of JAX, on named tensors\n")
    text += [f"- `{f.__name__}{inspect.signature(f)}`: {f.__doc__}" for f in made_from_a_table]
    return "\n".join(text)


def documented(path: str, submodules: bool = False) -> str:
    """The directive that puts the docstrings of `path` in a page."""
    options = ["show_submodules: true", "show_root_heading: false"]
    if not submodules:
        options = ["heading_level: 3"]
    else:  # each name where it is defined, and not once more where the package passes it on
        files = pkgutil.iter_modules(importlib.import_module(path).__path__)
        options.append(f"members: [{', '.join(file.name for file in files)}]")
    return "\n".join([f"::: {path}", "    options:", *(f"      {line}" for line in options), ""])


def tutorial() -> str:
    """The tutorial, run, with what its cells print."""
    notebook = nbformat.read(ROOT / "docs/tutorial.ipynb", as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=300, resources=resources).execute()
    text = []
    for cell in notebook.cells:
        if cell.cell_type != "code":
            text.append(cell.source)
            continue
        text.append(f"```python\n{cell.source}\n```")
        drawn = [output for output in cell.outputs if "text/html" in output.get("data", {})]
        text += [picture(output.data["text/html"]) for output in drawn]
        said = (output for output in cell.outputs if output not in drawn)
        printed = "".join(output.get("text") or plain(output) for output in said)
        if printed.strip():
            text.append(f"```text\n{printed.rstrip()}\n```")
    return "\n\n".join(text)


def picture(html: str) -> str:
    """What a cell draws, apart from the styles of the site: a template that browsers put there."""
    return f'<div data-search-exclude><template shadowrootmode="open">{html}</template></div>'


def plain(output) -> str:
    """What the last line of a cell evaluates to, as text."""
    return output.get("data", {}).get("text/plain", "")
