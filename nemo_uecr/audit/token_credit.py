"""Token-level teacher signals before training: large gaps, the teacher's entropy at them, and mean token weights.

Shape legend: B = responses, K = problems, M = entropy strata, N = tokens in a flat list.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch

from nemo_uecr.audit.groups import groups_record, rows_of
from nemo_uecr.audit.output import Audit, Numbers, tracked
from nemo_uecr.audit.store import STUDENT, CheckpointTokens, Scored
from nemo_uecr.core.functions import compute
from nemo_uecr.core.methods import method_of
from nemo_uecr.core.methods.uecr import Uecr, direction, log_confidence
from nemo_uecr.errors import ScoreError
from nemo_uecr.stats import Array, ClusterBootstrap
from nemo_uecr.tables import percent, with_interval

STRATA = 10
#: Shares of the largest absolute gaps.
TOP = (0.05, 0.10, 0.20)
#: The methods whose weights are with and without projection.
WEIGHTS = {"projected": "uecr", "unprojected": "ecr_no_projection"}
BINS = 40
NOTE = (
    "Tokens in strata of the teacher's entropy (tied quantiles are merged). (a) the teacher's probability of the "
    "sampled token and how often it is the teacher's first choice, lines token-weighted and points response-balanced; "
    "neither measures correctness. (b) distribution over strata of the tokens with the largest absolute gap to the "
    "policy, and of all tokens. (c) mean token weight of a response without the projection; with it the mean is 1. "
    "Intervals: 95% bootstrap over problems."
)
COLUMNS = ("quantity", "token-weighted", "response-balanced")


def token_credit_audit(scores: Scored, uecr: Uecr, *, checkpoint: int | None, replicates: int, seed: int) -> Audit:
    """Entropy strata, location and calibrated magnitude of large gaps, and mean token weights of one checkpoint.

    ``checkpoint`` None is the first one, which also defines the strata (app:token-credit-diagnosis).
    """
    first = scores.checkpoints[0]
    chosen = first if checkpoint is None else checkpoint
    tokens = scores.tokens(STUDENT, chosen)
    entropy_N = _entropy(scores, tokens)
    reference_N = entropy_N if chosen == first else _entropy(scores, scores.tokens(STUDENT, first))
    boundaries = entropy_boundaries(reference_N, STRATA)
    _, problem_B = np.unique(scores.problem_B[tokens.rows], return_inverse=True)
    sampler = ClusterBootstrap.draw(problem_B, replicates=replicates, seed=seed)
    stratum_N = np.searchsorted(boundaries, entropy_N, side="left")  # H in (boundary below, boundary above]
    strata = Strata(stratum_N, tokens.row_N, problem_B, len(boundaries) + 1, sampler)
    quartile = float(np.quantile(reference_N, 0.75, method="inverted_cdf"))
    gap_N = np.abs(tokens.gap_N)
    numbers: Numbers = {
        "settings": {
            "anchor": STUDENT,
            **{key: getattr(uecr, key) for key in ("alpha", "rho", "tau_delta", "tau_entropy", "std_floor")},
            "strata": STRATA, "top": TOP, "replicates": replicates, "seed": seed,
        },
        "scores": scores.provenance(),
        "checkpoint": chosen,
        "strata_from_checkpoint": first,
        "responses": len(tokens.rows),
        "tokens": len(entropy_N),
        "highest_quartile_above": quartile,
        "strata": {
            "boundaries": boundaries,
            "tokens": np.bincount(stratum_N, minlength=strata.count),
            "entropy": strata.mean(entropy_N),
            "probability": strata.mean(tokens.teacher_logp.double().exp().numpy()),
            "absolute_gap": strata.mean(gap_N),
            **_ranks(tokens, strata),
        },
        "large_gaps": _large_gaps(gap_N, entropy_N, strata, quartile, uecr),
        "weights": _weights(scores, tokens, uecr, strata),
    }  # fmt: skip
    return Audit("token-credit", "Token credit", NOTE, numbers, COLUMNS, _rows(numbers))


def _ranks(tokens: CheckpointTokens, strata: Strata) -> Numbers:
    """How often the teacher's first choice was sampled, and its rank of what was; None where nothing was ranked."""
    if tokens.teacher_rank is None:
        return dict.fromkeys(("top1", "rank", "median_rank"))
    rank_N = tokens.teacher_rank.numpy()
    own_ranks = [rank_N[strata.stratum_N == each] for each in range(strata.count)]
    return {
        "top1": strata.mean((rank_N == 1).astype(np.float64)),
        "rank": strata.mean(rank_N.astype(np.float64)),
        "median_rank": [float(np.median(own)) if own.size else None for own in own_ranks],
    }


