"""Reads a Megatron checkpoint's `.metadata` by the classes that it may name: it is a pickle, and those can run code."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

from nemo_uecr.checkpoint.pickle_scan import check_instructions
from nemo_uecr.errors import CheckpointError, first_line

#: What torch and Megatron write into the file, beside the dtypes of torch. None of them does anything but hold values.
KNOWN = {
    "builtins": {"frozenset", "set"},
    "collections": {"OrderedDict"},
    "megatron.core.dist_checkpointing.strategies.torch": {"MCoreMetadata", "MCoreSavePlan"},
    "pathlib": {"PosixPath", "PurePosixPath"},
    "pathlib._local": {"PosixPath", "PurePosixPath"},
    "torch": {"Size"},
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta", "TensorProperties",
        "TensorStorageMetadata", "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.planner": {"SavePlan", "TensorWriteData", "WriteItem", "WriteItemType"},
    "torch.serialization": {"_get_layout"},
}  # fmt: skip

DAMAGED = (
    pickle.UnpicklingError, EOFError, AttributeError, ImportError, LookupError, ValueError, TypeError, MemoryError,
    ArithmeticError, RuntimeError,
)  # fmt: skip
"""What a damaged pickle raises."""


class _ForbiddenNameError(pickle.UnpicklingError):
    """The pickle names something that no checkpoint needs."""


class _KnownOnly(pickle.Unpickler):
    """An unpickler that builds checkpoint records and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """The class of that name, when it is one of those that a checkpoint needs."""
        if name in KNOWN.get(module, ()) or (module == "torch" and _is_dtype(name)):
            return super().find_class(module, name)
        raise _ForbiddenNameError(ascii(f"{module}.{name}"))


def read_metadata(path: Path) -> Any:
    """What a `.metadata` holds; one that names anything but the classes of a checkpoint is refused, nothing is called.

    A damaged file gives an object of another kind as well as an error.

    Raises:
        CheckpointError: naming what it asks for, or saying that the file is damaged.
    """
    content = path.read_bytes()
    try:
        check_instructions(content)
        return _KnownOnly(io.BytesIO(content)).load()
    except _ForbiddenNameError as error:
        raise CheckpointError(
            f"{path}: asks to load {error}, which is no part of a checkpoint; it is refused unread, since reading it "
            "can run code. Copy the checkpoint again from a source that you trust"
        ) from error
    except DAMAGED as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: BaseException) -> CheckpointError:
    """The error to raise for a damaged file."""
    return CheckpointError(f"{path}: unreadable ({first_line(error):.200}); the checkpoint is corrupt. Copy it again")


def _is_dtype(name: str) -> bool:
    import torch

    return isinstance(getattr(torch, name, None), torch.dtype)
