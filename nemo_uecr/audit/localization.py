"""Where ECR puts the blame inside a failed response: token weights on steps that a judge calls invalid and valid.

Shape legend: I = responses with both kinds of steps, N = tokens of one response, S = shuffles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from nemo_uecr.audit.groups import TokenTable, seeded, token_table
from nemo_uecr.audit.judging import INVALID, VALID, Item, Labels
from nemo_uecr.audit.output import Audit, Numbers, Table, progress
from nemo_uecr.audit.segment import is_reasoning_free, segment, token_steps
from nemo_uecr.audit.store import STUDENT, Scores
from nemo_uecr.core.groups import Groups
from nemo_uecr.core.methods.uecr import Rule, projected, without_entropy
from nemo_uecr.core.methods.view import View
from nemo_uecr.core.records import ScoredBatch, Settings
from nemo_uecr.errors import DataError
from nemo_uecr.stats import ClusterBootstrap

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = np.ndarray
RuleOf = Callable[[View], Rule]

#: Label of the variants in the figure's order; the shuffles are reported by their mean.
PUU, NO_ENTROPY, FULL = "PUU", "no entropy", "full ECR"
#: Responses to a prompt in a group of the audit.
GROUP_SIZE = 8
NOTE = (
    "Failed responses of mixed groups of eight; a judge who saw only problem, answer and steps labelled each step. "
    "Gap: mean token weight of invalid steps minus that of valid steps, averaged over responses. Their task advantage "
    "is negative, so a gap above 0 puts more of the blame on the invalid steps. (a) the entropies of each response "
    "permuted over its tokens; (b) 95% bootstrap intervals over prompts, with the share of responses whose gap is "
    "above 0. The audit says where weights lie, not what training with them would gain."
)
BINS = 24


def localization_audit(
    scores: Scores,
    labels: Mapping[str, Labels],
    settings: Settings,
    tokenizer: Any,
    *,
    checkpoint: int,
    shuffles: int,
    replicates: int,
    seed: int,
) -> Audit:
    """Invalid-minus-valid weight gaps of PUU, ECR without entropy, shuffled entropies and full ECR.

    ``D_i = mean of w over tokens of invalid steps - mean of w over tokens of valid steps``

    Args:
        scores: responses to prompts in groups of eight, scored by the teacher and the policy that generated them.
        labels: a judge's labels by response.
        settings: alpha, rho, tau_delta and tau_entropy.
        tokenizer: of the policy that generated the responses.
        checkpoint: training steps of that policy; 0 is the initialisation.
        shuffles: within-response permutations of the teacher's entropies.
        replicates: of the bootstrap over prompts.
        seed: of shuffles and bootstrap.

    Raises:
        DataError: If a labelled response is no candidate, or no response has both kinds of steps.

    References:
        eq:ecr-localization-gap, fig:ecr-token-localization, app:ecr-localization.
    """
    table = token_table(scores, STUDENT, checkpoint)
    chosen = candidates(scores, table)
    judged, counts = judged_responses(scores, table, chosen.rows, labels, tokenizer)
    batch = table.batch(np.asarray([each.row for each in judged]))
    sampler = ClusterBootstrap.draw(table.problem_B, replicates=replicates, seed=seed)
    problem_I = table.problem_B[[each.row for each in judged]]
    weights = {
        PUU: [np.ones(len(each.valid_N)) for each in judged],
        NO_ENTROPY: _weights(batch, settings, _without_entropy(settings)),
        FULL: _weights(batch, settings, _projected(settings)),
    }
    names = [table.ids[each.row] for each in judged]
    shuffled_SI = _shuffled_gaps(batch, settings, judged, names, shuffles=shuffles, seed=seed)
    variants = {name: _variant(judged, found, sampler, problem_I) for name, found in weights.items()}
    variants["shuffled, mean"] = _summary(shuffled_SI.mean(axis=0), sampler, problem_I)
    numbers: Numbers = {
        "settings": {
            **{name: getattr(settings, name) for name in ("alpha", "rho", "tau_delta", "tau_entropy")},
            "checkpoint": checkpoint, "shuffles": shuffles, "replicates": replicates, "seed": seed,
        },
        "scores": scores.provenance(),
        "selection": {**chosen.counts, "candidates": len(chosen.rows), **counts, "eligible": len(judged)},
        "variants": variants,
        "shuffles": _position(shuffled_SI.mean(axis=1), float(variants[FULL]["gap"]["value"])),
        "responses": _per_response(table, judged, weights),
    }  # fmt: skip
    return Audit("localization", "ECR credit localization", NOTE, numbers, summary_table(numbers), draw, (9.2, 3.3))


def _projected(settings: Settings) -> RuleOf:
    tau_delta, tau_entropy = (
        settings.given(["tau_delta"], "uecr")["tau_delta"],
        settings.given(["tau_entropy"], "uecr")["tau_entropy"],
    )
    return lambda view: projected(view, tau_delta, tau_entropy)


def _without_entropy(settings: Settings) -> RuleOf:
    tau_delta = settings.given(["tau_delta"], "ecr_no_entropy")["tau_delta"]
    return lambda view: without_entropy(view, tau_delta)


def _weights(batch: ScoredBatch, settings: Settings, rule_of: RuleOf) -> list[Array]:
    """Token weights of every response by the training code; A^task|U is negative on all of them."""
    rho = settings.given(["rho"], "uecr")["rho"]
    rule, sign_b = rule_of(View(batch)), torch.full((1,), -1.0, dtype=torch.float64)
    return [(1.0 + rho * rule(block, sign_b).q[0]).numpy() for block in batch.blocks]


def _shuffled_gaps(
    batch: ScoredBatch, settings: Settings, judged: Sequence[Judged], names: Sequence[str], *, shuffles: int, seed: int
) -> Array:
    """[S, I] gaps, each response's entropies permuted by a stream of its own: seed and name alone decide it."""
    rule, found = _projected(settings), []
    streams = [seeded(seed, name) for name in names]
    with progress("shuffles", shuffles) as advance:
        for _ in range(shuffles):
            weights = _weights(_permuted(batch, streams), settings, rule)
            found.append([_gap(each, w_N) for each, w_N in zip(judged, weights, strict=True)])
            advance(1)
    return np.asarray(found).reshape(shuffles, len(judged))


