"""At which weight of the teacher a wrong response overtakes a right one, on fixed rollouts.

Shape legend: B = responses, P = groups, G = mixed groups, K = problems, S = replicates, A = values of alpha.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from nemo_uecr.audit.alpha_figure import NOTE, draw, summary_table
from nemo_uecr.audit.bootstrap import Resamples, interval, totals
from nemo_uecr.audit.groups import GroupTable, group_table
from nemo_uecr.audit.output import Audit, Numbers
from nemo_uecr.audit.progress import ProgressLine
from nemo_uecr.audit.rollouts import Scores
from nemo_uecr.audit.schema import STUDENT
from nemo_uecr.audit.teacher_reward import GAP_RANGE, TeacherRewards, checkpoint_counts, teacher_rewards
from nemo_uecr.audit.thresholds import (
    TIE,
    conflict_rate,
    first_alpha,
    grid_mismatches,
    margin,
    quantile,
    sweep_grid,
    tie_point,
)
from nemo_uecr.core.groups import Groups
from nemo_uecr.core.puu import unified_advantage
from nemo_uecr.core.records import EPSILON, GAP_CLIP

Array = np.ndarray

#: The sweep: named operating points and 161 values over [0, 8], a step of 0.05.
POINTS, TOP, DENSE = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0), 8.0, 161
#: The second grid lies below the first alpha at which this share of a checkpoint's mixed groups inverts.
SHARE, BELOW = 0.1, 10
#: Where zero events get an upper bound: the trained setting.
TRAINED = 1.0


@dataclass(frozen=True)
class _Mixed:
    """The mixed groups under every alpha."""

    group_G: Array
    tie_G: Array
    pairs_G: Array
    rate_GA: Array
    safe_GA: Array


def alpha_sweep_audit(scores: Scores, *, replicates: int, seed: int) -> Audit:
    """Ordering conflicts and fully safe groups over a grid of alpha, with tie points and intervals.

    Args:
        scores: responses scored by the teacher and the checkpoints that generated them.
        replicates: of the bootstrap.
        seed: of the bootstrap.

    References:
        app:alpha-sweep, fig:alpha-sweep, eq:app-alpha-audit-teacher-score.
    """
    reward = teacher_rewards(scores, STUDENT, clip=GAP_CLIP)
    table = group_table(scores.responses)
    alpha_A = sweep_grid(POINTS, TOP, DENSE)
    mixed = _sweep(table, reward.reward_B, alpha_A)
    sign_BA = sign_changes(table, reward.reward_B, alpha_A)
    resamples = Resamples.draw(int(table.problem_P.max()) + 1, replicates=replicates, seed=seed)
    steps = scores.responses.checkpoints
    numbers: Numbers = {
        "settings": _settings(replicates, seed),
        "scores": scores.provenance(),
        "alpha": alpha_A,
        "overall": _overall(table, mixed, alpha_A, resamples, steps),
        "checkpoints": [_checkpoint(step, scores, table, reward, mixed, sign_BA, alpha_A) for step in steps],
    }
    return Audit(
        "alpha-sweep", "Sensitivity of the ordering to alpha", NOTE, numbers, summary_table(numbers), draw, (9.8, 3.3)
    )


def _settings(replicates: int, seed: int) -> Numbers:
    return {
        "anchor": STUDENT, "clip": GAP_CLIP, "tie": TIE, "std": "population", "epsilon": EPSILON, "points": POINTS,
        "top": TOP, "dense": DENSE, "share_of_a10": SHARE, "points_below_a10": BELOW, "range": GAP_RANGE,
        "replicates": replicates, "seed": seed, "quantile": "inverted_cdf",
    }  # fmt: skip


def _sweep(table: GroupTable, reward_B: Array, alpha_A: Array) -> _Mixed:
    group, tie, pairs, rate, safe = [], [], [], [], []
    with ProgressLine("mixed groups", int(table.mixed_P.sum())) as progress:
        for number, correct_C, wrong_W in table.mixed(reward_B):
            group.append(number)
            tie.append(tie_point(correct_C, wrong_W))
            pairs.append(len(correct_C) * len(wrong_W))
            rate.append(conflict_rate(correct_C, wrong_W, alpha_A))
            safe.append(margin(correct_C, wrong_W, alpha_A) > TIE)
            progress.advance(1)
    shape = (len(group), len(alpha_A))
    return _Mixed(
        np.asarray(group, dtype=np.int64),
        np.asarray(tie, dtype=np.float64),
        np.asarray(pairs, dtype=np.int64),
        np.asarray(rate, dtype=np.float64).reshape(shape),
        np.asarray(safe, dtype=bool).reshape(shape),
    )


def sign_changes(table: GroupTable, reward_B: Array, alpha_A: Array) -> Array:
    """[B, A] bool, sign of A^U(alpha) differs from the sign of the centred task reward; False outside mixed groups."""
    groups = Groups.of(torch.from_numpy(table.index_B))
    task_B = torch.from_numpy(table.correct_B.astype(np.float64))
    teacher_B = torch.from_numpy(reward_B)
    expected_B = groups.centre(task_B).sign()
    in_mixed_B = torch.from_numpy(table.mixed_P[table.index_B])
    changed = []
    for alpha in alpha_A:
        parts = unified_advantage(task_B, teacher_B, groups, alpha=float(alpha), floor=0.0, sample=False)
        changed.append((parts.unified_B.sign() != expected_B) & in_mixed_B)
    changed_BA: Array = torch.stack(changed, dim=1).numpy()
    return changed_BA


def _overall(table: GroupTable, mixed: _Mixed, alpha_A: Array, resamples: Resamples, steps: list[int]) -> Numbers:
    """Averages over checkpoints with equal weight, and what holds over all groups and pairs."""
    rate, safe = (
        _by_problem(table, mixed, mixed.rate_GA, resamples, steps),
        _by_problem(table, mixed, mixed.safe_GA.astype(np.float64), resamples, steps),
    )
    trained = int(np.flatnonzero(alpha_A == TRAINED)[0])
    inverted_pairs_G = np.rint(mixed.rate_GA[:, trained] * mixed.pairs_G).astype(np.int64)
    finite_G = np.isfinite(mixed.tie_G)
    return {
        "mixed_groups": len(mixed.group_G),
        "pairs": int(mixed.pairs_G.sum()),
        "conflict": rate,
        "fully_safe": safe,
        "pair_conflict": (mixed.rate_GA * mixed.pairs_G[:, None]).sum(axis=0) / max(1, int(mixed.pairs_G.sum())),
        "any_inversion": (mixed.rate_GA > 0).sum(axis=0) / max(1, len(mixed.group_G)),
        "smallest_tie_point": float(mixed.tie_G.min()) if len(mixed.tie_G) else None,
        "finite_tie_points": int(finite_G.sum()),
        "tie_points_within_grid": int((mixed.tie_G <= alpha_A[-1]).sum()),
        "grid_mismatches": grid_mismatches(mixed.tie_G, mixed.safe_GA, mixed.rate_GA > 0, alpha_A),
        "conflict_at_zero": float(mixed.rate_GA[:, 0].max()) if len(mixed.group_G) else None,
        "trained_alpha": TRAINED,
        "inverted_groups_at_trained": int((inverted_pairs_G > 0).sum()),
        "inverted_pairs_at_trained": int(inverted_pairs_G.sum()),
        "rule_of_three_groups": rule_of_three(int((inverted_pairs_G > 0).sum()), len(mixed.group_G)),
        "rule_of_three_pairs": rule_of_three(int(inverted_pairs_G.sum()), int(mixed.pairs_G.sum())),
    }


def rule_of_three(events: int, trials: int) -> float | None:
    """95% upper bound ``3 / n`` of a rate of which n trials showed no event; None where there was one."""
    return 3.0 / trials if events == 0 and trials > 0 else None


def _by_problem(
    table: GroupTable, mixed: _Mixed, value_GA: Array, resamples: Resamples, steps: list[int]
) -> dict[str, Array]:
    """Mean over a checkpoint's mixed groups, then over checkpoints; problems are drawn for all checkpoints together."""
    replicate_SA = np.zeros((resamples.count_SK.shape[0], value_GA.shape[1]))
    counted_S1 = np.zeros((resamples.count_SK.shape[0], 1))
    values = []
    for step in steps:
        own_G = table.checkpoint_P[mixed.group_G] == step
        if not own_G.any():
            continue
        values.append(value_GA[own_G].mean(axis=0))
        problem = table.problem_P[mixed.group_G[own_G]]
        total_KA = totals(value_GA[own_G], problem, resamples.problems)
        weight_K1 = np.bincount(problem, minlength=resamples.problems)[:, None]
        ratio_SA = resamples.ratio(total_KA, weight_K1)
        drawn_S1 = np.isfinite(ratio_SA[:, :1])
        replicate_SA += np.where(drawn_S1, ratio_SA, 0.0)
        counted_S1 += drawn_S1
    if not values:
        nothing = np.full(value_GA.shape[1], np.nan)
        return {"value": nothing, "low": nothing, "high": nothing}
    with np.errstate(invalid="ignore"):
        found = interval(np.where(counted_S1 > 0, replicate_SA / counted_S1, np.nan))
    return {"value": np.mean(values, axis=0), "low": found["low"], "high": found["high"]}


