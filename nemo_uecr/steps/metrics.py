"""The numbers of one step, from its record and what `core` makes of it: the same for both back ends.

The table in `telemetry/metric_table.py` decides which statistics of a quantity are recorded: to record the smallest
entropy, give ``teacher/entropy_min`` a line there; to record the mean of anything else, a line with its function.

Shape legend: B = responses, P = groups, T = tokens, N = sampled tokens.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from nemo_uecr.config.schema import TolerancesConfig
from nemo_uecr.core import GAP_CLIP, GAP_RANGE
from nemo_uecr.core.agreement import agreement
from nemo_uecr.core.methods import Advantages, Method
from nemo_uecr.core.methods.base import Grouped
from nemo_uecr.core.methods.uecr import Puu
from nemo_uecr.core.record import ScoredBatch
from nemo_uecr.errors import InvariantError
from nemo_uecr.generation.environments import Episode
from nemo_uecr.steps.step_record import ComparedTokens, StepRecord, turn_begins
from nemo_uecr.telemetry.metric_table import ENTROPY_EDGES, METRICS, SPLITS, Step, identity_name, metric_of

#: Largest share of the first update's tokens whose ratio may be further from 1 than `tolerances.first_ratio_p99`.
FAR_SHARE = 0.01
#: Nats per token of KL(mu || pi) above which a step is warned of.
FAR_BEHIND = 0.01

log = logging.getLogger(__name__)
STATISTICS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": Tensor.mean,
    "std": lambda value: value.std(correction=0),
    "min": Tensor.min,
    "max": Tensor.max,
    "abs_mean": lambda value: value.abs().mean(),
    "abs_max": lambda value: value.abs().max(),
}


class Stopwatch:
    """Seconds of a step and of each of its phases."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase."""
        started = time.perf_counter()
        yield
        self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - started

    def phases(self) -> dict[str, float]:
        """The metric of each phase."""
        return {f"time/{name}_s": seconds for name, seconds in self._seconds.items()}

    def metrics(self, tokens: int) -> dict[str, float]:
        """The step's metrics of time; ``tokens`` are those it sampled."""
        total = time.perf_counter() - self._started
        metrics = {**self.phases(), "time/step_s": total, "throughput/tokens_per_s": tokens / total}
        if "rollout" in self._seconds:  # a resumed step may find its responses drawn
            metrics["throughput/rollout_tokens_per_s"] = tokens / self._seconds["rollout"]
        return metrics


def scored_metrics(
    record: StepRecord, advantages: Advantages, method: Method, residuals: Mapping[str, float]
) -> dict[str, float]:
    """Every metric of rewards, scores and advantages; ``residuals`` has the largest violation of each identity."""
    trained_BT = advantages.trained(record.mask_BT)
    metrics = method_metrics(
        record.scored, advantages, method, residuals, correct_B=record.correct_B, truncated_B=record.truncated_B
    )
    metrics |= teacher_metrics(record.scored, advantages, record.teachers)
    if record.teacher is not None and record.teacher.dropped_BT is not None:
        dropped_N = record.teacher.dropped_BT[trained_BT]
        metrics |= described({"teacher/dropped_mass": dropped_N[dropped_N.isfinite()]})  # NaN where nothing is dropped
    if record.compared is not None:
        metrics |= agreement_metrics(record.compared, trained_BT, record.teachers)
    return metrics


def count_metrics(record: StepRecord, *, trained: int, tokens: int, optimizer_steps: int) -> dict[str, float]:
    """Counts of the step: ``trained`` responses have a token in the loss, ``tokens`` tokens are in it."""
    return {
        "count/prompts": float(torch.unique(record.group_B).numel()),
        "count/unique_prompts": float(len(set(record.problems))),
        "count/trajectories": float(len(record.mask_BT)),
        "count/rewarded": float(record.task_reward_B.numel()),
        "count/trained": float(trained),
        "count/valid_tokens": float(tokens),
        "count/optimizer_steps": float(optimizer_steps),
        "count/global_steps": float(record.step),
    }


def method_metrics(
    batch: ScoredBatch,
    advantages: Advantages,
    method: Method,
    residuals: Mapping[str, float],
    *,
    correct_B: Tensor,
    truncated_B: Tensor,
) -> dict[str, float]:
    """Rewards, groups, advantages, the teacher's gap, token weights, their splits, lengths and identities.

    ``advantages`` are those of the method, ``residuals`` has the largest violation of each identity.
    """
    tokens = token_values(batch, advantages)
    flat_B, trained_BT = batch.groups.flat(batch.task_reward_B), advantages.trained(batch.mask_BT)
    metrics = described(tokens | response_values(batch, advantages, method))
    metrics |= described({"advantage/degenerate": advantages.advantage_BT[trained_BT & flat_B.unsqueeze(1)]})
    carried = {f"trust/{name}": value for name, value in (advantages.state or {}).items()}
    metrics |= {name: value for name, value in carried.items() if name in METRICS}
    metrics |= table_metrics(Step(batch, advantages, trained_BT, flat_B, correct_B, truncated_B))
    metrics |= group_metrics(batch, advantages, method, correct_B)
    metrics |= split_metrics(batch, advantages, correct_B)
    return metrics | {identity_name(identity): value for identity, value in residuals.items()}


