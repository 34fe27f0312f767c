"""Score a saved batch with the teacher of a configuration and write the batch with those scores.

BATCH is a batch that a run of the NeMo-RL back end saved (telemetry.save_batch_every). OUT leaves out the advantages
that it has: they belong to the teacher of the run. Scored twice, with and without
FP8, it shows what FP8 changes; needs the GPUs that the configuration names, all of them for the teacher.

  nemo-uecr teacher score CONFIG --batch BATCH --out bf16.safetensors teacher.fp8=false
  nemo-uecr teacher score CONFIG --batch BATCH --out fp8.safetensors  teacher.fp8=true
  nemo-uecr teacher compare bf16.safetensors fp8.safetensors
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from nemo_uecr.cli.configuration import add_config_arguments
from nemo_uecr.errors import ConfigError

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    add_config_arguments(parser)
    parser.add_argument("--batch", type=Path, required=True, metavar="BATCH", help="saved batch (safetensors)")
    parser.add_argument("--out", type=Path, required=True, metavar="OUT", help="file to write (safetensors)")


def run(args: argparse.Namespace) -> int:
    """Score."""
    from nemo_uecr.cli.nemo_rl import is_nemo_rl
    from nemo_uecr.config.nemo_load import load_nemo_config
    from nemo_uecr.data.batch_file import load_batch

    if not is_nemo_rl(args.config, args.overrides):
        raise ConfigError(
            f"{args.config}: the backend is not nemo_rl; expected a configuration with a Megatron teacher"
        )
    _check_out(args.out, args.batch)
    config, saved = load_nemo_config(args.config, args.overrides), load_batch(args.batch)
    from nemo_uecr.nemo_adapter.teacher_scores import score_saved_batch

    score_saved_batch(config, saved, args.out)
    precision = "FP8" if config.teacher.fp8 else "bf16"
    sys.stdout.write(f"{args.batch} scored by {config.teacher.model_name} in {precision}: {args.out}\n")
    return 0


def _check_out(out: Path, batch: Path) -> None:
    """Refuse a file that cannot be written, and the batch itself, before the scoring that would be lost."""
    from nemo_uecr.cli.json_file import refuse_input, refuse_unwritable

    refuse_unwritable(out, "--out")
    refuse_input(out, "--out", batch)
