"""`evaluate` by the names that the other commands know."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("math_verify")

from nemo_uecr.cli.main import entry_point
from nemo_uecr.study.demo import RECIPE, SEED, cache_root, demo_folder
from tests.evaluation.tiny import save_model

LITTLE = ("--engine", "transformers", "--samples", "1", "--max-tokens", "2")


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A demo that is already prepared, its student a tiny model."""
    monkeypatch.setenv("NEMO_UECR_CACHE", str(tmp_path / "cache"))
    root = demo_folder(cache_root(), RECIPE, seed=SEED)
    save_model(root / "student", seed=0)
    (root / "bench").mkdir()
    row = {"id": "p", "question": "1+1?", "answer": "2"}
    (root / "bench" / "level1.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    return root


def test_the_demos_names_are_known(demo: Path, tmp_path: Path) -> None:
    words = ["evaluate", "demo:student", "--benchmarks", "easy=demo:bench/level1"]
    out = tmp_path / "out"
    assert entry_point([*words, *LITTLE, "--dtype", "float32", "--out", str(out)]) == 0
    result = json.loads((out / "student" / "result.json").read_text())
    assert [*result["sets"]] == ["easy"]
    assert json.loads((out / "student" / "settings.json").read_text())["model"]["name"] == str(demo / "student")


def test_a_mistyped_demo_name_is_one_line(demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["evaluate", "demo:studnt", "--benchmarks", "demo:bench/level1"]
    assert entry_point([*words, *LITTLE, "--out", str(tmp_path / "out")]) == 2
    assert "demo:studnt: no such part of the demo; expected one of demo:student" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
