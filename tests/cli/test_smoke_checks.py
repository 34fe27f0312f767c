"""What `smoke` looks at after a run: the worst residuals, and the reductions on the saved batches."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from nemo_uecr.cli.train import check_reductions, worst_residuals
from nemo_uecr.core.methods import METHODS
from nemo_uecr.data.batch_file import save_batch
from nemo_uecr.errors import InvariantError


def saved_run(folder: Path, *, teacher: bool) -> Path:
    """A run folder with one saved batch of 4 groups of 4 responses, one group all right, ragged masks."""
    generator = torch.Generator().manual_seed(0)
    responses, tokens = 16, 12
    mask = torch.rand(responses, tokens, generator=generator) < 0.8
    mask[:, 0] = True
    reward = (torch.rand(responses, generator=generator) < 0.5).float()
    reward[:4] = 1.0
    tensors = {
        "task_reward": reward,
        "group": torch.arange(responses) // 4,
        "mask": mask,
        "old_logp": -3 * torch.rand(responses, tokens, generator=generator),
    }
    if teacher:
        tensors["teacher_logp"] = -3 * torch.rand(responses, tokens, generator=generator)
        tensors["teacher_entropy"] = 2 * torch.rand(responses, tokens, generator=generator)
    (folder / "batches").mkdir(parents=True)
    save_batch(folder / "batches" / "step-000001.safetensors", tensors, method="uecr", settings={}, step=1)
    return folder


def test_both_reductions_are_compared_on_a_batch(tmp_path: Path) -> None:
    assert check_reductions(saved_run(tmp_path, teacher=True)) == 2


def test_a_difference_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "puu", METHODS["separate_norm"])
    with pytest.raises(InvariantError, match="uecr with rho = 0 differs from puu by up to"):
        check_reductions(saved_run(tmp_path, teacher=True))


def test_the_worst_residual_of_every_step(tmp_path: Path) -> None:
    lines = [
        '{"step": 1, "identity/budget_error": 1e-7, "policy/loss": 9.0, "policy/first_ratio_error": 0.0}',
        '{"step": 2, "identity/budget_error": 3e-7, "policy/loss": 9.0, "policy/first_ratio_error": 2e-6}',
        '{"step": 3, "identity/budget_error": 2e-7, "policy/loss": 9.0, "policy/first_ratio_error": 1e-6}',
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert worst_residuals(tmp_path) == {"identity/budget_error": 3e-7, "policy/first_ratio_error": 2e-6}
