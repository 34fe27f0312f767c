"""Puts the numbers of one step under their names, and the times of its phases."""

from __future__ import annotations

import contextlib
import resource
import statistics
import sys
import time
from collections.abc import Iterator

import torch

from nemo_uecr.config.schema import Config
from nemo_uecr.core.records import Advantages, Settings
from nemo_uecr.local.batch import StepBatch
from nemo_uecr.local.update import UpdateOutcome
from nemo_uecr.telemetry.metrics import method_metrics, ratio_metrics

MEBI = 1_048_576


class Stopwatch:
    """Seconds of a step and of each of its phases."""

    def __init__(self) -> None:
        """Start the step's clock."""
        self._started = time.perf_counter()
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase."""
        started = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started

    def metrics(self, tokens: int) -> dict[str, float]:
        """The step's metrics of time; ``tokens`` are those it sampled."""
        total = time.perf_counter() - self._started
        return {
            **{f"time/{name}_s": seconds for name, seconds in self.seconds.items()},
            "time/step_s": total,
            "throughput/rollout_tokens_per_s": tokens / self.seconds["rollout"],
            "throughput/tokens_per_s": tokens / total,
        }


def step_metrics(
    batch: StepBatch,
    advantages: Advantages,
    residuals: dict[str, float],
    outcome: UpdateOutcome,
    settings: Settings,
    config: Config,
) -> dict[str, float]:
    """Every metric of the step but the times."""
    clip = {"clip_low": config.loss.clip_low, "clip_high": config.loss.clip_high}
    return {
        **method_metrics(
            batch.scored,
            advantages,
            settings,
            residuals,
            truncated_B=batch.truncated(),
            noise=config.method.scoring_noise,
        ),
        **ratio_metrics(outcome.ratio_N, outcome.first_ratio_N, **clip),
        **_policy(batch, outcome, with_kl=config.loss.reference_kl > 0),
        **_counts(batch, outcome, config),
        **_memory(),
    }


def _policy(batch: StepBatch, outcome: UpdateOutcome, *, with_kl: bool) -> dict[str, float]:
    metrics = {
        "policy/loss": statistics.fmean(outcome.loss),
        "policy/pg_loss": statistics.fmean(outcome.surrogate),
        "policy/grad_norm": statistics.fmean(outcome.grad_norm),
        "policy/learning_rate": outcome.learning_rate,
    }
    if batch.student.entropy_BT is not None:
        metrics["policy/entropy"] = float(batch.student.entropy_BT[batch.scored.mask_BT].double().mean())
    if with_kl:
        metrics["policy/ref_kl"] = statistics.fmean(outcome.reference_kl)
    return metrics


def _counts(batch: StepBatch, outcome: UpdateOutcome, config: Config) -> dict[str, float]:
    dropped = int(batch.truncated().sum()) if config.rollout.overlong_filter else 0
    return {
        "count/prompts": float(torch.unique(batch.group_B).numel()),
        "count/unique_prompts": float(len({prompt.problem.id for prompt in batch.sequences.prompts})),
        "count/trajectories": float(len(batch.sequences.responses)),
        "count/rewarded": float(len(batch.checked)),
        "count/trained": float(len(batch.sequences.responses) - dropped),
        "count/valid_tokens": float(outcome.ratio_N.numel()),
        "count/optimizer_steps": float(outcome.optimizer_steps),
        "count/global_steps": float(batch.step),
    }


def _memory() -> dict[str, float]:
    unit = 1 if sys.platform == "darwin" else 1024  # Linux reports kibibytes, macOS bytes
    metrics = {"memory/peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / MEBI}
    if torch.cuda.is_available():
        metrics["memory/peak_gpu_mb"] = torch.cuda.max_memory_allocated() / MEBI
        torch.cuda.reset_peak_memory_stats()
    return metrics
