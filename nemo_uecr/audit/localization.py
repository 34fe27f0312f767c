"""Credit localization of ECR: token weights on the steps of failed responses that a judge labels invalid and valid.

Shape legend: I = responses with both kinds of steps, N = tokens of one response, S = shuffles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from nemo_uecr.audit.groups import groups_record, rows_of, seeded
from nemo_uecr.audit.judging import INVALID, VALID, Labels, is_reasoning_free, segment, token_steps, write_steps
from nemo_uecr.audit.output import Audit, Numbers, tracked
from nemo_uecr.audit.store import STUDENT, CheckpointTokens, Scored
from nemo_uecr.core.methods import method_of
from nemo_uecr.core.methods.uecr import Uecr
from nemo_uecr.core.record import ScoredBatch
from nemo_uecr.errors import DataError
from nemo_uecr.stats import Array, ClusterBootstrap, Share
from nemo_uecr.tables import shown, with_interval

#: Responses per group of the audit.
GROUP_SIZE = 8
NOTE = (
    "Failed responses of mixed groups of eight; a judge who saw only problem, answer and steps labelled each step. "
    "Gap: mean token weight of invalid steps minus that of valid steps, averaged over responses. Their task advantage "
    "is negative, so a gap above 0 puts more blame on the invalid steps. (a) the entropies of each response permuted "
    "over its tokens; (b) 95% bootstrap intervals over prompts, with the share of responses whose gap is above 0. The "
    "audit measures weights, not the effect of training with them."
)
COLUMNS = ("variant", "gap D", "95% interval", "D > 0 %", "first error", "95% interval", "largest |mean w - 1|")


def localization_audit(
    scores: Scored,
    labels: Mapping[str, Labels],
    uecr: Uecr,
    tokenizer: Any,
    *,
    checkpoint: int,
    shuffles: int,
    replicates: int,
    seed: int,
) -> Audit:
    """Invalid-minus-valid weight gaps of PUU, ECR without entropy, shuffled entropies and full ECR.

    ``D_i = mean of w over tokens of invalid steps - mean of w over tokens of valid steps``   (eq:ecr-localization-gap)

    ``scores`` has groups of eight responses by the policy at ``checkpoint``; ``tokenizer`` is that policy's. Each of
    the ``shuffles`` permutes the teacher's entropies within every response.
    """
    tokens = scores.tokens(STUDENT, checkpoint)
    rows, selection = candidates(scores, tokens)
    judged, counts = _judged_responses(scores, tokens, rows, labels, tokenizer)
    own = np.asarray(judged.rows)
    names = [scores.ids[row] for row in tokens.rows[own]]
    _, problem_B = np.unique(scores.problem_B[tokens.rows], return_inverse=True)
    sampler = ClusterBootstrap.draw(problem_B, replicates=replicates, seed=seed)
    mean = partial(_mean, sampler=sampler, problem_I=problem_B[own])
    batch = groups_record(scores, tokens, own)
    weights = {
        "PUU": [np.ones(len(valid_N)) for valid_N in judged.valid],
        "no entropy": _weights(batch, "ecr_no_entropy", uecr),
        "full ECR": _weights(batch, "uecr", uecr),
    }
    gaps = {name: _gaps(weight, judged.invalid, judged.valid) for name, weight in weights.items()}
    shuffled_SI = _shuffled_gaps(batch, judged, uecr, [seeded(seed, name) for name in names], shuffles)
    variants: dict[str, Numbers] = {
        name: {"gap": mean(gap_I), "positive": mean(gap_I > 0)}
        for name, gap_I in {**gaps, "shuffled, mean": shuffled_SI.mean(axis=0)}.items()
    }
    for name, weight in weights.items():
        variants[name] |= {
            "first_error": mean(_gaps(weight, judged.first_error, judged.valid_before)),
            "budget_error": max(abs(float(w_N.mean()) - 1.0) for w_N in weight),
        }
    numbers: Numbers = {
        "settings": {
            **{name: getattr(uecr, name) for name in ("alpha", "rho", "tau_delta", "tau_entropy")},
            "checkpoint": checkpoint, "shuffles": shuffles, "replicates": replicates, "seed": seed,
        },
        "scores": scores.provenance(),
        "selection": {**selection, "candidates": len(rows), **counts, "eligible": len(names)},
        "variants": variants,
        "shuffles": rank_among(shuffled_SI.mean(axis=1), float(variants["full ECR"]["gap"]["value"])),
        "responses": _by_response(names, judged, gaps),
    }  # fmt: skip
    return Audit("localization", "ECR credit localization", NOTE, numbers, COLUMNS, _rows(variants))


def _shuffled_gaps(
    batch: ScoredBatch, judged: Judged, uecr: Uecr, streams: Sequence[np.random.Generator], shuffles: int
) -> Array:
    """[S, I] gaps of full ECR with the teacher's entropies permuted within every response, each by its own stream."""
    permuted = (_permuted(batch, streams) for _ in tracked(range(shuffles), "shuffles"))
    return np.stack([_gaps(_weights(each, "uecr", uecr), judged.invalid, judged.valid) for each in permuted])


