"""What `smoke` looks at after each short run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_uecr.errors import InvariantError

if TYPE_CHECKING:
    from nemo_uecr.core.records import ScoredBatch, Settings

__all__ = ["check_reductions", "worst_residuals"]


def worst_residuals(folder: Path) -> dict[str, float]:
    """Largest residual of every identity over the steps of a run, by metric name."""
    worst: dict[str, float] = {}
    for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        for name, value in json.loads(line).items():
            if name.startswith("identity/") or name == "policy/first_ratio_error":
                worst[name] = max(worst.get(name, 0.0), value)
    return worst


def check_reductions(folder: Path) -> int:
    """UECR without its novel parts is its baselines, on every saved batch that has the teacher's scores.

    `rho = 0` gives PUU's advantages and `alpha = rho = 0` gives GRPO's, bit for bit.

    Args:
        folder: a run whose batches were saved.

    Returns:
        How many reductions were compared; 0 where the run has no teacher.

    Raises:
        InvariantError: an advantage differs.
    """
    from nemo_uecr.core.records import Settings
    from nemo_uecr.data.batch_file import load_batch, scored_batch

    compared = 0
    for path in sorted((folder / "batches").glob("*.safetensors")):
        batch = scored_batch(load_batch(path), path)
        if batch.teacher_logp_BT is None or batch.teacher_entropy_BT is None:
            continue
        neutral = Settings(alpha=1.0, rho=0.0, tau_delta=1.0, tau_entropy=1.0, std_floor=0.0, sample_std=False)
        _compare(path, batch, neutral, "puu", "rho = 0")
        _compare(path, batch, replace(neutral, alpha=0.0), "grpo", "alpha = rho = 0")
        compared += 2
    return compared


def _compare(path: Path, batch: ScoredBatch, neutral: Settings, baseline: str, condition: str) -> None:
    from nemo_uecr.core.methods import METHODS

    reduced = METHODS["uecr"].compute(batch, neutral).advantage_BT
    expected = METHODS[baseline].compute(batch, neutral).advantage_BT
    if not bool((reduced == expected).all()):
        worst = float((reduced - expected).abs().max())
        raise InvariantError(
            f"{path}: uecr with {condition} differs from {baseline} by up to {worst:.3g}, expected equal bits"
        )
