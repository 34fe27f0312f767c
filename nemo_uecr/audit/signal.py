"""Signal complementarity: where the teacher's score adds to the verifier's verdict, and where it contradicts it.

Shape legend: B = responses, P = groups, C = correct and W = incorrect responses of a group.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nemo_uecr.audit.groups import GroupTable, checkpoint_counts, group_table, teacher_rewards
from nemo_uecr.audit.judging import JudgedPair
from nemo_uecr.audit.output import Audit, Numbers
from nemo_uecr.audit.store import STUDENT, Scored
from nemo_uecr.core import GAP_RANGE
from nemo_uecr.errors import DataError
from nemo_uecr.stats import Array, ClusterBootstrap, Share
from nemo_uecr.tables import percent

NOTE = (
    "Teacher score: token mean of the unclipped gap between the teacher and the checkpoint that generated the "
    "response. A degenerate group is all wrong or all right; distinguished groups are a share of the degenerate ones. "
    "The conflict rate is the share of correct-incorrect pairs that the teacher score orders the wrong way, with ties "
    "counting half and equal weight per mixed group. Bands: 95% bootstrap intervals over problems."
)
COLUMNS = (
    "checkpoint", "groups", "degenerate %", "of these distinguished %", "pairs", "conflict %", "judged",
    "judge agrees %",
)  # fmt: skip


def signal_audit(scores: Scored, judged: Sequence[JudgedPair] | None, *, replicates: int, seed: int) -> Audit:
    """Degenerate groups, teacher-distinguished groups, conflicts and the agreement with a judge, by checkpoint.

    ``judged`` has a judge's preferences on pairs of equally verified responses (app:signal-diagnosis).
    """
    reward_B, nonfinite_B = teacher_rewards(scores, STUDENT, clip=None)
    table = group_table(scores)
    sampler = ClusterBootstrap.draw(table.problem_P, replicates=replicates, seed=seed)
    checkpoints = [
        _checkpoint(step, table, reward_B, sampler) | checkpoint_counts(scores, nonfinite_B, step)
        for step in scores.checkpoints
    ]
    judge = None if judged is None else agreement(judged, scores, reward_B, sampler)
    numbers: Numbers = {
        "settings": {"anchor": STUDENT, "clip": None, "range": GAP_RANGE, "replicates": replicates, "seed": seed},
        "scores": scores.provenance(),
        "checkpoints": checkpoints,
        "judge": judge,
    }
    return Audit("signal", "Signal complementarity", NOTE, numbers, COLUMNS, _rows(checkpoints, judge))


def _checkpoint(step: int, table: GroupTable, reward_B: Array, sampler: ClusterBootstrap) -> Numbers:
    here_P, mixed_P = table.checkpoint_P == step, table.mixed_P
    spread_P = table.range(reward_B) > GAP_RANGE

    def mean(value_P: Array, among_P: Array) -> Share:
        return sampler.mean(value_P, among_P, table.problem_P)

    return {
        "checkpoint": step,
        "groups": int(here_P.sum()),
        "degenerate": mean(~mixed_P, here_P),
        "all_wrong": mean(table.all_wrong_P, here_P),
        "all_right": mean(table.all_right_P, here_P),
        "distinguished_of_degenerate": mean(spread_P, here_P & ~mixed_P),
        "distinguished_degenerate_of_all": mean(spread_P & ~mixed_P, here_P),
        "conflict": mean(conflicts(table, reward_B), here_P & mixed_P),
        "pairs": int((table.correct_P * (table.size_P - table.correct_P))[here_P].sum()),
    }


def conflicts(table: GroupTable, reward_B: Array) -> Array:
    """[P] share of a mixed group's correct-incorrect pairs that R^T orders the wrong way; ties count half."""
    rate_P = np.zeros(table.size_P.shape)
    differences = (wrong_W[:, None] - correct_C for correct_C, wrong_W in table.mixed(reward_B))
    rate_P[table.mixed_P] = [((each_WC > 0) + 0.5 * (each_WC == 0)).mean() for each_WC in differences]
    return rate_P


def agreement(judged: Sequence[JudgedPair], responses: Scored, reward_B: Array, sampler: ClusterBootstrap) -> Numbers:
    """Share of judgeable pairs on which teacher score and judge prefer the same response; equal scores count half."""
    row_of = {name: row for row, name in enumerate(responses.ids)}
    agrees, rows = [], []
    for one, other, preferred in judged:
        first, second = row_of.get(one, -1), row_of.get(other, -1)
        same_group = responses.group_B[first] == responses.group_B[second]
        if -1 in (first, second) or not same_group or responses.reward_B[first] != responses.reward_B[second]:
            raise DataError(
                f"{one!r} and {other!r} are not responses to one prompt with equal verdicts in these scores; expected "
                "the key that was written from them"
            )
        if preferred in ("first", "second"):
            lead = (reward_B[first] - reward_B[second]) * (1 if preferred == "first" else -1)
            agrees.append(0.5 + 0.5 * np.sign(lead))
            rows.append(first)
    value = np.asarray(agrees)
    problem, step = responses.problem_B[rows], responses.checkpoint_B[rows]
    return {
        "pairs": len(judged),
        "judgeable": len(value),
        "all": sampler.mean(value, np.ones(len(value), dtype=bool), problem),
        "checkpoints": [{"checkpoint": int(s)} | sampler.mean(value, step == s, problem) for s in np.unique(step)],
    }


def _rows(checkpoints: Sequence[Numbers], judge: Numbers | None) -> list[tuple[str, ...]]:
    def cells(share: Share | None) -> tuple[str, str]:
        return ("-", "-") if share is None else (str(share["of"]), percent(share))

    judged = {row["checkpoint"]: row for row in judge["checkpoints"]} if judge else {}
    rows: list[tuple[str, ...]] = [
        (
            str(row["checkpoint"]), str(row["groups"]), percent(row["degenerate"]),
            percent(row["distinguished_of_degenerate"]), str(row["pairs"]), percent(row["conflict"]),
            *cells(judged.get(row["checkpoint"])),
        )
        for row in checkpoints
    ]  # fmt: skip
    return [*rows, ("all", *[""] * 5, *cells(judge["all"]))] if judge else rows
