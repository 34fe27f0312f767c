"""The whole conversion: check the input, convert into a temporary folder, verify, and rename it to OUT."""

from __future__ import annotations

import gc
import json
import logging
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import nemo_uecr
from nemo_uecr.conversion import proof, reading
from nemo_uecr.conversion.bridge import Bridge, hf_names, names_alone, write_weights
from nemo_uecr.conversion.on_cpu import megatron_on_cpu
from nemo_uecr.conversion.proof import Agreement, Scores, Sequences
from nemo_uecr.errors import CheckpointError, first_line
from nemo_uecr.files import (
    check_writable,
    digests,
    existing,
    file_fault,
    file_sha256,
    files_below,
    new_folder,
    read_object,
)
from nemo_uecr.generation.models import GENERATION, TEMPLATES, TOKENIZER, check_objects, let_older_read
from nemo_uecr.reproducible import installed

logger = logging.getLogger(__name__)

#: File in OUT with the evidence.
RECORD = "conversion.json"
FORMAT = "nemo_uecr.conversion/1"
PACKAGES = ("torch", "transformers", "safetensors", "megatron-core", "megatron-bridge")
GIGABYTE = 10**9


@dataclass(frozen=True)
class Conversion:
    """A conversion with checked inputs."""

    ckpt: Path
    out: Path
    tolerance: float  # largest difference of two log-probabilities, in nats
    shard_bytes: int  # most bytes of a weight file
    weights: reading.Weights
    config: Path  # folder of config.json
    tokenizer: Path
    model: reading.Qwen3
    assets: tuple[Path, ...]  # the model's files besides weights


def prepare(
    ckpt: Path, out: Path, *, model: str | None, tokenizer: Path | None, tolerance: float, shard_bytes: int
) -> Conversion:
    """Check everything that can be checked before writing.

    ``model`` is the folder or hub name of the Hugging Face model with the architecture, None where CKPT names it;
    ``tokenizer`` None is CKPT's, else the model's.
    """
    out = out.absolute()
    if ckpt.resolve() in out.resolve().parents:  # NeMo-RL deletes old steps, and OUT with them
        raise CheckpointError(f"{out}: is inside the checkpoint {ckpt}; choose another --to")
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise CheckpointError(f"{out}: occupied; expected a folder that does not exist. Choose another --to")
    source = reading.find_source(ckpt)
    weights = reading.read_weights(source.weights)
    config = _locate_model(model or source.model, ckpt, "--hf")
    shape = reading.read_qwen3(config)
    reading.check_architecture(weights, shape, config)
    tokenizer = tokenizer or (_locate_model(source.tokenizer, ckpt, "--tokenizer") if source.tokenizer else config)
    assets = _assets(config, tokenizer)
    check_writable(out)
    free = shutil.disk_usage(existing(out)).free
    if free < weights.size:
        raise CheckpointError(
            f"{out}: {free / GIGABYTE:.3g} GB are free; the weights need {weights.size / GIGABYTE:.3g} GB. Make "
            "room, or choose another --to"
        )
    return Conversion(ckpt, out, tolerance, shard_bytes, weights, config, tokenizer, shape, assets)


def _locate_model(name: str | None, ckpt: Path, option: str) -> Path:
    """The local folder, or what the hub has under this name besides weights; ``option`` takes another."""
    if name is None:
        raise CheckpointError(f"{ckpt}: does not name its model; name it: {option} FOLDER (one with config.json)")
    if Path(name).is_dir():
        return Path(name)
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=["config.json", GENERATION, *TOKENIZER]))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = first_line(error)
        raise CheckpointError(f"{name}: no folder here, nor on the hub ({reason}); name a folder: {option}") from error


def convert(job: Conversion) -> Agreement:
    """Convert, verify, and return the agreement of the two models; a failure leaves no OUT."""
    logger.info("%s: weights in %s", job.weights.folder, job.weights.dtype)
    with new_folder(job.out) as folder:
        sequences, megatron, huggingface = _to_huggingface(job, folder)
        agreement = proof.compare(sequences, megatron, huggingface, job.tolerance)
        _write_record(job, folder, {
            "sequences": sequences, "megatron": megatron, "huggingface": huggingface,
            "tolerance": job.tolerance, "agreement": asdict(agreement),
        })  # fmt: skip
    return agreement


