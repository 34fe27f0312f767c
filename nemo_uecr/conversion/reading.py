"""Recognises a checkpoint and reads its metadata, without loading weights.

A checkpoint is a Megatron distributed checkpoint, or a step that NeMo-RL saved.
"""

from __future__ import annotations

import io
import math
import pickle
import re
import zipfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_uecr.errors import CheckpointError, DataError, first_line
from nemo_uecr.files import read_object
from nemo_uecr.generation.models import DecoderSizes, decoder_sizes, expert_count

ARCHITECTURES = ("Qwen3ForCausalLM", "Qwen3MoeForCausalLM")
TRACKER = "latest_checkpointed_iteration.txt"
STEP = re.compile(r"(tmp_|old_)?step_\d+")
ITERATION = re.compile(r"iter_(\d+)")
#: Parts of a finished step of NeMo-RL.
STEP_PARTS = ("config.yaml", "training_info.json", "policy/weights")
#: Files of a finished Megatron checkpoint besides its shards; metadata.json is written last.
MEGATRON_PARTS = ("metadata.json", ".metadata")
#: What is no tensor: in a file before megatron-core 0.19, then among the shards under this key.
COMMON_FILE, COMMON_KEY = "common.pt", "common_state/shard_0_1"
FORMAT = "torch_dist"
#: Prefixes of the model's tensors in a Megatron checkpoint, which may also contain the optimizer's.
MODEL = ("embedding.", "decoder.", "output_layer.")
#: A vocabulary is padded to a multiple of up to 128 on up to 64 tensor-parallel ranks.
PADDING = 128 * 64
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


# The folder.


@dataclass(frozen=True)
class Checkpoint:
    """The input of a conversion."""

    weights: Path  # folder of one iteration
    model: str | None  # Hugging Face model with the architecture, if the checkpoint names one
    tokenizer: str | None  # that of the training, if it is another than the model's


def find_source(ckpt: Path) -> Checkpoint:
    """Recognise a checkpoint; refuse an incomplete one."""
    if not ckpt.is_dir():
        raise CheckpointError(f"{ckpt}: no such folder; expected a checkpoint")
    name = "" if (ckpt / "config.json").is_file() else ckpt.resolve().name  # a Hugging Face model may have any name
    if STEP.fullmatch(name) or (ckpt / "policy").is_dir():
        return _nemo_rl_step(ckpt)
    if (ckpt / "metadata.json").is_file() or (ckpt / ".metadata").is_file() or ITERATION.fullmatch(name):
        return Checkpoint(ckpt, None, None)
    if (ckpt / TRACKER).is_file() or any(ITERATION.fullmatch(path.name) for path in ckpt.iterdir()):
        return Checkpoint(newest_iteration(ckpt), None, None)
    got = "no checkpoint"
    if (ckpt / "config.json").is_file():
        got = "a Hugging Face model, which NeMo-RL converts when a run starts"
    raise CheckpointError(
        f"{ckpt}: {got}; expected a Megatron folder (iter_0000000, or the one above) or a step_N that NeMo-RL saved"
    )


def newest_iteration(folder: Path) -> Path:
    """The iteration that Megatron's tracker names, or the newest one without a tracker."""
    tracker = folder / TRACKER
    if tracker.is_file():
        text = tracker.read_text(encoding="utf-8").strip()  # a number, or a word such as "release"
        newest = folder / (f"iter_{int(text):07d}" if text.isdecimal() else text)
        if not text or not newest.is_dir():
            raise CheckpointError(
                f"{tracker}: got {text!r}; expected the number of an iteration that is here. Convert a folder iter_N"
            )
        return newest
    numbered = {int(match[1]): path for path in folder.iterdir() if (match := ITERATION.fullmatch(path.name))}
    if not numbered:
        raise CheckpointError(f"{folder}: no iter_ folder in it; the checkpoint is incomplete")
    return numbered[max(numbered)]


