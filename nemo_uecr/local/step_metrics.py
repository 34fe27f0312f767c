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
from nemo_uecr.core.methods import Advantages
from nemo_uecr.local.batch import StepBatch
from nemo_uecr.local.update import UpdateOutcome
from nemo_uecr.telemetry.metrics import agreement_metrics, described, method_metrics, ratio_metrics, teacher_metrics
from nemo_uecr.verifier.rewards import component_metrics


class Stopwatch:
    """Seconds of a step and of each of its phases."""

    def __init__(self) -> None:
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
    config: Config,
) -> dict[str, float]:
    """Every metric of the step but the times."""
    scored, responses = batch.scored, len(batch.sequences.responses)
    truncated_B = batch.truncated()
    clip = {"clip_low": config.loss.clip_low, "clip_high": config.loss.clip_high}
    kibi = 1 / 1024 if sys.platform == "darwin" else 1  # macOS reports bytes, Linux kibibytes
    metrics = {
        **method_metrics(
            scored, advantages, config.method, residuals, correct_B=batch.correct(), truncated_B=truncated_B
        ),
        **component_metrics(batch.outcomes),
        **ratio_metrics(outcome.ratio_N, outcome.first_ratio_N, far=config.tolerances.first_ratio_p99, **clip),
        "policy/loss": statistics.fmean(outcome.loss),
        "policy/pg_loss": statistics.fmean(outcome.surrogate),
        "policy/grad_norm": statistics.fmean(outcome.grad_norm),
        "policy/learning_rate": outcome.learning_rate,
        "count/prompts": float(torch.unique(batch.group_B).numel()),
        "count/unique_prompts": float(len({prompt.problem.id for prompt in batch.sequences.prompts})),
        "count/trajectories": float(responses),
        "count/rewarded": float(len(batch.outcomes)),
        "count/trained": float(torch.unique(outcome.place_N2[:, 0]).numel()),
        "count/valid_tokens": float(outcome.ratio_N.numel()),
        "count/optimizer_steps": float(outcome.optimizer_steps),
        "count/global_steps": float(batch.step),
        "memory/peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * kibi / 1024,
    }
    if scored.teacher_logp_BT is not None and batch.reading is not None:
        ends_BT = batch.reading.ends_BT & advantages.trained(scored.mask_BT)
        if ends_BT.any():
            metrics["teacher/end_gap_mean"] = float((scored.teacher_logp_BT - scored.old_logp_BT)[ends_BT].mean())
    if config.teachers and batch.reading is not None:
        metrics |= teacher_metrics(scored, advantages, batch.reading.names)
    metrics |= _agreement(batch, advantages, several=bool(config.teachers))
    if batch.teacher is not None and batch.teacher.dropped_BT is not None:  # NaN of teachers that were not cut
        dropped_N = batch.teacher.dropped_BT[advantages.trained(scored.mask_BT)]
        metrics |= described({"teacher/dropped_mass": dropped_N[dropped_N.isfinite()]})
    if config.loss.reference_kl > 0:
        metrics["policy/ref_kl"] = statistics.fmean(outcome.reference_kl)
    if torch.cuda.is_available():
        metrics["memory/peak_gpu_mb"] = torch.cuda.max_memory_allocated() / 1024**2
        torch.cuda.reset_peak_memory_stats()
    return metrics


def _agreement(batch: StepBatch, advantages: Advantages, *, several: bool) -> dict[str, float]:
    student_NK, teacher_NK = batch.student.top_NK, None if batch.teacher is None else batch.teacher.top_NK
    if student_NK is None or teacher_NK is None or batch.reading is None or batch.reading.places is None:
        return {}
    row_N, column_N = batch.reading.places.at_BT.nonzero(as_tuple=True)
    kept_N = advantages.trained(batch.scored.mask_BT)[row_N, column_N]
    names = [batch.reading.names[row] for row in row_N[kept_N].tolist()]
    return agreement_metrics(student_NK[kept_N], teacher_NK[kept_N], names if several else [])
