"""A Hugging Face model folder on disk: whether it is whole, and which tensors it holds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nemo_uecr.checkpoint.qwen3 import Qwen3, Shapes, hf_shapes, read_json
from nemo_uecr.data.models import INDEX, read_header, weight_names
from nemo_uecr.errors import CheckpointError, DataError

DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
TOKENIZER = (
    "tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "special_tokens_map.json",
    "added_tokens.json", "chat_template.jinja",
)  # fmt: skip
"""Files that make a tokenizer, with its chat template."""

OBJECTS = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
"""Those that hold a JSON object."""

GENERATION = "generation_config.json"


@dataclass(frozen=True)
class HfFiles:
    """The weights of a Hugging Face folder.

    Attributes:
        folder: the folder.
        files: its weight files, with the index where there is one.
        shapes: of its tensors.
        dtype: their one dtype, as torch names it.
    """

    folder: Path
    files: tuple[Path, ...]
    shapes: Shapes
    dtype: str


def read_hf_files(folder: Path) -> HfFiles:
    """Read the headers of the weight files and hold each file against its own.

    Raises:
        CheckpointError: a file that is missing or cut short, or tensors of several dtypes.
    """
    shapes: Shapes = {}
    kinds: set[str] = set()
    try:
        names = weight_names(folder)
        for name in names:
            for tensor, entry in read_header(folder / name).items():
                shapes[tensor] = entry.shape
                kinds.add(entry.dtype)
    except DataError as error:
        raise CheckpointError(str(error)) from None
    if len(kinds) != 1 or not kinds <= DTYPES.keys():
        raise CheckpointError(f"{folder}: tensors of dtype {sorted(kinds)}; expected one of {', '.join(DTYPES)}")
    index = [INDEX] if (folder / INDEX).is_file() else []
    return HfFiles(folder, tuple(folder / name for name in (*index, *names)), shapes, DTYPES[kinds.pop()])


def check_hf_architecture(files: HfFiles, model: Qwen3) -> None:
    """Refuse weights that are not what config.json beside them says.

    Raises:
        CheckpointError: naming the first tensor that differs.
    """
    expected = hf_shapes(model)
    found = {name: shape for name, shape in files.shapes.items() if not (model.tied and name == "lm_head.weight")}
    for name in sorted(expected.keys() | found.keys()):
        got, wanted = found.get(name), expected.get(name)
        if got != wanted:
            raise CheckpointError(
                f"{files.folder}: {name} has shape {list(got) if got else 'none'}; its config.json asks for "
                f"{list(wanted) if wanted else 'none'}"
            )


def tokenizer_files(folder: Path) -> tuple[Path, ...]:
    """The files of a folder's tokenizer.

    Raises:
        CheckpointError: there is no tokenizer, or a file of it is no JSON object.
    """
    if not (folder / "tokenizer.json").is_file() and not (folder / "vocab.json").is_file():
        raise CheckpointError(f"{folder}: no tokenizer.json; expected the tokenizer of the model. Name it: --tokenizer")
    found = tuple(folder / name for name in TOKENIZER if (folder / name).is_file())
    for path in found:
        if path.name in OBJECTS:
            read_json(path)
    return found


def has_chat_template(folder: Path) -> bool:
    """Whether a tokenizer's folder brings a chat template."""
    if (folder / "chat_template.jinja").is_file():
        return True
    path = folder / "tokenizer_config.json"
    return path.is_file() and bool(read_json(path).get("chat_template"))
