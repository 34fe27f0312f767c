r"""avg@k of one or several models on benchmarks, with every sample kept.

  nemo-uecr evaluate student=runs/uecr/checkpoints/step-000160 teacher=path/to/teacher \
      --benchmarks aime24 amc23=amc23.jsonl --max-tokens 16384 --out evaluations

Every model is evaluated in the same way, the teacher too, each into its own folder under --out. Run the same command
again after an interruption: samples that are there are kept, the missing ones are generated.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from nemo_uecr.cli.dry_run import add_dry_run_argument, print_settings
from nemo_uecr.cli.evaluate_options import (
    add_evaluation_arguments,
    check_model,
    check_place,
    place_benchmarks,
    settings_of,
)

__all__ = ["add_arguments", "label_of", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("models", nargs="+", metavar="[LABEL=]MODEL", help="model folder, hub name or demo:student")
    add_evaluation_arguments(parser)
    add_dry_run_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Evaluate each model and print its table."""
    from nemo_uecr.data.benchmarks import check_benchmarks, load_benchmarks
    from nemo_uecr.demo.assets import locate, resolve
    from nemo_uecr.errors import DataError
    from nemo_uecr.evaluation.engines import load_tokens
    from nemo_uecr.evaluation.runner import check_engine, check_settings, evaluate
    from nemo_uecr.evaluation.samples import lines_of

    settings = settings_of(args)
    check_settings(settings)
    models = [label_of(text) for text in args.models]
    if len({label for label, _ in models}) < len(models):
        raise DataError("two models have the same label; name them apart: LABEL=MODEL")
    if args.dry_run:
        check_benchmarks(place_benchmarks(args.benchmarks, locate))
        for label, model in models:
            check_model(locate(model))
            check_place(args.out / label)
        print_settings(args)
        return 0
    check_engine(settings)
    models = [(label, resolve(model)) for label, model in models]
    benchmarks = load_benchmarks(place_benchmarks(args.benchmarks, resolve))
    for _, model in models:
        load_tokens(model)  # a mistyped second model is told now and not after the first one's hours
    for label, model in models:
        result = evaluate(label, model, benchmarks, settings, args.out / label)
        sys.stdout.write("\n".join([*lines_of(result), f"  {args.out / label}/result.json"]) + "\n")
    return 0


def label_of(text: str) -> tuple[str, str]:
    """Label and model of ``[LABEL=]MODEL``; without a label the model's last name.

    Raises:
        DataError: If the label is no name of a folder under --out, or there is no model.
    """
    from nemo_uecr.demo.assets import SCHEME
    from nemo_uecr.errors import DataError

    label, sign, model = text.partition("=")
    if not sign:
        label, model = Path(text.removeprefix(SCHEME)).name, text
    if label in ("", ".", "..") or "/" in label or not model:
        raise DataError(f"{text!r}: expected MODEL or LABEL=MODEL, the label a plain name: its folder is --out/LABEL")
    return label, str(Path(model).expanduser()) if model.startswith("~") else model
