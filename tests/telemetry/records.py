"""What a run writes: the metrics of a step that progress shows, and an evaluation."""

from __future__ import annotations

STEP = {
    "reward/task_mean": 0.25,
    "group/mixed_share": 0.5,
    "response/length_mean": 4.0,
    "response/truncated_share": 0.19,
    "policy/grad_norm": 1.0,
    "time/step_s": 0.1,
}
EVALUATION = {
    "step": 0,
    "average": {"avg": 0.5, "low": 0.25, "high": 0.75},
    "samples": 12,
    "seconds": 1.0,
    "sets": {"a": {"avg": 0.5}},
}
