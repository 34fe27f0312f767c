"""Checkpoints of the local loop: an ordinary Hugging Face folder plus optimizer and position, complete or absent."""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from nemo_uecr.config.load import check_same_configuration
from nemo_uecr.config.schema import Config
from nemo_uecr.errors import CheckpointError, RunFolderError
from nemo_uecr.files import digests, files_below, new_folder, read_object
from nemo_uecr.generation.engines import STATE
from nemo_uecr.generation.models import save_pretrained
from nemo_uecr.generation.trained import MANIFEST, OPTIMIZER, check_manifest
from nemo_uecr.local.ahead import save_ahead
from nemo_uecr.local.rollout import Drawn
from nemo_uecr.local.token_model import TokenModel
from nemo_uecr.stopping import interrupt_waits

log = logging.getLogger(__name__)

_STEP = re.compile(r"step-(\d{6,})")


@dataclass(frozen=True)
class Position:
    """Where a run stands. Random streams are functions of seed and step, so these numbers fix them too."""

    step: int = 0
    optimizer_steps: int = 0
    best_step: int | None = None
    best_average: float | None = None
    method_state: Mapping[str, float] = field(default_factory=dict)


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
        matches = (_STEP.fullmatch(path.name) for path in self._folder.glob("step-*"))
        return sorted(int(match[1]) for match in matches if match)

    def path(self, step: int) -> Path:
        """Folder of a step's checkpoint."""
        return self._folder / f"step-{step:06d}"

    def save(
        self, model: TokenModel, optimizer: torch.optim.Optimizer, position: Position, ahead: Mapping[int, Drawn]
    ) -> None:
        """Write a checkpoint and drop those no longer kept; a failed write leaves what was there."""
        target = self.path(position.step)
        try:
            with interrupt_waits(), new_folder(target) as aside:
                save_pretrained(model.module, model.tokenizer, aside)
                with (aside / OPTIMIZER).open("wb") as file:  # its error has the reason; torch's has not
                    torch.save(optimizer.state_dict(), file)
                save_ahead(aside, ahead)
                state = {"position": asdict(position), "config": self._config.model_dump(mode="json")}
                (aside / STATE).write_text(json.dumps(state, indent=1), encoding="utf-8")
                hashes = digests(files_below(aside), aside)
                (aside / MANIFEST).write_text(json.dumps(hashes, indent=1), encoding="utf-8")
            self.prune(position)
        except OSError as error:
            kept = self.steps()
            raise RunFolderError(
                f"cannot save {target}: {error.strerror or error}; "
                + (f"the checkpoint of step {kept[-1]} is intact. " if kept else "no earlier checkpoint exists. ")
                + "Free disk space and run again with --resume"
            ) from error

    def load(self, step: int) -> Position:
        """The position of a checkpoint that is whole and of this configuration."""
        folder = self.path(step)
        check_manifest(folder)
        state = read_object(folder / STATE)
        written = Config.model_validate(state["config"])  # what was written before a key existed has its default
        check_same_configuration(folder, self._config, written.model_dump(mode="json"))
        if step > self._config.train.steps:
            raise CheckpointError(
                f"train.steps={self._config.train.steps}, but {folder} is later: raise it or choose another run.folder"
            )
        position = Position(**state["position"])
        best = position.best_step
        if self._config.checkpoint.keep_best and best is not None and best not in self.steps():
            log.warning("%s, the best, is gone: the best of later steps will be kept", self.path(best))
            position = replace(position, best_step=None, best_average=None)
        return position

    def optimizer_state(self, step: int) -> dict[str, Any]:
        """The optimizer's state in a checkpoint."""
        if self._config.train.optimizer == "adamw8bit_sr":
            import torchao.optim  # noqa: F401 - torch loads its moments only when it knows them
        state: dict[str, Any] = torch.load(self.path(step) / OPTIMIZER, map_location="cpu", weights_only=True)
        return state

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
