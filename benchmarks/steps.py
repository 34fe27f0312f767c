"""Seconds per training step by method; the methods take turns on the same student and the same responses.

  python -m benchmarks.steps examples/configs/local/demo.yaml --methods grpo uecr

The learning rate is so small that no weight changes: every method then samples, scores and trains on the same tokens in
every round. Run it on an idle machine. The first method is the baseline.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from benchmarks.measure import outputs_of
from nemo_uecr.cli.common import write_json
from nemo_uecr.config.load import load_config
from nemo_uecr.tables import markdown_row
from nemo_uecr.telemetry.run_folder import read_run

#: AdamW moves a weight by about its learning rate; this one is below float32's resolution of any weight but zero.
#: The rest turns off what a run does beside its steps.
SETTINGS = (
    "train.learning_rate=1e-30",
    "evaluation.at_start=false",
    "evaluation.every=0",
    "evaluation.samples=1",
    "checkpoint.every=0",
    "checkpoint.keep_best=false",
    "telemetry.save_batch_every=0",
    "telemetry.tensorboard=off",
    "telemetry.progress=off",
)

#: Phases of a step that methods are compared by, without evaluation and saving.
PHASES = ("rollout", "verify", "score_student", "score_teacher", "score_reference", "advantage", "update")


def step_cost(records: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Median seconds of a run's steps after the first, by phase and as `step`, and the `tokens` it trained on."""
    warm = records[1:]
    phases = [phase for phase in PHASES if f"time/{phase}_s" in warm[0]]
    cost = {phase: median(record[f"time/{phase}_s"] for record in warm) for phase in phases}
    cost["step"] = median(sum(record[f"time/{phase}_s"] for phase in phases) for record in warm)
    return cost | {"tokens": median(record["count/valid_tokens"] for record in warm)}


def ratios(method: Sequence[Mapping[str, float]], baseline: Sequence[Mapping[str, float]]) -> list[float]:
    """Sorted ratios of a method's step to the baseline's, round by round: a slow round slows both runs."""
    return sorted(one["step"] / other["step"] for one, other in zip(method, baseline, strict=True))


def cost_lines(rounds: Mapping[str, Sequence[Mapping[str, float]]]) -> list[str]:
    """A Markdown table of the medians over rounds, and each method's difference to the first by phase."""
    baseline = next(iter(rounds))
    costs = {name: {key: median(one[key] for one in found) for key in found[0]} for name, found in rounds.items()}
    phases = [phase for phase in PHASES if any(phase in cost for cost in costs.values())]
    rows: list[Sequence[str]] = [("method", *phases, "step, s", f"step / {baseline}", "tokens")]
    rows.append(["---"] * len(rows[0]))
    differences = []
    for name, cost in costs.items():
        found = ratios(rounds[name], rounds[baseline])
        seconds = [f"{cost[phase]:.3f}" if phase in cost else "-" for phase in phases]
        shown = f"{median(found):.2f} [{found[0]:.2f}, {found[-1]:.2f}]"
        rows.append((name, *seconds, f"{cost['step']:.3f}", shown, f"{cost['tokens']:.0f}"))
        gaps = {phase: cost.get(phase, 0.0) - costs[baseline].get(phase, 0.0) for phase in phases}
        parts = ", ".join(f"{phase} {gap:+.3f}" for phase, gap in sorted(gaps.items(), key=lambda item: -abs(item[1])))
        differences.append(f"{name} minus {baseline}, s: {parts}")
    return [*map(markdown_row, rows), *differences[1:]]


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", metavar="CONFIG")
    parser.add_argument("overrides", metavar="key=value", nargs="*", default=[])
    parser.add_argument("--methods", nargs="+", required=True, metavar="NAME", help="the first is the baseline")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each method (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=6, help="steps of a run, 2 or more (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="threads of a run (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write the figures to this file")
    args = parser.parse_intermixed_args()
    for name in args.methods:  # report a misspelt one at once
        load_config(args.config, [*args.overrides, f"method.name={name}", "run.folder=unused"])
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in args.methods}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(args.rounds):
            for name in args.methods if number % 2 == 0 else args.methods[::-1]:
                run = Path(folder) / f"{name}-{number}"
                own = [
                    f"method.name={name}",
                    f"run.folder={run}",
                    f"train.steps={args.steps}",
                    f"threads={args.threads}",
                ]
                words = ["train", args.config, *args.overrides, *own, *SETTINGS]
                outputs_of("nemo_uecr", words, threads=args.threads)
                rounds[name].append(step_cost(read_run(run).steps))
    sys.stdout.write("".join(f"{line}\n" for line in cost_lines(rounds)))
    write_json(args.json, {"rounds": rounds})


if __name__ == "__main__":
    main()
