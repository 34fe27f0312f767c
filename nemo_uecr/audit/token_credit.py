"""Token-level teacher signals before training: where they are large, how sure the teacher is there, what weights do.

Shape legend: B = responses, N = tokens in a flat list, M = entropy strata.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from nemo_uecr.audit.output import Audit, Numbers
from nemo_uecr.audit.progress import ProgressLine
from nemo_uecr.audit.rollouts import Scores
from nemo_uecr.audit.schema import STUDENT
from nemo_uecr.audit.share import Sampler
from nemo_uecr.audit.token_figure import NOTE, draw, summary_table
from nemo_uecr.audit.token_strata import Strata, entropy_boundaries, largest, stratum_of
from nemo_uecr.audit.token_table import TokenTable, token_table
from nemo_uecr.core.methods import METHODS
from nemo_uecr.core.records import Settings
from nemo_uecr.errors import ScoreError

Array = np.ndarray

STRATA = 10
#: Shares of the largest absolute gaps.
TOP = (0.05, 0.10, 0.20)
#: Method of the weights with and without projection.
WEIGHTS = {"projected": "uecr", "unprojected": "ecr_no_projection"}
BINS = 40


def token_credit_audit(
    scores: Scores, settings: Settings, *, checkpoint: int | None, replicates: int, seed: int
) -> Audit:
    """Entropy strata, the place of large gaps, calibrated magnitude and mean token weights of one checkpoint.

    Args:
        scores: responses scored by the teacher and the checkpoint that generated them.
        settings: alpha, rho, tau_delta and tau_entropy of the method.
        checkpoint: which one; None takes the first. The strata are always those of the first.
        replicates: of the bootstrap.
        seed: of the bootstrap.

    References:
        app:token-credit-diagnosis, fig:token-credit-diagnosis, eq:local-signal, eq:projection-weights.
    """
    first = scores.responses.checkpoints[0]
    chosen = first if checkpoint is None else checkpoint
    table = token_table(scores, STUDENT, chosen)
    entropy_N = _entropy(table)
    reference_N = entropy_N if chosen == first else _entropy(token_table(scores, STUDENT, first))
    boundaries = entropy_boundaries(reference_N, STRATA)
    count = len(boundaries) + 1
    strata = Strata.of(table, stratum_of(entropy_N, boundaries), count, replicates=replicates, seed=seed)
    sampler = Sampler(strata.resamples)
    quartile = float(np.quantile(reference_N, 0.75, method="inverted_cdf"))
    used = {key: getattr(settings, key) for key in ("alpha", "rho", "tau_delta", "tau_entropy", "std_floor")}
    numbers: Numbers = {
        "settings": {"anchor": STUDENT, **used, "strata": STRATA, "top": TOP, "replicates": replicates, "seed": seed},
        "scores": scores.provenance(),
        "checkpoint": chosen,
        "strata_from_checkpoint": first,
        "responses": len(table.rows),
        "tokens": len(entropy_N),
        "highest_quartile_above": quartile,
        "strata": _strata_numbers(table, strata, entropy_N, boundaries, _ranks(scores, chosen)),
        "large_gaps": _large_gaps(table, strata, entropy_N, quartile, settings),
        "weights": {name: _weights(table, method, settings, sampler) for name, method in WEIGHTS.items()},
    }
    _histogram(numbers["weights"])
    return Audit("token-credit", "Token credit", NOTE, numbers, summary_table(numbers), draw, (9.8, 3.3))


def _entropy(table: TokenTable) -> Array:
    for name in ("teacher_entropy", "teacher_logp", "anchor_logp"):
        bad = (~getattr(table, name).isfinite()).nonzero()
        if bad.numel():
            row = int(np.searchsorted(table.offsets, int(bad[0]), side="right")) - 1
            raise ScoreError(
                f"{name} of {table.ids[row]!r} at token {int(bad[0]) - int(table.offsets[row])} is not finite; "
                "expected finite nats for every token of this audit. Check the model, and score again"
            )
    entropy_N: Array = table.teacher_entropy.double().numpy()
    return entropy_N


def _ranks(scores: Scores, checkpoint: int) -> Array | None:
    """[N] rank of the checkpoint's tokens in the order of its token table; None without the second pass."""
    found = scores.ranks()
    if found is None:
        return None
    kept = []
    for (_, rows), rank_N in zip(scores.parts, found, strict=True):
        own_b = scores.responses.checkpoint_B[rows] == checkpoint
        kept.append(rank_N.numpy()[np.repeat(own_b, scores.responses.scored_B[rows])])
    return np.concatenate(kept)


