"""Coverage of the 95 % intervals; `python -m benchmarks.coverage` prints the figures of docs/evaluation.md.

A problem's probability of a correct sample is drawn from a Beta distribution of the given mean: bimodal (most problems
are nearly always or never solved, as on AIME) or broad. The probabilities of two compared models are correlated, 0.9 in
normal scores.
"""

from __future__ import annotations

import sys

import numpy as np

from nemo_uecr.stats import paired_comparison, score_interval
from nemo_uecr.tables import markdown_table

SHAPES = {"bimodal": 0.3, "broad": 3.0}
#: Means of the benchmarks, and their numbers of problems.
SETS = (
    *(((mean,), (30,)) for mean in (0.02, 0.08, 0.5, 0.92, 0.98)),
    ((0.02,) * 5, (30,) * 5),
    ((0.02, 0.1, 0.3, 0.5, 0.9), (30,) * 5),
    ((0.03,) * 4 + (0.9,), (30,) * 4 + (500,)),
)
#: True avg@k of two models on one benchmark.
PAIRS = ((0.02, 0.02), (0.1, 0.1), (0.5, 0.5), (0.02, 0.08), (0.1, 0.2), (0.5, 0.6), (0.9, 0.95))


def coverage(
    means: tuple[float, ...], problems: tuple[int, ...], concentration: float, *, samples: int, sets: int, seed: int
) -> tuple[float, float]:
    """Share of simulated evaluations whose interval includes the true average, and the intervals' mean width.

    Args:
        means: true avg@k of each benchmark.
        problems: problems of each benchmark.
        concentration: sum of the Beta distribution's parameters.
        samples: k.
        sets: evaluations to simulate.
        seed: of the simulation.
    """
    generator, truth = np.random.default_rng(seed), float(np.mean(means))
    covered, width = 0, 0.0
    for _ in range(sets):
        rewards = {}
        for index, (mean, count) in enumerate(zip(means, problems, strict=True)):
            chance = generator.beta(mean * concentration, (1 - mean) * concentration, size=(count, 1))
            rewards[str(index)] = (generator.random((count, samples)) < chance).astype(float).tolist()
        found = score_interval(rewards)
        covered += found.low <= truth <= found.high
        width += found.high - found.low
    return covered / sets, width / sets


def comparison(
    means: tuple[float, float], concentration: float, *, problems: int, samples: int, sets: int, seed: int
) -> tuple[float, float, float]:
    """Coverage of simulated comparisons, their intervals' mean width, and the share with p at most 0.05."""
    from scipy import stats

    generator = np.random.default_rng(seed)
    covered, width, found_different = 0, 0.0, 0
    for _ in range(sets):
        shared = generator.normal(size=(problems, 1))
        both = []
        for mean in means:
            score = 0.9**0.5 * shared + 0.1**0.5 * generator.normal(size=(problems, 1))
            chance = stats.beta.ppf(stats.norm.cdf(score), mean * concentration, (1 - mean) * concentration)
            both.append((generator.random((problems, samples)) < chance).mean(axis=1).tolist())
        found = paired_comparison({"": (both[0], both[1])}, seed=seed)
        covered += found.low <= means[1] - means[0] <= found.high
        width += found.high - found.low
        found_different += found.p_value <= 0.05
    return covered / sets, width / sets, found_different / sets


def main() -> None:
    """Print the tables in Markdown."""
    rows = []
    for means, problems in SETS:
        cells = []
        for concentration in SHAPES.values():
            covered, width = coverage(means, problems, concentration, samples=12, sets=4000, seed=1)
            cells.append(f"{100 * covered:.1f} % ({100 * width:.1f})")
        name = ", ".join(f"{mean:g} ({count})" for mean, count in zip(means, problems, strict=True))
        rows.append([name, *cells])
    lines = markdown_table(["true avg@12 (problems)", *(f"{shape}, covers (width)" for shape in SHAPES)], rows)
    rows = []
    for pair in PAIRS:
        cells = []
        for concentration in SHAPES.values():
            covered, width, different = comparison(pair, concentration, problems=30, samples=12, sets=2000, seed=1)
            cells.append(f"{100 * covered:.1f} % ({100 * width:.1f}), {100 * different:.1f} %")
        rows.append([f"{pair[0]:g}, {pair[1]:g}", *cells])
    head = ["first, second (30 problems)", *(f"{shape}, covers (width), p ≤ 0.05" for shape in SHAPES)]
    lines += ["", *markdown_table(head, rows)]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
