"""The alpha at which incorrect responses overtake correct ones, on fixed rollouts.

Shape legend: B = responses, P = groups, G = mixed groups, C = correct and W = incorrect responses of one group,
K = problems, S = replicates, A = values of alpha.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from nemo_uecr.audit.groups import GroupTable, checkpoint_counts, group_table, teacher_rewards
from nemo_uecr.audit.output import Audit, Numbers
from nemo_uecr.audit.store import STUDENT, Scored
from nemo_uecr.core import EPSILON, GAP_CLIP, GAP_RANGE
from nemo_uecr.core.record import Groups
from nemo_uecr.stats import Array, ClusterBootstrap, cluster_totals, percentile_interval
from nemo_uecr.tables import shown

#: The sweep: named operating points and 161 values over [0, 8], a step of 0.05.
POINTS, TOP, DENSE = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0), 8.0, 161
GRID_A = np.unique(np.concatenate([POINTS, np.linspace(0.0, TOP, DENSE)]))
#: The second grid is below a10, the first alpha at which this share of a checkpoint's mixed groups inverts.
SHARE, BELOW = 0.1, 10
#: The trained setting, and its index in the grid.
TRAINED = 1.0
AT_TRAINED = int(np.flatnonzero(GRID_A == TRAINED)[0])
#: Utilities closer than this are tied (the paper's tolerance).
TIE = 1e-6
NOTE = (
    "Fixed rollouts. Teacher score: against the checkpoint that generated the response, clipped at 5 nats per token. "
    "(a) share of correct-incorrect pairs in strictly wrong order, with equal weight per group and per checkpoint, and "
    "its 95% bootstrap interval over problems; (b) share of mixed groups in which every correct response is above "
    "every incorrect one; (c) as (a), by checkpoint. Dashed: alpha = 1. Shaded: the range over checkpoints of the "
    "first alpha at which a tenth of the mixed groups invert. These are orderings, not results of training."
)
COLUMNS = (
    "checkpoint", "mixed groups", "pairs", "conflict % at 1", "sign change % at 1", "smallest a*", "5% a*",
    "median a*", "a* infinite %", "a10", "cut", "non-finite",
)  # fmt: skip


def alpha_sweep_audit(scores: Scored, *, replicates: int, seed: int) -> Audit:
    """Ordering conflicts and fully safe groups over a grid of alpha, with tie points (app:alpha-sweep)."""
    responses = scores
    reward_B, nonfinite_B = teacher_rewards(scores, STUDENT, clip=GAP_CLIP)
    table = group_table(responses)
    mixed, sign_BA = _mixed_groups(table, reward_B), sign_changes(table, reward_B, GRID_A)
    sampler = ClusterBootstrap.draw(table.problem_P, replicates=replicates, seed=seed)
    overall = _overall(mixed, sampler)
    checkpoints = [
        _checkpoint(step, table, reward_B, mixed, sign_BA)
        | checkpoint_counts(responses, nonfinite_B, step)
        | {"responses_with_nonfinite_tokens": int((nonfinite_B[responses.checkpoint_B == step] > 0).sum())}
        for step in responses.checkpoints
    ]
    numbers: Numbers = {
        "settings": {
            "anchor": STUDENT, "clip": GAP_CLIP, "tie": TIE, "std": "population", "epsilon": EPSILON, "points": POINTS,
            "top": TOP, "dense": DENSE, "share_of_a10": SHARE, "points_below_a10": BELOW, "range": GAP_RANGE,
            "replicates": replicates, "seed": seed, "quantile": "inverted_cdf",
        },
        "scores": scores.provenance(),
        "alpha": GRID_A,
        "overall": overall,
        "checkpoints": checkpoints,
    }  # fmt: skip
    rows = _rows(checkpoints, overall)
    return Audit("alpha-sweep", "Sensitivity of the ordering to alpha", NOTE, numbers, COLUMNS, rows)


@dataclass(frozen=True)
class _Mixed:
    """The mixed groups at every alpha of the grid."""

    values: list[tuple[Array, Array]]  # R^T of the correct [C] and of the incorrect [W] responses
    checkpoint_G: Array
    problem_G: Array
    pairs_G: Array
    tie_G: Array
    rate_GA: Array  # share of pairs in conflict
    safe_GA: Array  # bool, no pair is tied or in conflict


def _mixed_groups(table: GroupTable, reward_B: Array) -> _Mixed:
    values = list(table.mixed(reward_B))
    shape = (len(values), len(GRID_A))
    return _Mixed(
        values,
        table.checkpoint_P[table.mixed_P],
        table.problem_P[table.mixed_P],
        (table.correct_P * (table.size_P - table.correct_P))[table.mixed_P],
        np.asarray([tie_point(c, w) for c, w in values]),
        np.asarray([conflict_rate(c, w, GRID_A) for c, w in values]).reshape(shape),
        np.asarray([margin(c, w, GRID_A) > TIE for c, w in values], dtype=bool).reshape(shape),
    )


def sign_changes(table: GroupTable, reward_B: Array, alpha_A: Array) -> Array:
    """[B, A] bool, sign of A^U(alpha) differs from the sign of the centred task reward; False outside mixed groups."""
    groups, rewards = Groups.of(torch.from_numpy(table.index_B)), (table.correct_B, reward_B)
    task_B1, teacher_B1 = (groups.centre(torch.from_numpy(each)).numpy()[:, None] for each in rewards)
    changed_BA = np.sign(task_B1 + alpha_A * teacher_B1) != np.sign(task_B1)  # A^U without its denominator
    return np.asarray(changed_BA & table.mixed_P[table.index_B][:, None])


def _overall(mixed: _Mixed, sampler: ClusterBootstrap) -> Numbers:
    """Averages over checkpoints with equal weight, and totals over all groups and pairs."""
    groups, pairs = len(mixed.values), int(mixed.pairs_G.sum())
    inverted_G = np.rint(mixed.rate_GA[:, AT_TRAINED] * mixed.pairs_G).astype(np.int64)
    inverted_groups, inverted_pairs = int((inverted_G > 0).sum()), int(inverted_G.sum())
    return {
        "mixed_groups": groups,
        "pairs": pairs,
        "conflict": _by_problem(mixed, mixed.rate_GA, sampler),
        "fully_safe": _by_problem(mixed, mixed.safe_GA.astype(np.float64), sampler),
        "pair_conflict": (mixed.rate_GA * mixed.pairs_G[:, None]).sum(axis=0) / max(1, pairs),
        "any_inversion": (mixed.rate_GA > 0).sum(axis=0) / max(1, groups),
        "smallest_tie_point": float(mixed.tie_G.min()) if groups else None,
        "finite_tie_points": int(np.isfinite(mixed.tie_G).sum()),
        "tie_points_within_grid": int((mixed.tie_G <= TOP).sum()),
        "grid_mismatches": grid_mismatches(mixed.tie_G, mixed.safe_GA, mixed.rate_GA > 0, GRID_A),
        "conflict_at_zero": float(mixed.rate_GA[:, 0].max()) if groups else None,
        "trained_alpha": TRAINED,
        "inverted_groups_at_trained": inverted_groups,
        "inverted_pairs_at_trained": inverted_pairs,
        # The rule of three: 3 / n is the upper 95% bound of the rate of an event that n trials did not show.
        "rule_of_three_groups": 3.0 / groups if groups and not inverted_groups else None,
        "rule_of_three_pairs": 3.0 / pairs if pairs and not inverted_pairs else None,
    }


def _by_problem(mixed: _Mixed, value_GA: Array, sampler: ClusterBootstrap) -> dict[str, Array]:
    """Mean over a checkpoint's mixed groups, then over checkpoints; a replicate draws the same problems for all."""
    if not len(value_GA):
        return dict.fromkeys(("value", "low", "high"), np.full(value_GA.shape[1], np.nan))
    values, ratios_SA = [], []
    for step in np.unique(mixed.checkpoint_G):
        own_G = mixed.checkpoint_G == step
        own_GA, problem_G = value_GA[own_G], mixed.problem_G[own_G]
        size_K1 = np.bincount(problem_G, minlength=sampler.clusters)[:, None]
        ratios_SA.append(sampler.replicate_ratios(cluster_totals(own_GA, problem_G, sampler.clusters), size_K1))
        values.append(own_GA.mean(axis=0))
    with np.errstate(invalid="ignore"):
        replicate_SA = np.nansum(ratios_SA, axis=0) / np.isfinite(ratios_SA).sum(axis=0)
    return {"value": np.mean(values, axis=0)} | percentile_interval(replicate_SA)


