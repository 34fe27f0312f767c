"""Folders as they stand on disk: a model's configuration with its tokenizer, and a step that NeMo-RL saved."""

from __future__ import annotations

import io
import json
import shutil
import warnings
from pathlib import Path
from typing import Any

from tests.nemo.tiny_qwen3 import VOCABULARY, hf_config, mixture_config

TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
CHARACTERS = "\n !()+,.0123456789=?Aabdefhinorstuwxy{}\\"


def model_folder(folder: Path, *, tied: bool, mixture: bool = False, **changes: Any) -> Path:
    """Configuration, generation configuration, tokenizer and chat template; no weights."""
    folder.mkdir(parents=True)
    config = mixture_config() if mixture else hf_config(tied=tied)
    (folder / "config.json").write_text(json.dumps(config | changes))
    (folder / "generation_config.json").write_text(json.dumps({"temperature": 0.7, "eos_token_id": 1}))
    return tokenizer_folder(folder)


def tokenizer_folder(folder: Path) -> Path:
    """A tokenizer of single characters, added to a folder."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"<pad>": 0, "<end>": 1, "<unknown>": 2}
    vocabulary |= {character: 3 + index for index, character in enumerate(CHARACTERS)}
    assert len(vocabulary) <= VOCABULARY
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unknown>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    outer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<end>", unk_token="<unknown>")
    outer.chat_template = TEMPLATE
    outer.save_pretrained(folder)
    return folder


def hf_model(folder: Path, *, tied: bool, dtype: str = "float32", shard: str = "5GB") -> Path:
    """A whole Hugging Face model with random weights of some size."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    model_folder(folder, tied=tied, torch_dtype=dtype)
    torch.manual_seed(3)
    model = Qwen3ForCausalLM(Qwen3Config.from_pretrained(folder)).float()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size=shard)
    return folder


WHOLE = ("embedding.word_embeddings.weight", "output_layer.weight")


def megatron_weights(folder: Path, *, names: tuple[str, ...] = WHOLE, common_file: bool = True) -> Path:
    """A folder as megatron-core writes it on one rank, made by the library below it.

    Without ``common_file`` as 0.19 does, which keeps the common state among the shards.
    """
    import torch
    from torch.distributed.checkpoint import save

    state: dict[str, Any] = {name: torch.zeros(48, 32) for name in names}
    if not common_file:
        state["common_state/shard_0_1"] = io.BytesIO(b"any object")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that nothing is distributed here
        save(state, checkpoint_id=folder, no_dist=True)
    (folder / "metadata.json").write_text(json.dumps({"sharded_backend": "torch_dist", "sharded_backend_version": 1}))
    if common_file:
        torch.save({"iteration": 1}, folder / "common.pt")
    return folder


def nemo_rl_step(folder: Path, weights: Path, model: Path, tokenizer: Path | None = None) -> Path:
    """A finished step of NeMo-RL around Megatron's folder; its Megatron worker saves no tokenizer, but its name."""
    step = folder / "step_1"
    shutil.copytree(weights, step / "policy" / "weights" / "iter_0000000")
    policy = {"model_name": str(model), "tokenizer": {"name": str(tokenizer or model)}}
    (step / "config.yaml").write_text(json.dumps({"policy": policy}))
    (step / "training_info.json").write_text(json.dumps({"step": 1}))
    (step / "train_dataloader.pt").write_bytes(b"")
    return step
