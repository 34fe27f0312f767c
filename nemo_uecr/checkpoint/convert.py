"""A conversion from beginning to end: look, convert aside, verify, and only then give OUT its name."""

from __future__ import annotations

import gc
import logging
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_uecr.checkpoint.assets import asset_files, write_assets
from nemo_uecr.checkpoint.bridge import Bridge
from nemo_uecr.checkpoint.hf_files import HfFiles, check_hf_architecture, read_hf_files
from nemo_uecr.checkpoint.hf_writer import names_folder, write_weights
from nemo_uecr.checkpoint.megatron_files import MegatronFiles, check_megatron_architecture, read_megatron_files
from nemo_uecr.checkpoint.on_cpu import megatron_on_cpu
from nemo_uecr.checkpoint.qwen3 import Qwen3, hf_shapes, read_qwen3
from nemo_uecr.checkpoint.record import Verified, versions, write_record
from nemo_uecr.checkpoint.recorded import read_recorded
from nemo_uecr.checkpoint.request import Request, locate_model
from nemo_uecr.checkpoint.room import unwritable, writing
from nemo_uecr.checkpoint.sequences import (
    Scores,
    Sequences,
    fixed_sequences,
    huggingface_scores,
    megatron_scores,
)
from nemo_uecr.checkpoint.source import ASSETS, HUGGINGFACE, MEGATRON, Source, find_source, newest_iteration
from nemo_uecr.checkpoint.verification import Agreement, compare
from nemo_uecr.checkpoint.work_folder import (
    JOURNAL,
    WorkFolder,
    only_one,
    partial_of,
    refuse_nested,
    refuse_occupied,
)
from nemo_uecr.errors import CheckpointError, UecrError
from nemo_uecr.files import file_sha256

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """A conversion whose inputs have been looked at.

    Attributes:
        request: what was asked.
        source: what CKPT is.
        files: its weights, whole.
        config: folder of config.json.
        tokenizer: folder of the tokenizer.
        model: the architecture.
    """

    request: Request
    source: Source
    files: MegatronFiles | HfFiles
    config: Path
    tokenizer: Path
    model: Qwen3


def convert(request: Request) -> Agreement:
    """Convert and verify.

    Args:
        request: what to convert into what.

    Returns:
        How far the two models are apart.

    Raises:
        CheckpointError: the input is incomplete or another architecture, OUT is occupied, or the verification found
            another model. OUT does not exist then.
    """
    job = prepare(request)
    with only_one(request.out):
        logger.info("%s: %s weights, %s", job.source.weights, job.source.kind, job.files.dtype)
        making = _making(job)
        try:
            work = WorkFolder(partial_of(request.out), making)
        except OSError as error:
            raise unwritable(request.out.parent, error) from error
        try:
            make = _to_huggingface if job.source.kind == MEGATRON else _to_megatron
            verified = make(job, work)
            write_record(work, making, job.model, verified)
        except UecrError:
            shutil.rmtree(work.path, ignore_errors=True)
            raise
        except OSError as error:
            failure = unwritable(work.path, error)
            shutil.rmtree(work.path, ignore_errors=True)
            raise failure from error
        if request.out.is_dir():
            request.out.rmdir()
        work.finish(request.out)
    return verified.agreement


def prepare(request: Request) -> Job:
    """All that is refused before anything is written.

    Raises:
        CheckpointError: OUT cannot be made there, or CKPT cannot be converted.
    """
    refuse_nested(request.ckpt, request.out)
    refuse_occupied(request.out)
    job = look(request)
    asset_files(job.config, job.tokenizer)
    if request.recorded is not None:
        if not request.recorded.is_file():
            raise CheckpointError(f"{request.recorded}: no such file; expected --expect FILE of log-probabilities")
        read_recorded(request.recorded, job.model.vocabulary)
    return job


