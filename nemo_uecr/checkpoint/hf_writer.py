"""Writes tensors into safetensors files of bounded size with an index; complete files of an earlier try are kept."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_uecr.checkpoint.hf_files import read_hf_files
from nemo_uecr.checkpoint.qwen3 import Shapes
from nemo_uecr.checkpoint.room import writing, writing_temporary
from nemo_uecr.checkpoint.work_folder import JOURNAL, WorkFolder
from nemo_uecr.data.models import INDEX, SINGLE
from nemo_uecr.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

SIZES = {"float32": 4, "bfloat16": 2, "float16": 2}


def plan_shards(shapes: Shapes, dtype: str, shard_bytes: int) -> list[list[str]]:
    """Which tensors go into which file, in the model's order.

    Args:
        shapes: of all tensors.
        dtype: of all tensors.
        shard_bytes: most bytes of a file, unless one tensor alone has more.

    Returns:
        The names in each file.
    """
    shards: list[list[str]] = [[]]
    used = 0
    for name, shape in shapes.items():
        size = SIZES[dtype]
        for dimension in shape:
            size *= dimension
        if shards[-1] and used + size > shard_bytes:
            shards.append([])
            used = 0
        shards[-1].append(name)
        used += size
    return shards


def write_weights(
    tensors: Iterable[tuple[str, Tensor]], shapes: Shapes, dtype: str, work: WorkFolder, shard_bytes: int
) -> None:
    """Write every tensor once.

    Args:
        tensors: names and values, in any order.
        shapes: what is expected.
        dtype: to store.
        work: the folder; files complete in it are not written again.
        shard_bytes: most bytes of a file.

    Raises:
        CheckpointError: a tensor is missing, unknown, misshapen or not finite.
    """
    import torch
    from safetensors.torch import save_file

    shards = plan_shards(shapes, dtype, shard_bytes)
    names = _file_names(len(shards))
    home = {tensor: name for name, held in zip(names, shards, strict=True) for tensor in held}
    sizes = {name: len(held) for name, held in zip(names, shards, strict=True)}
    pending: dict[str, dict[str, Tensor]] = {name: {} for name in names if not work.has(name)}
    for tensor, value in _checked(tensors, shapes):
        name = home[tensor]
        if name in pending:
            pending[name][tensor] = value.to(getattr(torch, dtype)).contiguous()
            if len(pending[name]) == sizes[name]:
                with writing(work.path):
                    save_file(pending.pop(name), work.path / name, metadata={"format": "pt"})
                (work.path / name).chmod((work.path / JOURNAL).stat().st_mode)  # safetensors lets nobody else read
                work.complete(name)
    if len(names) > 1:
        total = sum((work.path / name).stat().st_size for name in names)
        content = {"metadata": {"total_size": total}, "weight_map": dict(sorted(home.items()))}
        (work.path / INDEX).write_text(json.dumps(content, indent=1), encoding="utf-8")
        work.complete(INDEX)
    read_hf_files(work.path)


def _file_names(count: int) -> list[str]:
    if count == 1:
        return [SINGLE]
    return [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]


def _checked(tensors: Iterable[tuple[str, Tensor]], shapes: Shapes) -> Iterator[tuple[str, Tensor]]:
    seen: set[str] = set()
    for name, value in tensors:
        if name not in shapes or name in seen:
            raise CheckpointError(f"the bridge gave {name} {'twice' if name in seen else 'unexpectedly'}")
        seen.add(name)
        if tuple(value.shape) != shapes[name]:
            raise CheckpointError(f"the bridge gave {name} as {list(value.shape)}; expected {list(shapes[name])}")
        if not bool(value.isfinite().all()):
            raise CheckpointError(f"{name} has numbers that are not finite; the checkpoint is of a failed run")
        yield name, value
    missing = [name for name in shapes if name not in seen]
    if missing:
        raise CheckpointError(f"the bridge gave no {missing[0]}; its version does not fit this model")


@contextmanager
def names_folder(config: Path, shapes: Shapes) -> Iterator[Path]:
    """A temporary folder of a configuration and tensor names without weights: all that the bridge reads to export.

    Args:
        config: config.json of the model.
        shapes: its tensors.

    Raises:
        CheckpointError: there is no room for temporary files.
    """
    described = config.read_bytes()
    index = {"metadata": {}, "weight_map": dict.fromkeys(shapes, SINGLE)}
    with ExitStack() as held:
        with writing_temporary():
            folder = Path(held.enter_context(tempfile.TemporaryDirectory()))
            (folder / "config.json").write_bytes(described)
            (folder / INDEX).write_text(json.dumps(index), encoding="utf-8")
        yield folder