def _entropy(scores: Scored, tokens: CheckpointTokens) -> Array:
    scored = torch.stack([tokens.entropy, tokens.teacher_logp, tokens.anchor_logp]).isfinite().all(dim=0)
    if not scored.all():
        name = scores.ids[tokens.rows[tokens.row_N[int(scored.int().argmin())]]]
        raise ScoreError(f"response {name!r} has non-finite scores; check the models, and score again")
    return np.asarray(tokens.entropy.double())


def _large_gaps(gap_N: Array, entropy_N: Array, strata: Strata, quartile: float, uecr: Uecr) -> list[Numbers]:
    """For each share of the largest gaps, with all ties: their strata, and their reduction by calibration."""
    magnitude_N = direction(torch.from_numpy(gap_N), 1.0, tau_delta=uecr.tau_delta).numpy()
    confidence_N = log_confidence(torch.from_numpy(entropy_N), tau_entropy=uecr.tau_entropy).exp().numpy()
    calibrated_N = magnitude_N * confidence_N
    highest_N = (entropy_N > quartile).astype(np.float64)
    whole = replace(strata, stratum_N=np.zeros_like(strata.stratum_N), count=1)
    sorted_N, rows = np.sort(gap_N), list[Numbers]()
    for share in TOP:
        threshold = float(sorted_N[-max(1, round(share * len(gap_N)))])
        among_N = gap_N >= threshold
        rows.append(
            {
                "share": share,
                "threshold": threshold,
                "tokens": int(among_N.sum()),
                "actual_share": float(among_N.mean()),
                "by_stratum": strata.location(among_N),
                "in_highest_quartile": _last(whole.mean(highest_N, among_N)),
                "magnitude": _last(whole.mean(magnitude_N, among_N)),
                "calibrated": _last(whole.mean(calibrated_N, among_N)),
                "reduction": _last(whole.reduction(magnitude_N, calibrated_N, among_N)),
            }
        )
    return rows


def _last(estimates: Mapping[str, Mapping[str, Array]]) -> Numbers:
    return {way: {key: float(value[-1]) for key, value in each.items()} for way, each in estimates.items()}


def _weights(scores: Scored, tokens: CheckpointTokens, uecr: Uecr, strata: Strata) -> Numbers:
    """``B_i = sum_t m w / sum_t m`` in float64, over responses with a non-zero verifier advantage, by method."""
    scores.verified_rewards()
    budgets = {name: np.ones(len(tokens.rows)) for name in WEIGHTS}
    sign_B, length_B = np.zeros(len(tokens.rows)), np.diff(tokens.offsets)
    for rows in tracked(rows_of(scores.group_B[tokens.rows]), "token weights"):
        batch = groups_record(scores, tokens, rows)
        for name, method in WEIGHTS.items():
            advantages = compute(method_of(method, uecr.settings()), batch)
            assert advantages.weight_BT is not None
            assert advantages.advantage_task_B is not None
            pairs = zip(advantages.weight_BT, length_B[rows], strict=True)
            budgets[name][rows] = [float(weight_T[:length].mean()) for weight_T, length in pairs]
            sign_B[rows] = advantages.advantage_task_B.sign().numpy()
    signed = sign_B != 0
    if not signed.any():
        return {name: {"responses": 0, "method": method} for name, method in WEIGHTS.items()}
    sign_B, problem_B, length_B = sign_B[signed], strata.problem_B[signed], length_B[signed]
    budgets = {name: own_B[signed] for name, own_B in budgets.items()}
    span = max(float(np.abs(own_B - 1.0).max()) for own_B in budgets.values()) or 0.01
    edges = np.linspace(1.0 - span, 1.0 + span, BINS + 1)
    return {
        name: {
            "method": WEIGHTS[name],
            "responses": len(own_B),
            "largest_error": float(np.abs(own_B - 1.0).max()),
            "smallest": float(own_B.min()),
            "largest": float(own_B.max()),
            "quantiles": dict(zip(("q05", "q50", "q95"), np.quantile(own_B, [0.05, 0.5, 0.95]), strict=True)),
            "response_balanced": strata.sampler.ratio(own_B, np.ones_like(own_B), problem_B),
            "token_weighted": strata.sampler.ratio(own_B * length_B, length_B, problem_B),
            "correct_mean": float(own_B[sign_B > 0].mean()),
            "incorrect_mean": float(own_B[sign_B < 0].mean()),
            "histogram": {"edges": edges, "counts": np.histogram(own_B, edges)[0]},
        }
        for name, own_B in budgets.items()
    }


