"""Log-probabilities that the trained model itself gave, to hold a checkpoint against.

A checkpoint whose shards were exchanged after it was written loads as another model, and a conversion of it is
faithful to that other model. Only a record from outside the checkpoint can tell.
"""

from __future__ import annotations

from pathlib import Path

from nemo_uecr.checkpoint.sequences import Scores, Sequences
from nemo_uecr.errors import CheckpointError

NAMES = ("token_ids", "lengths", "logp")


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
    ids, lengths, logp = (tensors[name] for name in NAMES)
    if ids.shape != logp.shape or lengths.shape != ids.shape[:1] or int(ids.max()) >= vocabulary or int(ids.min()) < 0:
        raise CheckpointError(f"{path}: token_ids {list(ids.shape)} and logp {list(logp.shape)} do not fit the model")
    rows = [ids[row, :length].tolist() for row, length in enumerate(lengths.tolist())]
    scores = [logp[row, 1:length].tolist() for row, length in enumerate(lengths.tolist())]
    return rows, scores
