"""Hugging Face model folders: configuration, weight files, tokenizer and chat template, and loading without their code.

Nothing else in the package calls `from_pretrained`. By default transformers asks on standard input whether to run
Python files of the folder, and a pipe or a `y` answers; and it fetches the compiled kernel that a config.json names in
place of a kind of attention.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_uecr.errors import DataError, ScoreError
from nemo_uecr.files import read_object, refuse_pointer

if TYPE_CHECKING:
    from torch import Tensor


log = logging.getLogger(__name__)

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
#: The files of a model folder beyond configuration and weights: its end tokens, and its tokenizer with chat template.
GENERATION = "generation_config.json"
TEMPLATES = "additional_chat_templates"  # a folder, where there are several
TOKENIZER = (
    "tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "special_tokens_map.json",
    "added_tokens.json", "chat_template.jinja", f"{TEMPLATES}/*",
)  # fmt: skip
#: Those that hold one JSON object, where they are there.
OBJECTS = ("config.json", GENERATION, "tokenizer.json", "tokenizer_config.json")
#: Weights, what belongs to an adapter or to a checkpoint's record, and hidden files: not copied beside new weights.
NOT_KEPT = re.compile(
    r"^\.|\.(safetensors|bin|pt|pth|ckpt|gguf|h5|msgpack|onnx|npz)$|\.index\.json$|^adapter_config\.json$"
    r"|^(state|manifest)\.json$"
)
#: How safetensors names types of few bits, whose numbers mean nothing without their scales.
FEW_BITS = re.compile("F[468]_|[IU][48]$")
#: Keys of a config.json that `DecoderSizes` come from.
SIZES = {
    "vocab_size": "vocabulary", "hidden_size": "hidden", "num_hidden_layers": "layers", "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads", "intermediate_size": "feed_forward", "tie_word_embeddings": "tied",
}  # fmt: skip
#: Keys of a config.json in which families of mixtures count the experts of a layer; a dense model has none of them.
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
#: Mixtures of experts whose sizes are read, by `model_type`; inside NeMo-RL no other has been tried.
MIXTURES = ("qwen3_moe",)
#: A key that chooses code (attn_implementation, ...) with a name on the hub, or one for a part of the model.
KERNEL = re.compile(r'"\w*_implementation": (?:\{[^}]*)?"[^"]*/[^"]*"')
#: How a library written in Rust reports an error of the system.
SYSTEM_ERROR = re.compile(r"\(os error (\d+)\)")
#: The fault of a folder without tokenizer files.
NO_TOKENIZER = "has no tokenizer that can be read; expected tokenizer.json next to its weights"
#: Warnings about a call of ours, or about weights that are refused anyway.
OUR_CALL = re.compile(r"LOAD REPORT|tie_word_embeddings=False|deprecated")
#: What was said of models already.
SAID: set[str] = set()
#: Seconds in which the hub must answer one question before its models are looked for on this machine alone.
HUB_SECONDS = 10.0


# config.json, without loading anything.


@dataclass(frozen=True)
class DecoderSizes:
    """The numbers that a decoder's tensors follow from."""

    vocabulary: int  # V, output columns
    hidden: int  # H
    layers: int
    heads: int  # query heads
    kv_heads: int  # key and value heads, a divisor of the query heads
    head_dim: int
    feed_forward: int
    tied: bool  # whether the output layer is the embedding
    # Of a mixture, all of whose layers have experts in the place of a feed-forward layer; 0 in a dense model.
    experts: int = 0  # E, of a layer
    experts_per_token: int = 0  # k
    expert_width: int = 0  # feed-forward size of one expert

    @property
    def query(self) -> int:
        """Width of all query heads."""
        return self.heads * self.head_dim

    @property
    def key_value(self) -> int:
        """Width of all key heads, and of all value heads."""
        return self.kv_heads * self.head_dim


def decoder_sizes(values: Mapping[str, Any], where: str) -> DecoderSizes:
    """The sizes in a config.json's values; ``where`` names the file in messages."""
    missing = [key for key in SIZES if values.get(key) is None]
    if missing:
        raise DataError(f"{where} does not state {missing[0]!r}; expected a whole config.json")
    sizes: dict[str, Any] = {field: values[key] for key, field in SIZES.items()}
    # What transformers assumes where none is stated.
    default = 128 if values.get("model_type") == "qwen3" else sizes["hidden"] // sizes["heads"]
    return DecoderSizes(**sizes, **_expert_sizes(values, where), head_dim=values.get("head_dim") or default)