def _permuted(batch: ScoredBatch, streams: Sequence[np.random.Generator]) -> ScoredBatch:
    if batch.teacher_entropy_BT is None:
        raise AssertionError("scores have the teacher's entropy")
    parts = [block.of(batch.teacher_entropy_BT)[0] for block in batch.blocks]
    mixed = [part[torch.from_numpy(stream.permutation(len(part)))] for part, stream in zip(parts, streams, strict=True)]
    return replace(batch, teacher_entropy_BT=torch.cat(mixed))


def _gap(each: Judged, weight_N: Array) -> float:
    return float(weight_N[each.invalid_N].mean() - weight_N[each.valid_N].mean())


def _first_error(each: Judged, weight_N: Array) -> float:
    """First erroneous step against the valid steps before it; NaN where one of the two is missing."""
    if not (each.first_error_N.any() and each.valid_before_N.any()):
        return float("nan")
    return float(weight_N[each.first_error_N].mean() - weight_N[each.valid_before_N].mean())


def _variant(
    judged: Sequence[Judged], weights: Sequence[Array], sampler: ClusterBootstrap, problem_I: Array
) -> Numbers:
    gap_I = np.asarray([_gap(each, w_N) for each, w_N in zip(judged, weights, strict=True)])
    first_I = np.asarray([_first_error(each, w_N) for each, w_N in zip(judged, weights, strict=True)])
    known_I = np.isfinite(first_I)
    return _summary(gap_I, sampler, problem_I) | {
        "first_error": sampler.mean(np.where(known_I, first_I, 0.0), known_I, problem_I),
        "budget_error": max(abs(float(w_N.mean()) - 1.0) for w_N in weights),
    }


def _summary(gap_I: Array, sampler: ClusterBootstrap, problem_I: Array) -> Numbers:
    every_I = np.ones(len(gap_I), dtype=bool)
    return {
        "gap": sampler.mean(gap_I, every_I, problem_I),
        "positive": sampler.mean((gap_I > 0).astype(np.float64), every_I, problem_I),
    }


def _position(gap_S: Array, full: float) -> Numbers:
    """Where the original positions lie among the shuffled ones."""
    above = int((gap_S >= full).sum())
    return {"gap": gap_S, "mean": gap_S.mean(), "at_least_full": above, "p": (above + 1) / (len(gap_S) + 1)}


def _per_response(table: TokenTable, judged: Sequence[Judged], weights: Mapping[str, Sequence[Array]]) -> list[Numbers]:
    return [
        {
            "response": table.ids[each.row],
            "invalid_tokens": int(each.invalid_N.sum()),
            "valid_tokens": int(each.valid_N.sum()),
            "gap": {name: _gap(each, found[place]) for name, found in weights.items()},
        }
        for place, each in enumerate(judged)
    ]


