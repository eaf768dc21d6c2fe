"""`meshdsl import hf` and `meshdsl export hf`: published models in and out, by their own files.

No accelerator is touched.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from meshdsl.commands.checkpoint import (
    checkpoints_of,
    described_parameters,
    folder_of,
    saved_step,
)
from meshdsl.errors import MeshDSLError, system_errors_say
from meshdsl.extras import extra
from meshdsl.models.published import config_of, family_of, form_of
from meshdsl.predict.compiler.topology import compile_only
from meshdsl.schema import read_object
from meshdsl.train.answers import answers_prompts
from meshdsl.train.checkpoints.folders import making
from meshdsl.train.checkpoints.hugging_face import PublishedTensors, export_published, own_names
from meshdsl.train.checkpoints.quantized import opened
from meshdsl.train.checkpoints.transfer import import_parameters
from meshdsl.train.config import Config
from meshdsl.train.data.tokenizer import load_tokenizer
from meshdsl.train.folder import RunFolder
from meshdsl.train.precision_settings import FLOATS
from meshdsl.train.sample import generates
from meshdsl.train.settings import override

KEPT = "hugging_face"  # the folder in a run's with the small files of the import
# Beside the weights: what an export needs again, and what other tools read.
_SMALL = (
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"),
    *("special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "tokenizer.model"),
    *("vocab.json", "merges.txt"),
)
# What a `config.json` says that is no setting of a model here, and is written as it was read.
_HANDED_ON = ("bos_token_id", "eos_token_id", "pad_token_id")


def import_folder(arguments: argparse.Namespace) -> int:
    """`import hf`: make a run of a folder of Hugging Face."""
    compile_only()
    out = RunFolder(arguments.out)
    out.refuse_used()
    folder = _folder(arguments.folder, vars(arguments)["from"])
    published = read_object(folder / "config.json")
    try:
        family_of(published)  # before any weight is read
        files = opened(folder, published)
        family, model = family_of(published, own_names(files))
    except MeshDSLError as error:
        raise MeshDSLError(f"{folder}: {str(error).removeprefix(f'{folder}: ')}") from None
    dtype = published.get("dtype") or published.get("torch_dtype")
    values = {f"model.{key}": value for key, value in model.items()}
    values |= {"precision.compute": dtype} if dtype in FLOATS else {}
    config = override(Config(), arguments.settings, **{"model.family": family}, **values)
    form, vocab = form_of(config.model), getattr(config.model, "vocab", None)
    if vocab is not None:
        _check_tokenizer(folder, vocab)
    like = described_parameters(config)
    tensors = PublishedTensors(files, form, like)
    with system_errors_say(f"--out {out.path}"), making(out.path), making(out.checkpoints):
        import_parameters(tensors, like, out.checkpoints)
        _keep(folder, out.path / KEPT)
        if (out.path / KEPT / "tokenizer.json").is_file():
            tokenizer = str(out.path / KEPT / "tokenizer.json")
            config = override(config, (), **{"data.tokenizer": tokenizer})
        out.write_config(config)
    does = "continues" if generates(config) else "answers" if answers_prompts(config) else ""
    writes = f"`meshdsl generate {out.path}` {does} a text with it, and " if does else ""
    print(f"wrote {out.path}; {writes}a run begins with it by warm_start={out.path}")
    return 0


def _folder(given: Path | None, name: str | None) -> Path:
    """The folder that is given, or the one that huggingface_hub downloads a model to.

    Args:
      name: of the model, as in `Qwen/Qwen3-0.6B`.
    """
    if (given is None) == (name is None):
        raise MeshDSLError("import hf: takes a FOLDER or --from ORG/NAME, and one of the two")
    if given is not None:
        if not given.is_dir():
            raise MeshDSLError(f"{given}: there is no such folder")
        return given
    with extra("hub", "--from"):
        import huggingface_hub
    wanted = [*_SMALL, "*.safetensors", "*.safetensors.index.json"]
    try:
        return Path(huggingface_hub.snapshot_download(str(name), allow_patterns=wanted))
    except (
        OSError,
        ValueError,
    ) as error:  # from which those of the network and the library inherit
        said = str(error).strip().partition("\n")[0]
        raise MeshDSLError(f"--from {name}: {said or type(error).__name__}") from None


def export_folder(arguments: argparse.Namespace) -> int:
    """`export hf`: write a folder that `transformers` loads."""
    run, out = arguments.run, arguments.out
    if arguments.limit <= 0:
        raise MeshDSLError(f"--limit {arguments.limit:g}: must be more than 0")
    checkpoints = checkpoints_of(run)
    step = saved_step(checkpoints, arguments.step)
    config = folder_of(run).config_at(step)
    try:
        form = form_of(config.model)
    except MeshDSLError as error:
        raise MeshDSLError(f"{run}: {error}") from None
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise MeshDSLError(f"--out {out}: is not an empty folder; choose another")
    said = config_of(config.model)
    kept = run / KEPT
    if (kept / "config.json").is_file():
        before = read_object(kept / "config.json")
        said |= {name: before[name] for name in _HANDED_ON if name in before}
        if "id2label" in said and len(before.get("id2label") or ()) == len(said["id2label"]):
            said |= {name: before[name] for name in ("id2label", "label2id") if name in before}
    said["dtype"] = said["torch_dtype"] = arguments.dtype or config.precision.params
    limit = int(arguments.limit * 1e9)
    with making(out):
        files = export_published(
            checkpoints,
            step,
            out / "model.safetensors",
            form,
            arguments.dtype,
            limit,
            average=arguments.average,
        )
        with system_errors_say(f"--out {out}"):
            if kept.is_dir():
                _keep(kept, out)
            text = json.dumps(said, indent=2, sort_keys=True) + "\n"
            (out / "config.json").write_text(text, encoding="utf-8")
    for file in (*files, out / "config.json"):
        print(f"wrote {file}")
    return 0


def _check_tokenizer(folder: Path, vocab: int) -> None:
    """Raise a MeshDSLError where the tokenizer has more than `vocab` tokens."""
    if not (folder / "tokenizer.json").is_file():
        return
    tokenizer = load_tokenizer(str(folder))
    if tokenizer.vocab > vocab:
        raise MeshDSLError(
            f"{folder}: its tokenizer has {tokenizer.vocab} tokens, and its model {vocab}"
        )


def _keep(folder: Path, out: Path) -> None:
    """Copy the small files of a published model."""
    out.mkdir(parents=True, exist_ok=True)
    for name in _SMALL:
        if (folder / name).is_file():
            shutil.copyfile(folder / name, out / name)