def _checkpoint(step: int, table: GroupTable, reward_B: Array, mixed: _Mixed, sign_BA: Array) -> Numbers:
    here_P, own_G = table.checkpoint_P == step, mixed.checkpoint_G == step
    spread_P = table.range(reward_B) > GAP_RANGE
    numbers: Numbers = {
        "checkpoint": step,
        "mixed_groups": int(own_G.sum()),
        "pairs": int(mixed.pairs_G[own_G].sum()),
        "all_wrong_groups": int((here_P & table.all_wrong_P).sum()),
        "all_right_groups": int((here_P & table.all_right_P).sum()),
        "degenerate_groups_with_teacher_variation": int((here_P & ~table.mixed_P & spread_P).sum()),
    }
    if not own_G.any():
        return numbers | {"skipped": "no mixed group"}
    tie_G = mixed.tie_G[own_G]
    return numbers | {
        "conflict": mixed.rate_GA[own_G].mean(axis=0),
        "fully_safe": mixed.safe_GA[own_G].mean(axis=0),
        "sign_change": sign_BA[(here_P & table.mixed_P)[table.index_B]].mean(axis=0),
        "tie_point": {
            "smallest": float(tie_G.min()),
            # inverted_cdf: each quantile is the tie point of a group
            "q05": float(np.quantile(tie_G, 0.05, method="inverted_cdf")),
            "median": float(np.quantile(tie_G, 0.5, method="inverted_cdf")),
            "infinite_share": float(np.isinf(tie_G).mean()),
        },
        "below_a10": _below_a10([mixed.values[place] for place in np.flatnonzero(own_G)], tie_G),
    }