def look(request: Request) -> Job:
    """Refuse what cannot be converted, before anything is written."""
    source = find_source(request.ckpt)
    if request.into == source.kind:
        raise CheckpointError(f"{request.ckpt}: already {source.kind}; expected a checkpoint of the other format")
    if source.kind == MEGATRON:
        files = read_megatron_files(source.weights)
        config = locate_model(request.model or source.model, request.ckpt)
        model = read_qwen3(config)
        check_megatron_architecture(files, model, config)
        tokenizer = request.tokenizer or source.tokenizer or config
        return Job(request, source, files, config, tokenizer, model)
    if request.model is not None or request.recorded is not None:
        raise CheckpointError(
            f"{request.ckpt}: a Hugging Face model says itself what it is; leave --hf and --expect out"
        )
    weights = read_hf_files(source.weights)
    model = read_qwen3(source.weights)
    check_hf_architecture(weights, model)
    return Job(request, source, weights, source.weights, request.tokenizer or source.weights, model)


def _making(job: Job) -> dict[str, Any]:
    """What decides the bytes of OUT; a resumed conversion must have the same."""
    assets = asset_files(job.config, job.tokenizer)
    return {
        "direction": f"{job.source.kind} to {HUGGINGFACE if job.source.kind == MEGATRON else MEGATRON}",
        "source": str(job.request.ckpt), "weights": str(job.source.weights), "model": str(job.config),
        "dtype": job.files.dtype, "shard_bytes": job.request.shard_bytes, "versions": versions(),
        "source_sha256": _hashes(job.files.files), "assets_sha256": _hashes(assets),
    }  # fmt: skip


def _hashes(files: Iterable[Path]) -> dict[str, str]:
    return {path.name: file_sha256(path) for path in files}


def _to_huggingface(job: Job, work: WorkFolder) -> Verified:
    write_assets(work, "", job.config, job.tokenizer, job.files.dtype)
    sequences = fixed_sequences(work.path, job.model.vocabulary)
    shapes = hf_shapes(job.model)
    with megatron_on_cpu(), names_folder(job.config / "config.json", shapes) as names:
        bridge = Bridge(names, job.model)
        model = bridge.from_megatron(job.source.weights)
        megatron = megatron_scores(model, sequences)
        if job.request.recorded is not None:
            rows, logp = read_recorded(job.request.recorded, job.model.vocabulary)
            compare(rows, megatron_scores(model, rows), logp, job.request.tolerance, "as recorded in training")
        write_weights(bridge.export(model), shapes, job.files.dtype, work, job.request.shard_bytes)
        del bridge, model
    gc.collect()
    logger.info("verifying: transformers loads what was written")
    huggingface = huggingface_scores(work.path, sequences)
    return _verified(job, sequences, megatron, huggingface)


def _to_megatron(job: Job, work: WorkFolder) -> Verified:
    sequences = fixed_sequences(job.tokenizer, job.model.vocabulary)
    with megatron_on_cpu(), names_folder(job.config / "config.json", hf_shapes(job.model)) as names:
        if not work.has_all("iter_"):
            _save_megatron(job, work)
        write_assets(work, ASSETS, job.config, job.tokenizer, job.files.dtype)
        folder = newest_iteration(work.path)
        check_megatron_architecture(read_megatron_files(folder), job.model, job.config)
        logger.info("verifying: megatron-core loads what was written")
        megatron = megatron_scores(Bridge(names, job.model).from_megatron(folder), sequences)
    gc.collect()
    huggingface = huggingface_scores(job.source.weights, sequences)
    return _verified(job, sequences, megatron, huggingface)


def _save_megatron(job: Job, work: WorkFolder) -> None:
    import torch

    for path in work.path.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
    bridge = Bridge(job.source.weights, job.model)
    model = bridge.from_huggingface()
    with writing(work.path):
        bridge.save(model.to(getattr(torch, job.files.dtype)), work.path)
    for settings in work.path.glob("iter_*/run_config.yaml"):
        text = settings.read_text(encoding="utf-8")
        settings.write_text(text.replace(str(work.path), str(job.request.out)), encoding="utf-8")
    written = (path for path in work.path.rglob("*") if path.is_file() and path.name != JOURNAL)
    work.complete(*(str(path.relative_to(work.path)) for path in written))


def _verified(job: Job, sequences: Sequences, megatron: Scores, huggingface: Scores) -> Verified:
    agreement = compare(sequences, megatron, huggingface, job.request.tolerance, "Hugging Face")
    return Verified(sequences, megatron, huggingface, job.request.tolerance, agreement)
