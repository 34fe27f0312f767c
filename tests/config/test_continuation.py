"""Which keys a resumed run may change, and what is said of the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_uecr.config.load import check_same_configuration, load_config
from nemo_uecr.errors import CheckpointError

DEMO = Path(__file__).resolve().parents[2] / "examples" / "configs" / "local" / "demo.yaml"
WHERE = Path("runs/one/config.yaml")


def check(saved: list[str], now: list[str]) -> None:
    before = load_config(DEMO, saved).config.model_dump(mode="json")
    check_same_configuration(WHERE, load_config(DEMO, now).config, before)


@pytest.mark.parametrize(
    "override",
    ["train.steps=999", "run.folder=elsewhere", "checkpoint.every=3", "telemetry.save_batch_every=7"],
)
def test_what_is_written_and_how_long_may_change(override: str) -> None:
    check([], [override])


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("run.seed=77", "run.seed=77, this run has "),
        ("method.name=puu", "method.name='puu', this run has "),
    ],
)
def test_what_is_trained_may_not(override: str, said: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        check([override], [])
    assert str(caught.value).startswith(f"{WHERE} was written with {said}")
    assert str(caught.value).endswith("resume with the same configuration or choose another run.folder")


def test_the_first_difference_in_alphabetical_order_is_named() -> None:
    with pytest.raises(CheckpointError, match=r"with loss\.clip_low=0\.11, this run has "):
        check(["run.seed=77", "loss.clip_low=0.11"], [])