# Which responses are judged, and the tokens of their steps


@dataclass(frozen=True)
class Candidates:
    """Failed responses of mixed groups: their rows in the token table and why others were left out."""

    rows: Array
    counts: dict[str, int]


@dataclass(frozen=True)
class Judged:
    """One response with both kinds of steps: its tokens in each."""

    row: int
    invalid_N: Array
    valid_N: Array
    first_error_N: Array
    valid_before_N: Array


def candidates(scores: Scores, table: TokenTable) -> Candidates:
    """Incorrect responses with A^task|U < 0 of mixed groups of eight, without empty or reasoning-free ones.

    Nothing of the teacher decides: the sign of ``A^task|U = (R - mean R) / (Std(R^U) + eps)`` is the numerator's.
    """
    texts = scores.column("response")
    kept: list[int] = []
    counts = dict.fromkeys(("groups", "mixed_groups_of_eight", "incorrect_in_them", "reasoning_free"), 0)
    for rows, batch in table.group_batches():
        counts["groups"] += 1
        if len(rows) != GROUP_SIZE or np.ptp(table.reward_B[rows]) == 0:
            continue
        counts["mixed_groups_of_eight"] += 1
        centred_b = Groups.of(batch.group_B).centre(batch.task_reward_B)
        for row in rows[(centred_b < 0).numpy() & (table.reward_B[rows] <= 0)]:
            counts["incorrect_in_them"] += 1
            free = is_reasoning_free(texts[table.rows[row]])
            counts["reasoning_free"] += free
            if not free:
                kept.append(int(row))
    return Candidates(np.asarray(sorted(kept), dtype=np.int64), counts)


def items_to_judge(scores: Scores, *, checkpoint: int, limit: int | None, seed: int) -> list[Item]:
    """The candidates for a judge; with a limit, that many drawn by the seed.

    Raises:
        DataError: If there is no candidate, or a problem's text is not known.
    """
    table = token_table(scores, STUDENT, checkpoint)
    rows = candidates(scores, table).rows
    if not len(rows):
        raise DataError(
            f"{scores.folder} has no failed response in a mixed group of {GROUP_SIZE} at checkpoint {checkpoint}; "
            "expected eight responses a prompt, for example `nemo-uecr score RUN --take batches --steps 1`"
        )
    if limit is not None:
        rows = np.sort(np.random.default_rng(seed).permutation(rows)[:limit])
    columns = {name: scores.column(name) for name in ("question", "answer", "response")}
    places = table.rows[rows]
    if any(columns["question"][place] is None or columns["answer"][place] is None for place in places):
        raise DataError(f"{scores.folder} does not know every question and answer; expected both in the rollouts")
    return [
        Item(scores.responses.ids[place], *(columns[name][place] for name in ("question", "answer", "response")))
        for place in places
    ]


def judged_responses(
    scores: Scores, table: TokenTable, rows: Array, labels: Mapping[str, Labels], tokenizer: Any
) -> tuple[list[Judged], dict[str, int]]:
    """The labelled responses that have tokens in both kinds of steps, and how many were judged and left out.

    Args:
        scores: the scored responses.
        table: tokens of one checkpoint.
        rows: the candidates among the table's responses.
        labels: a judge's labels by response.
        tokenizer: of the policy that generated the responses.

    Raises:
        DataError: If a labelled response is no candidate, was cut otherwise, or none has both kinds of steps.
    """
    texts = scores.column("response")
    known = {table.ids[row]: int(row) for row in rows}
    strange = next((name for name in labels if name not in known), None)
    if strange is not None:
        raise DataError(
            f"the judge's response {strange!r} is no candidate of this audit; expected the labels of its items"
        )
    judged, nonfinite = [], 0
    for name, found in labels.items():
        row = known[name]
        if not _is_finite(table, row):  # the projection's mean runs over every token: one spoils all weights
            nonfinite += 1
            continue
        text = texts[table.rows[row]]
        steps = segment(text)
        if len(steps) != len(found.labels):
            raise DataError(f"response {name!r} has {len(steps)} steps, its labels {len(found.labels)}; judge it again")
        step_N = token_steps(text, steps, table.token_ids[table.span(row)].tolist(), tokenizer)
        each = _tokens_by_label(row, step_N, found)
        if each.invalid_N.any() and each.valid_N.any():
            judged.append(each)
    if not judged:
        raise DataError(
            "no judged response has tokens in a valid and in an invalid step; expected at least one"
            + (f" ({nonfinite} have a token without finite scores)" if nonfinite else "")
        )
    every = [label for found in labels.values() for label in found.labels]
    return judged, {"judged": len(labels), "left_out_nonfinite": nonfinite, "steps": len(every)} | {
        f"steps_{name}": every.count(name) for name in set(every)
    }


