"""What cannot be converted is refused before anything is written, in one line that says what to do."""

from __future__ import annotations

import dataclasses
import json
import pickle
import random
import shutil
from pathlib import Path

import pytest
import torch

from nemo_uecr.checkpoint.convert import convert, look, prepare
from nemo_uecr.checkpoint.qwen3 import hf_shapes, megatron_shapes, read_qwen3
from nemo_uecr.checkpoint.record import read_record
from nemo_uecr.checkpoint.request import Request
from nemo_uecr.checkpoint.sequences import megatron_scores
from nemo_uecr.checkpoint.source import find_source
from nemo_uecr.checkpoint.work_folder import WorkFolder, only_one
from nemo_uecr.errors import CheckpointError
from tests.checkpoint.folders import model_folder, nemo_rl_step
from tests.checkpoint.trained import hf_config


def request(ckpt: Path, out: Path, **changes: object) -> Request:
    plain = Request(
        ckpt=ckpt, out=out, into=None, model=None, tokenizer=None, recorded=None, tolerance=1e-4, shard_bytes=10**9
    )
    return dataclasses.replace(plain, **changes)  # type: ignore[arg-type]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return model_folder(tmp_path / "model", tied=False)


@pytest.fixture
def weights(tmp_path: Path, model: Path) -> Path:
    """A folder as megatron-core writes it on one rank, made by the library below it."""
    from torch.distributed.checkpoint import save

    folder = tmp_path / "megatron" / "iter_0000001"
    state = {name: torch.zeros(shape) for name, shape in megatron_shapes(read_qwen3(model)).items()}
    save(state, checkpoint_id=folder, no_dist=True)
    (folder / "metadata.json").write_text(json.dumps({"sharded_backend": "torch_dist", "sharded_backend_version": 1}))
    torch.save({"iteration": 1}, folder / "common.pt")
    return folder


@pytest.fixture
def huggingface(tmp_path: Path, model: Path) -> Path:
    from safetensors.torch import save_file

    folder = shutil.copytree(model, tmp_path / "huggingface")
    shapes = hf_shapes(read_qwen3(model))
    save_file({name: torch.zeros(shape) for name, shape in shapes.items()}, folder / "model.safetensors")
    return folder


def refusal(asked: Request) -> str:
    """The message of a conversion, which leaves every folder as it was."""
    folder = asked.out.parent
    before = sorted(folder.rglob("*"))
    with pytest.raises(CheckpointError) as error:
        convert(asked)
    assert sorted(folder.rglob("*")) == before
    return str(error.value)


def test_what_is_whole_is_accepted(tmp_path: Path, model: Path, weights: Path, huggingface: Path) -> None:
    for ckpt in (weights, weights.parent):
        job = look(request(ckpt, tmp_path / "out", model=str(model)))
        assert (job.source.kind, job.source.weights, job.files.dtype) == ("megatron", weights, "float32")
    step = nemo_rl_step(tmp_path, weights, model)
    job = look(request(step, tmp_path / "out"))
    assert job.config == model
    assert job.tokenizer == step / "policy" / "tokenizer"
    assert look(request(huggingface, tmp_path / "out")).source.kind == "huggingface"


def test_a_missing_shard(tmp_path: Path, model: Path, weights: Path, huggingface: Path) -> None:
    next(weights.glob("*.distcp")).unlink()
    assert "missing shard" in refusal(request(weights, tmp_path / "out", model=str(model)))
    (huggingface / "model.safetensors").unlink()
    assert "missing shard" in refusal(request(huggingface, tmp_path / "out"))


@pytest.mark.parametrize("lost", [1, 20_000])
def test_a_truncated_shard(lost: int, tmp_path: Path, model: Path, weights: Path, huggingface: Path) -> None:
    for folder, kind, asked in (
        (weights, "*.distcp", request(weights, tmp_path / "out", model=str(model))),
        (huggingface, "*.safetensors", request(huggingface, tmp_path / "out")),
    ):
        shard = next(folder.glob(kind))
        content = shard.read_bytes()
        shard.write_bytes(content[:-lost])
        message = refusal(asked)
        assert "truncated shard" in message


