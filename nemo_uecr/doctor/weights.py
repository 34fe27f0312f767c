"""Whether weight and checkpoint files are complete, from their headers and sizes alone."""

from __future__ import annotations

import re
from pathlib import Path

from nemo_uecr.checkpoint.reading import ITERATION, MEGATRON, newest_iteration, read_weights
from nemo_uecr.data.models import read_fields, read_header, weight_names
from nemo_uecr.doctor.findings import Finding, fail, ok, warn
from nemo_uecr.errors import CheckpointError, DataError
from nemo_uecr.files import read_object

__all__ = ["broken_config", "broken_safetensors", "broken_weights", "megatron_finding", "resume_finding"]

SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")
"""Of a config.json, checked where they are stated; kinds of models differ in their names."""

_STEP = re.compile(r"step[-_](\d+)")


def broken_config(path: Path) -> str | None:
    """Why a config.json is no model's; None when it names its kind and every size in it is one."""
    try:
        fields = read_fields(path, prefix="")
        if not isinstance(fields.stated("model_type"), str):
            return f"{path} has no model_type that is a text"
        for key in SIZES:
            if key in fields.values:
                fields.count(key)
        for key in ("rope_scaling", "rope_parameters"):
            fields.section(key)
    except DataError as error:
        return str(error)
    return None


def broken_weights(folder: Path) -> str | None:
    """What is missing or damaged in a Hugging Face folder; None when every file is complete."""
    try:
        names = weight_names(folder)
    except DataError as error:
        return str(error)
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        return f"{folder} lacks {missing[0]}" + (f" and {len(missing) - 1} more of {len(names)}" if missing[1:] else "")
    return next((fault for name in names if (fault := broken_safetensors(folder / name)) is not None), None)


def broken_safetensors(path: Path) -> str | None:
    """Why a safetensors file cannot be whole; None when its size is what its header says."""
    try:
        read_header(path)
    except DataError as error:
        return str(error)
    return None


def megatron_finding(key: str, folder: str) -> Finding:
    """A Megatron checkpoint in its distributed format, read as a conversion reads it: every part, every shard."""
    path = Path(folder).expanduser()
    if not path.is_dir():
        return fail(key, f"no folder {path}", "give the folder of a Megatron checkpoint, or null")
    try:
        itself = (path / ".metadata").is_file() or ITERATION.fullmatch(path.name) is not None
        iteration = path if itself else newest_iteration(path)
        files = read_weights(MEGATRON, iteration).files
    except (CheckpointError, DataError) as error:
        return fail(key, str(error), "it was not saved to its end, or is damaged; take another one")
    return ok(key, f"{iteration}, {sum(file.suffix == '.distcp' for file in files)} shards")


def resume_finding(run_folder: str, *, nemo: bool) -> list[Finding]:
    """The newest checkpoint of the run folder, from which the run would continue."""
    checkpoints = Path(run_folder).expanduser() / "checkpoints"
    steps = {int(match[1]): path for path in checkpoints.glob("step*") if (match := _STEP.fullmatch(path.name))}
    if not steps:
        return []
    newest = steps[max(steps)]
    remedy = f"move {newest} away to continue from an earlier one"
    broken = _broken_nemo(newest) if nemo else _broken_local(newest)
    if broken is not None:
        return [fail("resume", broken, remedy)]
    if nemo:
        return [ok("resume", f"{newest} is complete; the run continues from it")]
    return [
        warn("resume", f"{newest} is there", "train --resume continues from it; without it choose another run.folder")
    ]


def _broken_nemo(step: Path) -> str | None:
    if not (step / "training_info.json").is_file():
        return f"{step} has no training_info.json: it was not saved to its end"
    found = megatron_finding("resume", str(step / "policy" / "weights"))
    return found.message if found.status == "fail" else None


def _broken_local(step: Path) -> str | None:
    manifest = step / "manifest.json"
    try:
        names = read_object(manifest)
    except DataError as error:
        return f"{manifest} is missing or unreadable: {error}"
    if not names:
        return f"{manifest} names no file"
    for name in names:
        path = step / name
        if not path.is_file():
            return f"{path} is missing"
        broken = broken_safetensors(path) if path.suffix == ".safetensors" else None
        if broken is not None:
            return broken
    return None