def table_metrics(step: Step) -> dict[str, float]:
    """The metrics that the table itself says how to compute, of those that the step has."""
    found = {name: metric.mean_of(step) for name, metric in METRICS.items() if metric.mean_of is not None}
    return {name: _share(value) for name, value in found.items() if value is not None and value.numel()}


def teacher_metrics(batch: ScoredBatch, advantages: Advantages, names: Sequence[str]) -> dict[str, float]:
    """Scores by each of several teachers, over its own responses; ``names`` has each response's teacher."""
    trained_BT, tokens = advantages.trained(batch.mask_BT), token_values(batch, advantages)
    metrics: dict[str, float] = {}
    for name in sorted(set(names)):
        mine_B = torch.tensor([each == name for each in names])
        mine_N = mine_B.unsqueeze(1).expand(trained_BT.shape)[trained_BT]
        of_teachers = {key: value_N for key, value_N in tokens.items() if key.startswith("teacher/")}
        own = {key.replace("/", f"/{name}/"): value_N[mine_N] for key, value_N in of_teachers.items()}
        if advantages.teacher_reward_B is not None:
            range_B = batch.groups.spread(advantages.teacher_reward_B)
            own[f"teacher/{name}/reward_range"] = range_B[mine_B]
        metrics |= described(own) | {f"teacher/{name}/response_share": _share(mine_B)}
    return metrics


def agreement_metrics(compared: ComparedTokens, trained_BT: Tensor, names: Sequence[str]) -> dict[str, float]:
    """Agreement on the next token: of all compared tokens in the loss, and of those of each of several teachers.

    ``names`` has each response's teacher, or nothing where there is one.
    """
    trained_N = trained_BT[compared.row_N, compared.column_N]
    parts_N = {"teacher": trained_N}
    for own in sorted(set(names)):
        mine_B = torch.tensor([name == own for name in names])
        parts_N[f"teacher/{own}"] = trained_N & mine_B[compared.row_N]
    metrics = {}
    for part, chosen_N in parts_N.items():
        if bool(chosen_N.any()):
            top1_N, overlap_N = agreement(compared.student_NK[chosen_N], compared.teacher_NK[chosen_N])
            metrics[f"{part}/top1_agreement"] = float(top1_N.mean())
            metrics[f"{part}/top20_overlap"] = float(overlap_N.mean())
    return metrics


def described(values: Mapping[str, Tensor]) -> dict[str, float]:
    """Statistics of each quantity, those that the metric table has a line for; a quantity without values has none."""
    metrics = {}
    for quantity, value in values.items():
        for statistic, function in STATISTICS.items():
            name = f"{quantity}{statistic}" if quantity.endswith("/") else f"{quantity}_{statistic}"
            if metric_of(name) and value.numel():
                metrics[name] = float(function(value.double()))
    return metrics


def response_values(batch: ScoredBatch, advantages: Advantages, method: Method) -> dict[str, Tensor]:
    """[B] each quantity of a response that the method has."""
    task_B, teacher_B = batch.task_reward_B.double(), advantages.teacher_reward_B
    values_B = {
        "reward/task": task_B,
        "reward/teacher": teacher_B,
        "advantage/unified": advantages.advantage_unified_B,
        "advantage/task": advantages.advantage_task_B,
        "ecr/centre": advantages.centre_B,
        "response/length": batch.mask_BT.sum(dim=1),
    }
    if isinstance(method, Puu) and teacher_B is not None and advantages.advantage_teacher_B is not None:
        values_B["advantage/teacher"] = method.alpha * advantages.advantage_teacher_B.double()
        if advantages.advantage_unified_B is not None:
            values_B["reward/unified"] = task_B + method.alpha * teacher_B.double()
    return {name: value_B for name, value_B in values_B.items() if value_B is not None}


