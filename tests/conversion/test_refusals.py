"""What cannot be converted is refused before anything is written."""

from __future__ import annotations

import json
import shutil
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest

from nemo_uecr.cli.main import entry_point
from nemo_uecr.conversion.convert import Conversion, convert, prepare
from nemo_uecr.conversion.reading import TRACKER, read_qwen3
from nemo_uecr.errors import CheckpointError, DataError, UecrError
from tests.conversion.folders import megatron_weights, model_folder, nemo_rl_step
from tests.local.tiny import STUDENT
from tests.nemo.tiny_qwen3 import LAYERS, ROPE, hf_config


def prepared(ckpt: Path, out: Path, model: Path | None = None) -> Conversion:
    named = None if model is None else str(model)
    return prepare(ckpt, out, model=named, tokenizer=None, tolerance=1e-4, shard_bytes=10**9)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return model_folder(tmp_path / "model", tied=False)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    return megatron_weights(tmp_path / "megatron" / "iter_0000001")


def refusal(ckpt: Path, out: Path, model: Path | None = None) -> str:
    """The message of a conversion, which leaves every folder as it was."""
    folder = next(path for path in out.parents if path.is_dir())
    before = sorted(folder.rglob("*"))
    with pytest.raises(UecrError) as error:
        prepared(ckpt, out, model)
    assert sorted(folder.rglob("*")) == before
    return str(error.value)


def test_what_is_whole_is_accepted(tmp_path: Path, model: Path, weights: Path) -> None:
    for ckpt in (weights, weights.parent):
        job = prepared(ckpt, tmp_path / "out", model)
        assert (job.weights.folder, job.weights.dtype) == (weights, "float32")
    job = prepared(nemo_rl_step(tmp_path, weights, model), tmp_path / "out")
    assert (job.config, job.tokenizer) == (model, model)


def test_the_tokenizer_that_a_run_was_given_under_another_name(tmp_path: Path, model: Path, weights: Path) -> None:
    other = model_folder(tmp_path / "tokenizer", tied=False)
    step = nemo_rl_step(tmp_path, weights, model, other)
    assert (job := prepared(step, tmp_path / "out")).tokenizer == other
    assert {model / "config.json", other / "tokenizer.json"} <= set(job.assets)
    shutil.rmtree(other)
    assert refusal(step, tmp_path / "out").endswith("name a folder: --tokenizer")


def test_the_common_state_among_the_shards(tmp_path: Path, model: Path) -> None:
    weights = megatron_weights(tmp_path / "later" / "iter_0000001", common_file=False)
    assert {file.name for file in prepared(weights, tmp_path / "out", model).weights.files} >= {
        ".metadata",
        "__0_0.distcp",
    }


def test_adapters_alone(tmp_path: Path, model: Path) -> None:
    names = ("decoder.layers.mlp.linear_fc1.adapter.linear_in.weight", "output_layer.adapter.linear_out.weight")
    weights = megatron_weights(tmp_path / "adapter" / "iter_0000001", names=names)
    assert "holds LoRA adapters alone" in refusal(weights, tmp_path / "out", model)


def test_what_a_checkpoint_is_says_its_content_not_its_name(tmp_path: Path, model: Path) -> None:
    for name in ("step_100", "tmp_step_1", "iter_0000005"):
        model = model.rename(tmp_path / name)
        assert "a Hugging Face model, which NeMo-RL converts when a run starts" in refusal(model, tmp_path / "out")


def test_the_iteration_that_is_taken(
    tmp_path: Path, model: Path, weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dry run names it; a tracker that names none is named itself."""
    words = ["convert", weights.parent, "--to", tmp_path / "out", "--hf", model, "--dry-run"]
    assert entry_point([*map(str, words)]) == 0
    assert f"weights: {weights}\n" in capsys.readouterr().out
    tracker = weights.parent / TRACKER
    for text in ("", "7"):
        tracker.write_text(text)
        assert f"{tracker}: got {text!r}" in refusal(weights.parent, tmp_path / "out", model)


def test_another_tokenizer_is_named_by_its_own_folder(tmp_path: Path, model: Path, weights: Path) -> None:
    job = replace(prepared(weights, tmp_path / "out", model), tokenizer=STUDENT, assets=(*STUDENT.iterdir(),))
    with pytest.raises(CheckpointError, match=rf"^{STUDENT}: \d+ tokens; the model has 48"):
        convert(job)


@pytest.mark.parametrize("lost", [None, 1])
def test_a_shard_that_is_missing_or_cut_short(lost: int | None, tmp_path: Path, model: Path, weights: Path) -> None:
    shard = next(weights.glob("*.distcp"))
    content = shard.read_bytes()
    shard.unlink() if lost is None else shard.write_bytes(content[:-lost])
    assert str(shard) in refusal(weights, tmp_path / "out", model)


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
    assert named in refusal(weights, tmp_path / "out", other)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"norm_topk_prob": False}, "norm_topk_prob is False; expected true"),
        ({"num_experts": 8}, "num_moe_experts 4"),
        ({"num_experts_per_tok": 1}, "moe_router_topk 2"),
        ({"mlp_only_layers": [0]}, "mlp_only_layers [0]"),
    ],
)
def test_another_mixture(change: dict[str, object], named: str, tmp_path: Path, weights: Path) -> None:
    stated = {"num_moe_experts": 4, "moe_router_topk": 2}
    (weights / "run_config.yaml").write_text(json.dumps({"model": stated}))
    other = model_folder(tmp_path / "other", tied=False, mixture=True, **change)
    assert named in refusal(weights, tmp_path / "out", other)
    dense = model_folder(tmp_path / "dense", tied=False)
    assert "num_moe_experts 4; the architecture has None" in refusal(weights, tmp_path / "out", dense)


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


OF_MEGATRON = ["metadata.json", ".metadata", "common.pt"]


@pytest.mark.parametrize("part", [*OF_MEGATRON, "config.yaml", "training_info.json", "policy/weights"])
def test_an_incomplete_step(part: str, tmp_path: Path, model: Path, weights: Path) -> None:
    step = nemo_rl_step(tmp_path, weights, model)
    target = (step / "policy" / "weights" / "iter_0000000" if part in OF_MEGATRON else step) / part
    shutil.rmtree(target) if target.is_dir() else target.unlink()
    assert f"no {part}" in refusal(step, tmp_path / "out")


def test_a_step_that_nemo_rl_had_not_finished(tmp_path: Path, model: Path, weights: Path) -> None:
    unfinished = nemo_rl_step(tmp_path, weights, model).rename(tmp_path / "tmp_step_1")
    assert "had not finished this step" in refusal(unfinished, tmp_path / "out")


def test_what_the_command_lacks(tmp_path: Path, weights: Path, model: Path) -> None:
    assert "--hf FOLDER" in refusal(weights, tmp_path / "out")
    (model / "tokenizer.json").unlink()
    assert "no tokenizer.json" in refusal(weights, tmp_path / "out", model)
    assert "no such folder" in refusal(tmp_path / "nowhere", tmp_path / "out")
    (tmp_path / "empty").mkdir()
    assert "no checkpoint" in refusal(tmp_path / "empty", tmp_path / "out")


def test_an_out_that_cannot_be_made(
    tmp_path: Path, model: Path, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "occupied" in refusal(weights, tmp_path, model)
    assert "is inside the checkpoint" in refusal(weights, weights / "out", model)
    usage = namedtuple("usage", ("total", "used", "free"))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**6, 10**6 - 1000, 1000))
    assert "GB are free" in refusal(weights, tmp_path / "new" / "out", model)
