"""Checkpoints of the local loop: an ordinary Hugging Face folder plus optimizer and position, complete or absent."""

from __future__ import annotations

import json
import logging
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from nemo_uecr.config.load import check_same_configuration
from nemo_uecr.config.schema import Config
from nemo_uecr.data.models import save_pretrained
from nemo_uecr.errors import CheckpointError, DataError, RunFolderError
from nemo_uecr.files import file_sha256, new_folder, read_object
from nemo_uecr.local.models import TokenModel

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"
STATE = "state.json"
OPTIMIZER = "optimizer.safetensors"
_STEP = re.compile(r"step-(\d{6,})")


@dataclass(frozen=True)
class Position:
    """Where a run stands. Random streams are functions of seed and step, so these numbers fix them too."""

    step: int
    optimizer_steps: int
    best_step: int | None
    best_average: float | None


class Checkpoints:
    """The checkpoint folder of one run."""

    def __init__(self, folder: Path, config: Config) -> None:
        """Look at ``folder``; leftovers of an interrupted save are removed."""
        self._folder = folder
        self._config = config
        for leftover in folder.glob(".*.tmp"):
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()

    def steps(self) -> list[int]:
        """Steps of the complete checkpoints, ascending."""
        found = (_STEP.fullmatch(path.name) for path in self._folder.glob("step-*"))
        return sorted(int(match[1]) for match in found if match)

    def path(self, step: int) -> Path:
        """Folder of a step's checkpoint."""
        return self._folder / f"step-{step:06d}"

    def save(self, model: TokenModel, optimizer: torch.optim.AdamW, position: Position) -> None:
        """Write a checkpoint and drop those no longer kept.

        Raises:
            RunFolderError: If it cannot be written; what was there before is untouched.
        """
        target = self.path(position.step)
        try:
            with new_folder(target) as aside:
                self._write(aside, model, optimizer, position)
            self.prune(position)
        except (OSError, SafetensorError) as error:
            kept = self.steps()
            raise RunFolderError(
                f"cannot save {target}: {_reason(error)}; "
                + (f"the checkpoint of step {kept[-1]} is intact. " if kept else "no earlier checkpoint exists. ")
                + "Free disk space and run again with --resume"
            ) from error

    def load(self, step: int) -> tuple[Path, dict[str, Tensor], Position]:
        """Model folder, optimizer tensors and position of a checkpoint.

        Raises:
            CheckpointError: If a file is missing or altered, or the checkpoint is of another configuration.
        """
        folder = self.path(step)
        self._verify(folder)
        configuration, position = _read_state(folder)
        check_same_configuration(folder, self._config, configuration)
        try:
            tensors = load_file(folder / OPTIMIZER)
        except SafetensorError as error:
            raise CheckpointError(
                f"{folder / OPTIMIZER}: unreadable ({error}); delete {folder} to use an earlier one"
            ) from error
        return folder, tensors, position

    def _write(self, aside: Path, model: TokenModel, optimizer: torch.optim.AdamW, position: Position) -> None:
        save_pretrained(model.module, model.tokenizer, aside)
        save_file(optimizer_tensors(optimizer), aside / OPTIMIZER)
        state = {
            "position": asdict(position),
            "config": self._config.model_dump(mode="json"),
            # Every random stream is a function of these two, so they are the generator's state.
            "random": {"seed": self._config.run.seed, "next_step": position.step + 1},
        }
        (aside / STATE).write_text(json.dumps(state, indent=1), encoding="utf-8")
        hashes = {path.name: file_sha256(path) for path in sorted(aside.iterdir())}
        (aside / MANIFEST).write_text(json.dumps(hashes, indent=1), encoding="utf-8")

    def prune(self, position: Position) -> None:
        """Remove the checkpoints that are no longer kept; a resumed run finishes what a kill cut short."""
        kept = set(self.steps()[-self._config.checkpoint.keep_last :])
        if self._config.checkpoint.keep_best and position.best_step is not None:
            kept.add(position.best_step)
        for step in self.steps():
            if step not in kept:
                # Renamed first: a kill in the middle of the removal must not leave half a checkpoint under its name.
                doomed = self._folder / f".step-{step:06d}.tmp"
                self.path(step).rename(doomed)
                shutil.rmtree(doomed)

    def _verify(self, folder: Path) -> None:
        manifest = folder / MANIFEST
        if not manifest.is_file():
            raise CheckpointError(
                f"{folder}: no {MANIFEST}; expected a complete checkpoint. Delete the folder to use an earlier one"
            )
        try:
            hashes = dict(json.loads(manifest.read_bytes()))
        except (ValueError, TypeError) as error:
            raise _corrupt(folder, MANIFEST, f"unreadable ({error})") from error
        present = {path.name for path in folder.iterdir()} - {MANIFEST}
        unlisted = sorted((present | {STATE, OPTIMIZER, "config.json"}) - hashes.keys())
        if unlisted:
            raise _corrupt(folder, MANIFEST, f"does not list {unlisted[0]}")
        for name, expected in hashes.items():
            path = folder / name
            found = file_sha256(path) if path.is_file() else "no such file"
            if found != expected:
                raise _corrupt(folder, name, f"got {found[:12]}, expected sha256 {str(expected)[:12]}")


def _read_state(folder: Path) -> tuple[dict[str, object], Position]:
    """The configuration and the position that a checkpoint was saved with."""
    try:
        state = read_object(folder / STATE)
    except DataError as error:
        raise _corrupt(folder, STATE, str(error)) from error
    configuration, position = state.get("config"), state.get("position")
    if not isinstance(configuration, dict) or not isinstance(position, dict):
        raise _corrupt(folder, STATE, "expected the tables config and position")
    kinds: dict[str, Any] = {
        "step": int,
        "optimizer_steps": int,
        "best_step": int | None,
        "best_average": float | int | None,
    }
    if position.keys() != kinds.keys() or not all(isinstance(position[name], kind) for name, kind in kinds.items()):
        raise _corrupt(folder, STATE, f"position is {position}; expected numbers for {', '.join(kinds)}")
    return configuration, Position(**position)


def _corrupt(folder: Path, name: str, reason: str) -> CheckpointError:
    return CheckpointError(
        f"{folder / name}: {reason}; the checkpoint is corrupt. Delete {folder} and run again with --resume to use an "
        "earlier one"
    )


def optimizer_tensors(optimizer: torch.optim.AdamW) -> dict[str, Tensor]:
    """AdamW's state as flat named tensors, ``<parameter index>.<name>``."""
    return {
        f"{index}.{name}": value.detach().cpu()
        for index, values in optimizer.state_dict()["state"].items()
        for name, value in values.items()
    }


def restore_optimizer(optimizer: torch.optim.AdamW, tensors: dict[str, Tensor]) -> None:
    """Put back what `optimizer_tensors` returned."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
