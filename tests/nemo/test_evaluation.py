"""Evaluation during a NeMo-RL run: what is refused before it; inside/test_launch.py has the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_uecr.config.load import load_nemo_config
from nemo_uecr.errors import DataError
from nemo_uecr.nemo.evaluation import training_evaluation
from tests.config.shipped import CONFIGS, GRPO
from tests.nemo.inside.launched import make_benchmarks, make_tokenizer


def test_a_prompt_that_does_not_fit_is_refused_before_the_run(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    make_tokenizer(tmp_path / "student")
    given = [f"student.model_name={tmp_path / 'student'}", "data.max_prompt_tokens=20", *make_benchmarks(tmp_path)]
    config = load_nemo_config(CONFIGS / "uecr_qwen3_1p7b.yaml", [*GRPO, *given])
    with pytest.raises(DataError, match=r"evaluation\.benchmarks\.easy: problem 3 has \d+ prompt tokens; expected at"):
        training_evaluation(config)
