"""The credit map: every token of a few responses, before and after redistribution.

Advantages are computed again from the saved batch by `nemo_uecr.core`, so the map shows what trained the policy.
Shape legend: B = responses, T = tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nemo_uecr.errors import RunFolderError
from nemo_uecr.files import read_object
from nemo_uecr.telemetry.run_folder import BatchFiles, RunFolder

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_uecr.core.records import Advantages, ScoredBatch, Settings

#: Responses shown of one batch, saved batches shown of one run, and tokens shown of one response.
SHOWN_RESPONSES, SHOWN_STEPS, SHOWN_TOKENS = 24, 3, 800
#: Tokens shown on the whole page: at about 80 bytes each, it stays below 3 MB.
PAGE_TOKENS = 14_000
DIGITS = 5
#: A change of this size is the rounding of float32.
ROUNDING = 1e-6


@dataclass(frozen=True)
class SavedTexts:
    """A saved batch: tensors, the method that made its advantages, and the texts of its responses."""

    step: int
    method: str
    settings: Settings
    batch: ScoredBatch
    texts: dict[int, dict[str, Any]]


def credit_data(runs: Sequence[RunFolder]) -> dict[str, Any] | None:
    """The maps of every run that saved a batch, for the page's script; None where none did."""
    saved = [run for run in runs if run.batches]
    if not saved:
        return None
    budget = PAGE_TOKENS // len(saved)
    return {"runs": [{"label": run.label, "steps": credit_maps(run, token_budget=budget)} for run in saved]}


