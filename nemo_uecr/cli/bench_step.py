"""Seconds of a training step by method, each method's runs taking turns on the same student and the same responses.

  python -m nemo_uecr.cli.bench_step examples/configs/local/demo.yaml --methods grpo uecr

The learning rate is so small that no weight changes: every method then samples, scores and trains on the same tokens in
every round. Run it on an idle machine. The first method is the baseline.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_uecr.cli.bench_child import output_of
from nemo_uecr.cli.common import write_json
from nemo_uecr.errors import UecrError

if TYPE_CHECKING:
    from nemo_uecr.bench.steps import StepCost

__all__ = ["add_arguments", "run"]

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
    from nemo_uecr.bench.steps import cost_lines, median_cost, ratio
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
    from nemo_uecr.bench.steps import step_cost
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
    output_of(
        "nemo_uecr", ["train", args.config, *overrides], threads=args.threads, failed=f"the run of {name} failed: "
    )
    return step_cost(read_run(folder).steps)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    sys.exit(run(parser.parse_intermixed_args()))
