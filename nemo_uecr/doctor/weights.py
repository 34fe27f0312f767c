"""Whether weight and checkpoint files are complete, from their headers and sizes alone."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

from nemo_uecr.doctor.findings import Finding, fail, ok, warn

__all__ = ["broken_config", "broken_safetensors", "broken_weights", "megatron_finding", "resume_finding"]

_STEP = re.compile(r"step[-_](\d+)")


def broken_config(path: Path) -> str | None:
    """Why a config.json is no model's; None when it is a JSON object."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        return f"{path} is unreadable: {error}"
    return None if isinstance(found, dict) else f"{path} holds a {type(found).__name__}, not an object"


def broken_weights(folder: Path) -> str | None:
    """What is missing or cut short in a Hugging Face folder; None when every file is complete."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, AttributeError, TypeError):
            return f"{index} is unreadable"
    else:
        names = ["model.safetensors"]
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        return f"{folder} lacks {missing[0]}" + (f" and {len(missing) - 1} more of {len(names)}" if missing[1:] else "")
    broken = (broken_safetensors(folder / name) for name in names)
    return next((one for one in broken if one is not None), None)


def broken_safetensors(path: Path) -> str | None:
    """Why a safetensors file cannot be whole; None when its size is what its header says.

    The file is 8 bytes of header length, the header as JSON, and the tensors up to their largest end offset.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        if length > size - 8:
            return f"{path} is no safetensors file, or cut short at {size} bytes"
        try:
            header: dict[str, Any] = json.loads(file.read(length))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, AttributeError):
            return f"{path} has an unreadable header"
    expected = 8 + length + max(ends, default=0)
    return None if size == expected else f"{path} has {size} bytes, its header says {expected}"


def megatron_finding(key: str, folder: str) -> Finding:
    """A Megatron checkpoint in its distributed format: an iteration with metadata and shards that are not empty."""
    path = Path(folder).expanduser()
    if not path.is_dir():
        return fail(key, f"no folder {path}", "give the folder of a Megatron checkpoint, or null")
    iteration = path
    if not (path / ".metadata").is_file():
        found = sorted(path.glob("iter_*"))
        if not found:
            return fail(key, f"{path} has neither .metadata nor iter_* folders", "name .../weights or .../iter_0000000")
        iteration = found[-1]
    shards = sorted(iteration.glob("*.distcp"))
    empty = [shard.name for shard in shards if shard.stat().st_size == 0]
    if not (iteration / ".metadata").is_file() or not shards:
        return fail(
            key,
            f"{iteration} has no .metadata or no *.distcp shards",
            "it was not saved to its end; take an earlier one",
        )
    if empty:
        return fail(key, f"{iteration / empty[0]} is empty", "it was not saved to its end; take an earlier one")
    return ok(key, f"{iteration}, {len(shards)} shards")


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
        names = dict(json.loads(manifest.read_bytes()))
    except (OSError, ValueError, TypeError):
        return f"{manifest} is missing or unreadable"
    for name in names:
        path = step / name
        if not path.is_file():
            return f"{path} is missing"
        broken = broken_safetensors(path) if path.suffix == ".safetensors" else None
        if broken is not None:
            return broken
    return None