def _is_finite(table: TokenTable, row: int) -> bool:
    span = table.span(row)
    values = (table.teacher_logp[span], table.teacher_entropy[span], table.anchor_logp[span])
    return all(bool(value_N.isfinite().all()) for value_N in values)


def _tokens_by_label(row: int, step_N: Array, found: Labels) -> Judged:
    def tokens(chosen: Sequence[int]) -> Array:
        return np.isin(step_N, np.asarray(chosen, dtype=np.int64))

    valid = [number for number, label in enumerate(found.labels) if label == VALID]
    first = found.first_error
    return Judged(
        row=row,
        invalid_N=tokens([number for number, label in enumerate(found.labels) if label == INVALID]),
        valid_N=tokens(valid),
        first_error_N=tokens([] if first is None else [first]),
        valid_before_N=tokens([] if first is None else [number for number in valid if number < first]),
    )


# The table and the figure


def draw(figure: Figure, numbers: Numbers) -> None:
    """Shuffles against the original positions, and the variants."""
    left, right = figure.subplots(1, 2)
    _shuffles(left, numbers)
    _variants(right, numbers)


def _shuffles(axes: Axes, numbers: Numbers) -> None:
    found, full = numbers["shuffles"], numbers["variants"]["full ECR"]["gap"]["value"]
    count = len(found["gap"])
    axes.hist(found["gap"], bins=BINS, color="C6", alpha=0.75, label=f"{count} shuffles")
    axes.axvline(found["mean"], color="C6", linestyle=":", linewidth=1.4, label="their mean")
    axes.axvline(full, color="C0", linewidth=2.0, label="original positions")
    low, high = axes.get_ylim()
    axes.set_ylim(low, 1.35 * high)  # room for the legend above the bars
    axes.set_title(
        f"(a) entropy positions: {found['at_least_full']} of {len(found['gap'])} shuffles reach the original"
    )
    axes.set_xlabel("invalid-minus-valid weight gap")
    axes.set_ylabel("shuffles")
    # On white: the line of the original positions may run below it.
    axes.legend(loc="upper left", fontsize=8, ncols=3, columnspacing=1.0, frameon=True, framealpha=1, edgecolor="none")


def _variants(axes: Axes, numbers: Numbers) -> None:
    names = ["PUU", "no entropy", "shuffled, mean", "full ECR"]
    rows = [numbers["variants"][name] for name in names]
    tops = []
    for place, (name, row) in enumerate(zip(names, rows, strict=True)):
        gap = row["gap"]
        colour = "C0" if name == "full ECR" else "C6"
        axes.plot([place, place], [gap["low"], gap["high"]], color=colour, linewidth=2.0)
        axes.plot([place], [gap["value"]], marker="o", color=colour)
        tops.append(max(gap["high"], 0.0))
        label = f"{100 * row['positive']['value']:.0f}%"
        axes.annotate(label, (place, tops[-1]), (0, 5), textcoords="offset points", ha="center", fontsize=8)
    axes.axhline(0.0, color="black", linewidth=0.6)
    axes.set_xticks(range(len(names)), names)
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.margins(y=0.18)
    axes.set_title("(b) gap with 95% interval; label: share above 0")
    axes.set_ylabel("invalid-minus-valid weight gap")


def summary_table(numbers: Numbers) -> Table:
    """One row a variant."""
    heads = ("variant", "gap D", "95% interval", "D > 0 %", "first error", "95% interval", "largest |mean w - 1|")
    rows = []
    for name, row in numbers["variants"].items():
        first = row.get("first_error")
        rows.append(
            (
                name,
                f"{row['gap']['value']:+.5f}",
                _ends(row["gap"]),
                f"{100 * row['positive']['value']:.1f}",
                "-" if first is None or not first["of"] else f"{first['value']:+.5f}",
                "-" if first is None or not first["of"] else _ends(first),
                f"{row['budget_error']:.1e}" if "budget_error" in row else "-",
            )
        )
    return Table(heads, tuple(rows))


def _ends(share: Numbers) -> str:
    return f"[{share['low']:+.5f}, {share['high']:+.5f}]"