def token_values(batch: ScoredBatch, advantages: Advantages) -> dict[str, Tensor]:
    """[N] float64 each quantity that the method has of a token in the loss."""
    gap_BT = None if batch.teacher_logp_BT is None else batch.gap_BT
    values_BT = {
        "advantage/": advantages.advantage_BT,
        "teacher/gap": gap_BT,
        "teacher/entropy": batch.teacher_entropy_BT,
        "ecr/confidence": advantages.confidence_BT,
        "ecr/direction": advantages.direction_BT,
        "ecr/residual": advantages.residual_BT,
        "ecr/weight": advantages.weight_BT,
    }
    trained_BT = advantages.trained(batch.mask_BT)
    return {name: value_BT[trained_BT].double() for name, value_BT in values_BT.items() if value_BT is not None}


def group_metrics(batch: ScoredBatch, advantages: Advantages, method: Method, correct_B: Tensor) -> dict[str, float]:
    """Shares of prompt groups, each counted once: by reward, by correctness, by R^T, and below the scoring noise."""
    groups = batch.groups
    weight_B = 1.0 / groups.size_P[groups.index_B].double() / groups.size_P.numel()
    flat_B = groups.flat(batch.task_reward_B)
    alike_B = groups.flat(correct_B.double())
    chosen_B = {
        "degenerate": flat_B,
        "all_right": alike_B & correct_B,
        "all_wrong": alike_B & ~correct_B,
        "mixed": ~alike_B,
    }
    if advantages.teacher_reward_B is not None:
        chosen_B["teacher_only"] = flat_B & (groups.spread(advantages.teacher_reward_B) > GAP_RANGE)
    if isinstance(method, Grouped) and advantages.unified_std_B is not None:
        chosen_B["below_noise"] = advantages.unified_std_B < method.noise
    shares = {f"group/{name}_share": float((weight_B * rows_B).sum()) for name, rows_B in chosen_B.items()}
    return {"group/count": float(groups.size_P.numel()), **shares}


def split_metrics(batch: ScoredBatch, advantages: Advantages, correct_B: Tensor) -> dict[str, float]:
    """Means over the tokens of each part of each split; a part without tokens, and what a method lacks, is absent."""
    mask_BT = batch.mask_BT
    trained_BT, tokens = advantages.trained(mask_BT), token_values(batch, advantages)
    outcome_N = (~correct_B).long().unsqueeze(1).expand(mask_BT.shape)[trained_BT]
    metrics = _means("outcome", outcome_N, tokens) | _means("position", quarter(mask_BT)[trained_BT], tokens)
    if batch.teacher_entropy_BT is not None:
        edges = torch.tensor(ENTROPY_EDGES, device=mask_BT.device)
        bin_N = torch.bucketize(batch.teacher_entropy_BT[trained_BT].float(), edges, right=True)
        metrics |= _means("entropy_bin", bin_N, tokens)
    by_response = {"length_mean": mask_BT.sum(dim=1), "teacher_reward_mean": advantages.teacher_reward_B}
    for suffix, chosen_B in (("right", correct_B), ("wrong", ~correct_B)):
        for name, value_B in by_response.items():
            if value_B is not None and bool(chosen_B.any()):
                metrics[f"outcome/{name}_{suffix}"] = float(value_B[chosen_B].double().mean())
    return metrics


def _means(split: str, part_N: Tensor, tokens: Mapping[str, Tensor]) -> dict[str, float]:
    """Share of the tokens in each part, and each mean over a part that has a name; none without tokens."""
    if not part_N.numel():
        return {}
    suffixes = [suffix for suffix, _ in SPLITS[split]]
    counts = torch.bincount(part_N, minlength=len(suffixes)).tolist()
    metrics = {f"{split}/token_share_{s}": count / part_N.numel() for s, count in zip(suffixes, counts, strict=True)}
    for quantity, value_N in tokens.items():
        name = quantity.strip("/").rpartition("/")[2]
        for prefix, summed_N in ((f"{split}/{name}_mean_", value_N), (f"{split}/{name}_abs_mean_", value_N.abs())):
            if f"{prefix}{suffixes[0]}" in METRICS:
                sums = torch.bincount(part_N, weights=summed_N, minlength=len(suffixes)).tolist()
                means = zip(suffixes, sums, counts, strict=True)
                metrics |= {f"{prefix}{suffix}": total / count for suffix, total, count in means if count}
    return metrics


