"""How often the 95 % intervals of avg@k cover: `python -m benchmarks.coverage` prints the table of docs/evaluation.md.

A problem's chance of a correct sample is drawn from a Beta distribution of the given mean: bimodal (most problems are
nearly always or never solved, as on AIME) or broad.
"""

from __future__ import annotations

import sys

import numpy as np

from nemo_uecr.stats import score_interval

SHAPES = {"bimodal": 0.3, "broad": 3.0}
#: Means of the benchmarks, and their numbers of problems.
SETS = (
    *(((mean,), (30,)) for mean in (0.02, 0.08, 0.5, 0.92, 0.98)),
    ((0.02,) * 5, (30,) * 5),
    ((0.02, 0.1, 0.3, 0.5, 0.9), (30,) * 5),
    ((0.03,) * 4 + (0.9,), (30,) * 4 + (500,)),
)


def coverage(
    means: tuple[float, ...], problems: tuple[int, ...], concentration: float, *, samples: int, sets: int, seed: int
) -> tuple[float, float]:
    """Share of simulated evaluations whose interval holds the true average, and the intervals' mean width.

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


def main() -> None:
    """Print the table in Markdown."""
    lines = ["| true avg@12 (problems) | " + " | ".join(f"{shape}, covers (width)" for shape in SHAPES) + " |"]
    lines.append("|---|" + "---:|" * len(SHAPES))
    for means, problems in SETS:
        cells = []
        for concentration in SHAPES.values():
            covered, width = coverage(means, problems, concentration, samples=12, sets=4000, seed=1)
            cells.append(f"{100 * covered:.1f} % ({100 * width:.1f})")
        name = ", ".join(f"{mean:g} ({count})" for mean, count in zip(means, problems, strict=True))
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
