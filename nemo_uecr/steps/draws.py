"""What a step draws and what a run records, as functions of the configuration: the same in both back ends."""

from __future__ import annotations

import platform
import random
from collections.abc import Mapping
from functools import cache
from typing import Any

import nemo_uecr
from nemo_uecr import door
from nemo_uecr.config.load import own_code
from nemo_uecr.config.methods import objective
from nemo_uecr.config.schema import Config, VerifierReward
from nemo_uecr.core import EPSILON, GAP_CLIP
from nemo_uecr.core.methods import RunState
from nemo_uecr.files import file_sha256
from nemo_uecr.reproducible import derive


def step_indices(*, problems: int, per_step: int, step: int, seed: int, shuffle: bool) -> list[int]:
    """Problem indices of one step (steps count from 1): a function of seed and step, so a resumed run draws the same.

    The file is read again and again; with ``shuffle`` each pass has its own seeded order. A step that crosses
    the end of a pass continues in the next one.
    """

    @cache
    def order(epoch: int) -> list[int]:
        indices = list(range(problems))
        if shuffle:
            random.Random(f"order:{seed}:{epoch}").shuffle(indices)
        return indices

    first = (step - 1) * per_step
    return [order(position // problems)[position % problems] for position in range(first, first + per_step)]


def run_state(*, seed: int, steps: int, step: int, state: Mapping[str, float]) -> RunState:
    """What a run of so many steps gives the method in one (steps count from 1; the schedule counts completed ones)."""
    return RunState(step - 1, steps, derive(seed, "shuffle", step) % 2**31, state)


def run_provenance(config: Config, versions: Mapping[str, str]) -> dict[str, Any]:
    """What a local run records: loss, versions, seeds and the numbers' conventions."""
    settings = config.method.settings()
    method = config.method  # of a user's file, which a reader of the record may not have
    declared = {"equation": method.equation(), "identities": [*method.identities], "monitored": [*method.monitored]}
    code = {key: file_sha256(door.file_of(text)) for key, text in own_code(config.model_dump(mode="json")).items()}
    from_files: dict[str, Any] = {"code": code} if code else {}
    from_files |= {"method": declared} if "method.name" in code else {}
    own = [] if config.reward == (VerifierReward(),) else [each.label for each in config.reward]
    return from_files | {
        "objective": objective(config),
        "versions": {"nemo_uecr": nemo_uecr.__version__, "python": platform.python_version(), **versions},
        "platform": platform.platform(),
        "method_revision": method.revision,
        "seeds": {"run": config.run.seed, "evaluation": config.evaluation.seed},
        "conventions": {
            "reward": f"weighted sum of: {', '.join(own)}" if own else "1 for a correct final answer, 0 otherwise",
            "answer": "content of the last complete \\boxed{...}, compared symbolically",
            "advantage": "(R - mean) / (max(std, std_floor) + epsilon) over the responses to one prompt",
            "group_std": "sample" if settings.get("sample_std") else "population",
            "std_floor": settings.get("std_floor", 0.0),
            "epsilon": EPSILON,
            "gap_clip": GAP_CLIP,
            "loss": "token mean over the optimizer step's batch",
        },
    }
