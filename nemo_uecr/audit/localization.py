"""Where ECR puts the blame inside a failed response: token weights on steps that a judge calls invalid and valid.

Shape legend: I = responses with both kinds of steps, N = tokens of one response, S = shuffles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from nemo_uecr.audit.judged_steps import Judged, candidates, judged_responses
from nemo_uecr.audit.localization_figure import NOTE, draw, summary_table
from nemo_uecr.audit.output import Audit, Numbers
from nemo_uecr.audit.progress import ProgressLine
from nemo_uecr.audit.pseudo_groups import seeded
from nemo_uecr.audit.rollouts import Scores
from nemo_uecr.audit.schema import STUDENT
from nemo_uecr.audit.share import Sampler
from nemo_uecr.audit.step_judge import Labels
from nemo_uecr.audit.token_table import TokenTable, token_table
from nemo_uecr.core.methods.uecr import Rule, projected, without_entropy
from nemo_uecr.core.methods.view import View
from nemo_uecr.core.records import ScoredBatch, Settings

Array = np.ndarray
RuleOf = Callable[[View], Rule]

#: Label of the variants in the figure's order; the shuffles are reported by their mean.
PUU, NO_ENTROPY, FULL = "PUU", "no entropy", "full ECR"


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
    sampler = Sampler.draw(table.problem_B, replicates=replicates, seed=seed)
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
    tau_delta, tau_entropy = settings.need("tau_delta", "uecr"), settings.need("tau_entropy", "uecr")
    return lambda view: projected(view, tau_delta, tau_entropy)


def _without_entropy(settings: Settings) -> RuleOf:
    tau_delta = settings.need("tau_delta", "ecr_no_entropy")
    return lambda view: without_entropy(view, tau_delta)


def _weights(batch: ScoredBatch, settings: Settings, rule_of: RuleOf) -> list[Array]:
    """Token weights of every response by the training code; A^task|U is negative on all of them."""
    rho = settings.need("rho", "uecr")
    rule, sign_b = rule_of(View(batch)), torch.full((1,), -1.0, dtype=torch.float64)
    return [(1.0 + rho * rule(block, sign_b).q[0]).numpy() for block in batch.blocks]


def _shuffled_gaps(
    batch: ScoredBatch, settings: Settings, judged: Sequence[Judged], names: Sequence[str], *, shuffles: int, seed: int
) -> Array:
    """[S, I] gaps, each response's entropies permuted by a stream of its own: seed and name alone decide it."""
    rule, found = _projected(settings), []
    streams = [seeded(seed, name) for name in names]
    with ProgressLine("shuffles", shuffles) as progress:
        for _ in range(shuffles):
            weights = _weights(_permuted(batch, streams), settings, rule)
            found.append([_gap(each, w_N) for each, w_N in zip(judged, weights, strict=True)])
            progress.advance(1)
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


def _variant(judged: Sequence[Judged], weights: Sequence[Array], sampler: Sampler, problem_I: Array) -> Numbers:
    gap_I = np.asarray([_gap(each, w_N) for each, w_N in zip(judged, weights, strict=True)])
    first_I = np.asarray([_first_error(each, w_N) for each, w_N in zip(judged, weights, strict=True)])
    known_I = np.isfinite(first_I)
    return _summary(gap_I, sampler, problem_I) | {
        "first_error": sampler.mean(np.where(known_I, first_I, 0.0), known_I, problem_I),
        "budget_error": max(abs(float(w_N.mean()) - 1.0) for w_N in weights),
    }


def _summary(gap_I: Array, sampler: Sampler, problem_I: Array) -> Numbers:
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