def quarter(mask_BT: Tensor) -> Tensor:
    """[B, T] which quarter of its response a sampled token is in, 0 to 3: ``floor(4 i / L)``, i counted from 0."""
    place_BT = mask_BT.long().cumsum(dim=1) - 1
    length_B1 = mask_BT.sum(dim=1, keepdim=True).clamp_min(1)
    return (4 * place_BT // length_B1).clamp_(0, 3)


def turn_metrics(batch: ScoredBatch) -> dict[str, float]:
    """Turns, the share that was observed between them, and what their first tokens do to R^T."""
    mask_BT, begins_BT = batch.mask_BT, turn_begins(batch.mask_BT)
    turns_B, place_T = begins_BT.sum(dim=1), torch.arange(mask_BT.shape[1])
    last_B = torch.where(mask_BT, place_T, 0).amax(dim=1)
    length_B = last_B - begins_BT.int().argmax(dim=1) + 1
    metrics = {
        "turns/count_mean": float(turns_B.double().mean()),
        "turns/count_max": float(turns_B.max()),
        "turns/observed_share": float(1.0 - mask_BT.sum().double() / length_B.sum()),
    }
    if batch.teacher_logp_BT is not None:
        first_BT = begins_BT & (begins_BT.cumsum(dim=1) > 1)
        rest_BT, clipped_BT = mask_BT & ~first_BT, batch.gap_BT.double().clamp(-GAP_CLIP, GAP_CLIP)
        rest_B = clipped_BT.where(rest_BT, 0).sum(dim=1) / rest_BT.sum(dim=1)
        metrics["turns/teacher_reward_rest"] = float(rest_B.mean())
        if bool(first_BT.any()):
            metrics["turns/first_gap_mean"] = float(batch.gap_BT[first_BT].double().mean())
    return metrics


def episode_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """How the environment did."""
    return {
        "turns/failed": float(sum(each.failure is not None for each in episodes)),
        "turns/call_errors": float(sum(len(each.errors) for each in episodes)),
    }


def ratio_metrics(
    ratio_N: Tensor, before_N: Tensor, first_ratio_N: Tensor, *, clip_low: float, clip_high: float, far: float
) -> dict[str, float]:
    """PPO ratio, clipping and an estimate of KL(old, new) over every trained token; the first optimizer step's errors.

    ``ratio_N`` is the loss's, ``before_N`` to the policy before the update; ``far`` is `tolerances.first_ratio_p99`.
    """
    ratio_N, off_N = ratio_N.double(), (first_ratio_N.double() - 1.0).abs()
    return {
        **described({"policy/ratio": before_N}),
        "policy/clip_low_share": _share(ratio_N < 1.0 - clip_low),
        "policy/clip_high_share": _share(ratio_N > 1.0 + clip_high),
        "policy/approx_kl": float((ratio_N - 1.0 - ratio_N.log()).mean()),
        "policy/first_ratio_error": float(off_N.max()),
        "policy/first_ratio_mean": float(off_N.mean()),
        "policy/first_ratio_far_share": _share(~(off_N <= far)),  # NaN is far
    }


def lag_metrics(ratio_N: Tensor, before_N: Tensor, lag: int | None, *, step: int) -> dict[str, float]:
    """How far the policy mu that sampled is from the one before the update: pi / mu is ``ratio_N / before_N``."""
    behind_N = ratio_N.double() / before_N.double()
    behind = float((behind_N - 1.0 - behind_N.log()).mean())
    warn_behind(behind, step, "rollout.lag or train.learning_rate")
    return {"policy/behind_kl": behind} | ({} if lag is None else {"policy/lag": float(lag)})


def warn_behind(behind: float, step: int, keys: str) -> None:
    """Warn of a step whose responses an all too different policy sampled; ``keys`` are those to lower."""
    if behind > FAR_BEHIND:
        log.warning(
            "step %d: KL(mu || pi) = %.3g nats per token between the policy that sampled and the one that is updated; "
            "expected below %g: lower %s", step, behind, FAR_BEHIND, keys,
        )  # fmt: skip


def check_first_ratio(metrics: Mapping[str, float], tolerances: TolerancesConfig, where: str = "") -> None:
    """Refuse a first ratio that rounding does not explain; ``where`` names the token with the largest error.

    mean |r - 1| <= `first_ratio`, 99 % quantile of |r - 1| <= `first_ratio_p99`: in bfloat16 the largest of millions of
    tokens proves nothing.
    """
    largest, mean, share = (metrics[f"policy/first_ratio_{name}"] for name in ("error", "mean", "far_share"))
    if not (mean <= tolerances.first_ratio and share <= FAR_SHARE):
        raise InvariantError(
            f"the PPO ratio of the first update differs from 1 by {largest:.3g}{where}, on average by {mean:.3g} "
            f"(expected: tolerances.first_ratio={tolerances.first_ratio:g} or less), at {share:.2%} of the tokens by "
            f"more than tolerances.first_ratio_p99={tolerances.first_ratio_p99:g} (expected: {FAR_SHARE:.0%} or less). "
            "Nothing was updated yet: scoring and training differ in tokens, weights, temperature or arithmetic"
        )


def _share(chosen: Tensor) -> float:
    return float(chosen.double().mean())
