"""The command `convert`."""

from __future__ import annotations

import importlib.util
import logging
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter, validators

from nemo_uecr.errors import CheckpointError, DependencyError, require_extra

__all__ = ["convert"]

GIGABYTE = 10**9
Positive = Annotated[float, Parameter(validator=validators.Number(gt=0))]


def convert(
    ckpt: Path,
    /,
    *,
    to: Path | None = None,
    check: bool = False,
    dry_run: bool = False,
    into: Literal["huggingface", "megatron"] | None = None,
    hf: str | None = None,
    tokenizer: Path | None = None,
    expect: Path | None = None,
    tolerance: Positive = 1e-4,
    shard_gb: Positive = 4.0,
) -> None:
    """Convert a checkpoint between Megatron and Hugging Face, and prove that the result is the same model.

    CKPT is a step that NeMo-RL saved (step_N), a Megatron distributed checkpoint (iter_0000000 or the folder above),
    or a Hugging Face model; it is converted into the other format. Both models then score fixed sequences in float32;
    OUT appears only when their log-probabilities agree. It holds conversion.json with the evidence.

        nemo-uecr convert runs/uecr/checkpoints/step_100 --to models/uecr-step-100
        nemo-uecr convert models/Qwen3-4B --to models/Qwen3-4B-megatron
        nemo-uecr convert models/uecr-step-100 --check

    An interrupted conversion leaves no OUT; the same command starts over.

    Args:
        ckpt: The checkpoint.
        to: Folder to make; it must not exist.
        check: Verify again a folder that was converted; makes nothing.
        dry_run: Look at everything that is named; make nothing.
        into: Format of the result (default: the other one).
        hf: Hugging Face model of CKPT's architecture (default: what CKPT names).
        tokenizer: Folder of the tokenizer (default: CKPT's, else the model's).
        expect: Log-probabilities that the trained model gave (safetensors: token_ids, lengths, logp); must be met.
        tolerance: Largest difference of two log-probabilities, nats.
        shard_gb: Most gigabytes of a weight file.
    """
    from nemo_uecr.checkpoint.convert import Request, prepare, read_record
    from nemo_uecr.checkpoint.convert import check as check_again
    from nemo_uecr.checkpoint.convert import convert as run

    if check == (to is not None):
        raise CheckpointError("expected either --to OUT, to convert, or --check, to verify a converted folder again")
    request = None
    if to is not None:
        request = Request(
            ckpt=ckpt, out=to.absolute(), into=into, model=hf, tokenizer=tokenizer,
            recorded=expect, tolerance=tolerance, shard_bytes=int(shard_gb * GIGABYTE),
        )  # fmt: skip
    if dry_run:
        if request is None:
            read_record(ckpt)
        else:
            prepare(request)
        sys.stdout.write(f"dry run: {request or ckpt}\n")
        return
    _require_bridge()
    agreement = check_again(ckpt, tolerance) if request is None else run(request)
    sys.stdout.write(
        f"{to or ckpt}: the same model; log-probabilities of {agreement.tokens} tokens differ by at most "
        f"{agreement.largest:.2g} nats\n"
    )


def _require_bridge() -> None:
    """Refuse to start without megatron-bridge; quiet the libraries otherwise."""
    require_extra("convert")
    if importlib.util.find_spec("megatron.bridge") is None:
        raise DependencyError(
            "megatron.bridge is not installed; convert inside NeMo-RL's container, or run: "
            "pip install --no-deps megatron-bridge==0.3.1"
        )
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.getLogger("megatron").setLevel(logging.ERROR)
