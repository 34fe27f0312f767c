"""Seconds of a training step by method, each method's runs taking turns on the same student and the same responses.

  python -m benchmarks.steps examples/configs/local/demo.yaml --methods grpo uecr

The learning rate is so small that no weight changes: every method then samples, scores and trains on the same tokens in
every round. Run it on an idle machine. The first method is the baseline.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.child import output_of
from nemo_uecr.cli.common import write_json
from nemo_uecr.errors import UecrError

#: Phases of a step, as telemetry names them; evaluation and saving are no part of it.
PHASES = ("rollout", "verify", "score_student", "score_teacher", "score_reference", "advantage", "update")
#: The first step pays for caches and memory that later ones find.
WARMUP_STEPS = 1

Record = Mapping[str, float]


@dataclass(frozen=True)
class StepCost:
    """Seconds of a step, the median over a run's steps, by phase and in all; and the tokens it trained on."""

    phases: dict[str, float]
    total: float
    tokens: float


@dataclass(frozen=True)
class Ratio:
    """Step of a method over step of the baseline: the median over rounds, the least and the largest."""

    median: float
    low: float
    high: float


def step_cost(records: Sequence[Record]) -> StepCost:
    """Cost of one run's steps after the first.

    Args:
        records: telemetry of at least two steps, in order.
    """
    warm = records[WARMUP_STEPS:]
    phases = {
        phase: statistics.median(record[f"time/{phase}_s"] for record in warm)
        for phase in PHASES
        if all(f"time/{phase}_s" in record for record in warm)
    }
    total = statistics.median(sum(record[f"time/{phase}_s"] for phase in phases) for record in warm)
    return StepCost(phases, total, statistics.median(record["count/valid_tokens"] for record in warm))


def median_cost(rounds: Sequence[StepCost]) -> StepCost:
    """Median of each figure over the rounds."""
    phases = {phase: statistics.median(cost.phases[phase] for cost in rounds) for phase in rounds[0].phases}
    total = statistics.median(cost.total for cost in rounds)
    return StepCost(phases, total, statistics.median(cost.tokens for cost in rounds))


def ratio(method: Sequence[StepCost], baseline: Sequence[StepCost]) -> Ratio:
    """Ratio of the totals round by round: what slows a round slows both of its runs.

    Args:
        method: one cost a round.
        baseline: the same rounds.
    """
    found = [one.total / other.total for one, other in zip(method, baseline, strict=True)]
    return Ratio(statistics.median(found), min(found), max(found))


def cost_lines(costs: Mapping[str, StepCost], baseline: str, ratios: Mapping[str, Ratio]) -> list[str]:
    """A Markdown table of the medians, and where each method's difference to the baseline goes."""
    phases = [phase for phase in PHASES if any(phase in cost.phases for cost in costs.values())]
    rows: list[Sequence[str]] = [("method", *phases, "step, s", f"step / {baseline}", "tokens")]
    rows.append(["---"] * len(rows[0]))
    for name, cost in costs.items():
        found = ratios.get(name)
        shown = "1" if found is None else f"{found.median:.2f} [{found.low:.2f}, {found.high:.2f}]"
        seconds = [f"{cost.phases[phase]:.3f}" if phase in cost.phases else "-" for phase in phases]
        rows.append((name, *seconds, f"{cost.total:.3f}", shown, f"{cost.tokens:.0f}"))
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return [*lines, *(_difference(name, costs[name], costs[baseline]) for name in ratios)]


def _difference(name: str, cost: StepCost, base: StepCost) -> str:
    gaps = {phase: cost.phases.get(phase, 0.0) - base.phases.get(phase, 0.0) for phase in (*cost.phases, *base.phases)}
    parts = ", ".join(f"{phase} {gap:+.3f}" for phase, gap in sorted(gaps.items(), key=lambda item: -abs(item[1])))
    return f"{name} minus baseline, s: {parts}"


#: AdamW moves a weight by about its learning rate; this one is below float32's resolution of any weight but zero.
FROZEN = "1e-30"
#: Of what a run does beside its steps, as little as can be.
QUIET = (
    "evaluation.at_start=false",
    "evaluation.every=0",
    "evaluation.samples=1",
    "evaluation.bootstrap=100",
    "checkpoint.every=0",
    "checkpoint.keep_best=false",
    "telemetry.save_batch_every=0",
    "telemetry.tensorboard=off",
    "telemetry.progress=off",
)
LEAST_STEPS = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("config", metavar="CONFIG")
    parser.add_argument("overrides", metavar="key=value", nargs="*", default=[])
    parser.add_argument("--methods", nargs="+", required=True, metavar="NAME", help="the first is the baseline")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each method (default: %(default)s)")
    parser.add_argument(
        "--steps", type=int, default=6, help="steps of a run; the first is left out (default: %(default)s)"
    )
    parser.add_argument("--threads", type=int, default=1, help="threads of a run (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write the figures to this file")


def run(args: argparse.Namespace) -> int:
    """Measure."""
    if len(set(args.methods)) < 2 or len(set(args.methods)) < len(args.methods):
        raise UecrError(f"--methods: got {' '.join(args.methods)}; expected two or more different ones")
    if min(args.rounds, args.threads) < 1 or args.steps < LEAST_STEPS:
        raise UecrError(f"--rounds and --threads must be at least 1, and --steps at least {LEAST_STEPS}")
    from nemo_uecr.config.load import load_config

    for name in args.methods:  # a misspelt one must not wait for its turn
        load_config(args.config, [*args.overrides, f"method.name={name}", "run.folder=unused"])
    rounds: dict[str, list[StepCost]] = {name: [] for name in args.methods}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(args.rounds):
            order = args.methods if number % 2 == 0 else args.methods[::-1]
            for name in order:
                rounds[name].append(_measure(Path(folder) / f"{name}-{number}", name, args))
    baseline = args.methods[0]
    costs = {name: median_cost(found) for name, found in rounds.items()}
    ratios = {name: ratio(found, rounds[baseline]) for name, found in rounds.items() if name != baseline}
    sys.stdout.write("".join(f"{line}\n" for line in cost_lines(costs, baseline, ratios)))
    write_json(args.json, {"rounds": {name: [asdict(cost) for cost in found] for name, found in rounds.items()}})
    return 0


def _measure(folder: Path, name: str, args: argparse.Namespace) -> StepCost:
    """One run in a process of its own."""
    from nemo_uecr.telemetry.run_folder import read_run

    overrides = [
        *args.overrides,
        f"method.name={name}",
        f"run.folder={folder}",
        f"train.steps={args.steps}",
        f"train.learning_rate={FROZEN}",
        f"threads={args.threads}",
        *QUIET,
    ]
    output_of("nemo_uecr", ["train", args.config, *overrides], threads=args.threads)
    return step_cost(read_run(folder).steps)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    sys.exit(run(parser.parse_intermixed_args()))
