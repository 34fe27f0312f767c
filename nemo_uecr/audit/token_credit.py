"""Token-level teacher signals before training: where they are large, how sure the teacher is there, what weights do.

Shape legend: B = responses, K = problems, M = entropy strata, N = tokens in a flat list.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from nemo_uecr.audit.groups import rows_of, scored_batch
from nemo_uecr.audit.output import Audit, Numbers, percent, percent_axis, progress
from nemo_uecr.audit.store import STUDENT, Scores, Tokens
from nemo_uecr.core.methods import METHODS
from nemo_uecr.core.records import Settings
from nemo_uecr.errors import ScoreError
from nemo_uecr.stats import ClusterBootstrap, cluster_totals, percentile_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = np.ndarray
Estimate = dict[str, Array]

STRATA = 10
#: Shares of the largest absolute gaps.
TOP = (0.05, 0.10, 0.20)
#: Method of the weights with and without projection.
WEIGHTS = {"projected": "uecr", "unprojected": "ecr_no_projection"}
BINS = 40
NOTE = (
    "Tokens by strata of the teacher's entropy (tied quantiles collapse). (a) the teacher's probability of the sampled "
    "token and how often it is the teacher's first choice, lines token-weighted and points response-balanced; neither "
    "is the correctness of a token. (b) where the tokens with the largest absolute gap to the policy lie, against the "
    "stratum's share of all tokens. (c) mean token weight of a response without the projection; with it the mean is 1. "
    "Intervals: 95% bootstrap over problems."
)
HEADS = ("quantity", "token-weighted", "response-balanced")


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
    tokens = scores.tokens(STUDENT, chosen)
    entropy_N = _entropy(scores, tokens)
    reference_N = entropy_N if chosen == first else _entropy(scores, scores.tokens(STUDENT, first))
    boundaries = entropy_boundaries(reference_N, STRATA)
    _, problem_B = np.unique(scores.responses.problem_B[tokens.rows], return_inverse=True)
    resamples = ClusterBootstrap.draw(problem_B, replicates=replicates, seed=seed)
    stratum_N = np.searchsorted(boundaries, entropy_N, side="left")  # H in (boundary below, boundary above]
    strata = Strata(stratum_N, tokens.row_N, problem_B, len(boundaries) + 1, resamples)
    quartile = float(np.quantile(reference_N, 0.75, method="inverted_cdf"))
    gap_N = (tokens.teacher_logp.double() - tokens.anchor_logp.double()).abs().numpy()
    weights = {name: _weights(scores, tokens, method, settings, strata) for name, method in WEIGHTS.items()}
    _histogram(weights)
    numbers: Numbers = {
        "settings": {
            "anchor": STUDENT,
            **{key: getattr(settings, key) for key in ("alpha", "rho", "tau_delta", "tau_entropy", "std_floor")},
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
            "top1": strata.mean(tokens.teacher_top1.double().numpy()),
            "absolute_gap": strata.mean(gap_N),
            **_ranks(strata, scores.ranks(chosen)),
        },
        "large_gaps": _large_gaps(gap_N, entropy_N, strata, quartile, settings),
        "weights": weights,
    }  # fmt: skip
    return Audit("token-credit", "Token credit", NOTE, numbers, HEADS, _rows(numbers), draw, (9.8, 3.3))


def _entropy(scores: Scores, tokens: Tokens) -> Array:
    for name in ("teacher_entropy", "teacher_logp", "anchor_logp"):
        bad = (~getattr(tokens, name).isfinite()).nonzero()
        if bad.numel():
            row = int(tokens.row_N[int(bad[0])])
            response, place = scores.responses.ids[tokens.rows[row]], int(bad[0]) - int(tokens.offsets[row])
            raise ScoreError(
                f"{name} of {response!r} at token {place} is not finite; expected finite nats for every token of this "
                "audit. Check the model, and score again"
            )
    entropy_N: Array = tokens.teacher_entropy.double().numpy()
    return entropy_N


def _ranks(strata: Strata, rank: torch.Tensor | None) -> Numbers:
    if rank is None:
        return {}
    rank_N = rank.numpy()
    own = [rank_N[strata.stratum_N == each] for each in range(strata.count)]
    return {
        "rank": strata.mean(rank_N.astype(np.float64)),
        "median_rank": [float(np.median(each)) if each.size else None for each in own],
    }


def _large_gaps(gap_N: Array, entropy_N: Array, strata: Strata, quartile: float, settings: Settings) -> list[Numbers]:
    """For each share of the largest gaps: their strata, and how much calibration shrinks them."""
    tau = settings.given(("tau_delta", "tau_entropy"), "uecr")
    magnitude_N = np.tanh(gap_N / (2.0 * tau["tau_delta"]))
    calibrated_N = magnitude_N * np.exp(-entropy_N / tau["tau_entropy"])
    quarters = replace(strata, stratum_N=(entropy_N > quartile).astype(np.int64), count=2)
    whole = replace(strata, stratum_N=np.zeros_like(strata.stratum_N), count=1)
    rows: list[Numbers] = []
    for share in TOP:
        among_N, threshold = largest(gap_N, share)
        rows.append(
            {
                "share": share,
                "threshold": threshold,
                "tokens": int(among_N.sum()),
                "actual_share": float(among_N.mean()),
                "by_stratum": strata.location(among_N),
                "in_highest_quartile": _last(quarters.location(among_N)),
                "magnitude": _last(whole.mean(magnitude_N, among_N)),
                "calibrated": _last(whole.mean(calibrated_N, among_N)),
                "reduction": _last(whole.reduction(magnitude_N, calibrated_N, among_N)),
            }
        )
    return rows


def _last(found: Mapping[str, Mapping[str, Array]]) -> Numbers:
    """The last stratum's estimate of each weighting."""
    return {way: {key: float(value[-1]) for key, value in each.items()} for way, each in found.items()}


