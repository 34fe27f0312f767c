"""What a run was made of: versions, hashes of inputs, seeds and conventions."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
import sys
from collections.abc import Callable
from pathlib import Path

import nemo_uecr
from nemo_uecr.config.schema import Config
from nemo_uecr.core.methods import METHODS
from nemo_uecr.core.records import EPSILON, GAP_CLIP
from nemo_uecr.data.prepared import training_file
from nemo_uecr.local.checkpoint import file_sha256

PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "safetensors", "omegaconf", "pydantic", "math-verify")


def provenance(config: Config, objective: str, locate: Callable[[str], str]) -> dict[str, object]:
    """The record that stands in ``provenance.json``."""
    return {
        "objective": objective,
        "command": sys.argv,
        "versions": {"nemo_uecr": nemo_uecr.__version__, "python": platform.python_version(), **_versions()},
        "platform": platform.platform(),
        "seeds": {"run": config.run.seed, "evaluation": config.evaluation.seed},
        "conventions": {
            "reward": "1 for a correct final answer, 0 otherwise",
            "answer": "content of the last complete \\boxed{...}",
            "group_std": config.method.std,
            "epsilon": EPSILON,
            "gap_clip": GAP_CLIP,
            "loss": "token mean over the optimizer step's batch",
        },
        "tolerances": config.tolerances.model_dump(),
        "sha256": input_hashes(config, locate),
    }


def input_hashes(config: Config, locate: Callable[[str], str]) -> dict[str, str]:
    """sha256 of the problems, the benchmarks and the model folders that a run reads."""
    models = {"student": config.student.model_name}
    if METHODS[config.method.name].needs_teacher and config.teacher.model_name is not None:
        models["teacher"] = config.teacher.model_name
    return {
        "train": _hash(training_file(Path(locate(config.data.train)), "data.train")),
        **{name: _hash(Path(locate(path))) for name, path in config.evaluation.benchmarks.items()},
        **{name: _hash_folder(Path(locate(path))) for name, path in models.items()},
    }


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def _hash(path: Path) -> str:
    return file_sha256(path)


def _hash_folder(path: Path) -> str:
    """One digest over the names and contents of a model folder; "hub" for a model that is no folder here."""
    if not path.is_dir():
        return "hub"
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")):
        if file.is_file():
            digest.update(f"{file.relative_to(path)}:{file_sha256(file)}\n".encode())
    return digest.hexdigest()