def _to_huggingface(job: Conversion, folder: Path) -> tuple[Sequences, Scores, Scores]:
    """Write the model; return sequences with their scores by Megatron and by what transformers loads."""
    _write_assets(job, folder)
    sequences = proof.fixed_sequences(folder, job.model.vocabulary, job.tokenizer)
    with megatron_on_cpu(), names_alone(job.config / "config.json", job.model) as names:
        bridge = Bridge(names, job.model)
        model = bridge.from_megatron(job.weights.folder)
        megatron = proof.megatron_scores(model, sequences)
        write_weights(bridge.export(model), hf_names(job.model), job.weights.dtype, folder, job.shard_bytes)
        del bridge, model
    gc.collect()  # one model in memory at a time
    logger.info("verifying: transformers loads what was written")
    return sequences, megatron, proof.huggingface_scores(folder, sequences)


def _assets(config: Path, tokenizer: Path) -> tuple[Path, ...]:
    """Configuration, generation configuration, tokenizer and template."""
    if not (tokenizer / "tokenizer.json").is_file() and not (tokenizer / "vocab.json").is_file():
        raise CheckpointError(f"{tokenizer}: no tokenizer.json; expected the model's tokenizer. Name it: --tokenizer")
    check_objects(config)
    check_objects(tokenizer)
    candidates = [config / "config.json", config / GENERATION, *(tokenizer / name for name in TOKENIZER)]
    return tuple(path for path in candidates if path.is_file())


def _write_assets(job: Conversion, folder: Path) -> None:
    """Copy the assets, and set the dtype of the weights in config.json."""
    for file in job.assets:
        shutil.copyfile(file, folder / file.name)
    if (job.tokenizer / TEMPLATES).is_dir():
        shutil.copytree(job.tokenizer / TEMPLATES, folder / TEMPLATES)
    config = {name: value for name, value in read_object(folder / "config.json").items() if name != "dtype"}
    content = json.dumps({**config, "torch_dtype": job.weights.dtype}, indent=2)
    (folder / "config.json").write_text(content, encoding="utf-8")
    let_older_read(folder)
    settings = folder / "tokenizer_config.json"
    inside = settings.is_file() and read_object(settings).get("chat_template")
    if not inside and not (folder / "chat_template.jinja").is_file():
        logger.warning("%s has no chat template; the converted model has none either", job.tokenizer)
    if not (folder / GENERATION).is_file():
        logger.warning("%s has no %s; the converted model has none either", job.config, GENERATION)


def _write_record(job: Conversion, folder: Path, evidence: dict[str, Any]) -> None:
    content = {
        "format": FORMAT,
        "source": str(job.ckpt), "weights": str(job.weights.folder), "model": str(job.config),
        "dtype": job.weights.dtype, "shard_bytes": job.shard_bytes,
        "versions": {"nemo_uecr": nemo_uecr.__version__, **{name: installed(name) for name in PACKAGES}},
        "source_sha256": digests(job.weights.files, job.weights.folder),
        "assets_sha256": {path.name: file_sha256(path) for path in job.assets},
        "architecture": asdict(job.model),
        "sha256": digests(files_below(folder), folder),
        "verification": evidence,
    }  # fmt: skip
    (folder / RECORD).write_text(json.dumps(content, indent=1), encoding="utf-8")


def read_record(folder: Path) -> dict[str, Any]:
    """The content of conversion.json."""
    if not (folder / RECORD).is_file():
        raise CheckpointError(f"{folder}: no {RECORD}; expected a folder that nemo-uecr convert made")
    return read_object(folder / RECORD, form=FORMAT)


def check(out: Path, tolerance: float) -> Agreement:
    """Score the fixed sequences again, and return the agreement of the model in OUT with its source.

    Raises:
        CheckpointError: they differ by more than ``tolerance`` nats, or a file changed since the conversion.
    """
    record = read_record(out)
    sequences, megatron = record["verification"]["sequences"], record["verification"]["megatron"]
    agreement = proof.compare(sequences, megatron, proof.huggingface_scores(out, sequences), tolerance)
    for name, expected in record["sha256"].items():
        if fault := file_fault(out / name, expected):
            raise CheckpointError(f"{out / name}: {fault} since the conversion; the model is the same within rounding")
    return agreement