def expert_count(values: Mapping[str, Any]) -> int:
    """Experts of a layer by a config.json's values, or by those of its text model; 0 where it is dense."""
    sections = (values, values.get("text_config") or {})
    return next((int(section[key]) for section in sections for key in EXPERTS if section.get(key)), 0)


def untried_mixture(values: Mapping[str, Any]) -> str:
    """In words: a mixture of experts of a family that was never tried inside NeMo-RL; empty for every other model."""
    if not expert_count(values) or values.get("model_type") in MIXTURES:
        return ""
    return (
        f"a mixture of experts of model_type {values.get('model_type')!r}, which has not been tried inside NeMo-RL; "
        f"expected a dense model or {', '.join(MIXTURES)}"
    )


def _expert_sizes(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The experts of a mixture whose layers are all alike; empty for a dense model."""
    if values.get("model_type") not in MIXTURES:
        return {}
    found = {
        "experts": expert_count(values),  # transformers 5 writes another of the keys than 4 and the hub
        "experts_per_token": values.get("num_experts_per_tok"),
        "expert_width": values.get("moe_intermediate_size"),
    }
    if missing := [name for name, value in found.items() if not value]:
        raise DataError(f"{where} does not state its {missing[0]}; expected a whole config.json")
    for key, usual in {"decoder_sparse_step": 1, "mlp_only_layers": []}.items():
        if (given := values.get(key, usual)) != usual:
            raise DataError(f"{where} has {key} {given!r}; expected {usual!r}, so that every layer has experts")
    return {name: int(value) for name, value in found.items() if value}


def config_values(name: str) -> Mapping[str, Any]:
    """The config.json of a folder, or of a hub's model in this machine's cache; empty where neither is here."""
    file = Path(name).expanduser() / "config.json"
    place = file if file.is_file() else cached(name)
    return {} if place is None else read_object(place)


def check_config(folder: Path) -> None:
    """Refuse a folder whose config.json is missing, or is not a model's."""
    file = folder / "config.json"
    if not file.is_file():
        raise DataError(f"{folder} has no config.json; expected a model folder")
    if "model_type" not in read_object(file):
        raise DataError(f"{file} does not state 'model_type'; expected a whole config.json")


def check_objects(folder: Path) -> None:
    """Refuse files of a folder that are cut short; transformers takes some of them for absent."""
    for file in OBJECTS:
        if (folder / file).is_file():
            read_object(folder / file)


# Weight files.


def weight_names(folder: Path) -> list[str]:
    """Names of the weight files: those of the index, or the single one.

    Files that transformers and vLLM would not choose alike are refused: transformers reads a single file before an
    index, vLLM without an index whatever ends as it does.
    """
    path = folder / INDEX
    if not path.is_file():
        others = sorted({file.name for file in folder.glob("*.safetensors")} - {SINGLE})
        if others and (folder / SINGLE).is_file():
            raise DataError(
                f"{folder} has {SINGLE} and no {INDEX}, and beside it {', '.join(others)}: transformers would load the "
                "first alone, vLLM all of them; move what does not belong to the model elsewhere"
            )
        return [SINGLE]
    names = sorted(set(read_object(path)["weight_map"].values()))
    if SINGLE not in names and (folder / SINGLE).is_file():
        raise DataError(
            f"{folder} has {SINGLE} and {INDEX} with {len(names)} other files: transformers would load the first, vLLM "
            "the others; remove the one that is stale"
        )
    return names


def stored_weights(folder: Path) -> dict[str, tuple[Path, str]]:
    """File and dtype of every tensor of a model's folder, by name; each is in one file."""
    found: dict[str, tuple[Path, str]] = {}
    for file in weight_names(folder):
        for name, (dtype, _) in read_header(folder / file).items():
            if name in found:
                raise DataError(
                    f"{folder} has {name} twice, in {found[name][0].name} and {file}, and the last one read would "
                    "count; take it out of the file that is stale"
                )
            found[name] = (folder / file, dtype)
    return found


def read_header(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The dtype (as safetensors names it) and shape of each tensor of a safetensors file, from its header."""
    from safetensors import SafetensorError, safe_open

    try:
        refuse_pointer(path)
        with safe_open(str(path), framework="np") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
            return {name: (part.get_dtype(), tuple(part.get_shape())) for name, part in slices.items()}
    except (OSError, SafetensorError) as error:
        fault = "truncated" if path.is_file() else "missing"
        raise DataError(f"{path}: {fault} shard ({one_line(error)}); copy the model again") from error


def left_out(module: Any, folder: Path) -> list[str]:
    """Weights of a folder that transformers leaves out on purpose: towers for pictures, heads for several tokens."""
    patterns = [*(module._keys_to_ignore_on_load_unexpected or ())]
    names = stored_weights(folder) if patterns else {}
    found = [name for name in names if any(re.search(pattern, name) for pattern in patterns)]
    known = module.state_dict().keys() if found else ()
    return sorted(name for name in found if name not in known and "inv_freq" not in name)  # of older Llamas, computed


# Loading and saving through transformers.


def _load_error(name: str, error: Exception) -> DataError:
    fault = one_line(error)
    if isinstance(error, OSError) and "connect to '" in str(error):  # transformers goes on with its manual
        fault = f"the hub does not answer: hf download {name}, set HF_HOME to its cache, or name a folder"
    if "Unrecognized configuration class" in fault:  # transformers goes on with all that it knows
        fault = "transformers has no language model for its kind of config.json; take a model for text"
    return DataError(f"model {name!r} cannot be loaded: {fault}")


def load_pretrained(kind: Any, name: str, *, local_files_only: bool, **options: Any) -> Any:
    """What ``kind.from_pretrained`` makes of a folder or hub name, without running code that comes with it."""
    refuse_kernels(name)
    check_rope(name)
    if kind.__name__.startswith("AutoModel"):  # where peft is installed, it looks for an adapter too, on the hub
        options["adapter_kwargs"] = {"local_files_only": local_files_only}
    try:
        with library_warnings(name):
            return kind.from_pretrained(name, local_files_only=local_files_only, trust_remote_code=False, **options)
    except Exception as error:  # what a damaged folder makes the libraries raise has no common class
        if isinstance(error, ValueError) and "trust_remote_code" in str(error):
            raise DataError(
                f"model {name!r} needs code of its own, which is never run; take a release of the model without "
                "auto_map and with transformers' own tokenizer class, or a newer transformers"
            ) from error
        if "backend tokenizer" in str(error):
            raise DataError(f"model {name!r} {NO_TOKENIZER}") from error
        raise _load_error(name, error) from error


@contextlib.contextmanager
def library_warnings(name: str) -> Iterator[None]:
    """Pass on what transformers warns of while it loads a folder or hub name: each sentence once per process.

    Its report of weights without a place is left out, because `engines.load_module` refuses them; so are hints about
    its Python interface.
    """
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_warning()
    theirs, kept = logging.getLogger("transformers"), _Kept(logging.WARNING)
    handlers, theirs.handlers = theirs.handlers, [kept]
    propagate, theirs.propagate = theirs.propagate, False  # transformers sets it where the environment has CI
    try:
        yield
    finally:
        theirs.handlers, theirs.propagate = handlers, propagate
        transformers_logging.set_verbosity_error()
    for text in dict.fromkeys(kept.texts):
        if not OUR_CALL.search(text):
            say_once(name, f"transformers warns: {text}")


def say_once(name: str, text: str) -> None:
    """Warn of a model, once per process."""
    if text not in SAID:
        SAID.add(text)
        log.warning("model %s: %s", name, text)


class _Kept(logging.Handler):
    """Keeps the texts of a library's records, each in one line."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(" ".join(record.getMessage().split()))


def load_tokenizer(name: str, *, local_files_only: bool) -> Any:
    """The tokenizer of a folder or hub name, tried on a digit: some damage shows only then."""
    from transformers import AutoTokenizer

    check_objects(Path(name))
    _tell_of_two_templates(name)
    tokenizer = load_pretrained(AutoTokenizer, name, local_files_only=local_files_only)
    try:
        ids = tokenizer("0", add_special_tokens=False)["input_ids"]
    except Exception as error:  # as above
        raise _load_error(name, error) from error
    if not ids:  # what a folder without tokenizer files gives
        raise DataError(f"model {name!r} {NO_TOKENIZER}")
    return tokenizer


def _tell_of_two_templates(name: str) -> None:
    """Warn of a folder whose two chat templates differ: an edited one may be the one that nothing reads."""
    files = Path(name) / "chat_template.jinja", Path(name) / "tokenizer_config.json"
    if not all(file.is_file() for file in files):
        return
    other = read_object(files[1]).get("chat_template")
    if isinstance(other, str) and other.strip() != files[0].read_text(encoding="utf-8").strip():
        say_once(name, f"{files[0].name} and {files[1].name} have different chat templates; the first is used")


def output_columns(name: str, *, local_files_only: bool) -> int:
    """Columns of a model's output layer, from its config.json."""
    from transformers import AutoConfig

    if Path(name).is_dir():
        check_config(Path(name))
    config = load_pretrained(AutoConfig, name, local_files_only=local_files_only)
    return int(config.get_text_config().vocab_size)


def check_same_tokenizer(student: Any, teacher: Any, columns: tuple[int, int]) -> None:
    """Student and teacher must mean the same text by every token id, because the teacher scores the student's ids.

    Their output columns, given in this order, may differ by padding alone: every id is below the smaller number.
    """
    ours = {index: text for text, index in student.get_vocab().items()}
    theirs = {index: text for text, index in teacher.get_vocab().items()}
    for index in sorted(ours.keys() | theirs.keys()):
        if ours.get(index) != theirs.get(index):
            raise DataError(
                f"token id {index} is {ours.get(index)!r} for the student and {theirs.get(index)!r} for the teacher; "
                "expected one tokenizer, because the teacher scores the student's token ids"
            )
    if columns[0] != columns[1] and max(ours) >= min(columns):
        raise DataError(
            f"the student has {columns[0]} output columns and the teacher {columns[1]}, but token id {max(ours)} is "
            f"{ours[max(ours)]!r}; expected every id below {min(columns)}: the models may differ by padding alone"
        )


def check_ids(prompts: Iterable[Sequence[int]], columns: int, tokenizer: Any, whose: str) -> None:
    """Refuse a prompt with a token id that a model does not have: on a GPU, it would end in a device-side assert."""
    if (largest := max(map(max, prompts))) >= columns:
        raise DataError(
            f"a prompt has token id {largest}, {tokenizer.convert_ids_to_tokens(largest)!r}, but {whose} has ids below "
            f"{columns} (vocab_size in its config.json); resize its embedding or take the tokenizer made for it"
        )


def check_sampled(ids_BT: Tensor, mask_BT: Tensor, tokenizer: Any) -> None:
    """Refuse sampled ids that the tokenizer does not have, where output columns differ and one model lacks them."""
    known = max(tokenizer.get_vocab().values()) + 1
    beyond = (mask_BT & (ids_BT >= known)).nonzero()
    if beyond.numel():
        row, token = beyond[0].tolist()
        raise ScoreError(
            f"response {row} has token id {int(ids_BT[row, token])} at column {token}, but the tokenizer has ids below "
            f"{known}: the student sampled the padding of its vocabulary, which a teacher with other output columns "
            "cannot score. Lower the temperature or top_p of the rollout, or take a teacher with the student's columns"
        )


def refuse_kernels(name: str) -> None:
    """Refuse a folder whose config.json names a kernel of the hub, which transformers would fetch and run."""
    file = Path(name) / "config.json"
    chosen = KERNEL.search(json.dumps(read_object(file))) if file.is_file() else None
    if chosen is not None:
        raise DataError(
            f"model {name!r}: {chosen[0]} in config.json is a kernel: code to be fetched and run; expected a kind of "
            "attention that transformers has, such as sdpa; take the key out"
        )


def check_rope(name: str) -> None:
    """Refuse a config.json that states RoPE twice and otherwise: in `rope_parameters`, and beside it as formerly.

    transformers 5 takes `rope_scaling` in place of `rope_parameters`, with a `rope_theta` of 10,000 where only the
    latter has one; of two `rope_theta` it takes that in `rope_parameters`, and earlier versions the one beside it.
    """
    values = config_values(name)
    for part in (values, values.get("text_config") or {}):
        rope, scaling = part.get("rope_parameters") or {}, part.get("rope_scaling") or {}
        beside = {key: value for key, value in scaling.items() if key != "type"}
        theta = scaling.get("rope_theta", part.get("rope_theta"))
        if "rope_theta" in rope and (scaling or theta):
            beside["rope_theta"] = theta
        if rope and (other := [key for key, value in beside.items() if rope.get(key) != value]):
            raise DataError(
                f"model {name!r}: config.json has rope_parameters, and beside them {other[0]} {beside[other[0]]!r} "
                f"where they say {rope.get(other[0])!r}; libraries differ in which they take: write all of it into "
                "rope_parameters, and take rope_scaling and rope_theta out"
            )


def one_line(error: Exception) -> str:
    """Type and message of an error in one line."""
    text = " ".join(str(error).split()) or "no message"
    return f"{type(error).__name__}: {text[:200]}{' ...' if len(text) > 200 else ''}"


def save_pretrained(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write a model and its tokenizer as a Hugging Face folder; a full disk is an `OSError` in every library."""
    try:
        if getattr(model, "_hf_peft_config_loaded", False):
            save_adapter(model, folder)
        else:
            model.save_pretrained(folder)
            keep_other_files(model.name_or_path, folder)
        tokenizer.save_pretrained(folder)
        let_older_read(folder)
        let_others_read(folder)
    except Exception as error:
        if found := SYSTEM_ERROR.search(str(error)):
            raise OSError(int(found[1]), os.strerror(int(found[1])), str(folder)) from error
        raise


def keep_other_files(name: str, folder: Path) -> None:
    """Copy what a model's folder or hub name has beside weights and configuration: processors, licences, templates.

    What the folder has already stays, and so do the records of an earlier run where they are.
    """
    config = Path(name).expanduser() / "config.json" if name else None
    place = config if config is not None and config.is_file() else cached(name) if has_hub_form(name) else None
    for path in [] if place is None else sorted(place.parent.iterdir()):
        if path.is_file() and not NOT_KEPT.search(path.name) and not (folder / path.name).exists():
            shutil.copyfile(path, folder / path.name)


def let_others_read(folder: Path) -> None:
    """Give weight files the folder's permissions: safetensors writes them for their owner alone."""
    for path in folder.glob("*.safetensors"):
        path.chmod(folder.stat().st_mode & 0o666)


def let_older_read(folder: Path) -> None:
    """Let transformers 4, in vLLM or lm-eval, read the same model: state RoPE and tokenizer as it does, too.

    It ignores `rope_parameters` and takes defaults in silence. Those of several kinds of layers have no place there.
    """
    places = (folder / "config.json", folder / "tokenizer_config.json")
    config, tokenizer = (read_object(place) if place.is_file() else {} for place in places)
    for part in (config, config.get("text_config") or {}):
        rope = part.get("rope_parameters") or {}
        flat = {key: rope[key] for key in ("rope_theta", "partial_rotary_factor") if rope.get(key, 1.0) != 1.0}
        scaling = {key: value for key, value in rope.items() if key not in ("rope_theta", "partial_rotary_factor")}
        if flat:
            part.update(flat if scaling == {"rope_type": "default"} else flat | {"rope_scaling": scaling})
    if tokenizer.get("tokenizer_class") == "TokenizersBackend":
        tokenizer["tokenizer_class"] = "PreTrainedTokenizerFast"
    if isinstance(tokenizer.get("extra_special_tokens"), list):
        tokenizer["additional_special_tokens"] = tokenizer.pop("extra_special_tokens")
    for place, values in zip(places, (config, tokenizer), strict=True):
        if values:
            place.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def save_adapter(model: Any, folder: Path) -> None:
    """Write peft's two files, and the base's config.json and end tokens: its folder may be elsewhere.

    transformers would have peft ask the hub, at each save, whether the base has another vocabulary.
    """
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    found = get_peft_model_state_dict(model, save_embedding_layers=False)
    named = {f"base_model.model.{name}": value.contiguous() for name, value in found.items()}
    save_file(named, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    model.peft_config["default"].save_pretrained(folder)
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)


# The hub.


def has_hub_form(name: str) -> bool:
    """Whether a name could be one of the hub's, ``owner/name``, and does not begin as a path does."""
    return name.count("/") == 1 and not name.startswith((".", "/", "~"))


def cached(name: str) -> Path | None:
    """The config.json of a hub's model in this machine's cache."""
    if find_spec("huggingface_hub") is None:
        return None
    from huggingface_hub import errors, try_to_load_from_cache

    try:
        found = try_to_load_from_cache(name, "config.json")
    except errors.HFValidationError:  # no name of the hub's
        return None
    return Path(found) if isinstance(found, str) else None


def only_here(name: str, repo_type: str = "model") -> bool:
    """Whether the files of a folder or hub name must come from this machine alone, as the hub does not answer.

    With ``local_files_only`` transformers looks in its cache at once; without a network it would ask for every file of
    the model six times, a minute in all. One question decides. After a silence the process is offline, and so is every
    process that it starts: vLLM fails where it cannot ask whether the model has some file.
    """
    if Path(name).exists():
        return True
    import huggingface_hub
    from huggingface_hub import constants, errors

    try:
        huggingface_hub.HfApi().repo_info(name, repo_type=repo_type, timeout=HUB_SECONDS)
    except (errors.HfHubHTTPError, ValueError):
        return False  # it answered, or the name is no valid one: whoever asks for the files words that error
    except (errors.HTTPError, OSError):  # the HTTP client's own error, under whichever name this version imports it
        if not constants.HF_HUB_OFFLINE:
            log.warning(
                "the hub does not answer: from here on models and data sets come from this machine's cache alone "
                "(HF_HUB_OFFLINE=1)"
            )
        os.environ["HF_HUB_OFFLINE"], constants.HF_HUB_OFFLINE = "1", True
        return True
    return False