def _strata_numbers(
    table: TokenTable, strata: Strata, entropy_N: Array, boundaries: Array, rank_N: Array | None
) -> Numbers:
    gap_N = _gap(table)
    numbers: Numbers = {
        "boundaries": boundaries,
        "tokens": np.bincount(strata.stratum_N, minlength=strata.count),
        "entropy": strata.mean(entropy_N),
        "probability": strata.mean(table.teacher_logp.double().exp().numpy()),
        "top1": strata.mean(table.teacher_top1.double().numpy()),
        "absolute_gap": strata.mean(np.abs(gap_N)),
    }
    if rank_N is not None:
        numbers["rank"] = strata.mean(rank_N.astype(np.float64))
        numbers["median_rank"] = [
            float(np.median(rank_N[strata.stratum_N == each])) if (strata.stratum_N == each).any() else None
            for each in range(strata.count)
        ]
    return numbers


def _gap(table: TokenTable) -> Array:
    gap_N: Array = (table.teacher_logp.double() - table.anchor_logp.double()).numpy()
    return gap_N


def _large_gaps(
    table: TokenTable, strata: Strata, entropy_N: Array, quartile: float, settings: Settings
) -> list[Numbers]:
    """For each share of the largest gaps: their strata, and how much calibration shrinks them."""
    gap_N = np.abs(_gap(table))
    magnitude_N = np.tanh(gap_N / (2.0 * settings.need("tau_delta", "token-credit")))
    calibrated_N = magnitude_N * np.exp(-entropy_N / settings.need("tau_entropy", "token-credit"))
    quarters = Strata((entropy_N > quartile).astype(np.int64), strata.response_N, strata.problem_B, 2, strata.resamples)
    whole = Strata(np.zeros_like(strata.stratum_N), strata.response_N, strata.problem_B, 1, strata.resamples)
    rows: list[Numbers] = []
    for share in TOP:
        among_N, threshold = largest(gap_N, share)
        before, after = whole.mean(magnitude_N, among_N), whole.mean(calibrated_N, among_N)
        rows.append(
            {
                "share": share,
                "threshold": threshold,
                "tokens": int(among_N.sum()),
                "actual_share": float(among_N.mean()),
                "by_stratum": strata.location(among_N),
                "in_highest_quartile": _last(quarters.location(among_N)),
                "magnitude": _last(before),
                "calibrated": _last(after),
                "reduction": _last(whole.reduction(magnitude_N, calibrated_N, among_N)),
            }
        )
    return rows


def _last(found: Mapping[str, Mapping[str, Array]]) -> Numbers:
    """The last stratum's estimate of each weighting."""
    return {way: {key: float(value[-1]) for key, value in each.items()} for way, each in found.items()}


def _weights(table: TokenTable, method: str, settings: Settings, sampler: Sampler) -> Numbers:
    """``B_i = sum_t m w / sum_t m`` in float64, over responses whose verifier advantage has a sign."""
    budget_B = np.ones(len(table.rows))
    sign_B = np.zeros(len(table.rows))
    groups = len(np.unique(table.group_B))
    with ProgressLine(f"weights of {method}, groups", groups) as progress:
        for rows, batch in table.group_batches():
            found = METHODS[method].compute(batch, settings, detail=True)
            if found.weight_BT is None or found.advantage_task_B is None or batch.offsets is None:
                raise AssertionError("detail was asked for")
            parts = torch.tensor_split(found.weight_BT, batch.offsets[1:-1])
            budget_B[rows] = [float(part.mean()) for part in parts]
            sign_B[rows] = found.advantage_task_B.sign().numpy()
            progress.advance(1)
    signed = sign_B != 0
    own_B, lengths_B = budget_B[signed], np.diff(table.offsets)[signed].astype(np.float64)
    _, problem_B = np.unique(table.problem_B, return_inverse=True)
    if not len(own_B):
        return {"responses": 0, "method": method}
    return {
        "method": method,
        "responses": len(own_B),
        "largest_error": float(np.abs(own_B - 1.0).max()),
        "smallest": float(own_B.min()),
        "largest": float(own_B.max()),
        "quantiles": dict(zip(("q05", "q50", "q95"), np.quantile(own_B, [0.05, 0.5, 0.95]), strict=True)),
        "response_balanced": sampler.ratio(own_B, np.ones_like(own_B), problem_B[signed]),
        "token_weighted": sampler.ratio(own_B * lengths_B, lengths_B, problem_B[signed]),
        "correct_mean": float(budget_B[sign_B > 0].mean()) if (sign_B > 0).any() else None,
        "incorrect_mean": float(budget_B[sign_B < 0].mean()) if (sign_B < 0).any() else None,
        "budgets": own_B,
    }


def _histogram(weights: Numbers) -> None:
    """Counts of B_i over common bins, in place of the values themselves."""
    budgets = [each.pop("budgets") for each in weights.values() if "budgets" in each]
    if not budgets:
        return
    span = max(float(np.abs(each - 1.0).max()) for each in budgets)
    edges = np.linspace(1.0 - span, 1.0 + span, BINS + 1) if span > 0 else np.linspace(0.99, 1.01, BINS + 1)
    for each, own in zip(weights.values(), budgets, strict=True):
        each["histogram"] = {"edges": edges, "counts": np.histogram(own, edges)[0]}
