"""The local back end on a GPU: what makes room there changes no number, and makes room."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

from nemo_uecr.local.memory import Placement
from nemo_uecr.scoring.dense import token_scores
from nemo_uecr.scoring.statistics import deferred_checks
from tests.local.tiny import metrics, run

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")]


def test_what_is_offloaded_leaves_the_gpu_and_comes_back_as_it_was() -> None:
    weights = [torch.randn(1000, 1000) for _ in range(8)]
    expected = [weight.clone() for weight in weights]
    before = torch.cuda.memory_allocated()
    placement = Placement("all", torch.device("cuda"), {"teacher": lambda: weights})
    for _ in range(3):
        placement.move_to_device("teacher")
        assert torch.cuda.memory_allocated() - before >= sum(weight.nbytes for weight in weights)
        assert all(torch.equal(weight.cpu(), one) for weight, one in zip(weights, expected, strict=True))
        placement.move_to_device()
        assert torch.cuda.memory_allocated() == before
        assert all(weight.is_pinned() for weight in weights)


def test_the_host_waits_once_for_any_number_of_calls_checked_together() -> None:
    logits, target = torch.randn(65, 9000, device="cuda"), torch.arange(65, device="cuda")

    def waits(calls: int) -> int:
        with warnings.catch_warnings(record=True) as seen, deferred_checks():
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            for _ in range(calls):
                token_scores(logits, target, temperatures=(1.0, 0.7), entropy=True)
        torch.cuda.set_sync_debug_mode("default")
        return sum("synchroniz" in str(warning.message) for warning in seen)

    waits(1)  # the first brings the temperatures to the device
    assert max(waits(1), waits(4)) <= 1


@pytest.mark.parametrize("change", ["train.activation_checkpointing=true", "offload=teacher", "offload=all"])
def test_keys_that_make_room_change_no_number(change: str, tmp_path: Path) -> None:
    plain = run(tmp_path / "plain", "device=cuda", "train.steps=3")
    other = run(tmp_path / "other", "device=cuda", "train.steps=3", change)
    assert metrics(plain) == metrics(other)


def test_a_deterministic_run_repeats_itself(tmp_path: Path) -> None:
    keys = ("device=cuda", "train.steps=3", "student.dtype=bfloat16", "train.deterministic=true")
    once, again = (run(tmp_path / name, *keys) for name in ("once", "again"))
    assert metrics(once) == metrics(again)
    name = "checkpoints/step-000003/model.safetensors"
    assert (once / name).read_bytes() == (again / name).read_bytes()
