"""The commands on problems and models that are measured: `data`, and `evaluate` by the demo's names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nemo_uecr.cli.main import entry_point
from tests.data.made import BENCHMARK, clean_rows, deepmath_row, write_benchmark, write_jsonl
from tests.reliability.commands import refused


def test_prepare_apply_verify_and_a_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Five rows are clean, one is a benchmark's, and one is held until the review file says to keep it."""
    near = deepmath_row(" ".join(BENCHMARK[2].split()[:7]))
    source = str(write_jsonl(tmp_path / "s.jsonl", [*clean_rows(5), deepmath_row(BENCHMARK[0]), near]))
    out, screen = tmp_path / "out", str(write_benchmark(tmp_path))
    words = ["data", "prepare", "--source", source, "--screen", screen, "--difficulty", "5", "7", "--out", str(out)]
    assert entry_point(words) == 0
    told = capsys.readouterr().out
    assert "removed        1  screen_exact" in told
    assert "kept           5" in told
    review = tmp_path / "mine.csv"
    filled = (out / "screening/review.csv").read_text(encoding="utf-8").replace(",,", ",Keep,", 1)
    review.write_text(filled, encoding="utf-8-sig")
    assert entry_point(["data", "apply", str(out), "--review", str(review)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "1 held rows kept, 0 dropped"
    assert entry_point(["data", "verify", str(out)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("0 faults")
    (out / "train.jsonl").write_text("", encoding="utf-8")
    assert entry_point(["data", "verify", str(out)]) == 1
    assert "fault: train.jsonl: content changed" in capsys.readouterr().out


def test_evaluate_knows_the_demos_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A demo that is already prepared, its student a tiny model."""
    from nemo_uecr.demo.cache import RECIPE, SEED, cache_root, demo_folder
    from tests.evaluation.tiny import save_model

    monkeypatch.setenv("NEMO_UECR_CACHE", str(tmp_path / "cache"))
    root, out = demo_folder(cache_root(), RECIPE, seed=SEED), tmp_path / "out"
    save_model(root / "student", seed=0)
    (root / "bench").mkdir()
    write_jsonl(root / "bench" / "level1.jsonl", [{"id": "p", "question": "1+1?", "answer": "2"}])
    words = ["--engine", "transformers", "--samples", "1", "--max-tokens", "2", "--dtype", "float32", "--out", out]
    assert "demo:studnt: no such part of the demo" in refused(capsys, "evaluate", "demo:studnt", *words)
    assert not out.exists()
    call = ["evaluate", "demo:student", "--benchmarks", "easy=demo:bench/level1", *map(str, words)]
    assert entry_point(call) == 0
    assert [*json.loads((out / "student" / "result.json").read_text())["sets"]] == ["easy"]
    assert json.loads((out / "student" / "settings.json").read_text())["model"]["name"] == str(root / "student")
