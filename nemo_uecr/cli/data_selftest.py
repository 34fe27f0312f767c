"""Test the verifier, and the screening, on benchmarks' own problems.

Every reference answer must verify against itself and its rewritten forms, and must not against others; what does
not is listed. With --screening, every problem is rewritten, cut and reworded, and what the screening finds is counted;
with --model also what `data screen` would hold with that sentence model.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from typing import TYPE_CHECKING

from nemo_uecr.cli.data_screen import HOLD_AT

if TYPE_CHECKING:
    from nemo_uecr.data.benchmarks import LoadedBenchmark
    from nemo_uecr.data.recall import Counts, Nearness

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("benchmarks", nargs="+", metavar="BENCHMARK", help="file, NAME=FILE or known name")
    parser.add_argument("--screening", action="store_true", help="also measure the screening on rewritten problems")
    parser.add_argument(
        "--clean", nargs="+", default=[], metavar="FILE", help="with --screening: problems that must not be found"
    )
    parser.add_argument(
        "--model", help="with --screening: sentence model of `data screen` (default: without that step)"
    )


def run(args: argparse.Namespace) -> int:
    """Print the counts and every failure; exit code 1 when an answer fails against itself."""
    from nemo_uecr.data.benchmarks import load_benchmarks

    loaded, clean, nearness = load_benchmarks(args.benchmarks), load_benchmarks(args.clean), _nearness(args.model)
    code = max(_verifier(benchmark) for benchmark in loaded.values())
    if args.screening:
        _screening(loaded, clean, nearness)
    return code


def _verifier(benchmark: LoadedBenchmark) -> int:
    from nemo_uecr.verifier.pool import comparison_pool
    from nemo_uecr.verifier.selftest import run_trials, trials

    made = [trial for problem in benchmark.problems for trial in trials(problem.id, problem.answer)]
    with comparison_pool(os.cpu_count() or 1) as pool:
        failures = run_trials(made, pool)
    failed = Counter(failure.trial.form for failure in failures)
    sys.stdout.write(f"{benchmark.name}: {len(made) - len(failures)} of {len(made)} as expected\n")
    for form, number in Counter(trial.form for trial in made).items():
        sys.stdout.write(f"  {number - failed[form]:>5} of {number:>5}  {form}\n")
    for failure in failures:
        trial = failure.trial
        sys.stdout.write(
            f"  failure: problem {trial.problem}, {trial.form}: {trial.response!r} against {trial.answer!r} "
            f"is {failure.got.value}, expected {trial.expected.value}\n"
        )
    return int(failed["itself"] > 0)


def _nearness(model: str | None) -> Nearness | None:
    from nemo_uecr.data.embedding import load_encoder
    from nemo_uecr.data.recall import Nearness

    return None if model is None else Nearness(load_encoder(model), HOLD_AT)


def _screening(
    loaded: dict[str, LoadedBenchmark], clean: dict[str, LoadedBenchmark], nearness: Nearness | None
) -> None:
    from nemo_uecr.data.planting import REWRITES
    from nemo_uecr.data.planting_held_out import HELD_OUT
    from nemo_uecr.data.recall import false_findings, planted_recall

    benchmarks = list(loaded.values())
    sys.stdout.write("screening: removed + held, of rewritten problems\n")
    for title, rewrites in (("on which thresholds were chosen", REWRITES), ("held out", HELD_OUT)):
        sys.stdout.write(f"{title}:\n")
        for name, counts in planted_recall(benchmarks, rewrites, nearness).items():
            sys.stdout.write(_line(name, counts))
    sys.stdout.write("other problems, which must not be found:\n")
    for name, counts in false_findings(benchmarks, list(clean.values()), nearness).items():
        sys.stdout.write(_line(name, counts))


def _line(name: str, counts: Counts) -> str:
    by_model = "" if counts.near is None else f"; embedding {counts.near:>4}, together {counts.found:>4}"
    return f"  {counts.removed:>4} + {counts.held:>4} of {counts.texts:>4}{by_model}  {name}\n"
