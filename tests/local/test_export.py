"""`nemo-uecr export`: the trained model as one ordinary folder, the same as what was trained."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import AutoPeftModelForCausalLM
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from nemo_uecr.cli.main import entry_point
from nemo_uecr.errors import DataError
from nemo_uecr.evaluation.runner import model_digest
from nemo_uecr.generation.adapter import CONFIG, WEIGHTS, base_of, load_causal_lm
from nemo_uecr.generation.models import load_tokenizer, save_pretrained
from nemo_uecr.plan.shapes import shape_of
from tests.local.tiny import assets, configured, evaluation, every, run
from tests.reliability.commands import refused
from tests.start.looking import MODELS, TOKENIZERS, found

IDS = torch.arange(12).unsqueeze(0)


@pytest.fixture(scope="module")
def lora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lora") / "run"
    return run(folder, *every(), "student.lora_rank=4", "train.learning_rate=0.03", "checkpoint.keep_best=true")


def logits(folder: Path, kind: Any = AutoModelForCausalLM) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = kind.from_pretrained(folder, dtype=torch.float32).eval()(IDS).logits
    return found


def test_an_adapter_is_merged_into_a_model_that_needs_nothing_of_ours(
    lora: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert entry_point(["export", str(lora), "--merged", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    source = next(path for path in lora.glob("checkpoints/step-*") if path.name in said)
    trained, _ = load_causal_lm(str(source), local_files_only=True, dtype=torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(logits(tmp_path / "out"), trained(IDS).logits, rtol=0, atol=2e-5)
    torch.testing.assert_close(logits(source, AutoPeftModelForCausalLM), trained(IDS).logits, rtol=0, atol=2e-5)
    assert not (tmp_path / "out" / "adapter_config.json").exists()
    assert entry_point(["export", str(source), "--merged", str(tmp_path / "low"), "--dtype", "bfloat16"]) == 0
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "low").dtype == torch.bfloat16


def test_an_adapter_that_peft_saved_is_a_teacher_and_is_merged(lora: Path, tmp_path: Path) -> None:
    """Without its base's config.json and end tokens; whole modules beside the adapter are not read."""
    foreign = Path(shutil.copytree(min(lora.glob("checkpoints/step-*")), tmp_path / "adapter"))
    for path in foreign.iterdir():
        if not path.name.startswith(("adapter_", "tokenizer", "chat_template")):
            path.unlink()
    asked = ("train.steps=1", f"teacher.model_name={foreign}")
    run(tmp_path / "run", *asked)
    config = configured(tmp_path / "other", *asked).config
    assert shape_of(str(foreign), role="teacher").layers == 2
    seen = found(config, *MODELS, *TOKENIZERS)
    assert {status for check, (status, _) in seen.items() if check.startswith("teacher")} == {"ok"}
    assert entry_point(["export", str(foreign), "--merged", str(tmp_path / "out")]) == 0
    changed = json.loads((foreign / CONFIG).read_text()) | {"modules_to_save": ["lm_head"]}
    (foreign / CONFIG).write_text(json.dumps(changed))
    with pytest.raises(DataError, match=r"teacher\.model_name: .* \(modules_to_save\).* merge_and_unload"):
        run(tmp_path / "whole", *asked)


def test_saving_an_adapter_asks_no_hub(lora: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for a base with a hub's name either; and the files are those that peft reads."""
    source = min(lora.glob("checkpoints/step-*"))
    model, _ = load_causal_lm(str(source), local_files_only=True, dtype=torch.float32)
    model.peft_config["default"].base_model_name_or_path = "owner/name"
    monkeypatch.setattr("peft.utils.other.file_exists", lambda *_, **__: pytest.fail("it asked the hub"))
    save_pretrained(model, load_tokenizer(str(source), local_files_only=True), tmp_path)
    assert base_of(tmp_path) == "owner/name"
    saved, before = (load_file(folder / WEIGHTS) for folder in (tmp_path, source))
    assert saved.keys() == before.keys()
    assert all(torch.equal(saved[name], before[name]) for name in before)


def test_an_adapter_needs_the_base_it_was_trained_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = shutil.copytree(assets().student, tmp_path / "base")
    folder = run(tmp_path / "run", *every(), f"student.model_name={base}", "student.lora_rank=2")
    source, weights = folder / "checkpoints" / "step-000002", base / "model.safetensors"
    commands = (("export", folder, "--merged", tmp_path / "out"), evaluation(folder, tmp_path / "evaluated"))
    before, digest = weights.read_bytes(), model_digest(str(source))
    weights.write_bytes(before[:-1] + b"\0")
    for words in commands:
        assert f"{weights} changed since {source} was trained on it" in refused(capsys, *words)
    assert model_digest(str(source)) != digest
    weights.write_bytes(before)
    base.rename(tmp_path / "moved")
    for words in commands:
        assert f"base is not at {base}; correct base_model_name_or_path there" in refused(capsys, *words)
    (source / CONFIG).write_text((source / CONFIG).read_text().replace(str(base), str(tmp_path / "moved")))
    for words in commands:
        assert entry_point([*map(str, words)]) == 0


def test_a_run_without_an_adapter_is_copied(trained: Path, tmp_path: Path) -> None:
    assert entry_point(["export", str(trained), "--merged", str(tmp_path / "out")]) == 0
    assert torch.equal(logits(tmp_path / "out"), logits(trained / "checkpoints" / "step-000002"))
    assert not {"optimizer.pt", "manifest.json"} & {path.name for path in (tmp_path / "out").iterdir()}


def test_what_cannot_be_exported(tmp_path: Path, lora: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert entry_point(["export", str(tmp_path), "--merged", str(tmp_path / "out")]) == 2
    assert entry_point(["export", str(lora), "--merged", str(lora)]) == 2
    said = capsys.readouterr().err
    assert "no checkpoints/step-*" in said
    assert "occupied" in said
