"""A Hugging Face model's configuration as it stands on disk: read once, every value checked before it is used.

Plan, doctor and conversion read other people's files through this module and `weight_files`, so that a damaged file
has one message wherever it is met.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_uecr.data.json_text import MalformedJsonError, decoded_row
from nemo_uecr.errors import DataError

__all__ = ["DecoderSizes", "Fields", "decoder_sizes", "folder_of", "read_fields", "read_object"]

MOST_BYTES = 2**28
"""Of a JSON file; a tokenizer has 10 to 40 million."""

MOST = 2**31 - 1
"""Of any size in a configuration."""

MOST_LAYERS = 10_000
HEAD_DIMENSIONS = {"qwen3": 128}
"""What transformers takes where `head_dim` is missing; of other kinds hidden size / query heads."""


def folder_of(name: str) -> Path:
    """The path that a model's name is, with ~ resolved.

    Raises:
        DataError: it names the home of a user who is not there.
    """
    try:
        return Path(name).expanduser()
    except RuntimeError:
        raise DataError(f"{name}: there is no such user; expected a folder or a hub name") from None


def read_object(path: Path) -> dict[str, Any]:
    """The one JSON object of a file.

    Raises:
        DataError: the file cannot be read, is too large, is no JSON or holds something other than an object.
    """
    try:
        if not path.is_file():  # nor is a pipe read, which may never end
            raise DataError(f"{path}: cannot be read (no such file); expected a complete folder")
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise DataError(f"{path}: {size} bytes; expected {MOST_BYTES} at most of a JSON file")
        found = decoded_row(path.read_bytes(), dict)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); expected a complete folder") from None
    except MalformedJsonError as error:
        raise DataError(f"{path}: no JSON ({error}); expected a complete file") from None
    except ValueError as error:
        raise DataError(f"{path}: no JSON, it cannot be read ({error}); expected a complete file") from None
    if not isinstance(found, dict):
        raise DataError(f"{path}: holds a {type(found).__name__}; expected a JSON object")
    return found


@dataclass(frozen=True)
class Fields:
    """Values of a JSON object, each checked when it is asked for.

    Attributes:
        values: the object.
        where: its file, for messages.
    """

    values: dict[str, Any]
    where: str

    def stated(self, key: str) -> object:
        """A value that must be there.

        Raises:
            DataError: it is not.
        """
        if key not in self.values:
            raise DataError(f"{self.where} does not state {key!r}; expected a whole config.json")
        return self.values[key]

    def count(self, key: str, most: int = MOST) -> int:
        """A whole number from 1 to `most`.

        Raises:
            DataError: it is missing or something else.
        """
        value = self.stated(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise DataError(f"{self.where} has {key} {_shown(value)}; expected a whole number above 0")
        if value > most:
            raise DataError(f"{self.where} has {key} {_shown(value)}; expected {most} at most")
        return value

    def number(self, key: str) -> float:
        """A finite number above 0.

        Raises:
            DataError: it is missing or something else.
        """
        value = self.stated(key)
        sound = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= 10**300
        if not (sound and isinstance(value, (int, float)) and math.isfinite(value)):
            raise DataError(f"{self.where} has {key} {_shown(value)}; expected a finite number above 0")
        return float(value)

    def switch(self, key: str) -> bool:
        """True or false.

        Raises:
            DataError: it is missing or something else.
        """
        value = self.stated(key)
        if not isinstance(value, bool):
            raise DataError(f"{self.where} has {key} {_shown(value)}; expected true or false")
        return value

    def section(self, key: str) -> Fields | None:
        """An object within; None where it is missing or null.

        Raises:
            DataError: it is something else.
        """
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise DataError(f"{self.where} has {key} {_shown(value)}; expected an object or null")
        return Fields(value, f"{self.where}: {key}")


def read_fields(path: Path, *, prefix: str) -> Fields:
    """The values of a JSON file.

    Args:
        path: the file.
        prefix: before the file's name in messages, such as "student.model_name: ".

    Raises:
        DataError: see `read_object`.
    """
    try:
        return Fields(read_object(path), f"{prefix}{path}")
    except DataError as error:
        raise DataError(f"{prefix}{error}") from None


@dataclass(frozen=True)
class DecoderSizes:
    """The numbers that a dense decoder's tensors follow from.

    Attributes:
        vocabulary: V, output columns.
        hidden: H.
        layers: number of layers.
        heads: query heads.
        kv_heads: key and value heads, a divisor of the query heads.
        head_dim: size of a head.
        feed_forward: size of the feed-forward layer.
        tied: whether the output layer is the embedding.
    """

    vocabulary: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    tied: bool

    @property
    def query(self) -> int:
        """Width of all query heads."""
        return self.heads * self.head_dim

    @property
    def key_value(self) -> int:
        """Width of all key heads, and of all value heads."""
        return self.kv_heads * self.head_dim


def decoder_sizes(fields: Fields) -> DecoderSizes:
    """The sizes that a config.json states.

    Raises:
        DataError: one is missing, no number or out of bounds.
    """
    heads, kv_heads = fields.count("num_attention_heads"), fields.count("num_key_value_heads")
    if heads % kv_heads:
        raise DataError(
            f"{fields.where} has num_key_value_heads {kv_heads}; expected a divisor of num_attention_heads {heads}"
        )
    hidden = fields.count("hidden_size")
    return DecoderSizes(
        vocabulary=fields.count("vocab_size"),
        hidden=hidden,
        layers=fields.count("num_hidden_layers", MOST_LAYERS),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=_head_dim(fields, hidden // heads),
        feed_forward=fields.count("intermediate_size"),
        tied=fields.switch("tie_word_embeddings"),
    )


def longest_sequence(positions: object, rope: object) -> int | None:
    """Longest sequence in tokens, a stretched RoPE included; None where the configuration says none.

    Args:
        positions: ``max_position_embeddings``.
        rope: ``rope_parameters``, or ``rope_scaling`` as older files have it.
    """
    if not isinstance(positions, int) or positions < 1:
        return None
    given = rope if isinstance(rope, dict) else {}
    factor, original = given.get("factor"), given.get("original_max_position_embeddings")
    if not isinstance(factor, int | float) or not isinstance(original, int):
        return positions
    return max(positions, int(factor * original))


def _head_dim(fields: Fields, equal_share: int) -> int:
    """As transformers has it: stated, or its default for the kind of model; it lets a Qwen3 have no null."""
    kind = fields.values.get("model_type")
    default = HEAD_DIMENSIONS.get(kind) if isinstance(kind, str) else None
    if "head_dim" in fields.values and (default is not None or fields.values["head_dim"] is not None):
        return fields.count("head_dim")
    return default if default is not None else max(equal_share, 1)


def _shown(value: object) -> str:
    """A value in at most 60 characters; a number of thousands of digits has no text in Python."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**50:
        return f"a number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
