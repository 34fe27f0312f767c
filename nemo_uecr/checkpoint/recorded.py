"""Log-probabilities that the trained model itself gave, to hold a checkpoint against.

A checkpoint whose shards were exchanged after it was written loads as another model, and a conversion of it is
faithful to that other model. Only a record from outside the checkpoint can tell.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nemo_uecr.checkpoint.sequences import Scores, Sequences
from nemo_uecr.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

NAMES = ("token_ids", "lengths", "logp")
#: Nats by which float32 may put the log-probability of a certain token above 0.
ROUNDING = 1e-4


def read_recorded(path: Path, vocabulary: int) -> tuple[Sequences, Scores]:
    """Sequences and their log-probabilities.

    Args:
        path: safetensors with token_ids [B, T] int64, lengths [B] int64 and logp [B, T] float32, in nats at
            temperature 1; logp[:, t] belongs to token t, and column 0 is not read.
        vocabulary: of the model.

    Returns:
        The tokens of each row, and its log-probabilities from the second token on.

    Raises:
        CheckpointError: the file does not hold this.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: unreadable ({error}); expected safetensors with {', '.join(NAMES)}") from error
    missing = [name for name in NAMES if name not in tensors]
    if missing:
        raise CheckpointError(f"{path}: no tensor {missing[0]}; expected {', '.join(NAMES)}")
    ids_BT, lengths_B, logp_BT = (tensors[name] for name in NAMES)
    fault = _fault(ids_BT, lengths_B, logp_BT, vocabulary)
    if fault is not None:
        raise CheckpointError(f"{path}: {fault}")
    rows = [ids_BT[row, :length].tolist() for row, length in enumerate(lengths_B.tolist())]
    scores = [logp_BT[row, 1:length].tolist() for row, length in enumerate(lengths_B.tolist())]
    return rows, scores


def _fault(ids_BT: Tensor, lengths_B: Tensor, logp_BT: Tensor, vocabulary: int) -> str | None:
    """What does not fit, kinds before shapes before values; None where all of it can be compared."""
    import torch

    whole = (torch.int64, torch.int32)
    for name, tensor in (("token_ids", ids_BT), ("lengths", lengths_B)):
        if tensor.dtype not in whole:
            return f"{name} is {tensor.dtype}; expected torch.int64"
    if logp_BT.dtype not in (torch.float32, torch.float64):  # fewer digits would end as "not the same model"
        return f"logp is {logp_BT.dtype}; expected torch.float32"
    if ids_BT.dim() != 2 or logp_BT.shape != ids_BT.shape or lengths_B.shape != ids_BT.shape[:1] or not len(ids_BT):
        shapes = f"token_ids {list(ids_BT.shape)}, lengths {list(lengths_B.shape)}, logp {list(logp_BT.shape)}"
        return f"{shapes}; expected [B, T], [B] and [B, T] with at least one row"
    least, most = int(lengths_B.min()), int(lengths_B.max())
    if least < 2 or most > ids_BT.shape[1]:
        return f"lengths run from {least} to {most}; expected 2 to {ids_BT.shape[1]}, the columns of token_ids"
    valid_BT = torch.arange(ids_BT.shape[1]) < lengths_B[:, None]
    found_N = ids_BT[valid_BT]
    if int(found_N.min()) < 0 or int(found_N.max()) >= vocabulary:
        odd = int(found_N.min()) if int(found_N.min()) < 0 else int(found_N.max())
        return f"token_ids has {odd}; expected 0 to {vocabulary - 1}, the model's vocabulary"
    found_M = logp_BT[:, 1:][valid_BT[:, 1:]]
    if not bool(found_M.isfinite().all()):
        return "logp is not finite everywhere; expected log-probabilities in nats"
    if float(found_M.max()) > ROUNDING:
        return f"logp has {float(found_M.max()):g}; expected log-probabilities in nats, at most 0"
    return None
