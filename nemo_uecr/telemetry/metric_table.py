"""Every metric once: name, unit, how it is reduced, what it means, and, of a mean, what it is the mean of.

A metric that a method does not have is absent from the records, never zero. To add one, add its line: a statistic of
a quantity that steps/metrics.py knows by its name, or the mean of what a function makes of the step.
`tools/pages.py` writes docs/metrics.md from this table. It imports no torch: a report reads it, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nemo_uecr.core import GAP_CLIP

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_uecr.core.methods import Advantages
    from nemo_uecr.core.record import ScoredBatch


@dataclass(frozen=True)
class Step:
    """What a metric of a step is made of; B responses, T tokens."""

    batch: ScoredBatch
    advantages: Advantages
    trained_BT: Tensor  # sampled tokens in the loss
    flat_B: Tensor  # responses of groups whose task rewards are all equal
    correct_B: Tensor
    truncated_B: Tensor


@dataclass(frozen=True)
class Metric:
    """A line of the table."""

    name: str
    unit: str
    reduction: str
    meaning: str
    #: The numbers, or the choice of True, whose mean it is; None, or an empty tensor, where the step has none.
    mean_of: Callable[[Step], Tensor | None] | None = None


def _sign_flips(step: Step) -> Tensor | None:
    unified_B, task_B = step.advantages.advantage_unified_B, step.advantages.advantage_task_B
    return None if unified_B is None or task_B is None else (unified_B * task_B < 0)[~step.flat_B]


def _kept(step: Step) -> Tensor | None:
    return None if step.advantages.loss_mask_BT is None else step.trained_BT[step.batch.mask_BT]


def _student_entropy(step: Step) -> Tensor | None:
    entropy_BT = step.batch.student_entropy_BT
    return None if entropy_BT is None else entropy_BT[step.trained_BT]


def _clipped_gaps(step: Step) -> Tensor | None:
    return None if step.batch.teacher_logp_BT is None else step.batch.gap_BT[step.trained_BT].abs() > GAP_CLIP


_TABLE: tuple[tuple[str, str, str, str] | tuple[str, str, str, str, Callable[[Step], Tensor | None]], ...] = (
    ("reward/task_mean", "1", "mean over responses", "task reward R^task, the weighted sum of `reward`"),
    ("reward/task_std", "1", "std over responses", "task reward R^task"),
    ("reward/NAME/mean", "1", "mean over responses", "component NAME of R^task, before its weight"),
    ("reward/NAME/failed", "responses", "sum", "responses on which its function failed or took too long; it counts 0"),
    ("reward/teacher_mean", "nats", "mean over responses", "teacher reward R^T, token mean of the clipped gap"),
    ("reward/teacher_std", "nats", "std over responses", "teacher reward R^T"),
    ("reward/unified_mean", "1", "mean over responses", "R^U = R^task + alpha R^T"),
    ("reward/unified_std", "1", "std over responses", "R^U = R^task + alpha R^T"),
    ("group/count", "groups", "sum", "prompt groups in the batch"),
    ("group/degenerate_share", "share", "mean over groups", "groups whose task rewards are all equal (zero variance)"),
    ("group/all_right_share", "share", "mean over groups", "groups in which every response is correct"),
    ("group/all_wrong_share", "share", "mean over groups", "groups in which no response is correct"),
    ("group/mixed_share", "share", "mean over groups", "groups with correct and other responses"),
    ("group/teacher_only_share", "share", "mean over groups", "degenerate groups whose R^T range over 0.05 nats"),
    ("group/below_noise_share", "share", "mean over groups", "groups with a normalised std below method.scoring_noise"),
    ("advantage/mean", "1", "mean over tokens", "final token advantage"),
    ("advantage/std", "1", "std over tokens", "final token advantage"),
    ("advantage/min", "1", "min over tokens", "final token advantage"),
    ("advantage/max", "1", "max over tokens", "final token advantage"),
    ("advantage/abs_mean", "1", "mean over tokens", "magnitude of the final token advantage"),
    ("advantage/unified_abs_mean", "1", "mean over responses", "magnitude of A^U"),
    ("advantage/task_abs_mean", "1", "mean over responses", "magnitude of A^task|U"),
    ("advantage/teacher_abs_mean", "1", "mean over responses", "magnitude of alpha A^T|U"),
    (
        "advantage/sign_flip_share",
        "share",
        "mean over responses of mixed groups",
        "A^U and A^task of opposite sign",
        _sign_flips,
    ),
    ("advantage/degenerate_abs_mean", "1", "mean over tokens", "magnitude of the final advantage in degenerate groups"),
    ("advantage/degenerate_abs_max", "1", "max over tokens", "magnitude of the final advantage in degenerate groups"),
    (
        "advantage/trained_share",
        "share",
        "mean over sampled tokens",
        "tokens that the method's mask keeps in the loss; every other metric over tokens is then over these",
        _kept,
    ),
    ("policy/loss", "1", "token mean, mean over updates", "actor loss: surrogates plus reference KL"),
    ("policy/pg_loss", "1", "token mean, mean over updates", "clipped surrogates alone"),
    ("policy/ref_kl", "nats", "token mean, mean over updates", "low-variance KL to the reference, unscaled"),
    ("policy/behind_kl", "nats", "token mean, mean over updates", "KL(mu || pi): mu sampled, pi is before the update"),
    ("policy/lag", "steps", "mean over responses", "steps by which mu is older than pi"),
    ("policy/ratio_mean", "1", "mean over tokens", "pi_theta / pi_old at the rollout temperature"),
    ("policy/ratio_min", "1", "min over tokens", "pi_theta / pi_old at the rollout temperature"),
    ("policy/ratio_max", "1", "max over tokens", "pi_theta / pi_old at the rollout temperature"),
    ("policy/clip_low_share", "share", "mean over tokens", "tokens with ratio below 1 - clip_low"),
    ("policy/clip_high_share", "share", "mean over tokens", "tokens with ratio above 1 + clip_high"),
    ("policy/approx_kl", "nats", "mean over tokens", "r - 1 - log r, an estimate of KL(old, new)"),
    (
        "policy/entropy",
        "nats",
        "mean over tokens",
        "entropy of the old student policy at temperature 1",
        _student_entropy,
    ),
    ("policy/grad_norm", "1", "mean over optimizer steps", "gradient norm before clipping"),
    ("policy/learning_rate", "1", "last optimizer step", "learning rate"),
    ("policy/rollout_gap", "nats", "mean over tokens", "|log pi_old - log pi_vLLM| at temperature 1"),
    ("policy/first_ratio_error", "1", "max over tokens", "|ratio - 1| in the first optimizer step, before any update"),
    ("policy/first_ratio_mean", "1", "mean over tokens", "|ratio - 1| there; limit tolerances.first_ratio"),
    ("policy/first_ratio_far_share", "share", "mean over tokens", "tokens above tolerances.first_ratio_p99; limit 1 %"),
    ("response/length_mean", "tokens", "mean over responses", "sampled tokens, the end token included"),
    ("response/length_min", "tokens", "min over responses", "sampled tokens"),
    ("response/length_max", "tokens", "max over responses", "sampled tokens"),
    (
        "response/truncated_share",
        "share",
        "mean over responses",
        "responses at the token limit without an end token",
        lambda step: step.truncated_B,
    ),
    ("turns/count_mean", "turns", "mean over responses", "turns of the student, where an environment answers them"),
    ("turns/count_max", "turns", "max over responses", "turns of the student"),
    ("turns/observed_share", "share", "mean over tokens", "tokens after the prompt that were observed, not sampled"),
    ("turns/failed", "responses", "sum", "responses whose environment failed or took too long; its reward counts 0"),
    ("turns/call_errors", "calls", "sum", "calls of tools that failed, of which the student reads why"),
    ("turns/first_gap_mean", "nats", "mean over first tokens", "delta where a turn begins after an observation"),
    ("turns/teacher_reward_rest", "nats", "mean over responses", "R^T without these first tokens"),
    ("count/prompts", "prompts", "sum", "prompts drawn for the step"),
    ("count/unique_prompts", "prompts", "sum", "different problems among them"),
    ("count/trajectories", "responses", "sum", "responses generated"),
    ("count/rewarded", "responses", "sum", "responses with a task reward"),
    ("count/trained", "responses", "sum", "responses with at least one token in the loss"),
    ("count/valid_tokens", "tokens", "sum", "tokens in the loss"),
    ("count/global_steps", "steps", "last", "rollout batches trained on so far"),
    ("count/optimizer_steps", "steps", "last", "optimizer steps taken so far"),
    ("teacher/gap_mean", "nats", "mean over tokens", "delta = log pi_T - log pi_old, unclipped"),
    ("teacher/end_gap_mean", "nats", "mean over end tokens", "delta where the student ended its response"),
    ("teacher/gap_std", "nats", "std over tokens", "delta"),
    ("teacher/gap_abs_mean", "nats", "mean over tokens", "magnitude of delta"),
    ("teacher/gap_min", "nats", "min over tokens", "delta"),
    ("teacher/gap_max", "nats", "max over tokens", "delta"),
    ("teacher/gap_clip_share", "share", "mean over tokens", "tokens whose gap lies outside -5..5", _clipped_gaps),
    ("teacher/entropy_mean", "nats", "mean over tokens", "full-vocabulary teacher entropy H^T"),
    ("teacher/entropy_std", "nats", "std over tokens", "H^T"),
    ("teacher/entropy_max", "nats", "max over tokens", "H^T"),
    ("teacher/top1_agreement", "share", "mean over sampled tokens", "same most likely token; not of a URL teacher"),
    ("teacher/top20_overlap", "share", "mean over sampled tokens", "tokens in both top 20s; not of a URL teacher"),
    ("teacher/dropped_mass_mean", "share", "mean over tokens", "probability of the columns that the student lacks"),
    ("teacher/dropped_mass_max", "share", "max over tokens", "the same"),
    ("teacher/NAME/response_share", "share", "mean over responses", "responses that this teacher of `teachers` scores"),
    ("teacher/NAME/gap_mean", "nats", "mean over tokens", "delta; tokens that this teacher scores"),
    ("teacher/NAME/gap_std", "nats", "std over tokens", "delta; tokens that this teacher scores"),
    ("teacher/NAME/entropy_mean", "nats", "mean over tokens", "H^T; tokens that this teacher scores"),
    ("teacher/NAME/top1_agreement", "share", "mean over its sampled tokens", "same most likely token"),
    ("teacher/NAME/top20_overlap", "share", "mean over its sampled tokens", "tokens in both top 20s"),
    ("teacher/NAME/reward_range_mean", "nats", "mean over responses", "max - min of R^T in groups that it scores"),
    ("ecr/confidence_mean", "1", "mean over tokens", "ECR's confidence c"),
    ("ecr/direction_abs_mean", "1", "mean over tokens", "magnitude of d"),
    ("ecr/centre_mean", "1", "mean over responses", "mu^c"),
    ("ecr/centre_abs_max", "1", "max over responses", "magnitude of mu^c"),
    ("ecr/residual_abs_mean", "1", "mean over tokens", "magnitude of q"),
    ("ecr/residual_abs_max", "1", "max over tokens", "magnitude of q"),
    ("ecr/weight_mean", "1", "mean over tokens", "token weight w"),
    ("ecr/weight_min", "1", "min over tokens", "token weight w"),
    ("ecr/weight_max", "1", "max over tokens", "token weight w"),
    (
        "trust/kappa",
        "1",
        "after the step's batch",
        "how far the teacher is trusted: 0 GRPO, 1 UECR and its tokens (uecr_trust)",
    ),
    ("trust/lead", "1", "fading sum over mixed groups", "how far the teacher keeps right responses before wrong ones"),
    ("trust/groups", "groups", "fading sum", "mixed groups that kappa rests on"),
    ("identity/finite", "tokens", "max over responses", "advantages that are not finite"),
    ("identity/decomposition_error", "1", "max over responses", "A^U - (A^task|U + alpha A^T|U), relative"),
    ("identity/budget_error", "1", "max over responses", "|mean of w - 1| over a response, or of A less A^U, relative"),
    ("identity/residual_bound", "1", "max over responses", "excess of q over 1 in magnitude"),
    ("identity/sign_kept", "tokens", "max over responses", "weights that are not positive, signs that flip"),
    ("identity/log_weight", "1", "max over responses", "mean log weight of a positive response (distilled_rl)"),
    ("evaluation/avg", "share", "mean over sets", "avg@k after the step, all sets weighing the same"),
    ("evaluation/low", "share", "2.5% quantile", "lower end of its 95% interval over problems"),
    ("evaluation/high", "share", "97.5% quantile", "upper end of its 95% interval over problems"),
    ("memory/peak_rss_mb", "MiB", "max", "peak resident memory of the process"),
    ("memory/peak_gpu_mb", "MiB", "max", "peak allocated GPU memory since the step began"),
    ("time/rollout_s", "s", "sum", "sampling the responses"),
    ("time/verify_s", "s", "sum", "judging them"),
    ("time/score_student_s", "s", "sum", "old policy at T_r and 1, from one forward"),
    ("time/score_teacher_s", "s", "sum", "teacher log-probability and entropy"),
    ("time/score_reference_s", "s", "sum", "reference policy"),
    ("time/advantage_s", "s", "sum", "advantages, identities and statistics"),
    ("time/update_s", "s", "sum", "forward, backward and optimizer"),
    ("time/evaluate_s", "s", "sum", "evaluation after the step"),
    ("time/save_s", "s", "sum", "saving the checkpoint before this step"),
    ("time/step_s", "s", "sum", "the whole step"),
    ("throughput/rollout_tokens_per_s", "tokens/s", "mean", "sampled tokens by rollout time"),
    ("throughput/tokens_per_s", "tokens/s", "mean", "sampled tokens by step time"),
)

#: Upper edges of the entropy bins, nats; the last bin is open. Fixed, so that steps and runs can be compared.
ENTROPY_EDGES = (0.01, 0.1, 1.0)

#: What a token belongs to: split -> (suffix, whose tokens).
SPLITS: dict[str, tuple[tuple[str, str], ...]] = {
    "outcome": (("right", "responses that are correct"), ("wrong", "responses that are not correct")),
    "position": (
        ("q1", "the first quarter of a response"),
        ("q2", "the second quarter of a response"),
        ("q3", "the third quarter of a response"),
        ("q4", "the last quarter of a response"),
    ),
    "entropy_bin": (
        ("e1", "teacher entropy below 0.01 nats"),
        ("e2", "teacher entropy from 0.01 to 0.1 nats"),
        ("e3", "teacher entropy from 0.1 to 1 nats"),
        ("e4", "teacher entropy of 1 nat or more"),
    ),
}

#: What is split, token by token: name -> (unit, meaning).
SPLIT_VALUES = {
    "advantage_mean": ("1", "final token advantage"),
    "advantage_abs_mean": ("1", "magnitude of the final token advantage"),
    "gap_mean": ("nats", "delta"),
    "gap_abs_mean": ("nats", "magnitude of delta"),
    "entropy_mean": ("nats", "H^T"),
    "weight_mean": ("1", "token weight w"),
}


def _split_metrics() -> Iterator[Metric]:
    for split, bins in SPLITS.items():
        for suffix, whose in bins:
            for value, (unit, meaning) in SPLIT_VALUES.items():
                yield Metric(f"{split}/{value}_{suffix}", unit, "mean over tokens", f"{meaning}; {whose}")
            yield Metric(f"{split}/token_share_{suffix}", "share", "mean over tokens", f"tokens of the step; {whose}")
    for suffix, whose in SPLITS["outcome"]:
        yield Metric(f"outcome/length_mean_{suffix}", "tokens", "mean over responses", f"sampled tokens; {whose}")
        yield Metric(f"outcome/teacher_reward_mean_{suffix}", "nats", "mean over responses", f"R^T; {whose}")


METRICS = {metric.name: metric for metric in (*(Metric(*row) for row in _TABLE), *_split_metrics())}


def metric_of(name: str) -> Metric | None:
    """The line of a metric; in ``reward/NAME/mean`` and its like, NAME stands for a name of the user's."""
    return METRICS.get(re.sub(r"/[^/]+/", "/NAME/", name))


_ERRORS = {"budget": "budget_error", "decomposition": "decomposition_error"}


def identity_name(identity: str) -> str:
    """Name of the metric that has an identity's worst residual of a step."""
    return f"identity/{_ERRORS.get(identity, identity)}"