# Entropy strata


def entropy_boundaries(entropy_N: Array, strata: int) -> Array:
    """Upper boundaries of all strata but the last: quantiles that are some token's entropy, equal ones merged.

    Near-deterministic tokens share one entropy, so low quantiles may coincide. No stratum is empty.
    """
    quantiles = np.unique(np.quantile(entropy_N, np.arange(1, strata) / strata, method="inverted_cdf"))
    return np.asarray(quantiles[quantiles < entropy_N.max()])


@dataclass(frozen=True)
class Strata:
    """The stratum, response and problem of every token, and the bootstrap draws.

    Each estimate has two weightings: ``token_weighted`` gives every token equal weight, ``response_balanced`` averages
    within each response first; each has ``value``, ``low`` and ``high`` [M].
    """

    stratum_N: Array
    response_N: Array
    problem_B: Array  # in [0, K)
    count: int  # M
    sampler: ClusterBootstrap  # over the K problems

    def mean(self, value_N: Array, among_N: Array | float = 1.0) -> Numbers:
        """Mean of a value in each stratum, over all or the selected tokens."""
        size_BM = self._sums(1.0, among_N)
        return self._ratios(self._sums(value_N, among_N), size_BM, size_BM)

    def location(self, among_N: Array) -> Numbers:
        """Share of the selected tokens in each stratum."""
        size_BM = self._sums(1.0, among_N)
        size_B1 = size_BM.sum(axis=1, keepdims=True)
        return self._ratios(size_BM, size_B1, size_B1)

    def reduction(self, before_N: Array, after_N: Array, among_N: Array) -> Numbers:
        """``1 - mean(after) / mean(before)`` over the selected tokens of each stratum."""
        before_BM, less_BM = self._sums(before_N, among_N), self._sums(before_N - after_N, among_N)
        return self._ratios(less_BM, before_BM, self._sums(1.0, among_N))

    def _sums(self, value_N: Array | float, among_N: Array | float) -> Array:
        """[B, M] sum of a value over the selected tokens."""
        cell_N = self.response_N * self.count + self.stratum_N
        weight_N = np.broadcast_to(np.multiply(value_N, among_N), cell_N.shape)
        size = (len(self.problem_B), self.count)
        return np.bincount(cell_N, weights=weight_N, minlength=size[0] * size[1]).reshape(size)

    def _ratios(self, above_BM: Array, below_BM: Array, length_BM: Array) -> Numbers:
        """Ratios of sums over tokens, and of the responses' means over ``length_BM`` tokens."""
        length_BM = np.maximum(length_BM, 1)  # 0 / 1 for a response without such a token
        return {
            "token_weighted": self.sampler.ratio(above_BM, below_BM, self.problem_B),
            "response_balanced": self.sampler.ratio(above_BM / length_BM, below_BM / length_BM, self.problem_B),
        }


def _rows(numbers: Numbers) -> list[tuple[str, ...]]:
    ways = ("token_weighted", "response_balanced")
    rows: list[tuple[str, ...]] = []
    if numbers["strata"]["top1"] is None:
        rows.append(("teacher's first choice", *["not ranked: the teacher showed no logits to this back end"] * 2))
    for row in numbers["large_gaps"]:
        name = f"top {100 * row['share']:g}% gaps"
        inside, lower = ([percent(row[key][way]) for way in ways] for key in ("in_highest_quartile", "reduction"))
        rows.append((f"{name} in the highest entropy quartile, %", *inside))
        rows.append((f"{name}: reduction of |d| by calibration, %", *lower))
    for name, row in numbers["weights"].items():
        if row["responses"]:
            means = (with_interval(row[way], ".4f") for way in ways)
            rows.append((f"mean weight, {name}", *means))
            rows.append((f"largest |B - 1|, {name}", "", f"{row['largest_error']:.3g}"))
    return rows