@pytest.mark.parametrize("name", ["metadata.json", ".metadata", "common.pt"])
def test_an_unfinished_save(name: str, tmp_path: Path, model: Path, weights: Path) -> None:
    (weights / name).unlink()
    assert f"no {name}; the checkpoint is incomplete" in refusal(request(weights, tmp_path / "out", model=str(model)))


def test_a_damaged_table_of_contents(tmp_path: Path, model: Path, weights: Path) -> None:
    asked = request(weights, tmp_path / "out", model=str(model))
    for content in (b"", b"no pickle", pickle.dumps(7)):
        (weights / ".metadata").write_bytes(content)
        assert "the checkpoint is corrupt" in refusal(asked)


def test_a_flipped_byte_in_the_table_of_contents(tmp_path: Path, model: Path, weights: Path) -> None:
    """A pickle with any one byte changed is read as before, or refused in one line."""
    asked = request(weights, tmp_path / "out", model=str(model))
    whole = (weights / ".metadata").read_bytes()
    rng = random.Random(5)
    for _ in range(150):
        at = rng.randrange(len(whole))
        (weights / ".metadata").write_bytes(whole[:at] + rng.randbytes(1) + whole[at + 1 :])
        try:
            look(asked)
        except CheckpointError as error:
            assert "\n" not in str(error)  # noqa: PT017 (a change may also mean nothing)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"vocab_size": "abc"}, "vocab_size 'abc'; expected a whole number"),
        ({"vocab_size": None}, "vocab_size None; expected a whole number"),
        ({"vocab_size": 1e400}, "vocab_size inf; expected a whole number"),
        ({"hidden_size": [1]}, "hidden_size [1]; expected a whole number"),
        ({"head_dim": None}, "head_dim None; expected a whole number"),
        ({"rms_norm_eps": None}, "rms_norm_eps None; expected a number above 0"),
        ({"rms_norm_eps": "x"}, "rms_norm_eps 'x'; expected a number above 0"),
        ({"rope_theta": "x"}, "rope_theta 'x'; expected a number above 0"),
        ({"rope_scaling": 5}, "rope_scaling 5; expected an object or null"),
        ({"rope_scaling": [1]}, "rope_scaling [1]; expected an object or null"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings 'false'; expected true or false"),
    ],
)
def test_values_of_a_config_that_are_none(
    change: dict[str, object], said: str, tmp_path: Path, huggingface: Path
) -> None:
    path = huggingface / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert said in refusal(request(huggingface, tmp_path / "out"))


@pytest.mark.parametrize("placed", [None, {}])
def test_an_index_that_is_none(placed: object, tmp_path: Path, huggingface: Path) -> None:
    (huggingface / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    assert "weight_map" in refusal(request(huggingface, tmp_path / "out"))


GOOD = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    "header",
    [
        [], {"a": {**GOOD, "data_offsets": [4, 0]}}, {"a": {**GOOD, "shape": [2]}},
    ],
)  # fmt: skip
def test_a_header_that_is_none(header: object, tmp_path: Path, huggingface: Path) -> None:
    text = json.dumps(header).encode()
    (huggingface / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(4))
    assert "model.safetensors: " in refusal(request(huggingface, tmp_path / "out"))


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", "\u00b2".encode(), b"9" * 400, b"9" * 5000, b"../x", b""])
def test_a_tracker_that_names_nothing(content: bytes, tmp_path: Path, model: Path, weights: Path) -> None:
    (weights.parent / "latest_checkpointed_iteration.txt").write_bytes(content)
    assert "names no iteration" in refusal(request(weights.parent, tmp_path / "out", model=str(model)))


@pytest.mark.parametrize("settings", ["model: 5", "model: abc", "model: [1]", "model: null", "[1]", "[" * 3000])
def test_trainer_settings_that_are_none(settings: str, tmp_path: Path, model: Path, weights: Path) -> None:
    (weights / "run_config.yaml").write_text(settings)
    assert "run_config.yaml: unreadable" in refusal(request(weights, tmp_path / "out", model=str(model)))