def credit_maps(run: RunFolder, *, token_budget: int) -> list[dict[str, Any]]:
    """The first, middle and last saved batch of a run, ready for the page.

    Args:
        run: the run.
        token_budget: tokens that may be shown of it.

    Raises:
        RunFolderError: The parts of a saved batch disagree.
    """
    chosen = spread(run.batches, SHOWN_STEPS)
    return [step_map(read_batch(files), token_budget=token_budget // len(chosen)) for files in chosen]


def spread(items: list[BatchFiles], count: int) -> list[BatchFiles]:
    """``count`` items from first to last, evenly spaced."""
    if len(items) <= count:
        return items
    return [items[round(index * (len(items) - 1) / (count - 1))] for index in range(count)]


def read_batch(files: BatchFiles) -> SavedTexts:
    """Read a saved batch with its texts.

    Raises:
        DataError: If the tensors are truncated or one is missing, or the header's settings are none.
        RunFolderError: If the format or the texts do not fit.
    """
    from nemo_uecr.data.batch_file import FORMAT, load_batch, saved_settings, scored_batch

    saved = load_batch(files.tensors)
    if saved.header.get("format") != FORMAT:
        raise RunFolderError(f"{files.tensors} has format {saved.header.get('format')!r}; expected {FORMAT}")
    settings, batch = saved_settings(saved, files.tensors), scored_batch(saved, files.tensors)
    return SavedTexts(files.step, saved.method or "", settings, batch, _read_texts(files, batch))


def step_map(saved: SavedTexts, *, token_budget: int) -> dict[str, Any]:
    """One saved batch as the page's script reads it."""
    from nemo_uecr.core.methods import METHODS

    if saved.method not in METHODS:
        raise RunFolderError(
            f"the batch of step {saved.step} names method {saved.method!r}; expected one of {', '.join(METHODS)}"
        )
    method = METHODS[saved.method]
    advantages = method.compute(saved.batch, saved.settings, detail=True)
    rows = chosen_rows(saved, token_budget=token_budget)
    return {
        "step": saved.step,
        "method": saved.method,
        "equation": method.equation,
        "conserving": "budget" in method.identities,
        "settings": {name: getattr(saved.settings, name) for name in sorted(method.core_settings)},
        "batch": saved.batch.responses,
        "responses": [response_map(saved, advantages, row) for row in rows],
    }


def chosen_rows(saved: SavedTexts, *, token_budget: int) -> list[int]:
    """Whole groups: evenly mixed ones first, every third place for a degenerate one, within the limits."""
    groups: dict[int, list[int]] = {}
    for row, label in enumerate(saved.batch.group_B.tolist()):
        if row in saved.texts:
            groups.setdefault(label, []).append(row)
    rewards = saved.batch.task_reward_B.tolist()
    even = {label: _evenness([rewards[row] for row in rows]) for label, rows in groups.items()}
    mixed = sorted((label for label in groups if even[label] > 0), key=lambda label: -even[label])
    flat = sorted((label for label in groups if even[label] == 0), key=lambda label: rewards[groups[label][0]])
    order: list[int] = []
    while mixed or flat:
        wants_flat = flat and (len(order) % 3 == 2 or not mixed)
        order.append(flat.pop(0) if wants_flat else mixed.pop(0))
    rows: list[int] = []
    tokens = 0
    for row in (row for label in order for row in groups[label]):
        tokens += min(len(saved.texts[row]["tokens"]), SHOWN_TOKENS)
        if len(rows) >= SHOWN_RESPONSES or (rows and tokens > token_budget):
            break
        rows.append(row)
    return rows


def response_map(saved: SavedTexts, advantages: Advantages, row: int) -> dict[str, Any]:
    """One response: its scalars, and a list a token quantity (None where the method has none)."""
    batch, told = saved.batch, saved.texts[row]
    valid = batch.mask_BT[row]
    peers = batch.task_reward_B[batch.group_B == batch.group_B[row]]
    before = before_redistribution(advantages, row)
    after = advantages.advantage_BT[row][valid].double()
    change = None if before is None else after - before
    moved = change is not None and bool((change.abs() > ROUNDING).any())
    tokens = {"after": after, "change": change if moved else None, **_token_values(batch, advantages, row)}
    return {
        **{key: str(told.get(key, "")) for key in ("id", "problem", "question", "answer", "verdict")},
        "group": int(batch.group_B[row]),
        "kind": _kind(peers.tolist()),
        "reward": float(batch.task_reward_B[row]),
        "count": int(valid.sum()),
        "text": [str(token) for token in told["tokens"][:SHOWN_TOKENS]],
        "before": None if before is None else float(f"{before:.{DIGITS}g}"),
        **{name: None if values is None else _numbers(values[:SHOWN_TOKENS]) for name, values in tokens.items()},
        "scalars": {
            "teacher_reward": _scalar(advantages.teacher_reward_B, row),
            "task": _scalar(advantages.advantage_task_B, row),
            "teacher": _scalar(advantages.advantage_teacher_B, row),
        },
        "sums": _sums(change, tokens["w"]) if moved and change is not None else None,
    }


def _token_values(batch: ScoredBatch, advantages: Advantages, row: int) -> dict[str, Tensor | None]:
    """What the page shows of every token of a response besides its advantage."""
    valid = batch.mask_BT[row]
    gap = None if batch.teacher_logp_BT is None else (batch.teacher_logp_BT - batch.old_logp_BT)[row][valid]
    return {
        "opd": _row(advantages.advantage_opd_BT, row, valid),
        "delta": gap,
        "entropy": _row(batch.teacher_entropy_BT, row, valid),
        "c": _row(advantages.confidence_BT, row, valid),
        "d": _row(advantages.direction_BT, row, valid),
        "q": _row(advantages.residual_BT, row, valid),
        "w": _row(advantages.weight_BT, row, valid),
    }


def before_redistribution(advantages: Advantages, row: int) -> float | None:
    """The response's one advantage before any token-level step: A^U, or the method's task advantage."""
    for value_B in (advantages.advantage_unified_B, advantages.advantage_task_B):
        if value_B is not None:
            return float(value_B[row])
    return None


def _sums(change: Tensor, weight: Tensor | None) -> dict[str, float | None]:
    """What the redistribution gave and took over the whole response, and how far the mean weight is from 1."""
    return {
        "given": float(change.clamp_min(0).sum()),
        "taken": float(change.clamp_max(0).sum()),
        "budget": None if weight is None else float(weight.double().mean() - 1.0),
    }


def _read_texts(files: BatchFiles, batch: ScoredBatch) -> dict[int, dict[str, Any]]:
    texts = {response["row"]: response for response in read_object(files.texts)["responses"]}
    counts = batch.mask_BT.sum(dim=1).tolist()
    for row, response in texts.items():
        if len(response["tokens"]) != counts[row]:
            raise RunFolderError(
                f"{files.texts} has {len(response['tokens'])} token texts for row {row}; expected {counts[row]}, the "
                f"sampled tokens of that row in {files.tensors.name}"
            )
    return texts


def _evenness(rewards: list[float]) -> float:
    mean = sum(rewards) / len(rewards)
    return sum((reward - mean) ** 2 for reward in rewards) / len(rewards)


def _kind(rewards: list[float]) -> str:
    if max(rewards) > min(rewards):
        return f"mixed, {sum(reward > min(rewards) for reward in rewards)} of {len(rewards)} right"
    return f"all {len(rewards)} {'right' if rewards[0] > 0 else 'wrong'}"


def _row(values_BT: Tensor | None, row: int, valid: Tensor) -> Tensor | None:
    return None if values_BT is None else values_BT[row][valid]


def _scalar(values_B: Tensor | None, row: int) -> float | None:
    return None if values_B is None else float(f"{float(values_B[row]):.{DIGITS}g}")


def _numbers(values: Tensor) -> list[float]:
    return [float(f"{value:.{DIGITS}g}") for value in values.tolist()]
