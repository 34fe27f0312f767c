"""Hugging Face model folders: configuration, weight files, tokenizer and chat template, and loading without their code.

Nothing else in the package calls `from_pretrained`. Unless it is told, transformers asks on standard input whether to
run Python files of the folder, and a pipe or a `y` answers it; and it fetches the compiled kernel that a config.json
names in place of a kind of attention.
"""

from __future__ import annotations

import errno
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_uecr.errors import DataError, UecrError
from nemo_uecr.files import read_object

if TYPE_CHECKING:
    from nemo_uecr.config.nemo_schema import NemoDataConfig
    from nemo_uecr.config.schema import DataConfig

__all__ = [
    "INDEX", "SINGLE", "DecoderSizes", "Fields", "ModelLoadError", "Tensor", "chat_ids", "check_objects",
    "check_same_tokenizer", "decoder_sizes", "fitting_prompts", "has_hub_form", "load_pretrained", "load_tokenizer",
    "one_line", "only_here", "own_code", "read_fields", "read_header", "refuse_kernels", "rendered", "save_pretrained",
    "save_tokenizer", "weight_names",
]  # fmt: skip

log = logging.getLogger(__name__)

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
#: Files of a model folder that hold one JSON object, where they are there.
OBJECTS = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
#: What transformers takes where `head_dim` is missing; of other kinds hidden size / query heads.
HEAD_DIMENSIONS = {"qwen3": 128}
#: Ends the names of keys that choose code: attn_implementation, experts_implementation, ...
CHOICE = "_implementation"
#: How a library written in Rust tells of the system's error.
SYSTEM_ERROR = re.compile(r"\(os error (\d+)\)")
#: Seconds in which the hub must answer one question before its models are looked for on this machine alone.
HUB_SECONDS = 10.0


# config.json, without loading anything.


@dataclass(frozen=True)
class Fields:
    """Values of a config.json, each checked when it is asked for.

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

    def count(self, key: str) -> int:
        """A whole number above 0.

        Raises:
            DataError: it is missing or something else.
        """
        value = self.stated(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise DataError(f"{self.where} has {key} {value!r:.60}; expected a whole number above 0")
        return value

    def number(self, key: str) -> float:
        """A number above 0.

        Raises:
            DataError: it is missing or something else.
        """
        value = self.stated(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise DataError(f"{self.where} has {key} {value!r:.60}; expected a number above 0")
        return float(value)

    def switch(self, key: str) -> bool:
        """True or false.

        Raises:
            DataError: it is missing or something else.
        """
        value = self.stated(key)
        if not isinstance(value, bool):
            raise DataError(f"{self.where} has {key} {value!r:.60}; expected true or false")
        return value

    def section(self, key: str) -> Fields | None:
        """An object within; None where it is missing or null.

        Raises:
            DataError: it is something else.
        """
        value = self.values.get(key)
        if value is not None and not isinstance(value, dict):
            raise DataError(f"{self.where} has {key} {value!r:.60}; expected an object or null")
        return None if value is None else Fields(value, f"{self.where}: {key}")


def read_fields(path: Path, *, prefix: str) -> Fields:
    """The values of a JSON file.

    Args:
        path: the file.
        prefix: before the file's name in messages, such as "student.model_name: ".

    Raises:
        DataError: it cannot be read, or is no JSON object.
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
        DataError: one is missing or no size.
    """
    heads, kv_heads = fields.count("num_attention_heads"), fields.count("num_key_value_heads")
    if heads % kv_heads:
        raise DataError(
            f"{fields.where} has num_key_value_heads {kv_heads}; expected a divisor of num_attention_heads {heads}"
        )
    hidden = fields.count("hidden_size")
    # As transformers has it: stated, or its default for the kind of model; it lets a Qwen3 have no null.
    default = HEAD_DIMENSIONS.get(str(fields.values.get("model_type")))
    stated = "head_dim" in fields.values and (default is not None or fields.values["head_dim"] is not None)
    return DecoderSizes(
        vocabulary=fields.count("vocab_size"),
        hidden=hidden,
        layers=fields.count("num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=fields.count("head_dim") if stated else default or max(hidden // heads, 1),
        feed_forward=fields.count("intermediate_size"),
        tied=fields.switch("tie_word_embeddings"),
    )


def check_objects(folder: Path) -> None:
    """Refuse files of a folder that are cut short; transformers takes some of them for absent.

    Raises:
        DataError: naming the file.
    """
    for file in OBJECTS:
        if (folder / file).is_file():
            read_object(folder / file)


# Weight files.


@dataclass(frozen=True)
class Tensor:
    """One tensor of a file: its dtype as safetensors names it, and its shape."""

    dtype: str
    shape: tuple[int, ...]


def weight_names(folder: Path) -> list[str]:
    """Names of the weight files: those of the index, or the single one.

    Raises:
        DataError: an index that says of no tensor where it is.
    """
    path = folder / INDEX
    if not path.is_file():
        return [SINGLE]
    placed = read_object(path).get("weight_map")
    if not isinstance(placed, dict) or not placed:
        raise DataError(f"{path}: no weight_map; expected where each tensor is")
    return sorted(set(placed.values()))


def read_header(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file by name, from its header.

    Raises:
        DataError: it is missing, or not as long as its header says.
    """
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise DataError(f"{path}: missing shard; copy the model again")
    try:
        with safe_open(str(path), framework="np") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
            return {name: Tensor(part.get_dtype(), tuple(part.get_shape())) for name, part in slices.items()}
    except (OSError, SafetensorError) as error:
        raise DataError(
            f"{path}: truncated shard or no safetensors file ({one_line(error)}); copy the model again"
        ) from error