@pytest.mark.parametrize("part", ["policy/weights", "config.yaml"])
def test_a_part_of_a_step_of_another_kind(part: str, tmp_path: Path, model: Path, weights: Path) -> None:
    target = nemo_rl_step(tmp_path, weights, model) / part
    if target.is_dir():
        shutil.rmtree(target)
        target.write_text("")
    else:
        target.unlink()
        target.mkdir()
    assert f"no {part}" in refusal(request(tmp_path / "step_1", tmp_path / "out"))


def test_damaged_common_state(tmp_path: Path, model: Path, weights: Path) -> None:
    """The file beside the shards: 200 random bytes, nothing, and an archive with one byte flipped."""
    asked = request(weights, tmp_path / "out", model=str(model))
    whole = (weights / "common.pt").read_bytes()
    at = whole.index(b"iteration")
    flipped = whole[:at] + b"I" + whole[at + 1 :]
    for content in (random.Random(7).randbytes(200), b"", flipped):
        (weights / "common.pt").write_bytes(content)
        message = refusal(asked)
        assert "common.pt: " in message
        assert "the checkpoint is corrupt. Copy it again" in message


def test_weights_that_are_no_numbers() -> None:
    def logits(ids: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        return torch.full((*ids.shape, 10), torch.nan)

    with pytest.raises(CheckpointError, match="NaN or infinite come from a run that diverged") as error:
        megatron_scores(logits, [[1, 2, 3]])
    assert "\n" not in str(error.value)


def test_one_folder_within_the_other(tmp_path: Path, huggingface: Path, weights: Path, model: Path) -> None:
    assert "lies within the checkpoint" in refusal(request(huggingface, huggingface / "megatron"))
    inside = request(weights.parent, weights / "hf", model=str(model))
    assert "lies within the checkpoint" in refusal(inside)
    (tmp_path / "link").symlink_to(weights.parent)
    assert "lies within the checkpoint" in refusal(request(weights.parent, tmp_path / "link" / "hf", model=str(model)))
    assert "holds the checkpoint" in refusal(request(weights, weights.parent, model=str(model)))


@pytest.mark.parametrize(
    ("change", "tensor"),
    [
        (
            {"intermediate_size": 48},
            "mlp.linear_fc1.weight has shape [2, 80, 32]; the architecture asks for [2, 96, 32]",
        ),
        ({"num_hidden_layers": 3}, "has shape [2, "),
        ({"tie_word_embeddings": True}, "output_layer.weight has shape [48, 32]; the architecture asks for none"),
        ({"vocab_size": 64}, "embedding.word_embeddings.weight has shape [48, 32]"),
        ({"vocab_size": 32}, "embedding.word_embeddings.weight has shape [48, 32]"),
        ({"num_key_value_heads": 4}, "self_attention.linear_qkv.weight has shape [2, 128, 32]"),
    ],
)
def test_another_architecture(change: dict[str, object], tensor: str, tmp_path: Path, weights: Path) -> None:
    other = model_folder(tmp_path / "other", tied=False, **change)
    message = refusal(request(weights, tmp_path / "out", model=str(other)))
    assert tensor in message
    assert "--hf FOLDER" in message


@pytest.mark.parametrize(("name", "value"), [("rotary_base", 10000), ("num_attention_heads", 8), ("kv_channels", 8)])
def test_another_architecture_of_the_same_shapes(
    name: str, value: int, tmp_path: Path, model: Path, weights: Path
) -> None:
    """The trainer's own record knows what no shape shows."""
    (weights / "run_config.yaml").write_text(json.dumps({"model": {name: value}}))
    assert f"trained with {name} {value}" in refusal(request(weights, tmp_path / "out", model=str(model)))


def test_a_model_that_is_no_qwen3(tmp_path: Path, weights: Path) -> None:
    other = model_folder(tmp_path / "other", tied=False, architectures=["LlamaForCausalLM"])
    assert "LlamaForCausalLM" in refusal(request(weights, tmp_path / "out", model=str(other)))


def test_the_rope_base_is_read_where_either_transformers_writes_it(tmp_path: Path) -> None:
    config = hf_config(tied=False)
    for index, changes in enumerate(
        ({"rope_theta": 5e5}, {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}})
    ):
        folder = tmp_path / str(index)
        folder.mkdir()
        plain = {name: value for name, value in config.items() if name != "rope_theta"}
        (folder / "config.json").write_text(json.dumps(plain | changes))
        assert read_qwen3(folder).rope_theta == 5e5
    (folder / "config.json").write_text(json.dumps(plain))
    with pytest.raises(CheckpointError, match="does not state 'rope_theta'"):
        read_qwen3(folder)
    (folder / "config.json").write_text(json.dumps(plain | {"rope_scaling": {"rope_type": "yarn", "factor": 4}}))
    with pytest.raises(CheckpointError, match="scaled \\(yarn\\)"):
        read_qwen3(folder)


