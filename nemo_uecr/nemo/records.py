"""What a run leaves beside its checkpoints: its resolved recipe with versions, and what a continued run may change."""

from __future__ import annotations

import json
import logging
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

import nemo_uecr
from nemo_uecr import door
from nemo_uecr.config.load import flattened, own_code, read_written
from nemo_uecr.config.schema import CallReward
from nemo_uecr.core import EPSILON, GAP_CLIP
from nemo_uecr.core.methods import check_revision
from nemo_uecr.errors import CheckpointError
from nemo_uecr.files import file_sha256, read_object, replace_file
from nemo_uecr.generation.prompts import prompts_sha256
from nemo_uecr.nemo.recipe import Settings, UecrSection, section_of
from nemo_uecr.reproducible import installed
from nemo_uecr.telemetry.sinks import EVALUATIONS, truncate_records

log = logging.getLogger(__name__)

#: Packages whose versions the record has.
PACKAGES = ("torch", "transformers", "megatron-core", "megatron-bridge", "transformer-engine", "vllm", "ray")
#: Rows of a data set, evenly spaced, whose prompts stand for all of it.
DIGESTED_ROWS = 64
#: Keys that a continued run may not change: what is trained, and on which model.
FIXED = re.compile(r"uecr\..*|policy\.(uecr\..*|model_name)|loss_fn\..*")
#: Of those, what does not change what is trained.
FREE = re.compile(
    r"uecr\.(folder|save_batch_every|log_batches|timeout_s|chunk_tokens|verifier_workers|hash_weights"
    r"|(tolerances|evaluation)(\..*)?|teachers?\.(.*\.)?(offload_limit_mebi|dedicated_gpus|stays|sequence_packing\..*"
    r"|dynamic_batching\..*|logprob_batch_size|megatron_cfg\.(\w*parallel\w*|num_layers_in_\w+)))"
)


def write(
    settings: Settings,
    section: UecrSection,
    values: Mapping[str, Any],
    *,
    origins: Mapping[str, str],
    prompts: Mapping[str, str],
    version: str,
    step: int,
) -> None:
    """Write the resolved recipe and the versions, before the first step after ``step``.

    What evaluations recorded after that step will be made again.

    Args:
        settings: name the folder.
        section: the recipe's section `uecr`, with its defaults.
        values: the recipe as it runs.
        origins: where each value came from, as far as it is known.
        prompts: their digests, by data set.
        version: NeMo-RL's.
        step: completed steps.
    """
    own = {package: installed(package) or "not installed in the driver's environment" for package in PACKAGES}
    record = {
        "versions": {
            "nemo_uecr": nemo_uecr.__version__, "nemo_rl": version, "python": platform.python_version(), **own,
        },
        "platform": platform.platform(),
        "command": sys.argv,
        "conventions": {"epsilon": EPSILON, "gap_clip": GAP_CLIP},
        "code": code_digests(section),
        "method_revision": settings.method.revision,
        "prompts": dict(prompts),
    }  # fmt: skip
    settings.folder.mkdir(parents=True, exist_ok=True)
    truncate_records(settings.folder / EVALUATIONS, last_step=step or -1)
    replace_file(settings.folder / "provenance.json", json.dumps(record, indent=1).encode())
    replace_file(settings.folder / "origins.json", json.dumps(dict(origins), indent=1).encode())
    whole = {**values, "uecr": section.model_dump(mode="json")}
    replace_file(settings.folder / "config.yaml", plain_yaml(whole).encode())


def code_digests(section: UecrSection) -> dict[str, str]:
    """sha256 of each user's file that the section names, by key: method, readers of problems, rewards, environment."""
    called = {f"reward.{each.label}": each.path for each in section.reward or () if isinstance(each, CallReward)}
    if section.environment is not None:
        called["environment"] = section.environment.path
    files = {key: Path(path) for key, path in called.items()}
    files |= {key: door.file_of(text) for key, text in own_code(section.model_dump(mode="json")).items()}
    return {f"uecr.{key}": file_sha256(file) for key, file in files.items()}


def plain_yaml(values: Mapping[str, Any]) -> str:
    """The values as YAML of plain scalars, lists and mappings."""
    return str(yaml.safe_dump(json.loads(json.dumps(values, default=str)), sort_keys=False))


def prompt_digests(dataset: Any, validation: Any) -> dict[str, str]:
    """A digest of the token ids of prompts, as the recipe's processors render them, by data set.

    They are read from 64 rows of each, evenly spaced: another template, tokenizer or date shows in every row. A data
    set that makes its rows as it goes has none.
    """
    from torch.utils.data import IterableDataset

    every = {**(dataset if isinstance(dataset, Mapping) else {"train": dataset}), "validation": validation}
    digests = {}
    for name, rows in every.items():
        if rows is not None and not isinstance(rows, IterableDataset):
            places = range(0, len(rows), -(-len(rows) // DIGESTED_ROWS) or 1)
            turns_R = [rows[place]["message_log"] for place in places]
            digests[name] = prompts_sha256(
                [int(token) for turn in turns for token in turn.get("token_ids", ())] for turns in turns_R
            )
    return digests


def check_same_inputs(settings: Settings, section: UecrSection, prompts: Mapping[str, str]) -> None:
    """Refuse to continue a run whose equation, method's or reward's file, or rendered prompts have changed since."""
    path = settings.folder / "provenance.json"
    before = read_object(path) if path.is_file() else {}
    if before:
        check_revision(settings.folder, settings.method, before)
    now = {"code": code_digests(section), "prompts": prompts}
    for part, what in {"code": "file", "prompts": "prompts"}.items():
        recorded = before.get(part, {})
        if changed := [name for name, digest in now[part].items() if recorded.get(name, digest) != digest]:
            raise CheckpointError(
                f"the {what} of {changed[0]} changed since {path} was written; continue with what the run had, or name "
                "another checkpointing.checkpoint_dir"
            )


def check_same_method(checkpoint: Path, values: Mapping[str, Any]) -> None:
    """Refuse to continue a checkpoint under another method, teacher, loss or model; say what else is different.

    NeMo-RL keeps the whole configuration in each checkpoint, and itself compares nothing.
    """
    saved = read_written(checkpoint / "config.yaml")
    if "uecr" not in saved:
        raise CheckpointError(
            f"{checkpoint} was written by a run without a section uecr; expected one of this run. To start from its "
            "weights, name another checkpointing.checkpoint_dir and give them as checkpointing.pretrained_checkpoint"
        )
    before, present = (
        flattened(json.loads(json.dumps({**each, "uecr": section_of(each).model_dump(mode="json")}, default=str)))
        for each in (saved, values)
    )
    for key in sorted(before.keys() | present.keys()):
        if before.get(key) == present.get(key):
            continue
        was, becomes = (f"{tree[key]!r:.60}" if key in tree else "no such key" for tree in (before, present))
        if FIXED.fullmatch(key) and not FREE.fullmatch(key):
            raise CheckpointError(
                f"{checkpoint} was written with {key}={was}, this run has {becomes}; continue it as it was, or name "
                "another checkpointing.checkpoint_dir"
            )
        if key in before and key in present:
            log.warning("%s: %s when %s was written, %s now", key, was, checkpoint.name, becomes)
