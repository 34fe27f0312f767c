"""Evaluation during a NeMo-RL run, with an engine that knows the answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nemo_uecr.config.load import load_nemo_config
from nemo_uecr.errors import DataError
from nemo_uecr.evaluation.engines import Generation, Request
from nemo_uecr.nemo import evaluation, upstream
from nemo_uecr.nemo.evaluation import training_evaluation
from tests.config.test_nemo import CONFIGS, GRPO
from tests.nemo.test_launch import CHARACTERS, make_benchmarks, make_tokenizer


def two_of_three(workers: Any, requests: Sequence[Request], *given: Any, seconds: float) -> list[Generation]:
    """Right in two of three samples, and one token long where it is wrong."""
    found = []
    for place, request in enumerate(requests):
        text = "".join(CHARACTERS[token - 2] for token in request.prompt_ids).partition("\n")[0]
        answer = sum(map(int, text.split("+")))
        ids = [CHARACTERS.index(character) + 2 for character in f"\\boxed{{{answer}}}"]
        found.append(Generation((1,), truncated=True) if place % 3 == 2 else Generation((*ids, 1), truncated=False))
    return found


def configuration(folder: Path, *changes: str) -> Any:
    pytest.importorskip("transformers")
    make_tokenizer(folder / "student")
    given = [
        f"run.folder={folder / 'run'}", f"student.model_name={folder / 'student'}", "data.verifier_workers=1",
        "evaluation.samples=3", *make_benchmarks(folder),
    ]  # fmt: skip
    return load_nemo_config(CONFIGS / "uecr_qwen3_1p7b.yaml", [*GRPO, *given, *changes])


def test_each_set_has_its_own_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "generation_leaders", lambda generation: [])
    monkeypatch.setattr(evaluation, "answers_of", two_of_three)
    evaluate = training_evaluation(configuration(tmp_path))
    assert evaluate is not None
    metrics, timings = evaluate("the generation object", 20)
    assert metrics["easy/avg@3"] == metrics["hard/avg@3"] == metrics["average/avg@3"] == pytest.approx(2 / 3)
    assert metrics["easy/pass@3"] == 1.0
    assert metrics["truncated_share"] == pytest.approx(1 / 3)
    assert metrics["accuracy"] == metrics["average/avg@3"]
    assert timings["total_validation_time"] >= 0
    lines = (tmp_path / "run" / "evaluations" / "step-000020.jsonl").read_text().splitlines()
    assert [json.loads(line)["verdict"] for line in lines[:3]] == ["correct", "correct", "no_answer"]


def test_a_prompt_that_does_not_fit_is_refused_before_the_run(tmp_path: Path) -> None:
    config = configuration(tmp_path, "data.max_prompt_tokens=20")
    with pytest.raises(DataError, match=r"evaluation\.benchmarks\.easy: problem 3 has \d+ prompt tokens; expected at"):
        training_evaluation(config)
