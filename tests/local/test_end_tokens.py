"""What ends a response belongs to the model: every folder that is made of one ends where it ended."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from nemo_uecr.checkpoint.export import export
from nemo_uecr.cli.main import entry_point
from nemo_uecr.data.adapter import CONFIG, add_adapter, load_causal_lm
from nemo_uecr.data.models import GENERATION, load_tokenizer, save_pretrained
from nemo_uecr.evaluation.engines import load_tokens
from tests.local import tiny

#: How a folder states its end tokens, and which they are: generation_config.json, config.json, the tokenizer's.
STATED: dict[str, tuple[dict[str, Any] | None, dict[str, Any], str, set[int]]] = {
    "a list beside one of config.json": ({"eos_token_id": [1, 0]}, {"eos_token_id": 0}, "<|endoftext|>", {0, 1}),
    "the tokenizer's beside another": ({"eos_token_id": 1}, {"eos_token_id": 1}, "<|im_end|>", {1, 2}),
    "config.json alone": (None, {"eos_token_id": [1, 0]}, "<|endoftext|>", {0, 1}),
    "config.json beside settings of sampling": ({"top_p": 0.9}, {"eos_token_id": 1}, "<|im_end|>", {1, 2}),
    "none beside the tokenizer's": ({"eos_token_id": None}, {"eos_token_id": None}, "<|im_end|>", {2}),
}


def ending(folder: Path, generation: dict[str, Any] | None, config: dict[str, Any], eos: str) -> Path:
    """The tiny student as a folder that states its end tokens so."""
    shutil.copytree(tiny.STUDENT, folder)
    for name, values in (("config.json", config), ("tokenizer_config.json", {"eos_token": eos})):
        (folder / name).write_text(json.dumps(json.loads((folder / name).read_text()) | values))
    (folder / GENERATION).unlink()
    if generation is not None:
        (folder / GENERATION).write_text(json.dumps(generation))
    return folder


@pytest.mark.parametrize("stated", STATED)
def test_weights_adapters_and_exports_end_where_their_base_does(stated: str, tmp_path: Path) -> None:
    generation, config, eos, expected = STATED[stated]
    base = ending(tmp_path / "base", generation, config, eos)
    assert load_tokens(str(base)).end_ids == expected
    tokenizer = load_tokenizer(str(base), local_files_only=True)
    for kind in ("weights", "adapter"):
        model, _ = load_causal_lm(str(base), local_files_only=True, dtype=torch.float32)
        if kind == "adapter":
            add_adapter(model, rank=2, alpha=4.0, seed=0)
        saved, out = tmp_path / kind, tmp_path / f"{kind}-exported"
        saved.mkdir()
        save_pretrained(model, tokenizer, saved)
        export(saved, out, dtype="float32", tolerance=1e-3)
        assert [load_tokens(str(folder)).end_ids for folder in (saved, out)] == [expected, expected]
        for folder in (saved, out):  # for those who read the file themselves
            kept = json.loads((folder / GENERATION).read_text()).get("eos_token_id")
            assert kept == (config if generation is None else generation).get("eos_token_id")


def test_an_adapter_without_the_file_ends_as_its_base_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those written before: their folder has the base's config.json alone."""
    cache = tmp_path / "models--owner--base"
    base = ending(cache / "snapshots" / "1", {"eos_token_id": [1, 0]}, {"eos_token_id": 0}, "<|endoftext|>")
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("1")
    monkeypatch.setattr("transformers.utils.hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    saved = Path(shutil.copytree(base, tmp_path / "adapter"))
    (saved / GENERATION).unlink()
    (saved / CONFIG).write_text('{"base_model_name_or_path": "owner/base"}')
    assert load_tokens(str(saved)).end_ids == {0, 1}


def test_the_end_tokens_of_a_nested_configuration(tmp_path: Path) -> None:
    nested = {"eos_token_id": None, "text_config": {"eos_token_id": [1, 0]}}
    assert load_tokens(str(ending(tmp_path / "model", None, nested, "<|endoftext|>"))).end_ids == {0, 1}


def test_a_trained_adapter_answers_as_it_did_in_its_run(tmp_path: Path) -> None:
    """The student ends with token 2, which generation_config.json alone names; merged, it answers the same."""
    base = ending(tmp_path / "base", {"eos_token_id": [2, 0]}, {"eos_token_id": 0}, "<|endoftext|>")
    run = tiny.run(tmp_path / "run", *tiny.every(), f"student.model_name={base}", "student.lora_rank=2")
    inside = rows(run / "evaluations" / "step-000002.jsonl")
    assert not all(row["truncated"] for row in inside)
    assert entry_point(["export", str(run), "--merged", str(tmp_path / "merged")]) == 0
    config = tiny.configured(run, *tiny.every()).config.evaluation
    settings = {name: getattr(config, name) for name in ("samples", "temperature", "top_p", "top_k", "seed")}
    options = [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    models = [f"saved={run / 'checkpoints' / 'step-000002'}", f"merged={tmp_path / 'merged'}"]
    words = ["evaluate", *models, "--benchmarks", f"a={tiny.assets().problems}", "--max-tokens", "6"]
    assert entry_point([*words, *options, "--engine", "transformers", "--out", str(tmp_path / "e")]) == 0
    for label in ("saved", "merged"):
        (file,) = (tmp_path / "e" / label).glob("samples*.jsonl")
        assert [row["token_ids"] for row in rows(file)] == [row["token_ids"] for row in inside]


def rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]
