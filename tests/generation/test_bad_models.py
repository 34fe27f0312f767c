"""`nemo-uecr evaluate` on models that would mislead it: hostile, damaged, too short, diverged, or repaired since."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from nemo_uecr.cli.main import entry_point
from nemo_uecr.generation.engines import check_model
from tests.local import tiny
from tests.reliability.commands import refused


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny.assets().student, tmp_path / "m"))


def evaluate(model: Path, tmp_path: Path, most: int = 3) -> tuple[object, ...]:
    sets = ("--benchmarks", tiny.assets().problems, "--samples", 1, "--max-tokens", most)
    return ("evaluate", model, *sets, "--engine", "transformers", "--dtype", "float32", "--out", tmp_path / "e")


def refusing_template(model: Path) -> None:
    (model / "chat_template.jinja").write_text("{{ raise_exception('no system') }}")


def half_the_weights(model: Path) -> None:
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def weights_that_diverged(model: Path) -> None:
    path = model / "model.safetensors"
    save_file({name: torch.full_like(value, math.nan) for name, value in load_file(path).items()}, path)


def no_end_token(model: Path) -> None:
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        there = json.loads((model / name).read_text())
        (model / name).write_text(json.dumps({key: None if "eos" in key else value for key, value in there.items()}))


def template_that_takes_parts(model: Path) -> None:
    template = "{% for part in messages[-1]['content'] %}{{ part['text'] }}{% endfor %}"
    (model / "chat_template.jinja").write_text(template)


def more_tokens_than_rows(model: Path) -> None:
    weights, config = model / "model.safetensors", json.loads((model / "config.json").read_text())
    tensors = load_file(weights)
    cut = {name: value[:100].clone() if value.shape[0] == 292 else value for name, value in tensors.items()}
    save_file(cut, weights, metadata={"format": "pt"})
    (model / "config.json").write_text(json.dumps(config | {"vocab_size": 100}))


def no_template(model: Path) -> None:
    (model / "chat_template.jinja").unlink()


def not_causal(model: Path) -> None:
    path = model / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"is_causal": False}))


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "no template to place a system prompt": (no_template, "no chat template"),
    "a template that refuses": (refusing_template, "no system"),
    "a template that takes parts": (template_that_takes_parts, "drops the system turn 'Be brief.'"),
    "more tokens than rows": (more_tokens_than_rows, "a prompt has token id 291, "),
    "half the weights": (half_the_weights, "SafetensorError"),
    "weights that diverged": (weights_that_diverged, "not finite"),
    "a model that is not causal": (not_causal, "read what follows a token"),
    "no end token": (no_end_token, "because a response ends with it"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_one_line(model: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    damage, said = DAMAGES[name]
    damage(model)
    assert said in refused(capsys, *evaluate(model, tmp_path), "--system-prompt", "Be brief.")
    assert not list(tmp_path.glob("e/**/*.parquet"))


def test_pickled_weights_are_refused(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By a run and by a dry run; beside safetensors they are left alone."""
    opened: list[object] = []
    torch.save(load_file(model / "model.safetensors"), model / "pytorch_model.bin")
    check_model(str(model))
    (model / "model.safetensors").unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "load", lambda file, **_: opened.append(file))
        refused(capsys, *evaluate(model, tmp_path))
        assert "pickled" in refused(capsys, *evaluate(model, tmp_path), "--dry-run")
    assert opened == []


def test_weights_that_do_not_fit_are_refused_before_anything_is_drawn(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By a dry run, too; and files among which libraries would choose differently by both."""
    stated = (model / "config.json").read_text()
    (model / "config.json").write_text(json.dumps(json.loads(stated) | {"attention_bias": True}))
    for more in ((), ("--dry-run",)):
        assert "lacks 8 weights (model.layers.0.self_attn.k_proj.bias" in refused(
            capsys, *evaluate(model, tmp_path), *more
        )
    (model / "config.json").write_text(stated)
    shutil.copy(model / "model.safetensors", model / "consolidated.safetensors")
    for more in ((), ("--dry-run",)):
        assert "beside it consolidated.safetensors" in refused(capsys, *evaluate(model, tmp_path), *more)


def test_a_mistyped_path_is_named_before_a_missing_engine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)  # what Python itself takes for not installed
    words = ["vllm" if word == "transformers" else word for word in evaluate(Path("/no/such"), tmp_path)]
    assert "no such folder" in refused(capsys, *words)


def test_problems_in_a_models_place_are_named(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "evaluate", model, "held_out.jsonl", "--max-tokens", 3, "--out", tmp_path / "e")
    assert "held_out.jsonl" in said
    assert "--benchmarks" in said


def test_a_repaired_model_is_evaluated_in_the_same_place_and_a_changed_one_is_not(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    positions = json.loads((model / "config.json").read_text())["max_position_embeddings"]
    assert f"reads at most {positions}" in refused(capsys, *evaluate(model, tmp_path, most=positions))
    assert not list((tmp_path / "e").glob("**/*.parquet"))
    assert entry_point([str(word) for word in evaluate(model, tmp_path)]) == 0
    weights_that_diverged(model)
    assert "--out" in refused(capsys, *evaluate(model, tmp_path))
