"""Puts the numbers of one step under their names."""

from __future__ import annotations

import resource
import statistics
import sys

import torch

from nemo_uecr.config.schema import Config
from nemo_uecr.core.methods import Advantages
from nemo_uecr.local.batch import StepBatch
from nemo_uecr.local.update import UpdateOutcome
from nemo_uecr.steps.metrics import count_metrics, ratio_metrics, scored_metrics
from nemo_uecr.verifier.rewards import component_metrics


def step_metrics(
    batch: StepBatch,
    advantages: Advantages,
    residuals: dict[str, float],
    outcome: UpdateOutcome,
    config: Config,
) -> dict[str, float]:
    """Every metric of the step but the times."""
    record, clip = batch.record, {"clip_low": config.loss.clip_low, "clip_high": config.loss.clip_high}
    kibi = 1 / 1024 if sys.platform == "darwin" else 1  # macOS reports bytes, Linux kibibytes
    metrics = {
        **scored_metrics(record, advantages, config.method, residuals),
        **component_metrics(batch.outcomes),
        **ratio_metrics(outcome.ratio_N, outcome.first_ratio_N, far=config.tolerances.first_ratio_p99, **clip),
        "policy/loss": statistics.fmean(outcome.loss),
        "policy/pg_loss": statistics.fmean(outcome.surrogate),
        "policy/grad_norm": statistics.fmean(outcome.grad_norm),
        "policy/learning_rate": outcome.learning_rate,
        **count_metrics(
            record,
            trained=int(torch.unique(outcome.place_N2[:, 0]).numel()),
            tokens=outcome.ratio_N.numel(),
            optimizer_steps=outcome.optimizer_steps,
        ),
        "memory/peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * kibi / 1024,
    }
    if record.teacher is not None and batch.inputs is not None:
        ends_BT = batch.inputs.ends_BT & advantages.trained(record.mask_BT)
        if ends_BT.any():
            metrics["teacher/end_gap_mean"] = float(record.scored.gap_BT[ends_BT].mean())
    if config.loss.reference_kl > 0:
        metrics["policy/ref_kl"] = statistics.fmean(outcome.reference_kl)
    if torch.cuda.is_available():
        metrics["memory/peak_gpu_mb"] = torch.cuda.max_memory_allocated() / 1024**2
        torch.cuda.reset_peak_memory_stats()
    return metrics
