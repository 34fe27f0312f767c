"""Evaluation during a NeMo-RL run, with workers that know the answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nemo_uecr.config.load import load_nemo_config
from nemo_uecr.errors import DataError
from nemo_uecr.nemo import evaluation, upstream
from nemo_uecr.nemo.evaluation import training_evaluation
from tests.config.shipped import CONFIGS, GRPO
from tests.nemo.inside.launched import examined, make_benchmarks, make_tokenizer


def configuration(folder: Path, *changes: str) -> Any:
    pytest.importorskip("transformers")
    make_tokenizer(folder / "student")
    given = [
        f"run.folder={folder / 'run'}", f"student.model_name={folder / 'student'}", "data.verifier_workers=1",
        "evaluation.samples=2", *make_benchmarks(folder),
    ]  # fmt: skip
    return load_nemo_config(CONFIGS / "uecr_qwen3_1p7b.yaml", [*GRPO, *given, *changes])


def test_each_set_has_its_own_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "generation_leaders", lambda generation: [])
    monkeypatch.setattr(evaluation, "answers_of", examined)
    evaluate = training_evaluation(configuration(tmp_path))
    assert evaluate is not None
    metrics, timings = evaluate("the generation object", 20)
    expected = {"easy/avg@2": 1.0, "hard/avg@2": 0.5, "average/avg@2": 0.75, "accuracy": 0.75}
    assert metrics == expected | {"easy/pass@2": 1.0, "hard/pass@2": 1.0, "truncated_share": 0.25}
    assert timings["total_validation_time"] >= 0
    lines = (tmp_path / "run" / "evaluations" / "step-000020.jsonl").read_text().splitlines()
    assert [json.loads(line)["verdict"] for line in lines[3:6]] == ["correct", "correct", "no_answer"]


def test_a_prompt_that_does_not_fit_is_refused_before_the_run(tmp_path: Path) -> None:
    config = configuration(tmp_path, "data.max_prompt_tokens=20")
    with pytest.raises(DataError, match=r"benchmark easy: .*; the first is problem '3'"):
        training_evaluation(config)
