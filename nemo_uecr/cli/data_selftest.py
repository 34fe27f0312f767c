"""Test the verifier, and the screening, on benchmarks' own problems.

Every reference answer must verify against itself and its rewritten forms, and must not against others; what does
not is listed. With --screening, every problem is rewritten, cut and reworded, and what the screening finds is counted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nemo_uecr.data.benchmarks import LoadedBenchmark

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("benchmarks", nargs="+", metavar="BENCHMARK", help="file, NAME=FILE or known name")
    parser.add_argument("--screening", action="store_true", help="also measure the screening on rewritten problems")
    parser.add_argument(
        "--clean", nargs="+", default=[], metavar="FILE", help="with --screening: problems that must not be found"
    )


def run(args: argparse.Namespace) -> int:
    """Print the counts and every failure; exit code 1 when an answer fails against itself."""
    from nemo_uecr.data.benchmarks import load_benchmarks

    loaded = load_benchmarks(args.benchmarks)
    code = max(_verifier(benchmark) for benchmark in loaded.values())
    if args.screening:
        _screening(loaded, load_benchmarks(args.clean))
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


def _screening(loaded: dict[str, LoadedBenchmark], clean: dict[str, LoadedBenchmark]) -> None:
    from nemo_uecr.data.planting import REWRITES
    from nemo_uecr.data.planting_held_out import HELD_OUT
    from nemo_uecr.data.recall import false_findings, planted_recall

    sys.stdout.write("screening: removed + held, of rewritten problems\n")
    for title, rewrites in (("on which thresholds were chosen", REWRITES), ("held out", HELD_OUT)):
        sys.stdout.write(f"{title}:\n")
        for row in planted_recall(list(loaded.values()), rewrites):
            sys.stdout.write(f"  {row.removed:>4} + {row.held:>4} of {row.planted:>4}  {row.rewrite}\n")
    sys.stdout.write("other problems, which must not be found:\n")
    for name, (removed, held, number) in false_findings(list(loaded.values()), list(clean.values())).items():
        sys.stdout.write(f"  {removed:>4} + {held:>4} of {number:>4}  {name}\n")
