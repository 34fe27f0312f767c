"""What cannot be converted is refused before anything is written."""

from __future__ import annotations

import json
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch

from nemo_uecr.conversion.convert import prepare
from nemo_uecr.conversion.reading import find_source, read_qwen3
from nemo_uecr.errors import CheckpointError, DataError, UecrError
from tests.conversion.folders import megatron_weights, model_folder, nemo_rl_step
from tests.nemo.tiny_qwen3 import LAYERS, ROPE, hf_config


def request(ckpt: Path, out: Path, **changes: Any) -> dict[str, Any]:
    plain = {"model": None, "tokenizer": None, "tolerance": 1e-4, "shard_bytes": 10**9}
    return {"ckpt": ckpt, "out": out, **plain, **changes}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return model_folder(tmp_path / "model", tied=False)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    return megatron_weights(tmp_path / "megatron" / "iter_0000001")


@pytest.fixture
def huggingface(tmp_path: Path, model: Path) -> Path:
    from safetensors.torch import save_file

    folder = shutil.copytree(model, tmp_path / "huggingface")
    save_file({"model.embed_tokens.weight": torch.zeros(48, 32)}, folder / "model.safetensors")
    return folder


def refusal(asked: dict[str, Any]) -> str:
    """The message of a conversion, which leaves every folder as it was."""
    folder = next(path for path in asked["out"].parents if path.is_dir())
    before = sorted(folder.rglob("*"))
    with pytest.raises(UecrError) as error:
        prepare(**asked)
    assert sorted(folder.rglob("*")) == before
    return str(error.value)


def test_what_is_whole_is_accepted(tmp_path: Path, model: Path, weights: Path, huggingface: Path) -> None:
    for ckpt in (weights, weights.parent):
        job = prepare(**request(ckpt, tmp_path / "out", model=str(model)))
        assert (job.weights.kind, job.weights.folder, job.weights.dtype) == ("megatron", weights, "float32")
    step = nemo_rl_step(tmp_path, weights, model)
    job = prepare(**request(step, tmp_path / "out"))
    assert (job.config, job.tokenizer) == (model, step / "policy" / "tokenizer")
    assert prepare(**request(huggingface, tmp_path / "out")).weights.kind == "huggingface"


@pytest.mark.parametrize("lost", [None, 1])
def test_a_shard_that_is_missing_or_cut_short(
    lost: int | None, tmp_path: Path, model: Path, weights: Path, huggingface: Path
) -> None:
    for folder, kind, named in ((weights, "*.distcp", str(model)), (huggingface, "*.safetensors", None)):
        shard = next(folder.glob(kind))
        content = shard.read_bytes()
        shard.unlink() if lost is None else shard.write_bytes(content[:-lost])
        assert str(shard) in refusal(request(folder, tmp_path / "out", model=named))


@pytest.mark.parametrize("name", ["metadata.json", ".metadata", "common.pt"])
def test_an_unfinished_save(name: str, tmp_path: Path, model: Path, weights: Path) -> None:
    (weights / name).unlink()
    assert f"no {name}; the checkpoint is incomplete" in refusal(request(weights, tmp_path / "out", model=str(model)))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"tie_word_embeddings": True}, "share_embeddings_and_output_weights False"),
        ({"vocab_size": 49}, "vocabulary 48"),
        ({"architectures": ["LlamaForCausalLM"]}, "LlamaForCausalLM"),
        ({"rope_theta": 10000}, "rotary_base 1000000"),
        ({"num_hidden_layers": 3}, "num_layers 2"),
    ],
)
def test_another_architecture(change: dict[str, object], named: str, tmp_path: Path, weights: Path) -> None:
    """What Megatron would load; the trainer's own record knows what no shape shows."""
    (weights / "run_config.yaml").write_text(json.dumps({"model": {"rotary_base": ROPE, "num_layers": LAYERS}}))
    other = model_folder(tmp_path / "other", tied=False, **change)
    assert named in refusal(request(weights, tmp_path / "out", model=str(other)))


def test_the_rope_base_is_read_where_either_transformers_writes_it(tmp_path: Path) -> None:
    plain = {name: value for name, value in hf_config(tied=False).items() if name != "rope_theta"}
    config = tmp_path / "config.json"
    for changes in ({"rope_theta": 5e5}, {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}):
        config.write_text(json.dumps(plain | changes))
        assert read_qwen3(tmp_path).rope_theta == 5e5
    config.write_text(json.dumps(plain))
    with pytest.raises(DataError, match="rope_theta"):
        read_qwen3(tmp_path)
    config.write_text(json.dumps(plain | {"rope_scaling": {"rope_type": "yarn", "factor": 4}}))
    with pytest.raises(CheckpointError, match="yarn"):
        read_qwen3(tmp_path)


@pytest.mark.parametrize("part", ["config.yaml", "training_info.json", "policy/weights", "policy/tokenizer"])
def test_an_incomplete_step_of_nemo_rl(part: str, tmp_path: Path, model: Path, weights: Path) -> None:
    step = nemo_rl_step(tmp_path, weights, model)
    target = step / part
    shutil.rmtree(target) if target.is_dir() else target.unlink()
    assert f"no {part}" in refusal(request(step, tmp_path / "out"))


def test_a_step_that_nemo_rl_had_not_finished(tmp_path: Path, model: Path, weights: Path) -> None:
    unfinished = nemo_rl_step(tmp_path, weights, model).rename(tmp_path / "tmp_step_1")
    assert "had not finished this step" in refusal(request(unfinished, tmp_path / "out"))


def test_what_the_command_lacks(tmp_path: Path, weights: Path, model: Path, huggingface: Path) -> None:
    assert "--hf FOLDER" in refusal(request(weights, tmp_path / "out"))
    (model / "tokenizer.json").unlink()
    assert "no tokenizer.json" in refusal(request(weights, tmp_path / "out", model=str(model)))
    with pytest.raises(CheckpointError, match="no such folder"):
        find_source(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="no checkpoint"):
        find_source(tmp_path)


def test_an_out_that_cannot_be_made(tmp_path: Path, huggingface: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "occupied" in refusal(request(huggingface, tmp_path))
    assert "is inside the checkpoint" in refusal(request(huggingface, huggingface / "megatron"))
    usage = namedtuple("usage", ("total", "used", "free"))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**6, 10**6 - 1000, 1000))
    assert "GB are free" in refusal(request(huggingface, tmp_path / "new" / "out"))