# Loading and saving through transformers.


class ModelLoadError(DataError):
    """A model is damaged or missing.

    Attributes:
        reason: what transformers says of it, as one line without the model's name.
    """

    def __init__(self, name: str, error: Exception) -> None:
        """The name and what was raised under it."""
        self.reason = one_line(error)
        super().__init__(f"model {name!r} cannot be loaded: {self.reason}")


def load_pretrained(kind: Any, name: str, *, local_files_only: bool, **options: Any) -> Any:
    """What ``kind.from_pretrained`` makes of a folder or hub name, its own code left alone.

    Args:
        kind: a class of transformers, such as `AutoModelForCausalLM`.
        name: folder or hub name.
        local_files_only: whether the hub is left out.
        options: further options of `from_pretrained`.

    Raises:
        DataError: the model needs code of its own, or names a kernel.
        ModelLoadError: it is damaged or missing; the cause is what transformers raised.
    """
    refuse_kernels(name)
    try:
        return kind.from_pretrained(name, local_files_only=local_files_only, trust_remote_code=False, **options)
    except UecrError:
        raise
    except Exception as error:  # what a damaged folder makes the libraries raise has no common class
        if isinstance(error, ValueError) and "trust_remote_code" in str(error):
            raise DataError(_needs_code(name, local_files_only)) from error
        raise ModelLoadError(name, error) from error


def load_tokenizer(name: str, *, local_files_only: bool) -> Any:
    """The tokenizer of a folder or hub name, tried on a digit: some damage shows only then.

    Raises:
        DataError, ModelLoadError: as `load_pretrained` does.
    """
    from transformers import AutoTokenizer

    tokenizer = load_pretrained(AutoTokenizer, name, local_files_only=local_files_only)
    try:
        tokenizer("0", add_special_tokens=False)
    except Exception as error:  # as above
        raise ModelLoadError(name, error) from error
    return tokenizer


def check_same_tokenizer(student: Any, teacher: Any) -> None:
    """Student and teacher must mean the same text by every token id, because the teacher scores the student's ids.

    Raises:
        DataError: naming the first id that means something else.
    """
    ours = {index: text for text, index in student.get_vocab().items()}
    theirs = {index: text for text, index in teacher.get_vocab().items()}
    for index in sorted(ours.keys() | theirs.keys()):
        if ours.get(index) != theirs.get(index):
            raise DataError(
                f"token id {index} is {ours.get(index)!r} for the student and {theirs.get(index)!r} for the teacher; "
                "expected one tokenizer, because the teacher scores the student's token ids"
            )


def refuse_kernels(name: str) -> None:
    """Refuse a folder whose config.json names a kernel of the hub, which transformers would fetch and run.

    Raises:
        DataError: naming the key.
    """
    file = Path(name) / "config.json"
    for key, chosen in _choices(read_object(file)) if file.is_file() else ():
        if "/" in chosen:
            raise DataError(
                f"model {name!r}: {key} in config.json is {chosen[:60]!r}, a kernel: code to be fetched and run; "
                "expected a kind of attention that transformers has, such as sdpa; take the key out"
            )