def _nemo_rl_step(step: Path) -> Checkpoint:
    if step.resolve().name.startswith(("tmp_", "old_")):
        raise CheckpointError(f"{step}: NeMo-RL had not finished this step; convert a folder named step_N")
    for part in STEP_PARTS:
        if not (step / part).exists():
            raise CheckpointError(f"{step}: no {part}; the NeMo-RL checkpoint is incomplete. Convert another step")
    policy = _yaml(step / "config.yaml").get("policy") or {}
    if not policy.get("model_name"):
        raise CheckpointError(f"{step / 'config.yaml'}: no policy.model_name; expected NeMo-RL's configuration")
    model, tokenizer = policy["model_name"], (policy.get("tokenizer") or {}).get("name")
    weights = newest_iteration(step / "policy" / "weights")
    return Checkpoint(weights, model, tokenizer if tokenizer != model else None)


def _yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; tags for Python objects are refused."""
    import yaml

    try:
        content = yaml.safe_load(path.read_bytes())
    except yaml.YAMLError as error:
        raise CheckpointError(f"{path}: unreadable YAML ({first_line(error):.200})") from error
    return content if isinstance(content, dict) else {}


# Its weights.


@dataclass(frozen=True)
class Weights:
    """The model's tensors in a folder, and their files."""

    folder: Path
    files: tuple[Path, ...]
    shapes: dict[str, tuple[int, ...]]
    dtype: str

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return BYTES[self.dtype] * sum(math.prod(shape) for shape in self.shapes.values())


def read_weights(folder: Path) -> Weights:
    """Read the metadata of an iteration; refuse missing and truncated shards."""
    shards, tensors = _read_contents(folder)
    extra = ["run_config.yaml"] if (folder / "run_config.yaml").is_file() else []
    names = [*MEGATRON_PARTS, *shards, *extra]
    names += [COMMON_FILE] if (folder / COMMON_FILE).is_file() else []
    dtypes = sorted({dtype for dtype, _ in tensors.values()})
    if len(dtypes) != 1 or dtypes[0] not in BYTES:
        raise CheckpointError(f"{folder}: its tensors are {dtypes or 'none'}; expected one of {', '.join(BYTES)}")
    shapes = {name: shape for name, (_, shape) in tensors.items()}
    if any(".adapter." in name for name in shapes):
        raise CheckpointError(
            f"{folder}: holds LoRA adapters alone; expected a whole model. NeMo-RL's convert_lora_to_hf.py merges them "
            "into the model that they were trained on"
        )
    return Weights(folder, tuple(folder / name for name in names), shapes, dtypes[0])


def _read_contents(folder: Path) -> tuple[list[str], dict[str, tuple[str, tuple[int, ...]]]]:
    """Names of the shards, and dtype and shape of each tensor of the model."""
    for name in MEGATRON_PARTS:
        if not (folder / name).is_file():
            raise CheckpointError(f"{folder}: no {name}; the checkpoint is incomplete. Convert another one")
    kind = read_object(folder / "metadata.json").get("sharded_backend")
    if kind != FORMAT:
        raise CheckpointError(f"{folder}: its format is {kind}; expected {FORMAT}, Megatron's distributed checkpoint")
    contents = read_metadata(folder / ".metadata")
    if (folder / COMMON_FILE).is_file():
        if not zipfile.is_zipfile(folder / COMMON_FILE):
            raise CheckpointError(f"{folder / COMMON_FILE}: truncated or corrupt. Copy the checkpoint again")
    elif COMMON_KEY not in contents.state_dict_metadata:
        raise CheckpointError(f"{folder}: no {COMMON_FILE}; the checkpoint is incomplete. Convert another one")
    ends: Counter[str] = Counter()
    for place in contents.storage_data.values():
        ends[place.relative_path] = max(ends[place.relative_path], place.offset + place.length)
    for name, end in sorted(ends.items()):
        size = (folder / name).stat().st_size if (folder / name).is_file() else None
        if size is None or size < end:
            got = "missing shard" if size is None else f"truncated shard of {size} bytes"
            raise CheckpointError(f"{folder / name}: {got}; expected {end} bytes. Copy the checkpoint again")
    tensors = {
        name: (str(entry.properties.dtype).removeprefix("torch."), tuple(entry.size))
        for name, entry in contents.state_dict_metadata.items()
        if hasattr(entry, "size") and name.startswith(MODEL)
    }
    return sorted(ends), tensors


# `.metadata` is a pickle, which can run code: only names that a checkpoint needs are allowed.

#: Names that torch and Megatron write, besides torch's dtypes. All of them only hold values.
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


