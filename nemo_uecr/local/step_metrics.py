"""Puts the numbers of one step under their names."""

from __future__ import annotations

import resource
import statistics
import sys
from collections.abc import Sequence

import torch

from nemo_uecr.config.schema import Config, TolerancesConfig
from nemo_uecr.core.records import Advantages, ScoredBatch, Settings
from nemo_uecr.errors import InvariantError
from nemo_uecr.local.batch import StepBatch
from nemo_uecr.local.update import UpdateOutcome
from nemo_uecr.telemetry import metrics as batch_metrics
from nemo_uecr.telemetry.metrics import identity_metrics, method_metrics

MEBI = 1_048_576


def step_metrics(
    batch: StepBatch,
    scored: ScoredBatch,
    advantages: Advantages,
    residuals: dict[str, float],
    outcome: UpdateOutcome,
    settings: Settings,
    config: Config,
) -> dict[str, float]:
    """Every metric of the step but the times."""
    clip = {"clip_low": config.loss.clip_low, "clip_high": config.loss.clip_high}
    return {
        **method_metrics(scored, advantages, settings, noise=config.method.scoring_noise),
        **batch_metrics.ratio_metrics(outcome.ratio_N, outcome.first_ratio_N, **clip),
        **batch_metrics.length_metrics(scored.mask_BT, batch.truncated()),
        **identity_metrics(residuals),
        **_policy(batch, scored, outcome, with_kl=config.loss.reference_kl > 0),
        **_counts(batch, outcome, config),
        **_memory(),
    }


def check_ratios(outcome: UpdateOutcome, sample_ids: Sequence[str], tolerances: TolerancesConfig) -> None:
    """Refuse ratios that show a fault: ``r = pi_theta / pi_old`` is 1 before any update, and has a logarithm after one.

    Raises:
        InvariantError: If the first optimizer step's ratio is further from 1 than ``tolerances.first_ratio``, which is
            a scoring fault, or if a ratio is 0 or not finite; naming the worst or the first such response and token.
    """
    off_N = (outcome.first_ratio_N.double() - 1.0).abs()
    worst = int(off_N.argmax())
    if not float(off_N[worst]) <= tolerances.first_ratio:
        raise InvariantError(
            f"the PPO ratio of the first update is off 1 by {float(off_N[worst]):.3g} at "
            f"{_token_name(outcome, worst, sample_ids)}; expected at most "
            f"tolerances.first_ratio={tolerances.first_ratio:g}, because nothing was updated yet"
        )
    bad = (~outcome.ratio_N.double().log().isfinite()).nonzero()
    if bad.numel():
        first = int(bad[0])
        raise InvariantError(
            f"the PPO ratio is {float(outcome.ratio_N[first])} at {_token_name(outcome, first, sample_ids)}; expected "
            "a finite number above 0. One update moved the policy too far: lower train.learning_rate"
        )


def _token_name(outcome: UpdateOutcome, place: int, sample_ids: Sequence[str]) -> str:
    row, token = outcome.place_N2[place].tolist()
    return f"response {row} ({sample_ids[row]}) at token {token}"


def _policy(batch: StepBatch, scored: ScoredBatch, outcome: UpdateOutcome, *, with_kl: bool) -> dict[str, float]:
    metrics = {
        "policy/loss": statistics.fmean(outcome.loss),
        "policy/pg_loss": statistics.fmean(outcome.surrogate),
        "policy/grad_norm": statistics.fmean(outcome.grad_norm),
        "policy/learning_rate": outcome.learning_rate,
    }
    if batch.student.entropy_BT is not None:
        metrics["policy/entropy"] = float(batch.student.entropy_BT[scored.mask_BT].double().mean())
    if with_kl:
        metrics["policy/ref_kl"] = statistics.fmean(outcome.reference_kl)
    return metrics


def _counts(batch: StepBatch, outcome: UpdateOutcome, config: Config) -> dict[str, float]:
    dropped = int(batch.truncated().sum()) if config.rollout.overlong_filter else 0
    problems = {prompt.problem.id for prompt in batch.sequences.prompts}
    return {
        "count/prompts": float(torch.unique(batch.group_B).numel()),
        "count/unique_prompts": float(len(problems)),
        "count/trajectories": float(len(batch.sequences.responses)),
        "count/rewarded": float(len(batch.checked)),
        "count/trained": float(len(batch.sequences.responses) - dropped),
        "count/valid_tokens": float(outcome.ratio_N.numel()),
        "count/optimizer_steps": float(outcome.optimizer_steps),
    }


def _memory() -> dict[str, float]:
    # Linux reports kibibytes, macOS bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    metrics = {"memory/peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / MEBI}
    if torch.cuda.is_available():
        metrics["memory/peak_gpu_mb"] = torch.cuda.max_memory_allocated() / MEBI
        torch.cuda.reset_peak_memory_stats()
    return metrics
