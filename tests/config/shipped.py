"""The shipped configurations, what a user types on top of them, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_uecr.config.load import load_config
from nemo_uecr.config.recipes import load_recipe
from nemo_uecr.core.methods import METHODS, ablations, baselines, uecr
from nemo_uecr.errors import ConfigError
from nemo_uecr.nemo.layout import Job
from nemo_uecr.start.recipe_form import accepted

CONFIGS = Path(__file__).resolve().parents[2] / "examples" / "configs"
DEMO = CONFIGS / "local" / "demo.yaml"

SCALES = ("1p7b", "4b")
#: What a NeMo-RL run needs: the teacher, and the size of the subset that the paper does not state.
GIVEN = {
    "1p7b": ["uecr.teacher.model_name=teachers/4b"],
    "4b": ["uecr.teacher.model_name=teachers/8b", "uecr.data.subset=2000"],
}
#: Overrides for the one method without a teacher.
GRPO = ["uecr.method.name=grpo", "uecr.teacher=null"]
PAPER = {ablations.__name__, baselines.__name__, uecr.__name__}
#: The paper's methods except UECR itself.
OTHERS = [name for name, method in METHODS.items() if method.__module__ in PAPER and name != "uecr"]


def nemo_job(*overrides: str) -> Job:
    """The smaller shipped run inside NeMo-RL, with its teacher named."""
    return accepted(load_recipe(CONFIGS / "uecr_qwen3_1p7b.yaml", [*GIVEN["1p7b"], *overrides]))


def refusal(*overrides: str, path: Path = DEMO) -> str:
    """The one line that a configuration is refused with."""
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message
