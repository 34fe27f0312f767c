"""The demo's files: made once, complete or absent, known by their names."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from nemo_uecr import paths
from nemo_uecr.demo import cache
from nemo_uecr.errors import DataError
from nemo_uecr.stopping import listening
from tests.demo.small import tiny_model

MODEL = tiny_model(steps=2, tokens_per_batch=100)
RECIPE = cache.RecipeConfig(student=MODEL, teacher=MODEL, train_problems=30, bench_problems=4)


@pytest.mark.slow  # models are trained in their own processes
def test_the_demo_is_prepared_once(tmp_path: Path) -> None:
    folder = cache.ensure_demo(tmp_path, RECIPE, seed=3)
    assert cache.ensure_demo(tmp_path, RECIPE, seed=3) == folder
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == [folder]

    from transformers import AutoModelForCausalLM, AutoTokenizer

    for name in cache.MODELS:
        model = AutoModelForCausalLM.from_pretrained(folder / name)
        tokenizer = AutoTokenizer.from_pretrained(folder / name)
        assert model.config.vocab_size == len(tokenizer)
        assert model.config.eos_token_id == tokenizer.eos_token_id
    sizes = {path.name: len(path.read_text().splitlines()) for path in folder.rglob("*.jsonl")}
    assert sizes == {"train.jsonl": 30} | {f"level{level}.jsonl": 4 for level in range(1, 6)}


def test_a_failed_training_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache, "work_on", full)
    with pytest.raises(cache.RunFolderError, match="No space"):
        cache.ensure_demo(tmp_path, RECIPE, seed=3)
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []


def test_a_signal_ends_the_preparation_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no step under way and nothing to save; afterwards a signal asks for a saved step again."""
    monkeypatch.setattr(cache, "ensure_demo", lambda *_, **__: signal.raise_signal(signal.SIGTERM))
    with listening() as heard:
        with pytest.raises(KeyboardInterrupt):
            cache.resolve_path("demo:student")
        assert not heard.asked
        signal.raise_signal(signal.SIGTERM)
        assert heard.asked


def test_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where a name is only located, nothing is made; any other name stands for itself."""
    monkeypatch.setenv("NEMO_UECR_CACHE", str(tmp_path))
    folder = cache.demo_folder(tmp_path, cache.RECIPE, seed=cache.SEED)
    assert paths.locate_path("demo:train") == str(folder / "train.jsonl")
    assert list(tmp_path.iterdir()) == []
    folder.mkdir()
    assert paths.resolve_path("demo:student") == str(folder / "student")
    assert paths.resolve_path("demo:bench/level5") == str(folder / "bench/level5.jsonl")
    with pytest.raises(DataError, match="demo:bench/level5"):
        paths.resolve_path("demo:bench/level6")
    for name in ("Qwen/Qwen3-1.7B", "runs/demo:1/train.jsonl", "C:/models/student", "demo"):
        assert paths.resolve_path(name) == paths.locate_path(name) == name
