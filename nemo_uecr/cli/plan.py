"""Layout, memory and time of a run, from its configuration alone; nothing is loaded and no GPU is needed.

  nemo-uecr plan examples/configs/uecr_qwen3_4b.yaml teacher.model_name=Qwen/Qwen3-8B data.subset=null
  nemo-uecr plan CONFIG cluster.nodes=2 --response-tokens 5000 --json plan.json

The sizes of a model come from its folder's config.json, or from a table for the hub names of Qwen3. For a teacher that
is yet to be made, name the model that it is made from. What cannot fit or divide is refused with what would: exit code
2.
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_uecr.cli.configuration import add_config_arguments
from nemo_uecr.cli.json_file import refuse_unwritable, write_json
from nemo_uecr.cli.nemo_rl import is_nemo_rl
from nemo_uecr.cli.sizes import sizes
from nemo_uecr.errors import ConfigError

if TYPE_CHECKING:
    from nemo_uecr.config.nemo_schema import NemoConfig
    from nemo_uecr.plan.hardware import Device
    from nemo_uecr.plan.records import Plan
    from nemo_uecr.plan.setting import Lengths

__all__ = ["add_arguments", "run"]

MOST_GIB = 1_000_000
DIGITS = 9
"""Of a number of tokens."""

DEVICES = ("h200", "h100", "a100", "cpu")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    add_config_arguments(parser)
    parser.add_argument(
        "--device", choices=DEVICES, help="device of the run (default: h200; a local run on a CPU: cpu)"
    )
    parser.add_argument(
        "--memory", type=_gibibytes, metavar="GIB", help="memory of each device, in place of the table's"
    )
    parser.add_argument(
        "--response-tokens", type=_count, metavar="N", help="mean response for the times (default: the longest)"
    )
    parser.add_argument("--prompt-tokens", type=_count, metavar="N", help="mean prompt (default: the longest)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the plan there as well, in bytes and seconds")


def run(args: argparse.Namespace) -> int:
    """Print the plan.

    Raises:
        ConfigError: the run cannot fit or divide; what would is named.
    """
    if args.json is not None:
        refuse_unwritable(args.json, "--json")
    nemo = is_nemo_rl(args.config, args.overrides)
    plan, advice, others = _nemo(args) if nemo else _local(args)
    from nemo_uecr.plan.text import plan_text, side_by_side

    sys.stdout.write(plan_text(plan))
    if others:
        sys.stdout.write("\n" + side_by_side(others))
    if args.json is not None:
        _write(args.json, plan, advice, others)
    if plan.faults:
        hint = f"; what fits: {', or '.join(advice)}" if advice else ""
        if nemo and plan.misfits and not advice:
            hint = "; no single change that was tried is enough: use more GPUs or smaller models"
        raise ConfigError("; ".join(plan.faults) + hint)
    return 0


Answer = tuple["Plan", list[str], list[tuple[str, Any]]]


def _nemo(args: argparse.Namespace) -> Answer:
    from nemo_uecr.config.methods import needs_of
    from nemo_uecr.config.nemo_load import load_nemo_config
    from nemo_uecr.plan.advice import what_fits
    from nemo_uecr.plan.hardware import EFFICIENCY
    from nemo_uecr.plan.nemo import nemo_plan

    config = load_nemo_config(args.config, args.overrides)
    if args.device == "cpu":
        raise ConfigError("--device: got cpu, but NeMo-RL's workers need GPUs; expected h200, h100 or a100")
    device = _device(args, args.device or "h200")
    lengths = _lengths(args, config.data.max_prompt_tokens, config.rollout.max_response_tokens)
    plan = nemo_plan(config, device, EFFICIENCY, lengths)
    advice = what_fits(config, device, EFFICIENCY, lengths) if plan.misfits else []
    teacher = needs_of(config.method.name).needs_teacher
    return plan, advice, _placements(config, device, lengths) if teacher else []


def _placements(config: NemoConfig, device: Device, lengths: Lengths) -> list[tuple[str, Any]]:
    from nemo_uecr.plan.hardware import EFFICIENCY
    from nemo_uecr.plan.nemo import nemo_plan, placements, variant

    columns: list[tuple[str, Any]] = []
    for name, changes in placements(config):
        try:
            columns.append((name, nemo_plan(variant(config, changes), device, EFFICIENCY, lengths)))
        except ConfigError as error:
            columns.append((name, str(error)))
    return columns


def _local(args: argparse.Namespace) -> Answer:
    from nemo_uecr.config.load import load_config
    from nemo_uecr.plan.hardware import EFFICIENCY
    from nemo_uecr.plan.local import local_plan

    config = load_config(args.config, args.overrides).config
    device = _device(args, args.device or ("h200" if config.device == "cuda" else "cpu"))
    lengths = _lengths(args, config.data.max_prompt_tokens, config.rollout.max_response_tokens)
    return local_plan(config, device, EFFICIENCY, lengths, sizes=sizes), [], []


def _device(args: argparse.Namespace, name: str) -> Device:
    from nemo_uecr.plan.hardware import CPU, GPUS
    from nemo_uecr.plan.records import GIB

    device = CPU if name == "cpu" else GPUS[name]
    return device if args.memory is None else replace(device, memory=int(args.memory * GIB))


def _lengths(args: argparse.Namespace, prompt: int, response: int) -> Lengths:
    from nemo_uecr.plan.setting import Lengths

    for option, value, key, limit in (
        ("--prompt-tokens", args.prompt_tokens, "data.max_prompt_tokens", prompt),
        ("--response-tokens", args.response_tokens, "rollout.max_response_tokens", response),
    ):
        if value is not None and value > limit:
            raise ConfigError(
                f"{option}: got a mean of {value}, expected at most {key}={limit}; raise that key as well"
            )
    return Lengths(args.prompt_tokens or prompt, args.response_tokens or response)


def _write(path: Path, plan: Plan, advice: list[str], others: list[tuple[str, Any]]) -> None:
    from nemo_uecr.plan.records import as_json

    columns = {name: {"refused": other} if isinstance(other, str) else as_json(other) for name, other in others}
    content = {"format": "nemo_uecr.plan/1", **as_json(plan), "what_fits": advice, "placements": columns}
    write_json(path, content)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= DIGITS) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"got {text!r:.60}, expected a whole number above 0")
    return int(text)


def _gibibytes(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= MOST_GIB:
        raise argparse.ArgumentTypeError(f"got {text!r:.60}, expected a number of GiB above 0, {MOST_GIB} at most")
    return value
