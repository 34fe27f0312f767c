"""Runs that cannot work are refused in one line before NeMo-RL is looked for and before a folder is made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nemo_uecr.cli.main import entry_point
from nemo_uecr.config.nemo_load import load_nemo_config
from nemo_uecr.errors import ConfigError, DataError, UecrError
from nemo_uecr.nemo_adapter import launcher
from nemo_uecr.nemo_adapter.preflight import check_models
from tests.config.test_nemo import CONFIGS

#: A dense Qwen3 with 4 layers, 4 heads and 256 positions.
SIZES = {
    "model_type": "qwen3", "vocab_size": 98, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 4, "head_dim": 8, "intermediate_size": 64, "tie_word_embeddings": True,
    "max_position_embeddings": 4096, "architectures": ["Qwen3ForCausalLM"],
}  # fmt: skip
FITS = ["train.tokens_per_microbatch=4096", "scoring.tokens_per_microbatch=4096", "rollout.max_response_tokens=2048"]


def world(folder: Path) -> list[str]:
    """Two models, a problem file and the keys that name them."""
    for role in ("student", "teacher"):
        (folder / role).mkdir()
        (folder / role / "config.json").write_text(json.dumps(SIZES))
    rows = [{"question": f"{n}+1", "final_answer": str(n + 1), "difficulty": 6} for n in range(200)]
    (folder / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "empty.jsonl").write_text("")
    (folder / "keys.jsonl").write_text('{"problem": "1+1", "final_answer": "2", "difficulty": 6}\n' * 200)
    return [
        f"student.model_name={folder}/student", f"teacher.model_name={folder}/teacher", "student.vocabulary=98",
        f"data.train={folder}/p.jsonl", f"run.folder={folder}/run", *FITS,
    ]  # fmt: skip


BAD = {
    "student.parallel.pipeline=8": "student.parallel.pipeline: got 8, expected a divisor of the model's 4 layers",
    "teacher.parallel.pipeline=8": "teacher.parallel.pipeline: got 8",
    "student.parallel.tensor=8": "student.parallel.tensor: got 8, expected a divisor of 4",
    "teacher.parallel.tensor=8": "teacher.parallel.tensor: got 8",
    "rollout.tensor=8": "rollout.tensor: got 8, expected one of 1, 2, 4; the student has 4 query heads",
    "rollout.max_response_tokens=3000": "the student was made for 4096 positions",
    "student.vocabulary=97": "student.vocabulary=97, but the student has 98",
    "data.train={}/empty.jsonl": "no problem is left",
    "data.train={}/keys.jsonl": "no text under 'question'",
    "data.subset=100": "100 problems are left to train on; expected at least rollout.prompts_per_step=126",
    "data.train={}/none.jsonl": "no such file",
}


@pytest.mark.parametrize("change", BAD)
def test_what_cannot_work_is_refused_by_both_commands(
    change: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [*world(tmp_path), change.format(tmp_path)]
    if "max_response" in change:
        given += ["train.tokens_per_microbatch=9000", "scoring.tokens_per_microbatch=9000"]
    for command in (["config", "check"], ["train"]):
        assert entry_point([*command, str(CONFIGS / "uecr_qwen3_1p7b.yaml"), *given]) == 2
        said = capsys.readouterr().err.strip().splitlines()
        assert BAD[change] in said[-1]
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("student.megatron_checkpoint={}/none", "student.megatron_checkpoint: .*none has no run_config.yaml"),
        ("teacher.megatron_checkpoint={}/student", "teacher.megatron_checkpoint: .*student has no run_config.yaml"),
        ("student.model_name={}/none", "student.model_name: no folder .*none"),
        ("teacher.model_name=none", "teacher.model_name: no folder none"),
        ("teacher.model_name=[a,b]", r"teacher.model_name: no folder \[a,b\]"),
        ("teacher.model_name=none/such", "teacher.model_name: the config.json of 'none/such' cannot be loaded"),
        ("student.parallel.pipeline=8", "student.parallel.pipeline: got 8"),
    ],
)
def test_models_that_are_not_there(change: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    config = load_nemo_config(CONFIGS / "uecr_qwen3_1p7b.yaml", [*world(tmp_path), change.format(tmp_path)])
    with pytest.raises((DataError, ConfigError), match=message) as found:
        check_models(config)
    assert "\n" not in str(found.value)


def test_a_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher.upstream, "check", lambda: "0.7.0")
    monkeypatch.setattr(launcher, "check_models", lambda config: None)
    (tmp_path / "file").write_text("")
    config = load_nemo_config(CONFIGS / "uecr_qwen3_1p7b.yaml", [*world(tmp_path), f"run.folder={tmp_path}/file/run"])
    with pytest.raises(UecrError, match=r"run\.folder: .* cannot be made"):
        launcher.train(config, resume=False, origins={}, objective="")


def test_config_check_says_what_it_did_not_see(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = world(tmp_path)
    check = ["config", "check", str(CONFIGS / "uecr_qwen3_1p7b.yaml"), *given]
    assert entry_point(check) == 0
    assert "is not here" not in capsys.readouterr().out
    assert entry_point([*check, f"teacher.model_name={tmp_path}/elsewhere"]) == 0
    assert "its layout and lengths are checked when the run starts" in capsys.readouterr().out
