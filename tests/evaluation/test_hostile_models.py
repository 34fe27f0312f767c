"""`nemo-uecr evaluate` on models that would mislead it: hostile, too short, diverged, or repaired since."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from nemo_uecr.cli.evaluate_options import check_model
from nemo_uecr.cli.main import entry_point
from nemo_uecr.errors import DataError
from tests.local import tiny
from tests.reliability.commands import refused


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny.assets().student, tmp_path / "m"))


def change(path: Path, **values: object) -> None:
    there = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps(there | values))


def words(model: Path, tmp_path: Path, most: int = 3) -> tuple[object, ...]:
    sets = ("--benchmarks", tiny.assets().problems, "--samples", 1, "--max-tokens", most)
    return ("evaluate", model, *sets, "--engine", "transformers", "--dtype", "float32", "--out", tmp_path / "e")


def template(text: object) -> Callable[[Path], None]:
    def damage(model: Path) -> None:
        (model / "chat_template.jinja").unlink(missing_ok=True)
        change(model / "tokenizer_config.json", chat_template=text)

    return damage


def config(**values: object) -> Callable[[Path], None]:
    return lambda model: change(model / "config.json", **values)


def generation(**values: object) -> Callable[[Path], None]:
    return lambda model: change(model / "generation_config.json", **values)


def tokenizer(**values: object) -> Callable[[Path], None]:
    return lambda model: change(model / "tokenizer_config.json", **values)


def text(name: str, content: str) -> Callable[[Path], object]:
    return lambda model: (model / name).write_text(content)


def half_the_weights(model: Path) -> None:
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def weights_that_diverged(model: Path) -> None:
    path = model / "model.safetensors"
    save_file({name: torch.full_like(value, math.nan) for name, value in load_file(path).items()}, path)


def no_end_token(model: Path) -> None:
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        change(model / name, eos_token_id=None, eos_token=None, pad_token=None, pad_token_id=None)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a template that refuses": (template("{{ raise_exception('no system') }}"), "TemplateError: no system"),
    "a template that escapes": (template("{{ ''.__class__.__mro__ }}"), "SecurityError"),
    "half a template": (template("{% for %}"), "TemplateSyntaxError"),
    "a template of nothing there": (template("{{ a.b.c }}"), "UndefinedError"),
    "a template that divides": (template("{{ 1/0 }}"), "ZeroDivisionError"),
    "a template without text": (template(""), "has no token"),
    "a number as template": (template(5), "TypeError"),
    "a template without end": (template("{{ 'a'*100000 }}"), "max_position_embeddings"),
    "a width in words": (config(hidden_size="abc"), "cannot be read"),
    "no heads": (config(num_attention_heads=0), "cannot be loaded"),
    "no layers": (config(num_hidden_layers=None), "cannot be read"),
    "a list of types": (config(model_type=["qwen3"]), "m'"),
    "a type that is a module": (config(dtype="os", torch_dtype="os"), "m'"),
    "a quantisation": (config(quantization_config={"quant_method": "gptq"}), "cannot be loaded"),
    "a quantisation in words": (config(quantization_config="x"), "cannot be read"),
    "end tokens in words": (generation(eos_token_id=["a"]), "eos_token_id holds 'a'"),
    "a list of settings": (text("generation_config.json", "[1]"), "generation_config.json"),
    "an end token as number": (tokenizer(eos_token=5), "m'"),
    "a list of special tokens": (text("special_tokens_map.json", "[1]"), "m'"),
    "half the weights": (half_the_weights, "SafetensorError"),
    "weights that diverged": (weights_that_diverged, "NaN"),
    "no end token": (no_end_token, "because a response ends with it"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_one_line(model: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    damage, said = DAMAGES[name]
    damage(model)
    assert said in refused(capsys, *words(model, tmp_path))


def test_pickled_weights_are_refused(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By a run and by one that only looks; beside safetensors they are left alone."""
    opened: list[object] = []
    torch.save(load_file(model / "model.safetensors"), model / "pytorch_model.bin")
    check_model(str(model))
    (model / "model.safetensors").unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "load", lambda file, **_: opened.append(file))
        assert "cannot be loaded: OSError" in refused(capsys, *words(model, tmp_path))
        said = refused(capsys, *words(model, tmp_path), "--dry-run")
    assert said.startswith(f"{model}: its weights are pickled (*.bin), and reading those can run code; expected ")
    assert opened == []


def test_a_repaired_model_is_evaluated_in_the_same_place(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = model / "model.safetensors"
    whole = weights.read_bytes()
    half_the_weights(model)
    refused(capsys, *words(model, tmp_path))
    weights.write_bytes(whole)
    assert entry_point([str(word) for word in words(model, tmp_path)]) == 0
    half_the_weights(model)
    assert "choose another --out" in refused(capsys, *words(model, tmp_path))


def test_a_sequence_longer_than_the_model_reads(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    positions = json.loads((model / "config.json").read_text())["max_position_embeddings"]
    assert f"reads at most {positions}" in refused(capsys, *words(model, tmp_path, most=positions))
    assert not (tmp_path / "e" / "m" / "samples.jsonl").exists()


@pytest.mark.parametrize(
    "values",
    [
        {"attn_implementation": "someone/kernel"},
        {"_attn_implementation": "someone/kernel:forward"},
        {"experts_implementation": {"": "sdpa", "text_config": "someone/kernel"}},
        {"text_config": {"attn_implementation": "someone/kernel"}},
    ],
)
def test_a_kernel_of_the_hub_is_not_fetched(
    model: Path, tmp_path: Path, values: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    change(model / "config.json", **values)
    assert "a kernel: code to be fetched and run" in refused(capsys, *words(model, tmp_path))
    assert "a kernel: code" in refused(
        capsys, *tiny.train_words(tiny.assets(), tmp_path / "run", f"teacher.model_name={model}")
    )


def test_weights_of_another_name_are_not_read(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """transformers would read them, and vLLM model.safetensors."""
    shutil.copy(model / "model.safetensors", model / "other.safetensors")
    change(model / "config.json", transformers_weights="other.safetensors")
    assert "transformers_weights in config.json names another file" in refused(capsys, *words(model, tmp_path))


def test_an_adapter_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(DataError, match="an adapter without its base model; expected a whole model: merge the two"):
        check_model(str(tmp_path))
