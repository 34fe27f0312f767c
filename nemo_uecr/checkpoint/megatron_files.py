"""A Megatron distributed checkpoint on disk: whether it is whole, and which tensors it holds."""

from __future__ import annotations

import re
import reprlib
import zipfile
import zlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_uecr.checkpoint.metadata_pickle import read_metadata, unreadable
from nemo_uecr.checkpoint.qwen3 import Qwen3, Shapes, megatron_shapes, read_json
from nemo_uecr.errors import CheckpointError, first_line

FORMAT = "torch_dist"
FIXED = ("metadata.json", ".metadata", "common.pt")
"""Files that a complete checkpoint has beside its shards; metadata.json is the last one that Megatron writes."""

MODEL = ("embedding.", "decoder.", "output_layer.")
LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.+)")
SHARD = re.compile(r"[\w.-]{1,200}")
MOST = 2**50
"""Bytes of a shard, and numbers of a tensor in one dimension."""

PADDINGS = tuple(2**power for power in range(14))
"""A vocabulary is padded to a multiple of up to 128 on each of up to 64 tensor-parallel ranks, all powers of two."""


@dataclass(frozen=True)
class MegatronFiles:
    """One iteration's folder.

    Attributes:
        folder: the folder.
        files: every file that the weights need.
        shapes: of the model's tensors, the layers stacked in front.
        dtype: the one dtype of the model's tensors, as torch names it.
    """

    folder: Path
    files: tuple[Path, ...]
    shapes: Shapes
    dtype: str


def read_megatron_files(folder: Path) -> MegatronFiles:
    """Read the table of contents and hold the shards against it.

    Raises:
        CheckpointError: another format, a file that is missing or cut short, or tensors of several dtypes.
    """
    for name in FIXED:
        if not (folder / name).is_file():
            raise CheckpointError(f"{folder}: no {name}; the checkpoint is incomplete. Convert another one")
    kind = read_json(folder / "metadata.json").get("sharded_backend")
    if kind != FORMAT:
        raise CheckpointError(f"{folder}: its format is {kind}; expected {FORMAT}, Megatron's distributed checkpoint")
    ends, tensors = read_contents(folder / ".metadata")
    _check_common(folder / "common.pt")
    for name, end in sorted(ends.items()):
        _check_size(folder / name, end)
    dtypes = sorted({dtype for dtype, _ in tensors.values()})
    if len(dtypes) != 1:
        raise CheckpointError(f"{folder}: its tensors are {dtypes or 'none'}; expected a model in one dtype")
    names = (*FIXED, *sorted(ends), *(["run_config.yaml"] if (folder / "run_config.yaml").is_file() else []))
    shapes = _stacked({name: shape for name, (_, shape) in tensors.items()})
    return MegatronFiles(folder, tuple(folder / name for name in names), shapes, dtypes[0])


def read_contents(path: Path) -> tuple[dict[str, int], dict[str, tuple[str, tuple[int, ...]]]]:
    """What .metadata says: the bytes that each shard has at least; dtype and shape of each tensor of the model.

    The file is a pickle of torch's own classes. A damaged one gives objects of other classes, so that every value is
    looked at before it is used.

    Raises:
        CheckpointError: it is damaged.
    """
    contents = read_metadata(path)
    try:
        ends = _shard_ends(contents.storage_data)
        tensors = {
            name: _dtype_and_shape(entry)
            for name, entry in contents.state_dict_metadata.items()
            if hasattr(entry, "size") and name.startswith(MODEL)
        }
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:  # the last of a repr without end
        raise unreadable(path, error) from error
    return ends, tensors


def _shard_ends(places: dict[Any, Any]) -> dict[str, int]:
    ends: Counter[str] = Counter()
    for place in places.values():
        name, numbers = place.relative_path, (place.offset, place.length)
        if not isinstance(name, str) or not SHARD.fullmatch(name):
            raise ValueError(f"it names a shard {_shown(name)}")
        if not all(isinstance(number, int) and 0 <= number < MOST for number in numbers):
            raise ValueError(f"it places a tensor of {name} at {_shown(numbers)}")
        ends[name] = max(ends[name], sum(numbers))
    return dict(ends)


def _shown(value: object) -> str:
    """A value in a few letters, without writing it in full first: it may hold itself, or the same list for ever."""
    return f"{reprlib.repr(value):.60}"