@pytest.mark.parametrize("part", ["config.yaml", "training_info.json", "policy/weights", "policy/tokenizer"])
def test_an_incomplete_step_of_nemo_rl(part: str, tmp_path: Path, model: Path, weights: Path) -> None:
    step = nemo_rl_step(tmp_path, weights, model)
    target = step / part
    shutil.rmtree(target) if target.is_dir() else target.unlink()
    assert f"no {part}; the NeMo-RL checkpoint is incomplete" in refusal(request(step, tmp_path / "out"))


def test_a_step_that_nemo_rl_had_not_finished(tmp_path: Path, model: Path, weights: Path) -> None:
    step = nemo_rl_step(tmp_path, weights, model)
    unfinished = step.rename(tmp_path / "tmp_step_1")
    assert "had not finished this step" in refusal(request(unfinished, tmp_path / "out"))


def test_a_tracker_that_names_an_iteration_that_is_not_there(tmp_path: Path, model: Path, weights: Path) -> None:
    (weights.parent / "latest_checkpointed_iteration.txt").write_text("7")
    assert "no iter_0000007" in refusal(request(weights.parent, tmp_path / "out", model=str(model)))


def test_a_model_without_tokenizer(tmp_path: Path, weights: Path, model: Path) -> None:
    (model / "tokenizer.json").unlink()
    assert "no tokenizer.json" in refusal(request(weights, tmp_path / "out", model=str(model)))


def test_what_says_no_architecture(tmp_path: Path, weights: Path) -> None:
    assert "--hf FOLDER" in refusal(request(weights, tmp_path / "out"))


