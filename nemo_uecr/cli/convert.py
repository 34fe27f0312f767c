r"""Convert a checkpoint between Megatron and Hugging Face, and prove that the result is the same model.

CKPT is a step that NeMo-RL saved (step_N), a Megatron distributed checkpoint (iter_0000000 or the folder above), or a
Hugging Face model; it is converted into the other format. Both models then score fixed sequences in float32; OUT
appears only when their log-probabilities agree. It holds conversion.json with the evidence.

  nemo-uecr convert runs/uecr/checkpoints/step_100 --to models/uecr-step-100
  nemo-uecr convert models/Qwen3-4B --to models/Qwen3-4B-megatron
  nemo-uecr convert models/uecr-step-100 --check

An interrupted conversion goes on when the command is given again.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_uecr.cli.dry_run import add_dry_run_argument, print_settings
from nemo_uecr.cli.extras import require_extra
from nemo_uecr.errors import CheckpointError, DependencyError

if TYPE_CHECKING:
    from nemo_uecr.checkpoint.request import Request

__all__ = ["add_arguments", "run"]

GIGABYTE = 10**9


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    from nemo_uecr.checkpoint.verification import TOLERANCE

    parser.add_argument("ckpt", metavar="CKPT", type=Path, help="the checkpoint")
    parser.add_argument("--to", dest="out", metavar="OUT", type=Path, help="folder to make; it must not exist")
    parser.add_argument("--check", action="store_true", help="verify again a folder that was converted; makes nothing")
    add_dry_run_argument(parser)
    parser.add_argument("--into", choices=("huggingface", "megatron"), help="format of OUT (default: the other one)")
    parser.add_argument(
        "--hf", metavar="MODEL", help="Hugging Face model of CKPT's architecture (default: what CKPT names)"
    )
    parser.add_argument(
        "--tokenizer", metavar="FOLDER", type=Path, help="tokenizer (default: CKPT's, else the model's)"
    )
    parser.add_argument(
        "--expect", metavar="FILE", type=Path,
        help="log-probabilities that the trained model gave (safetensors: token_ids, lengths, logp); must be met",
    )  # fmt: skip
    parser.add_argument(
        "--tolerance", metavar="NATS", type=float, default=TOLERANCE,
        help="largest difference of two log-probabilities (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--shard-gb",
        metavar="GB",
        type=float,
        default=4.0,
        help="most gigabytes of a weight file (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Convert, or verify again."""
    if not (0 < args.tolerance < math.inf and 0 < args.shard_gb < math.inf):
        raise CheckpointError("--tolerance and --shard-gb: expected numbers above 0")
    if args.check == (args.out is not None):
        raise CheckpointError("expected either --to OUT, to convert, or --check, to verify a converted folder again")
    if args.dry_run:
        return _dry_run(args)
    _require_bridge()
    _quiet_libraries()
    if args.check:
        from nemo_uecr.checkpoint.check import check

        agreement = check(args.ckpt, args.tolerance)
        made = args.ckpt
    else:
        from nemo_uecr.checkpoint.convert import convert

        agreement = convert(_request(args))
        made = args.out
    sys.stdout.write(
        f"{made}: the same model; log-probabilities of {agreement.tokens} tokens differ by at most "
        f"{agreement.largest:.2g} nats\n"
    )
    return 0


def _request(args: argparse.Namespace) -> Request:
    from nemo_uecr.checkpoint.request import Request

    return Request(
        ckpt=args.ckpt, out=args.out.absolute(), into=args.into, model=args.hf, tokenizer=args.tokenizer,
        recorded=args.expect, tolerance=args.tolerance, shard_bytes=int(args.shard_gb * GIGABYTE),
    )  # fmt: skip


def _dry_run(args: argparse.Namespace) -> int:
    """Everything that a conversion refuses before it writes."""
    from nemo_uecr.checkpoint.convert import prepare
    from nemo_uecr.checkpoint.record import read_record

    if args.check:
        read_record(args.ckpt)
    else:
        prepare(_request(args))
    print_settings(args)
    return 0


def _require_bridge() -> None:
    require_extra("convert")
    if importlib.util.find_spec("megatron.bridge") is None:
        raise DependencyError(
            "megatron.bridge is not installed; convert inside NeMo-RL's container, or run: "
            "pip install --no-deps megatron-bridge==0.3.1"
        )


def _quiet_libraries() -> None:
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.getLogger("megatron").setLevel(logging.ERROR)