def _below_a10(values: Sequence[tuple[Array, Array]], tie_G: Array) -> Numbers:
    """The second grid of a checkpoint: ten values in the open interval (0, a10).

    A group inverts beyond its tie point, so a10 is the tie point of the group that completes the share.
    """
    a10 = float(np.sort(tie_G)[int(np.ceil(SHARE * len(tie_G) - 1e-9)) - 1])
    if not np.isfinite(a10):
        return {"a10": None, "skipped": f"fewer than {SHARE:.0%} of the mixed groups ever invert"}
    alpha_A = a10 * np.arange(1, BELOW + 1) / (BELOW + 1)
    rate_GA = np.asarray([conflict_rate(c, w, alpha_A) for c, w in values])
    return {"a10": a10, "alpha": alpha_A, "conflict": rate_GA.mean(axis=0), "any_inversion": (rate_GA > 0).mean(axis=0)}


# Utilities, conflicts and tie points


def conflict_rate(correct_C: Array, wrong_W: Array, alpha_A: Array) -> Array:
    """[A] share of pairs whose incorrect response has the higher utility (eq:app-alpha-audit-utility), from R^T.

    ``C_g(alpha) = mean_{c, w} 1[alpha R_w > 1 + alpha R_c + 1e-6]``   (eq:app-alpha-audit-conflict)
    """
    utility_AC = 1.0 + alpha_A[:, None] * correct_C
    utility_AW = alpha_A[:, None] * wrong_W
    return np.asarray((utility_AW[:, :, None] > utility_AC[:, None, :] + TIE).mean(axis=(1, 2)))


def margin(correct_C: Array, wrong_W: Array, alpha_A: Array) -> Array:
    """[A] ``M_g(alpha) = min_c U_c - max_w U_w``; the group is fully safe if it exceeds the tie tolerance."""
    return np.asarray((1.0 + alpha_A * correct_C.min()) - alpha_A * wrong_W.max())


def tie_point(correct_C: Array, wrong_W: Array) -> float:
    """``alpha*_g = 1 / (max_w R_w - min_c R_c)``, infinite if that is not positive (eq:app-alpha-audit-threshold)."""
    difference = float(wrong_W.max() - correct_C.min())
    return 1.0 / difference if difference > 0 else float("inf")


def grid_mismatches(tie_G: Array, safe_GA: Array, inverted_GA: Array, alpha_A: Array) -> int:
    """Number of grid values at which a group's state contradicts its tie point.

    Groups are safe for ``alpha < alpha* (1 - 2e-6)`` and inverted for ``alpha > alpha* (1 + 2e-6)``; between, both are
    accepted.
    """
    below_GA = alpha_A[None, :] < tie_G[:, None] * (1.0 - 2.0 * TIE)
    above_GA = alpha_A[None, :] > tie_G[:, None] * (1.0 + 2.0 * TIE)
    wrong_GA = (below_GA & (~safe_GA | inverted_GA)) | (above_GA & (safe_GA | ~inverted_GA))
    return int(wrong_GA.sum())


def _rows(checkpoints: Sequence[Numbers], whole: Numbers) -> list[tuple[str, ...]]:
    rows = []
    for row in checkpoints:
        middle: tuple[str, ...] = ("-",) * 7
        if "skipped" not in row:
            ties = row["tie_point"]
            middle = (
                *(shown(100 * row[key][AT_TRAINED], ".2f") for key in ("conflict", "sign_change")),
                *(shown(ties[key], ".2f") for key in ("smallest", "q05", "median")),
                shown(100 * ties["infinite_share"]),
                shown(row["below_a10"]["a10"], ".2f"),
            )
        first, last = ("checkpoint", "mixed_groups", "pairs"), ("cut", "nonfinite_tokens")
        rows.append((*(str(row[key]) for key in first), *middle, *(str(row[key]) for key in last)))
    conflict, smallest = whole["conflict"]["value"][AT_TRAINED], whole["smallest_tie_point"]
    counts = (str(whole["mixed_groups"]), str(whole["pairs"]))
    return [*rows, ("all", *counts, shown(100 * conflict, ".2f"), "", shown(smallest, ".2f"), *("",) * 6)]