def test_an_occupied_out(tmp_path: Path, huggingface: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("kept")
    assert "occupied" in refusal(request(huggingface, out))
    assert "occupied" in refusal(request(huggingface, huggingface / "config.json"))


def test_an_out_that_is_a_link(tmp_path: Path, huggingface: Path) -> None:
    """A finished folder takes its name by a rename, which cannot replace a link."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    assert "is a link" in refusal(request(huggingface, tmp_path / "link"))


@pytest.mark.parametrize("changes", [{}, {"direction": 5}, {"verification": {"sequences": [["x"]]}}, {"sha256": []}])
def test_a_damaged_record(changes: dict[str, object], tmp_path: Path) -> None:
    record = {"format": "nemo_uecr.conversion/1", "direction": "huggingface to megatron", "sha256": {}} | changes
    (tmp_path / "conversion.json").write_text(json.dumps(record))
    with pytest.raises(CheckpointError, match=r"conversion\.json: damaged"):
        read_record(tmp_path)


def test_a_journal_of_another_kind_begins_anew(tmp_path: Path) -> None:
    folder = tmp_path / ".out.partial"
    folder.mkdir()
    (folder / ".journal.json").write_text(json.dumps({"making": {}, "complete": [1]}))
    assert WorkFolder(folder, {}).hashes() == {}


def test_a_refusal_makes_no_folder_above_out(tmp_path: Path, model: Path, weights: Path) -> None:
    next(weights.glob("*.distcp")).unlink()
    with pytest.raises(CheckpointError, match="missing shard"):
        convert(request(weights, tmp_path / "new" / "out", model=str(model)))
    assert not (tmp_path / "new").exists()


def test_a_record_of_log_probabilities_is_looked_at_before_anything_is_made(
    tmp_path: Path, model: Path, weights: Path
) -> None:
    """By `--dry-run` too, which prepares and no more."""
    from safetensors.torch import save_file

    ids, lengths, logp = torch.ones(2, 3, dtype=torch.int64), torch.tensor([3, 2]), -torch.ones(2, 3)
    whole = {"token_ids": ids, "lengths": lengths, "logp": logp}
    path, asked = tmp_path / "recorded.safetensors", tmp_path / "out"
    wrong: list[tuple[dict[str, torch.Tensor], str]] = [
        ({name: tensor[:0] for name, tensor in whole.items()}, r"token_ids \[0, 3\]"),
        ({name: tensor.new_zeros(()) for name, tensor in whole.items()}, r"token_ids \[\], lengths \[\]"),
        ({"token_ids": ids[0], "lengths": ids[0], "logp": logp[0]}, r"token_ids \[3\], lengths \[3\]"),
        ({"logp": logp[:, :2]}, r"logp \[2, 2\]"),
        ({"lengths": lengths[:1]}, r"token_ids \[2, 3\], lengths \[1\]"),
        ({"token_ids": ids.float()}, r"token_ids is torch\.float32; expected torch\.int64"),
        ({"token_ids": ids.bool()}, r"token_ids is torch\.bool; expected torch\.int64"),
        ({"lengths": lengths.float()}, r"lengths is torch\.float32; expected torch\.int64"),
        ({"logp": ids}, r"logp is torch\.int64; expected torch\.float32"),
        ({"logp": logp.to(torch.float8_e4m3fn)}, r"logp is torch\.float8_e4m3fn; expected torch\.float32"),
        ({"logp": logp.bfloat16()}, r"logp is torch\.bfloat16; expected torch\.float32"),
        ({"logp": 0.5 - logp * 0}, r"logp has 0\.5; expected log-probabilities in nats, at most 0"),
        ({"lengths": lengths - 1}, "lengths run from 1 to 2; expected 2 to 3"),
        ({"lengths": -lengths}, "lengths run from -3 to -2; expected 2 to 3"),
        ({"lengths": lengths + 1}, "lengths run from 3 to 4; expected 2 to 3"),
        ({"token_ids": -ids}, "token_ids has -1; expected 0 to"),
        ({"token_ids": ids * 10**6}, "token_ids has 1000000; expected 0 to"),
        ({"token_ids": ids * 48}, "token_ids has 48; expected 0 to 47, the model's vocabulary"),
        ({"logp": logp / 0}, "logp is not finite"),
    ]
    for changes, message in wrong:
        save_file({name: tensor.clone() for name, tensor in (whole | changes).items()}, path)
        with pytest.raises(CheckpointError, match=message) as caught:
            prepare(request(weights, asked, model=str(model), recorded=path))
        assert "\n" not in str(caught.value)
    last = torch.tensor([[47, 47, 47], [47, 47, -1]])  # what stands behind a row is not looked at
    for accepted in (whole, whole | {"token_ids": last}):
        save_file(accepted, path)
        prepare(request(weights, asked, model=str(model), recorded=path))
    save_file({"token_ids": ids, "lengths": lengths}, path)
    with pytest.raises(CheckpointError, match="no tensor logp; expected token_ids, lengths, logp"):
        prepare(request(weights, asked, model=str(model), recorded=path))
    path.write_bytes(b"x" * 30)
    with pytest.raises(CheckpointError, match="unreadable"):
        prepare(request(weights, asked, model=str(model), recorded=path))
    assert not asked.exists()


def test_two_conversions_into_one_folder(tmp_path: Path, huggingface: Path) -> None:
    with only_one(tmp_path / "out"), pytest.raises(CheckpointError, match="another process is converting into it"):
        convert(request(huggingface, tmp_path / "out"))


def test_the_format_that_it_has_already(tmp_path: Path, huggingface: Path) -> None:
    asked = request(huggingface, tmp_path / "out", into="huggingface")
    assert "already huggingface" in refusal(asked)


def test_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such folder"):
        find_source(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="no checkpoint; expected a Megatron folder"):
        find_source(tmp_path)
