"""What a run was made of: code, versions, hashes of inputs, seeds and conventions."""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nemo_uecr
from nemo_uecr.config.load import dump_config
from nemo_uecr.config.schema import Config
from nemo_uecr.core.records import EPSILON, GAP_CLIP
from nemo_uecr.data.batch_file import arithmetic
from nemo_uecr.data.reproducible import installed
from nemo_uecr.errors import DataError, RunFolderError
from nemo_uecr.files import read_object, replace_file
from nemo_uecr.local.input_hashes import input_hashes
from nemo_uecr.local.source import Source

PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "safetensors", "omegaconf", "pydantic", "math-verify")
FILE, DIFF = "provenance.json", "source.diff"
#: What may differ between two starts of one run.
VOLATILE = ("command",)
REMEDY = "Put the file back or choose another run.folder"


def provenance(config: Config, objective: str, locate: Callable[[str], str], source: Source) -> dict[str, Any]:
    """The record that stands in ``provenance.json``."""
    return statement(config, objective) | {
        "command": sys.argv,
        "source": source.record(),
        "sha256": input_hashes(config, locate),
    }


def statement(config: Config, objective: str) -> dict[str, Any]:
    """The part that follows from the configuration and this environment, without looking at an input."""
    return {
        "objective": objective,
        "versions": {
            "nemo_uecr": nemo_uecr.__version__,
            "python": platform.python_version(),
            **{package: installed(package) or "not installed" for package in PACKAGES},
        },
        "platform": platform.platform(),
        "arithmetic": arithmetic(),
        "seeds": {"run": config.run.seed, "evaluation": config.evaluation.seed},
        "conventions": _conventions(config),
        "decoding": _decoding(config),
        "selection": _selection(config),
        "tolerances": config.tolerances.model_dump(),
        "config_sha256": hashlib.sha256(dump_config(config).encode()).hexdigest(),
    }


def write_provenance(folder: Path, record: dict[str, Any], source: Source) -> None:
    """Write the record and the code's difference; an earlier record that says something else is kept beside it."""
    path = folder / FILE
    if path.is_file():
        before = read_provenance(path)
        if _lasting(before) != _lasting(json.loads(json.dumps(record))):
            number = 1 + sum(1 for _ in folder.glob("provenance-*.json"))
            replace_file(folder / f"provenance-{number}.json", path.read_bytes())
    replace_file(folder / DIFF, source.diff)
    replace_file(path, json.dumps(record, indent=1).encode())


def read_provenance(path: Path) -> dict[str, Any]:
    """A run's record, as far as its form was looked at: digests by input, and the code's own section.

    Raises:
        RunFolderError: naming the file, when it is damaged.
    """
    try:
        record = read_object(path)
    except DataError as error:
        raise RunFolderError(f"{error}; expected the file as the run wrote it. {REMEDY}") from error
    digests = record.get("sha256")
    if not isinstance(digests, dict) or not all(isinstance(digest, str) for digest in digests.values()):
        raise RunFolderError(f"{path}: sha256 is no table of digests by input; the file was altered. {REMEDY}")
    if not isinstance(record.get("source", {}), dict):
        raise RunFolderError(f"{path}: source is no table; the file was altered. {REMEDY}")
    return record


def _lasting(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in VOLATILE}


def _conventions(config: Config) -> dict[str, object]:
    return {
        "reward": "1 for a correct final answer, 0 otherwise",
        "answer": "content of the last complete \\boxed{...}, compared symbolically",
        "advantage": "(R - mean) / (max(std, std_floor) + epsilon) over the responses to one prompt",
        "group_std": config.method.std,
        "std_floor": config.method.std_floor,
        "epsilon": EPSILON,
        "gap_clip": GAP_CLIP,
        "loss": "token mean over the optimizer step's batch",
    }


def _decoding(config: Config) -> dict[str, object]:
    rollout, evaluation = config.rollout, config.evaluation
    return {
        "rollout": {
            "temperature": rollout.temperature,
            "top_p": rollout.top_p,
            "top_k": rollout.top_k,
            "max_tokens": rollout.max_response_tokens,
            "responses_per_prompt": rollout.responses_per_prompt,
        },
        "evaluation": {
            "temperature": evaluation.temperature,
            "top_p": evaluation.top_p,
            "top_k": evaluation.top_k,
            "max_tokens": evaluation.max_tokens,
            "samples": evaluation.samples,
        },
        "enable_thinking": config.data.enable_thinking,
    }


def _selection(config: Config) -> str:
    if config.checkpoint.keep_best:
        return "best: highest mean of avg@k over the benchmarks; the earlier checkpoint of equal ones"
    return "last: the checkpoint of the last step, whatever it scores"