def _by_response(names: Sequence[str], judged: Judged, gaps: Mapping[str, Array]) -> list[Numbers]:
    """Every response with its numbers of tokens and its gap in each variant."""
    return [
        {
            "response": name,
            "invalid_tokens": int(judged.invalid[place].sum()),
            "valid_tokens": int(judged.valid[place].sum()),
            "gap": {variant: float(gap_I[place]) for variant, gap_I in gaps.items()},
        }
        for place, name in enumerate(names)
    ]


def _weights(batch: ScoredBatch, method: str, uecr: Uecr) -> list[Array]:
    """Token weights of every response by the training code; A^task|U is negative for all of them."""
    variant = method_of(method, uecr.settings())
    assert isinstance(variant, Uecr)
    weight_BT = 1.0 + variant.rho * variant.residual(batch, batch.column(-torch.ones(batch.responses))).q_BT
    return [weight_T[mask_T].numpy() for weight_T, mask_T in zip(weight_BT, batch.mask_BT, strict=True)]


def _permuted(batch: ScoredBatch, streams: Sequence[np.random.Generator]) -> ScoredBatch:
    assert batch.teacher_entropy_BT is not None
    mixed_BT = batch.teacher_entropy_BT.clone()
    for entropy_T, mask_T, stream in zip(mixed_BT, batch.mask_BT, streams, strict=True):
        own_N = entropy_T[mask_T]
        entropy_T[mask_T] = own_N[torch.from_numpy(stream.permutation(len(own_N)))]
    return replace(batch, teacher_entropy_BT=mixed_BT)


def _gaps(weights: Sequence[Array], above: Sequence[Array], below: Sequence[Array]) -> Array:
    """[I] mean weight of some tokens of each response minus that of others; NaN if it has none of either."""
    gaps = np.full(len(weights), np.nan)
    for place, (weight_N, above_N, below_N) in enumerate(zip(weights, above, below, strict=True)):
        if above_N.any() and below_N.any():
            gaps[place] = weight_N[above_N].mean() - weight_N[below_N].mean()
    return gaps


def _mean(value_I: Array, *, sampler: ClusterBootstrap, problem_I: Array) -> Share:
    """Mean over the responses that have a value, with its interval over problems."""
    return sampler.mean(value_I, np.isfinite(value_I), problem_I)


def rank_among(gap_S: Array, full: float) -> Numbers:
    """How many shuffles have at least the gap of the entropies in their own places, and the permutation p-value."""
    above = int((gap_S >= full).sum())
    return {"gap": gap_S, "mean": gap_S.mean(), "at_least_full": above, "p": (above + 1) / (len(gap_S) + 1)}


# The judged responses


class Judged(NamedTuple):
    """Responses with both kinds of steps: rows in `CheckpointTokens`, and masks of their tokens of every kind."""

    rows: Sequence[int]
    invalid: Sequence[Array]
    valid: Sequence[Array]
    first_error: Sequence[Array]
    valid_before: Sequence[Array]