def _weights(scores: Scores, tokens: Tokens, method: str, settings: Settings, strata: Strata) -> Numbers:
    """``B_i = sum_t m w / sum_t m`` in float64, over responses whose verifier advantage has a sign."""
    scores.responses.verified_rewards()
    budget_B, sign_B = np.ones(len(tokens.rows)), np.zeros(len(tokens.rows))
    groups = rows_of(scores.responses.group_B[tokens.rows])
    with progress(f"weights of {method}", len(groups)) as advance:
        for rows in groups:
            found = METHODS[method].compute(scored_batch(scores, tokens, rows), settings, detail=True)
            assert found.weight_BT is not None
            assert found.advantage_task_B is not None
            parts = torch.split(found.weight_BT, np.diff(tokens.offsets)[rows].tolist())
            budget_B[rows] = [float(part.mean()) for part in parts]
            sign_B[rows] = found.advantage_task_B.sign().numpy()
            advance(1)
    signed = sign_B != 0
    own_B, lengths_B = budget_B[signed], np.diff(tokens.offsets)[signed].astype(np.float64)
    if not len(own_B):
        return {"responses": 0, "method": method}
    problem, ratio = strata.problem_B[signed], strata.resamples.ratio
    return {
        "method": method,
        "responses": len(own_B),
        "largest_error": float(np.abs(own_B - 1.0).max()),
        "smallest": float(own_B.min()),
        "largest": float(own_B.max()),
        "quantiles": dict(zip(("q05", "q50", "q95"), np.quantile(own_B, [0.05, 0.5, 0.95]), strict=True)),
        "response_balanced": ratio(own_B, np.ones_like(own_B), problem),
        "token_weighted": ratio(own_B * lengths_B, lengths_B, problem),
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


# Entropy strata


def entropy_boundaries(entropy_N: Array, strata: int) -> Array:
    """Upper boundaries of all strata but the last: quantiles that are values of some token, equal ones collapsed.

    Near-deterministic tokens share one entropy, so that low quantiles may coincide: strata, not strict deciles. No
    stratum is empty.
    """
    found = np.unique(np.quantile(entropy_N, np.arange(1, strata) / strata, method="inverted_cdf"))
    below: Array = found[found < entropy_N.max()]
    return below


@dataclass(frozen=True)
class Strata:
    """Where every token belongs, and the draws that the intervals share.

    Attributes:
        stratum_N: [N] stratum.
        response_N: [N] response.
        problem_B: [B] problem of each response, in [0, K).
        count: M.
        resamples: bootstrap draws over the K problems.
    """

    stratum_N: Array
    response_N: Array
    problem_B: Array
    count: int
    resamples: ClusterBootstrap

    def mean(self, value_N: Array, among_N: Array | None = None) -> dict[str, Estimate]:
        """Mean of a value in each stratum, over chosen tokens.

        Returns:
            ``token_weighted``, every token equal, and ``response_balanced``, the mean within each response first and
            every response with a token there equal; each with ``value``, ``low`` and ``high`` [M].
        """
        return self._both(self._sums(value_N, among_N), self._sums(None, among_N))

    def location(self, among_N: Array) -> dict[str, Estimate]:
        """Share of chosen tokens that lies in each stratum, [M]; token-weighted and response-balanced."""
        size_BM = self._sums(None, among_N)
        return self._both(size_BM, np.broadcast_to(size_BM.sum(axis=1, keepdims=True), size_BM.shape))

    def reduction(self, before_N: Array, after_N: Array, among_N: Array) -> dict[str, Estimate]:
        """``1 - mean(after) / mean(before)`` over chosen tokens of each stratum, [M]."""
        before_BM, after_BM = self._sums(before_N, among_N), self._sums(after_N, among_N)
        length_BM = np.maximum(self._sums(None, among_N), 1)  # a response without such a token has nothing to divide
        return {
            "token_weighted": self._estimate(before_BM - after_BM, before_BM),
            "response_balanced": self._estimate((before_BM - after_BM) / length_BM, before_BM / length_BM),
        }

    def _sums(self, value_N: Array | None, among_N: Array | None) -> Array:
        """[B, M] sum of a value over chosen tokens; their number without a value."""
        cell_N = self.response_N * self.count + self.stratum_N
        if among_N is not None:
            cell_N = cell_N[among_N]
            value_N = None if value_N is None else value_N[among_N]
        responses = len(self.problem_B)
        return np.bincount(cell_N, weights=value_N, minlength=responses * self.count).reshape(responses, self.count)

    def _both(self, total_BM: Array, size_BM: Array) -> dict[str, Estimate]:
        there_BM = size_BM > 0
        with np.errstate(invalid="ignore", divide="ignore"):
            own_BM = np.where(there_BM, total_BM / size_BM, 0.0)
        return {
            "token_weighted": self._estimate(total_BM, size_BM),
            "response_balanced": self._estimate(own_BM, there_BM.astype(np.float64)),
        }

    def _estimate(self, above_BM: Array, below_BM: Array) -> Estimate:
        above_KM, below_KM = (
            cluster_totals(each, self.problem_B, self.resamples.clusters) for each in (above_BM, below_BM)
        )
        found = percentile_interval(self.resamples.replicate_ratios(above_KM, below_KM))
        with np.errstate(invalid="ignore", divide="ignore"):
            value_M = above_KM.sum(axis=0) / below_KM.sum(axis=0)
        return {"value": value_M, "low": found["low"], "high": found["high"]}


def largest(value_N: Array, share: float) -> tuple[Array, float]:
    """[N] bool, the tokens whose value is among the largest share, and the threshold; ties at it are all taken."""
    keep = max(1, round(share * len(value_N)))
    threshold = float(np.partition(value_N, len(value_N) - keep)[len(value_N) - keep])
    among_N: Array = value_N >= threshold
    return among_N, threshold


# The table and the figure


def _rows(numbers: Numbers) -> list[tuple[str, str, str]]:
    """What the paper states of this audit."""
    rows = []
    for row in numbers["large_gaps"]:
        name = f"top {100 * row['share']:g}% gaps"
        rows.append((f"{name} in the highest entropy quartile, %", *_both(row["in_highest_quartile"])))
        rows.append((f"{name}: calibration lowers |d| by, %", *_both(row["reduction"])))
    for name, row in numbers["weights"].items():
        if row["responses"]:
            token, response = (
                "{value:.4f} [{low:.4f}, {high:.4f}]".format(**row[way])
                for way in ("token_weighted", "response_balanced")
            )
            rows.append((f"mean weight, {name}", token, response))
            rows.append((f"largest |B - 1|, {name}", "", f"{row['largest_error']:.3g}"))
    return rows


def _both(found: Numbers) -> tuple[str, str]:
    return percent(found["token_weighted"]), percent(found["response_balanced"])


def draw(figure: Figure, numbers: Numbers) -> None:
    """Three panels."""
    left, middle, right = figure.subplots(1, 3)
    strata = numbers["strata"]
    count = len(strata["tokens"])
    for colour, (key, label) in enumerate((("probability", "probability"), ("top1", "top-1 match"))):
        _line(left, strata[key], label, colour, count)
    percent_axis(left, "(a) sampled token under the teacher", "mean in the stratum")
    left.legend(fontsize=8)
    _draw_location(middle, numbers["large_gaps"], strata["tokens"])
    for axes in (left, middle):
        axes.set_xlabel("stratum of teacher entropy, low to high")
        axes.set_xticks(range(1, count + 1))
    _draw_weights(right, numbers["weights"])


def _line(axes: Axes, found: Numbers, label: str, colour: int, count: int) -> None:
    x = list(range(1, count + 1))
    token, response = found["token_weighted"], found["response_balanced"]
    style = "--" if colour else "-"  # the two lines may coincide
    axes.plot(x, token["value"], style, color=f"C{colour}", linewidth=1.4, label=label)
    axes.fill_between(x, _numbers(token["low"]), _numbers(token["high"]), color=f"C{colour}", alpha=0.16, linewidth=0)
    axes.plot(x, _numbers(response["value"]), "o", markersize=3.5, color=f"C{colour}")


def _numbers(values: list[float | None]) -> list[float]:
    return [float("nan") if value is None else value for value in values]


def _draw_location(axes: Axes, rows: list[Numbers], tokens: list[int]) -> None:
    width = 0.8 / len(rows)
    total = sum(tokens)
    for number, row in enumerate(rows):
        share = row["by_stratum"]["token_weighted"]["value"]
        x = [place + 0.6 + width * (number + 0.5) for place in range(len(share))]
        axes.bar(x, share, width, color=f"C{number}", label=f"top {100 * row['share']:g}% of |gap|")
    expected = [count / total for count in tokens]
    axes.step(
        [0.5, *(place + 1.5 for place in range(len(tokens)))],
        [expected[0], *expected],
        color="0.3",
        linewidth=1,
        label="all tokens",
    )
    percent_axis(axes, "(b) where the largest gaps lie", "share of these tokens")
    axes.legend(fontsize=8, loc="upper left")


def _draw_weights(axes: Axes, weights: Numbers) -> None:
    axes.set_title("(c) mean token weight of a response")
    axes.set_xlabel(r"$B_i$")
    axes.set_ylabel("responses")
    free, held = weights["unprojected"], weights["projected"]
    if "histogram" not in free:
        axes.text(0.5, 0.5, "no mixed group", ha="center", transform=axes.transAxes, color="0.4")
        return
    edges, counts = free["histogram"]["edges"], free["histogram"]["counts"]
    axes.stairs(counts, edges, fill=True, color="C1", alpha=0.75, label="without projection")
    axes.axvline(1.0, color="C0", linewidth=1.6, label=f"with: |B - 1| up to {held['largest_error']:.1e}")
    axes.set_ylim(0, 1.35 * max(counts))
    # On white: the line at 1 runs below it.
    axes.legend(fontsize=8, loc="upper left", frameon=True, framealpha=1, edgecolor="none")
