"""What a conversion is asked for, and the folder with the model's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nemo_uecr.checkpoint.hf_files import GENERATION, TOKENIZER
from nemo_uecr.errors import CheckpointError


@dataclass(frozen=True)
class Request:
    """One conversion.

    Attributes:
        ckpt: what to convert.
        out: the folder to make.
        into: `huggingface` or `megatron`; None: the one that CKPT is not.
        model: folder or hub name of the Hugging Face model that says the architecture; None: what CKPT names.
        tokenizer: folder of the tokenizer; None: CKPT's, else the model's.
        recorded: file of log-probabilities that the trained model gave; None: none was recorded.
        tolerance: largest difference of two log-probabilities, in nats.
        shard_bytes: most bytes of a weight file.
    """

    ckpt: Path
    out: Path
    into: str | None
    model: str | None
    tokenizer: Path | None
    recorded: Path | None
    tolerance: float
    shard_bytes: int


def locate_model(name: str | None, ckpt: Path) -> Path:
    """A local folder with config.json, from the hub where the name is no folder here.

    Args:
        name: folder or hub name.
        ckpt: for the message.

    Returns:
        The folder.

    Raises:
        CheckpointError: no name is known, or nothing can be found under it.
    """
    if name is None:
        raise CheckpointError(f"{ckpt}: does not say which model it is; name it: --hf FOLDER (one with config.json)")
    if Path(name).is_dir():
        return Path(name)
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        wanted = ["config.json", GENERATION, *TOKENIZER]
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=wanted))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise CheckpointError(f"{name}: no folder here, and the hub gives none ({reason}); name it: --hf") from error