def _dtype_and_shape(entry: Any) -> tuple[str, tuple[int, ...]]:
    import torch

    dtype, shape = entry.properties.dtype, tuple(entry.size)
    if not isinstance(dtype, torch.dtype) or not all(isinstance(size, int) and 0 <= size < MOST for size in shape):
        raise ValueError(f"it has a tensor of {_shown(dtype)} and shape {_shown(shape)}")
    return str(dtype).removeprefix("torch."), shape


def _check_common(path: Path) -> None:
    """Whether the ZIP archive that torch writes is whole, by its checksums and without unpickling anything."""
    try:
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError, OSError) as error:
        raise unreadable(path, error) from error
    if broken is not None:
        raise CheckpointError(f"{path}: {broken} in it is damaged; the checkpoint is corrupt. Copy it again")


def _check_size(shard: Path, end: int) -> None:
    if not shard.is_file():
        raise CheckpointError(f"{shard}: missing shard; expected {end} bytes. Copy the checkpoint again")
    size = shard.stat().st_size
    if size < end:
        raise CheckpointError(f"{shard}: truncated shard of {size} bytes; expected {end}. Copy the checkpoint again")


def _stacked(shapes: Shapes) -> Shapes:
    """Layers in front of the shape, also where the checkpoint numbers them in the name."""
    found: Shapes = {}
    layers: Counter[str] = Counter()
    for name, shape in shapes.items():
        numbered = LAYER.fullmatch(name)
        if numbered is None:
            found[name] = shape
        else:
            stacked = f"decoder.layers.{numbered[2]}"
            layers[stacked] += 1
            found[stacked] = (layers[stacked], *shape)
    return found


def check_megatron_architecture(files: MegatronFiles, model: Qwen3, described_by: Path) -> None:
    """Refuse a checkpoint that is not of this architecture.

    Args:
        files: the checkpoint.
        model: the architecture.
        described_by: where it stands, for the message.

    Raises:
        CheckpointError: naming the first tensor that differs, or the first setting of run_config.yaml.
    """
    remedy = f"Name the model that was trained: --hf FOLDER (now {described_by})"
    expected = megatron_shapes(model)
    for name in sorted(expected.keys() | files.shapes.keys()):
        got, wanted = files.shapes.get(name), expected.get(name)
        if got != wanted and not _is_padded(name, got, wanted):
            raise CheckpointError(
                f"{files.folder}: {name} has shape {list(got) if got else 'none'}; the architecture asks for "
                f"{list(wanted) if wanted else 'none'}. {remedy}"
            )
    settings = _run_settings(files.folder)
    wanted_settings: dict[str, Any] = {
        "rotary_base": model.rope_theta, "layernorm_epsilon": model.norm_eps, "num_attention_heads": model.heads,
        "num_query_groups": model.kv_heads, "kv_channels": model.head_dim,
        "share_embeddings_and_output_weights": model.tied, "vocab_size": model.vocabulary,
    }  # fmt: skip
    for name, value in wanted_settings.items():
        if settings.get(name) is not None and settings[name] != value:
            raise CheckpointError(
                f"{files.folder / 'run_config.yaml'}: trained with {name} {settings[name]}; the architecture says "
                f"{value}. {remedy}"
            )


def _is_padded(name: str, got: tuple[int, ...] | None, wanted: tuple[int, ...] | None) -> bool:
    """Whether a vocabulary was padded for its tensor-parallel ranks."""
    if got is None or wanted is None or not name.startswith(("embedding.", "output_layer.")):
        return False
    return got[1:] == wanted[1:] and any(got[0] == -(-wanted[0] // multiple) * multiple for multiple in PADDINGS)


def _run_settings(folder: Path) -> dict[str, Any]:
    """What run_config.yaml says of the model; nothing without the file, which Megatron alone does not write."""
    import yaml

    path = folder / "run_config.yaml"
    if not path.is_file():
        return {}
    try:
        found = yaml.safe_load(path.read_bytes())
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = first_line(error)
        raise CheckpointError(f"{path}: unreadable ({reason:.200}); expected the trainer's configuration") from error
    model = found.get("model") if isinstance(found, dict) else None
    if not isinstance(model, dict):
        raise CheckpointError(f"{path}: unreadable (no section model in it); expected the trainer's configuration")
    return model