def candidates(scores: Scored, tokens: CheckpointTokens) -> tuple[Array, dict[str, int]]:
    """Incorrect responses of mixed groups of eight, whose A^task|U is negative, except reasoning-free ones.

    Returns their rows in ``tokens``, and the counts of the selection.
    """
    texts = scores.column("response")
    reward_B, groups = scores.verified_rewards()[tokens.rows], rows_of(scores.group_B[tokens.rows])
    mixed = [rows for rows in groups if len(rows) == GROUP_SIZE and np.ptp(reward_B[rows]) > 0]
    wrong = [int(row) for rows in mixed for row in rows if reward_B[row] <= 0]
    kept = [row for row in wrong if not is_reasoning_free(texts[tokens.rows[row]])]
    counts = {
        "groups": len(groups), "mixed_groups_of_eight": len(mixed), "incorrect_in_them": len(wrong),
        "reasoning_free": len(wrong) - len(kept),
    }  # fmt: skip
    return np.asarray(sorted(kept), dtype=np.int64), counts


def write_candidates(scores: Scored, folder: Path, *, checkpoint: int, limit: int, seed: int) -> tuple[int, int]:
    """Write the steps of at most ``limit`` random candidates; return the numbers of responses and of steps."""
    tokens = scores.tokens(STUDENT, checkpoint)
    rows, _ = candidates(scores, tokens)
    if not len(rows):
        raise DataError(
            f"{scores.folder} has no failed response in a mixed group of {GROUP_SIZE} at checkpoint {checkpoint}; "
            "expected eight responses per prompt, for example a run's saved batches with rollout.responses_per_prompt=8"
        )
    chosen = tokens.rows[np.sort(np.random.default_rng(seed).permutation(rows)[:limit])]
    return len(chosen), write_steps(scores, chosen, folder, seed=seed)


def _judged_responses(
    scores: Scored, tokens: CheckpointTokens, rows: Array, labels: Mapping[str, Labels], tokenizer: Any
) -> tuple[Judged, dict[str, int]]:
    """The labelled candidates with tokens in both kinds of steps, and the counts of judged and excluded ones."""
    texts = scores.column("response")
    known = {scores.ids[tokens.rows[row]]: int(row) for row in rows}
    found, nonfinite = [], 0
    for name, judgement in labels.items():
        if name not in known:
            raise DataError(
                f"response {name!r} of the key is no candidate in these scores; expected the key written from them"
            )
        row = known[name]
        span, text = tokens.span(row), texts[tokens.rows[row]]
        scored = torch.stack([tokens.teacher_logp[span], tokens.entropy[span], tokens.anchor_logp[span]])
        if not scored.isfinite().all():  # the projection's mean runs over every token
            nonfinite += 1
            continue
        steps = segment(text)
        if len(steps) != len(judgement.labels):  # another run's response may have the same name
            raise DataError(
                f"response {name!r} has {len(steps)} steps but {len(judgement.labels)} labels; judge it again"
            )
        step_N = token_steps(text, steps, tokens.token_ids[span].tolist(), tokenizer)
        label_N = np.asarray([*judgement.labels, ""])[step_N]  # "" for tokens without a step
        invalid_N, valid_N, first = label_N == INVALID, label_N == VALID, (judgement.first_error or -1) - 1
        if invalid_N.any() and valid_N.any():
            found.append((row, invalid_N, valid_N, step_N == first, valid_N & (step_N < first)))
    if not found:
        raise DataError(
            "no judged response has tokens in a valid and in an invalid step; expected at least one"
            f" ({nonfinite} have a token without finite scores)"
        )
    steps_of = Counter(f"steps_{label}" for judgement in labels.values() for label in judgement.labels)
    counts = {"judged": len(labels), "left_out_nonfinite": nonfinite, "steps": steps_of.total(), **steps_of}
    return Judged(*zip(*found, strict=True)), counts


def _rows(variants: Mapping[str, Numbers]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name, row in variants.items():
        gap, first = _interval(row["gap"]), row.get("first_error")
        rest = ("-", "-") if first is None or not first["of"] else _interval(first)
        positive = f"{100 * row['positive']['value']:.1f}"
        rows.append((name, *gap, positive, *rest, shown(row.get("budget_error"), ".1e")))
    return rows


def _interval(share: Numbers) -> tuple[str, str]:
    value, _, interval = with_interval(share, "+.5f").partition(" ")
    return value, interval
