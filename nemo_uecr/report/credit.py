"""The credit map: every token of a few responses, before and after redistribution.

`nemo_uecr.core` recomputes the advantages from the saved batch, so the map shows what trained the policy.
Shape legend: B = responses, T = tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import pvariance
from typing import TYPE_CHECKING, Any

from nemo_uecr import door
from nemo_uecr.core.methods import check_revision, method_class
from nemo_uecr.errors import CheckpointError, ConfigError
from nemo_uecr.responses.replay import compute_again, method_of_run, scored_batch
from nemo_uecr.responses.table import read_responses
from nemo_uecr.telemetry.run_folder import RunFolder

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_uecr.core.methods import Advantages
    from nemo_uecr.core.record import ScoredBatch

#: What the page says of a response beside its numbers.
SAID = ("id", "problem", "question", "answer", "verdict")

#: Limits: responses per batch, saved batches per run, and tokens per response.
SHOWN_RESPONSES, SHOWN_STEPS, SHOWN_TOKENS = 24, 3, 800
#: Tokens on the whole page; at about 80 bytes per token it stays below 3 MB.
PAGE_TOKENS = 14_000
DIGITS = 5
#: Smaller changes are float32 rounding.
ROUNDING = 1e-6


def credit_data(runs: Sequence[RunFolder]) -> dict[str, Any] | None:
    """The maps of every run with saved batches, for the page's script; None if there are none."""
    saved = [run for run in runs if run.batches and credit_fault(run) is None]
    if not saved:
        return None
    budget = PAGE_TOKENS // len(saved)
    return {"runs": [{"label": run.label, "steps": credit_maps(run, token_budget=budget)} for run in saved]}


def credit_fault(run: RunFolder) -> str | None:
    """Why a run with saved batches has no map: its method is in a file that is not here, or not as in the run."""
    sha256 = run.provenance.get("code", {}).get("method.name", "none") if door.is_own(run.method) else None
    try:
        if run.batches:
            check_revision(run.label, method_class(run.method, sha256=sha256), run.provenance)
    except (ConfigError, CheckpointError) as error:
        return f"No credit map, which needs the run's method: {error}."
    return None


def credit_maps(run: RunFolder, *, token_budget: int) -> list[dict[str, Any]]:
    """The maps of a run's first, middle and last saved batch, each with an equal share of the tokens."""
    saved = list(run.batches.items())
    if len(saved) > SHOWN_STEPS:
        saved = [saved[round(index * (len(saved) - 1) / (SHOWN_STEPS - 1))] for index in range(SHOWN_STEPS)]
    return [step_map(step, path, token_budget=token_budget // len(saved)) for step, path in saved]


def step_map(step: int, path: Path, *, token_budget: int) -> dict[str, Any]:
    """One saved batch for the page's script."""
    saved = read_responses(path)
    batch, method = scored_batch(saved), method_of_run(saved)
    advantages = compute_again(saved, batch)
    rows, said = chosen_rows(batch, token_budget=token_budget), {name: saved.column(name) for name in SAID}
    return {
        "step": step,
        "method": method.name,
        "equation": method.equation(),
        "conserving": "budget" in method.identities and method.opd_coef is None,
        "settings": method.settings(),
        "batch": batch.responses,
        "responses": [
            {name: str(each[row] or "") for name, each in said.items()}
            | response_map(batch, words, advantages, row)
            | {"observed": {place: text for place, text in between.items() if place < SHOWN_TOKENS}}
            for row, words, between in zip(rows, saved.words(rows), saved.observed(rows), strict=True)
        ],
    }


def chosen_rows(batch: ScoredBatch, *, token_budget: int) -> list[int]:
    """Rows of whole groups within the limits: evenly mixed ones first, every third one degenerate."""
    groups: dict[int, list[int]] = {}
    for row, label in enumerate(batch.group_B.tolist()):
        groups.setdefault(label, []).append(row)
    rewards = batch.task_reward_B.tolist()
    even = {label: pvariance([rewards[row] for row in rows]) for label, rows in groups.items()}
    mixed = sorted((label for label in groups if even[label] > 0), key=lambda label: -even[label])
    flat = sorted((label for label in groups if even[label] == 0), key=lambda label: rewards[groups[label][0]])
    order: list[int] = []
    while mixed or flat:
        wants_flat = flat and (len(order) % 3 == 2 or not mixed)
        order.append(flat.pop(0) if wants_flat else mixed.pop(0))
    rows: list[int] = []
    tokens = 0
    for row in (row for label in order for row in groups[label]):
        tokens += min(int(batch.token_count_B[row]), SHOWN_TOKENS)
        if len(rows) >= SHOWN_RESPONSES or (rows and tokens > token_budget):
            break
        rows.append(row)
    return rows


def response_map(batch: ScoredBatch, words: Sequence[str], advantages: Advantages, row: int) -> dict[str, Any]:
    """One response's sampled tokens: a list per token quantity (None if the method has no such quantity), and scalars.

    ``before`` is the response's scalar advantage before any token-level step: A^U, or the method's task advantage.
    """
    valid = batch.mask_BT[row]

    def tokens(value_BT: Tensor | None) -> Tensor | None:
        return None if value_BT is None else value_BT[row][valid]

    def scalar(value_B: Tensor | None) -> float | None:
        return None if value_B is None else _short(float(value_B[row]))

    unified_B, task_B = advantages.advantage_unified_B, advantages.advantage_task_B
    before_B = task_B if unified_B is None else unified_B
    after = advantages.advantage_BT[row][valid].double()
    change = None if before_B is None else after - float(before_B[row])
    if change is not None and not (change.abs() > ROUNDING).any():
        change = None
    weight = tokens(advantages.weight_BT)
    quantities = {
        "after": after,
        "change": change,
        "opd": tokens(advantages.advantage_opd_BT),
        "delta": None if batch.teacher_logp_BT is None else tokens(batch.gap_BT),
        "entropy": tokens(batch.teacher_entropy_BT),
        "c": tokens(advantages.confidence_BT),
        "d": tokens(advantages.direction_BT),
        "q": tokens(advantages.residual_BT),
        "w": weight,
    }
    return {
        "group": int(batch.group_B[row]),
        "kind": _kind(batch.task_reward_B[batch.group_B == batch.group_B[row]].tolist()),
        "reward": float(batch.task_reward_B[row]),
        "count": int(valid.sum()),
        "text": list(words[:SHOWN_TOKENS]),
        "before": scalar(before_B),
        **{
            name: None if each is None else list(map(_short, each[:SHOWN_TOKENS].tolist()))
            for name, each in quantities.items()
        },
        "scalars": {
            "teacher_reward": scalar(advantages.teacher_reward_B),
            "task": scalar(task_B),
            "teacher": scalar(advantages.advantage_teacher_B),
        },
        # What the redistribution added and removed over the whole response, and the mean weight minus 1.
        "sums": None
        if change is None
        else {
            "given": float(change.clamp_min(0).sum()),
            "taken": float(change.clamp_max(0).sum()),
            "budget": None if weight is None else float(weight.double().mean() - 1.0),
        },
    }


def _kind(rewards: list[float]) -> str:
    if max(rewards) > min(rewards):
        return f"mixed, {sum(reward > min(rewards) for reward in rewards)} of {len(rewards)} right"
    return f"all {len(rewards)} {'right' if rewards[0] > 0 else 'wrong'}"


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
