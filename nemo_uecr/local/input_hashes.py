"""sha256 of everything that a run reads: problems, their manifest, models, tokenizers, chat templates."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from nemo_uecr.config.schema import Config
from nemo_uecr.core.methods import METHODS
from nemo_uecr.data.manifest import MANIFEST, training_file
from nemo_uecr.files import file_sha256, read_object

#: A model on the hub of which no complete copy lies here.
HUB = "hub"
NONE = "none"
#: The files that make a tokenizer, where a model folder has them.
TOKENIZER_FILES = (
    "added_tokens.json", "merges.txt", "special_tokens_map.json", "tokenizer.json", "tokenizer.model",
    "tokenizer_config.json", "vocab.json",
)  # fmt: skip
CHAT_TEMPLATE = "chat_template.jinja"

#: Begins the entry of a benchmark, and no other: a benchmark may be called "train" or "teacher".
BENCHMARK = "benchmark "
#: The entries that are no benchmark's.
OWN = frozenset(
    {"train", "train manifest"}
    | {f"{role}{suffix}" for role in ("student", "teacher") for suffix in ("", " tokenizer", " chat template")}
)

Locate = Callable[[str], str]


def input_hashes(config: Config, locate: Locate) -> dict[str, str]:
    """One entry an input; `locate` maps a configured name to what is on disk.

    Raises:
        OSError: an input is not there.
        DataError: a model's tokenizer_config.json is no JSON object.
    """
    return {name: digest for hashes in located_inputs(config, locate) for name, digest in hashes().items()}


def located_inputs(config: Config, locate: Locate) -> Iterator[Callable[[], dict[str, str]]]:
    """A function for each input that hashes it, so that one that is missing stands alone."""
    models = {"student": config.student.model_name}
    if METHODS[config.method.name].needs_teacher and config.teacher.model_name is not None:
        models["teacher"] = config.teacher.model_name
    yield partial(_train_hashes, config.data.train, locate)
    for name, path in config.evaluation.benchmarks.items():
        yield partial(_file_hash, f"{BENCHMARK}{name}", path, locate)
    for role, name in models.items():
        yield partial(_role_hashes, role, name, locate)


def renamed(recorded: dict[str, str], config: Config) -> dict[str, str]:
    """A record with the present names; earlier versions named a benchmark's entry as the benchmark.

    Such an entry under a name of `OWN` may be another input's. It stays as it is: where it was the benchmark's, it
    differs from that input's digest, and the resume is refused.
    """
    bare = {name for name in config.evaluation.benchmarks if f"{BENCHMARK}{name}" not in recorded} - OWN
    return {f"{BENCHMARK}{name}" if name in bare else name: digest for name, digest in recorded.items()}


def _train_hashes(name: str, locate: Locate) -> dict[str, str]:
    train = training_file(Path(locate(name)), "data.train")
    return {"train": file_sha256(train), "train manifest": _file_or_none(train.with_name(MANIFEST))}


def _file_hash(name: str, path: str, locate: Locate) -> dict[str, str]:
    return {name: file_sha256(Path(locate(path)))}


def _role_hashes(role: str, name: str, locate: Locate) -> dict[str, str]:
    return {f"{role}{suffix}": digest for suffix, digest in model_hashes(locate(name)).items()}


def model_hashes(name: str) -> dict[str, str]:
    """Digests of a model folder, of its tokenizer and of its chat template, by suffix of the role's name."""
    folder = model_folder(name)
    if folder is None:
        return {"": HUB}
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {
        "": _digest(folder, files),
        " tokenizer": _digest(folder, [path for path in files if path.name in TOKENIZER_FILES]),
        " chat template": _chat_template(folder),
    }


def model_folder(name: str) -> Path | None:
    """Where a model lies: the folder itself, or the hub's copy in the cache; None when there is neither."""
    if (Path(name) / "config.json").is_file():
        return Path(name)
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - comes with transformers, needed for hub names alone
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError  # noqa: PLC0415

    try:
        return Path(snapshot_download(name, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):
        return None


def _digest(folder: Path, files: list[Path]) -> str:
    """One digest over names and contents."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(folder)}:{file_sha256(path)}\n".encode())
    return digest.hexdigest()


def _chat_template(folder: Path) -> str:
    """Digest of the template's text, wherever the folder keeps it."""
    if (folder / CHAT_TEMPLATE).is_file():
        return file_sha256(folder / CHAT_TEMPLATE)
    config = folder / "tokenizer_config.json"
    template = read_object(config).get("chat_template") if config.is_file() else None
    return NONE if template is None else hashlib.sha256(json.dumps(template).encode()).hexdigest()


def _file_or_none(path: Path) -> str:
    return file_sha256(path) if path.is_file() else NONE
