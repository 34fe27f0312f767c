"""Compares a run folder with what it says of itself, and names what changed since the run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_uecr.config.load import flattened, written_config
from nemo_uecr.config.schema import Config
from nemo_uecr.errors import DataError, RunFolderError
from nemo_uecr.local import provenance as made
from nemo_uecr.local.artifacts import compare_files
from nemo_uecr.local.input_hashes import HUB, Locate, located_inputs, renamed
from nemo_uecr.local.source import package_source


@dataclass(frozen=True)
class Verification:
    """The outcome: how much is as it was, what changed, and what could not be looked at."""

    same: int
    changed: tuple[str, ...]
    unknown: tuple[str, ...]


def verify_run(folder: Path, *, objective_of: Callable[[Config], str], locate: Locate) -> Verification:
    """Check a run folder's files, its inputs and its environment against its record.

    Args:
        folder: the run folder.
        objective_of: the loss of a configuration as one equation.
        locate: maps model and data names to what is on disk.

    Raises:
        RunFolderError: If the folder is no run, or its record cannot be read.
    """
    record = _record(folder)
    config = _config(folder)
    now = json.loads(json.dumps(made.statement(config, objective_of(config)) | {"source": package_source().record()}))
    same, changed = _compare(flattened(_without_inputs(record)), flattened(_without_inputs(now)))
    inputs_same, inputs_changed, unknown = _inputs(renamed(record["sha256"], config), config, locate)
    # An earlier start of the run may have kept fewer.
    keep_last = 1 if any(folder.glob("provenance-*.json")) else config.checkpoint.keep_last
    files = compare_files(folder, last_step=config.train.steps, keep_last=keep_last)
    own = _own_files(folder, record)
    return Verification(
        same + inputs_same + files.same + (2 - len(own)),
        (*own, *files.changed, *inputs_changed, *changed),
        (*unknown, *files.unlisted),
    )


def _without_inputs(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in (*made.VOLATILE, "sha256", "config_sha256")}


def _own_files(folder: Path, record: dict[str, Any]) -> list[str]:
    """The two files whose hashes stand in the record itself."""
    wanted = {"config.yaml": record.get("config_sha256"), made.DIFF: record.get("source", {}).get("diff_sha256")}
    faults = []
    for name, expected in wanted.items():
        path = folder / name
        if not path.is_file():
            faults.append(f"{name}: missing")
        elif hashlib.sha256(path.read_bytes()).hexdigest() != expected:
            faults.append(f"{name}: content changed")
    return faults


def _compare(before: dict[str, Any], now: dict[str, Any]) -> tuple[int, list[str]]:
    names = list(dict.fromkeys((*before, *now)))
    changed = [
        f"{name}: {_shown(before, name)} in the run, {_shown(now, name)} here"
        for name in names
        if name not in before or name not in now or before[name] != now[name]
    ]
    return len(names) - len(changed), changed


def _shown(values: dict[str, Any], name: str) -> str:
    if name not in values:
        return "not recorded"
    text = str(values[name])
    return text[:12] if name.endswith("sha256") or name == "source.commit" else text


def _inputs(before: dict[str, str], config: Config, locate: Locate) -> tuple[int, list[str], list[str]]:
    """Compare the inputs one by one: one that is not here does not hide a change of another."""
    same, changed, unknown = 0, [], []
    now = _hashes_here(config, locate)
    for name, digest in before.items():
        found = now.get(name)
        if digest == HUB or found is None or found == HUB:
            unknown.append(f"input {name!r}: not here")
        elif found == digest:
            same += 1
        else:
            changed.append(f"input {name!r}: sha256 {digest[:12]} in the run, {found[:12]} here")
    changed += [f"input {name!r}: not recorded in the run" for name in now if name not in before]
    return same, changed, unknown


def _hashes_here(config: Config, locate: Locate) -> dict[str, str]:
    """Hashes of the inputs that are on this machine."""
    found: dict[str, str] = {}
    for hashes in located_inputs(config, locate):
        try:
            found |= hashes()
        except (OSError, DataError):
            continue
    return found


def _record(folder: Path) -> dict[str, Any]:
    path = folder / made.FILE
    if not path.is_file():
        raise RunFolderError(f"{folder} has no {made.FILE}; expected the run folder that `nemo-uecr train` wrote")
    return made.read_provenance(path)


def _config(folder: Path) -> Config:
    path = folder / "config.yaml"
    if not path.is_file():
        raise RunFolderError(f"{folder} has no config.yaml; expected the run folder that `nemo-uecr train` wrote")
    return written_config(path)
