"""PUU's response-level signal in groups of training size, against a fixed base model.

Shape legend: B = responses, P = pseudo-groups.
"""

from __future__ import annotations

import numpy as np
import torch

from nemo_uecr.audit.groups import GroupTable, group_table, rows_of, seeded, teacher_rewards
from nemo_uecr.audit.output import Audit, Numbers
from nemo_uecr.audit.store import Scored
from nemo_uecr.core import GAP_CLIP, GAP_RANGE
from nemo_uecr.core.functions import unified_advantage
from nemo_uecr.errors import DataError
from nemo_uecr.stats import Array, ClusterBootstrap
from nemo_uecr.tables import percent, shown

ALPHA = 1.0
#: Sizes of the pseudo-groups.
SIZES = (8, 4)
#: A pseudo-group has signal if Std(R^U) exceeds this, nats, or the range of R^T exceeds `GAP_RANGE`.
STD = 0.1
COLUMNS = (
    "checkpoint", "groups", "degenerate %", "all wrong %", "all right %", "Std(R^U) > 0.1 %", "range(R^T) > 0.05 %",
    "|A^GRPO|", "|A^U|", "|A^task|U|", "|A^T|U|", "teacher share %",
)  # fmt: skip
NOTE = (
    "A fixed seed splits the responses to a problem into pseudo-groups of eight and four. Teacher score: against the "
    "fixed base model, clipped at 5 nats per token, alpha = 1. (a) shares of all pseudo-groups; (b) mean absolute "
    "advantage over the responses of mixed pseudo-groups, and the teacher's share of its two components. Training "
    "itself compares with the behaviour policy, and magnitudes of advantages are not gradients."
)


def group_signal_audit(scores: Scored, *, anchor: str, replicates: int, seed: int) -> Audit:
    """Degenerate pseudo-groups, those with unified signal, and the components of mixed ones (app:puu-signal-audit).

    ``anchor`` names the fixed base model.
    """
    responses = scores
    reward_B, nonfinite_B = teacher_rewards(scores, anchor, clip=GAP_CLIP)
    task_B = responses.verified_rewards()
    table = group_table(responses, pseudo_groups(responses, seed=seed))
    index, task, teacher = (torch.from_numpy(each) for each in (table.index_B, task_B, reward_B))
    parts = unified_advantage(task, teacher, index, alpha=ALPHA)
    sampler = ClusterBootstrap.draw(table.problem_P, replicates=replicates, seed=seed)
    std_P = np.empty(table.size_P.shape)
    std_P[table.index_B] = parts.std.numpy()
    kinds = {
        "degenerate": ~table.mixed_P, "all_wrong": table.all_wrong_P, "all_right": table.all_right_P,
        "std_above": std_P > STD, "range_above": table.range(reward_B) > GAP_RANGE,
    }  # fmt: skip
    components = {
        "grpo": unified_advantage(task, teacher, index, alpha=0.0).unified, "unified": parts.unified,
        "task": parts.task, "teacher": ALPHA * parts.teacher,
    }  # fmt: skip
    magnitude = {name: value_B.abs().numpy() for name, value_B in components.items()}
    checkpoints = [
        _checkpoint(step, table, kinds, magnitude, sampler)
        | {"nonfinite_tokens": int(nonfinite_B[responses.checkpoint_B == step].sum())}
        for step in responses.checkpoints
    ]
    numbers: Numbers = {
        "settings": {
            "anchor": anchor, "clip": GAP_CLIP, "alpha": ALPHA, "std_above": STD, "range_above": GAP_RANGE,
            "sizes": SIZES, "std": "population", "replicates": replicates, "seed": seed,
        },
        "scores": scores.provenance(),
        "checkpoints": checkpoints,
    }  # fmt: skip
    rows = [
        (
            str(row["checkpoint"]),
            str(row["groups"]),
            *(percent(row[kind]) for kind in kinds),
            *(shown(each["value"], ".3f") for each in row["mean_absolute"].values()),
            percent(row["teacher_share"]),
        )
        for row in checkpoints
    ]
    return Audit("group-signal", "PUU signal in pseudo-groups", NOTE, numbers, COLUMNS, rows)


def pseudo_groups(responses: Scored, *, seed: int) -> Array:
    """[B] pseudo-group of each response.

    The permutation of a problem's responses, ordered by sample number, depends on the seed and the problem's name
    alone: it is the same at every checkpoint, and does not change when problems or checkpoints are added.
    """
    whole, first = sum(SIZES), 0
    group_B = np.zeros(len(responses.ids), dtype=np.int64)
    for rows in rows_of(responses.group_B):
        name = responses.problems[rows[0]]
        if len(rows) % whole:
            raise DataError(
                f"problem {name!r} has {len(rows)} responses at checkpoint {responses.checkpoint_B[rows[0]]}; expected "
                f"a multiple of {whole}, to form pseudo-groups of {' and '.join(map(str, SIZES))}"
            )
        rows = rows[np.argsort(responses.sample_B[rows], kind="stable")]
        count = len(rows) // whole * len(SIZES)
        drawn = rows[seeded(seed, name).permutation(len(rows))]
        group_B[drawn] = first + np.repeat(np.arange(count), np.resize(SIZES, count))
        first += count
    return group_B


def _checkpoint(
    step: int, table: GroupTable, kinds: dict[str, Array], magnitude: dict[str, Array], sampler: ClusterBootstrap
) -> Numbers:
    here_P = table.checkpoint_P == step
    kept_B = (here_P & table.mixed_P)[table.index_B]
    problem = table.problem_P[table.index_B][kept_B]
    chosen = {name: value_B[kept_B] for name, value_B in magnitude.items()}
    ones = np.ones(int(kept_B.sum()))
    return {
        "checkpoint": step,
        "groups": int(here_P.sum()),
        "groups_by_size": {str(size): int((table.size_P[here_P] == size).sum()) for size in np.unique(table.size_P)},
        **{name: sampler.mean(value_P, here_P, table.problem_P) for name, value_P in kinds.items()},
        "mixed_responses": len(ones),
        "mean_absolute": {name: sampler.ratio(value, ones, problem) for name, value in chosen.items()},
        "teacher_share": sampler.ratio(chosen["teacher"], chosen["task"] + chosen["teacher"], problem),
    }