class _KnownOnly(pickle.Unpickler):
    """Unpickles checkpoint metadata and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        import torch

        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if name in KNOWN.get(module, ()) or is_dtype:
            return super().find_class(module, name)
        raise CheckpointError(f"asks to load {f'{module}.{name}'!a}, which no checkpoint needs and could run code")


def read_metadata(path: Path) -> Any:
    """Read torch's `Metadata` record; any other name in the pickle is refused."""
    try:
        return _KnownOnly(io.BytesIO(path.read_bytes())).load()
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}. Copy the checkpoint again from a source that you trust") from None
    except (pickle.UnpicklingError, EOFError) as error:
        raise CheckpointError(f"{path}: unreadable ({first_line(error)}). Copy the checkpoint again") from error


# Its architecture.


@dataclass(frozen=True, kw_only=True)
class Qwen3(DecoderSizes):
    """The architecture in a config.json."""

    rope_theta: float
    norm_eps: float


def rope_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """What a config.json states of its rotary embeddings; `rope_type` is "default" where they are not scaled."""
    rope = values.get("rope_parameters") or values.get("rope_scaling") or {}  # transformers 5, or 4
    return {"rope_type": rope.get("type", "default"), **rope}


def read_qwen3(folder: Path) -> Qwen3:
    """Read the architecture of a Hugging Face folder."""
    path = folder / "config.json"
    values = read_object(path)
    if (architectures := values.get("architectures")) not in [[name] for name in ARCHITECTURES]:
        expected = " or ".join(f"[{name!r}]" for name in ARCHITECTURES)
        raise CheckpointError(f"{path}: architectures is {architectures!r:.80}; expected {expected}")
    if expert_count(values) and values.get("norm_topk_prob") is not True:  # Megatron's router always does
        given = values.get("norm_topk_prob")
        raise CheckpointError(f"{path}: norm_topk_prob is {given!r}; expected true, as every released Qwen3-MoE has it")
    rope = rope_of(values)
    if (kind := rope["rope_type"]) != "default":
        raise CheckpointError(f"{path}: rotary embeddings are scaled ({kind!s:.60}); expected plain ones")
    theta, epsilon = rope.get("rope_theta", values.get("rope_theta")), values.get("rms_norm_eps")
    if theta is None or epsilon is None:
        raise DataError(f"{path} does not state rope_theta and rms_norm_eps; expected a whole config.json")
    return Qwen3(**vars(decoder_sizes(values, str(path))), rope_theta=float(theta), norm_eps=float(epsilon))


def check_architecture(weights: Weights, model: Qwen3, described_by: Path) -> None:
    """Refuse an architecture that differs from that of Megatron's weights, even if Megatron would load them.

    It would cut or fill a vocabulary and ignore an unexpected output layer, and it does not know the base of the rotary
    embedding. A trainer's run_config.yaml states the whole architecture.
    """
    path, shapes = weights.folder / "run_config.yaml", weights.shapes
    settings = (_yaml(path).get("model") or {}) if path.is_file() else {}  # Megatron alone does not write it
    rows = shapes.get("embedding.word_embeddings.weight", (0,))[0]
    stated = settings | {
        "share_embeddings_and_output_weights": "output_layer.weight" not in shapes,
        "vocabulary": model.vocabulary if 0 <= rows - model.vocabulary < PADDING else rows,
    }
    expected: dict[str, Any] = {
        "num_layers": model.layers, "hidden_size": model.hidden, "ffn_hidden_size": model.feed_forward,
        "num_attention_heads": model.heads, "num_query_groups": model.kv_heads, "kv_channels": model.head_dim,
        "rotary_base": model.rope_theta, "layernorm_epsilon": model.norm_eps, "vocab_size": model.vocabulary,
        "share_embeddings_and_output_weights": model.tied, "vocabulary": model.vocabulary,
        "num_moe_experts": model.experts or None, "moe_router_topk": model.experts_per_token,
        "moe_ffn_hidden_size": model.expert_width,
    }  # fmt: skip
    if not model.experts:  # Megatron states the others of a dense model, too
        del expected["moe_router_topk"], expected["moe_ffn_hidden_size"]
    for name, value in expected.items():
        if stated.get(name) is not None and stated[name] != value:
            raise CheckpointError(
                f"{weights.folder}: trained with {name} {stated[name]}; the architecture has {value}. Name the model "
                f"that was trained: --hf FOLDER (now {described_by})"
            )