def _checkpoint(
    step: int, scores: Scores, table: GroupTable, reward: TeacherRewards, mixed: _Mixed, sign_BA: Array, alpha_A: Array
) -> Numbers:
    here_B, here_P = scores.responses.checkpoint_B == step, table.checkpoint_P == step
    own_G = here_P[mixed.group_G]
    degenerate_P = here_P & ~table.mixed_P
    in_mixed_B = here_B & table.mixed_P[table.index_B]
    numbers: Numbers = {
        "checkpoint": step,
        "mixed_groups": int(own_G.sum()),
        "pairs": int(mixed.pairs_G[own_G].sum()),
        "all_wrong_groups": int((degenerate_P & table.all_wrong_P).sum()),
        "all_right_groups": int((degenerate_P & table.all_right_P).sum()),
        "degenerate_groups_with_teacher_variation": int((table.range(reward.reward_B) > GAP_RANGE)[degenerate_P].sum()),
        **checkpoint_counts(scores.responses, reward, step),
        "responses_with_nonfinite_tokens": int((reward.nonfinite_B[here_B] > 0).sum()),
    }
    if not own_G.any():
        return numbers | {"skipped": "no mixed group"}
    tie_G, rate_GA = mixed.tie_G[own_G], mixed.rate_GA[own_G]
    return numbers | {
        "conflict": rate_GA.mean(axis=0),
        "fully_safe": mixed.safe_GA[own_G].mean(axis=0),
        "sign_change": sign_BA[in_mixed_B].mean(axis=0),
        "tie_point": {
            "smallest": float(tie_G.min()),
            "q05": quantile(tie_G, 0.05),
            "median": quantile(tie_G, 0.5),
            "infinite_share": float(np.isinf(tie_G).mean()),
        },
        "below_a10": _below_a10(table, reward.reward_B, own_G, mixed),
    }


def _below_a10(table: GroupTable, reward_B: Array, own_G: Array, mixed: _Mixed) -> Numbers:
    """The second grid of a checkpoint: ten values in the open interval (0, a10)."""
    a10 = first_alpha(mixed.tie_G[own_G], SHARE)
    if not np.isfinite(a10):
        return {"a10": None, "skipped": f"fewer than {SHARE:.0%} of the mixed groups ever invert"}
    alpha_A = a10 * np.arange(1, BELOW + 1) / (BELOW + 1)
    own = set(mixed.group_G[own_G].tolist())
    rates = [conflict_rate(c, w, alpha_A) for number, c, w in table.mixed(reward_B) if number in own]
    rate_GA = np.asarray(rates)
    return {
        "a10": a10,
        "alpha": alpha_A,
        "conflict": rate_GA.mean(axis=0),
        "any_inversion": (rate_GA > 0).mean(axis=0),
    }