def _choices(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each key that chooses code with each text in its value, which may hold one a part of the model."""
    for key, value in values.items():
        parts = value.values() if isinstance(value, dict) else [value]
        if key.endswith(CHOICE):
            yield from ((key, part) for part in parts if isinstance(part, str))
        elif isinstance(value, dict):
            yield from _choices(value)


def own_code(loaded: Any) -> object:
    """What a configuration or tokenizer that was loaded names of its folder's code; None where there is none.

    NeMo-RL loads models with ``trust_remote_code=True`` and prefers that code to transformers' own.
    """
    options = getattr(loaded, "init_kwargs", None)
    return options.get("auto_map") if isinstance(options, dict) else getattr(loaded, "auto_map", None)


def _needs_code(name: str, local_files_only: bool) -> str:
    """Read without code: the base class takes any model type for data; both transformers 4 and 5 have this name."""
    from transformers import PretrainedConfig

    values, _ = PretrainedConfig.get_config_dict(name, local_files_only=local_files_only)
    return (
        f"model {name!r}: got model_type {str(values.get('model_type'))[:60]!r} with code of its own, which is never "
        "run; expected a model type that transformers knows, with its own tokenizer class; take a release of the model "
        "without auto_map, or a newer transformers"
    )


def one_line(error: Exception) -> str:
    """What an error says, with its type, in one line."""
    if "ignore_mismatched_sizes" in str(error):
        return "the weights have other shapes than its config.json says"
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200] or 'no message'}"


def save_pretrained(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write a model and its tokenizer as a Hugging Face folder.

    Raises:
        OSError: If it cannot be written, also where a library has an error of its own for that.
    """
    from safetensors import SafetensorError

    try:
        model.save_pretrained(folder)
        if (folder / "adapter_config.json").is_file():  # what the base says, for whoever asks for a model's sizes
            model.config.save_pretrained(folder)
    except SafetensorError as error:
        raise _system_error(error, folder) from error
    save_tokenizer(tokenizer, folder)


def save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Write a tokenizer.

    Raises:
        OSError: If it cannot be written.
    """
    try:
        tokenizer.save_pretrained(folder)
    except Exception as error:
        if type(error) is Exception:  # all that the tokenizers library says when it cannot write
            raise _system_error(error, folder) from error
        raise


def _system_error(error: Exception, folder: Path) -> OSError:
    """What a library written in Rust tells of the system's error, as that error."""
    found = SYSTEM_ERROR.search(str(error))
    number = int(found[1]) if found else errno.EIO
    return OSError(number, os.strerror(number) if found else " ".join(str(error).split()), str(folder))


# The hub.


def has_hub_form(name: str) -> bool:
    """Whether a name could be one of the hub's, ``owner/name``, and does not begin as a path does."""
    return name.count("/") == 1 and not name.startswith((".", "/", "~"))


def only_here(name: str) -> bool:
    """Whether a model's files can come from this machine alone: it is a folder, or the hub does not answer.

    Told so, transformers looks once, where without a network it would ask for every file of the model six times and
    wait in between, a minute in all. One question answers it, without such waits.

    Args:
        name: folder, or name on the hub.
    """
    if Path(name).exists():
        return True
    import huggingface_hub
    from huggingface_hub import errors

    try:
        huggingface_hub.HfApi().model_info(name, timeout=HUB_SECONDS)
    except (errors.HfHubHTTPError, ValueError):
        return False  # it answered, or the name is none: transformers has the words for it
    except (errors.HTTPError, OSError):  # the HTTP client's own error, under whichever name this version imports it
        return True
    return False


# Prompts.


def fitting_prompts(
    tokenizer: Any, asked: Sequence[tuple[str, str]], data: DataConfig | NemoDataConfig
) -> dict[int, list[int]]:
    """Token ids of the prompts that are not too long, by their places.

    Args:
        tokenizer: the student's; without a chat template it gets the plain text.
        asked: name and question of each problem.
        data: section of the configuration: template, thinking mode, longest prompt, and whether longer ones are
            dropped.

    Raises:
        DataError: prompts are longer and are not to be dropped, or none would be left: their number and the first.
    """
    system: str | None = getattr(data, "system_prompt", None)  # a run inside NeMo-RL has none
    if system is not None and tokenizer.chat_template is None:
        raise DataError(
            "data.system_prompt is set, but the student's tokenizer has no chat template that could place it; write it "
            "into data.prompt_template"
        )
    kept, most, first = {}, data.max_prompt_tokens, ""
    for place, (name, question) in enumerate(asked):
        text = data.prompt_template.replace("{question}", question)
        if tokenizer.chat_template is None:
            ids = list(tokenizer(text)["input_ids"])
        else:
            ids = chat_ids(tokenizer, text, system=system, thinking=data.enable_thinking)
        if len(ids) <= most:
            kept[place] = ids
        else:
            first = first or f"problem {name!r} with {len(ids)}"
    if first:
        said = (
            f"{len(asked) - len(kept)} of {len(asked)} prompts have more than data.max_prompt_tokens={most} tokens; "
            f"the first is {first}"
        )
        if data.long_prompts == "refuse":
            raise DataError(f"{said}. Raise the limit, or leave them out: data.long_prompts=drop")
        if not kept:
            raise DataError(f"{said}. With data.long_prompts=drop none is left: raise the limit")
        log.warning("%s; they are dropped", said)
    return kept


def chat_ids(tokenizer: Any, question: str, *, system: str | None, thinking: bool) -> list[int]:
    """Token ids of a prompt up to where the response begins; see `rendered`."""
    text = rendered(tokenizer, question, system=system, thinking=thinking)
    return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def rendered(tokenizer: Any, question: str, *, system: str | None, thinking: bool) -> str:
    """A prompt as text through the model's own chat template, up to where the response begins.

    Args:
        tokenizer: with a chat template.
        question: the user's turn.
        system: the system turn; None for none.
        thinking: handed to the template.

    Raises:
        DataError: the template refuses the conversation.
    """
    turns = [{"role": "user", "content": question}]
    if system is not None:
        turns.insert(0, {"role": "system", "content": system})
    try:
        text: str = tokenizer.apply_chat_template(
            turns, add_generation_prompt=True, tokenize=False, enable_thinking=thinking
        )
    except Exception as error:  # a template is a program of the model's author and may raise anything
        raise DataError(
            f"the model's chat template refuses the prompt: {one_line(error)}; some templates take no system turn: "
            "leave the system prompt out"
        ) from error
    return text
