"""Runs that cannot work are refused in one line before NeMo-RL is looked for and before a folder is made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nemo_uecr.cli.main import entry_point
from nemo_uecr.config.load import load_nemo_config
from nemo_uecr.data.manifest import chosen_problems
from nemo_uecr.errors import ConfigError, DataError
from nemo_uecr.plan.faults import teacher_alone_faults
from nemo_uecr.plan.shapes import shape_of
from nemo_uecr.start.nemo_form import UNSEEN, layout
from tests.config.shipped import GRPO
from tests.data.made import write_jsonl
from tests.nemo.worlds import BASE, SIZES, world

BAD = {
    "teacher.parallel.pipeline=8": "teacher.parallel.pipeline: got 8, expected a divisor of the model's 4 layers",
    "rollout.max_response_tokens=3000": "the student has 4096 positions",
    "student.vocabulary=97": "student.vocabulary=97, but the student has 98",
    "data.train={}/keys.jsonl": "no field 'question'",
    "data.difficulty_key=level": "data.difficulty_key=null data.difficulty_low=null data.difficulty_high=null",
    "data.subset=100": "100 problems are left to train on; expected at least rollout.prompts_per_step=126",
    "data.subset=300": "200 problems of difficulty 5.0 to 7.0; expected at least data.subset=300",
    "evaluation.benchmarks={{a: {}/none.jsonl}}": "evaluation.benchmarks.a: no file /",
}


@pytest.mark.parametrize("change", BAD)
def test_what_cannot_work_is_refused_by_the_check(
    change: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [*world(tmp_path), change.format(tmp_path)]
    if "max_response" in change:
        given += ["train.tokens_per_microbatch=9000", "scoring.tokens_per_microbatch=9000"]
    assert entry_point(["config", "check", str(BASE), *given]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert BAD[change] in said[-1]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("rope", [{"rope_scaling": {"type": "yarn"}}, {"rope_parameters": {"rope_type": "yarn"}}])
def test_a_model_extended_with_yarn_is_refused_and_not_as_too_short(rope: dict[str, Any], tmp_path: Path) -> None:
    config, student = load_nemo_config(BASE, world(tmp_path)), tmp_path / "student"
    (student / "config.json").write_text(json.dumps(SIZES | rope | {"max_position_embeddings": 1024}))
    with pytest.raises(
        ConfigError, match=r"^student.model_name: its rotary embeddings are scaled \(yarn\), [^;]*; [^;]*$"
    ):
        layout(config, with_models=True)
    (fault,) = teacher_alone_faults(config, shape_of(str(student), role="teacher"), 2048)
    assert "scaled (yarn)" in fault
    (student / "config.json").write_text(json.dumps(SIZES | {"rope_scaling": {"rope_type": "llama3"}}))
    assert layout(config, with_models=True) != UNSEEN


def test_layout_faults_of_one_model_are_told_beside_another_of_an_unknown_kind(tmp_path: Path) -> None:
    given = world(tmp_path)
    (tmp_path / "student" / "config.json").write_text(json.dumps(SIZES | {"model_type": "gemma2"}))
    assert layout(load_nemo_config(BASE, given), with_models=True) == UNSEEN
    with pytest.raises(ConfigError, match="got 8, expected a divisor of the model's 4 layers"):
        layout(load_nemo_config(BASE, [*given, "teacher.parallel.pipeline=8"]), with_models=True)


def test_config_check_says_what_it_did_not_see(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check = ["config", "check", str(BASE), *world(tmp_path)]
    assert entry_point(check) == 0
    assert "is not here" not in capsys.readouterr().out
    assert entry_point([*check, f"teacher.model_name={tmp_path}/elsewhere"]) == 0
    assert "its layout and lengths are checked at the start" in capsys.readouterr().out


def test_problems_are_kept_by_difficulty_and_drawn_by_seed(tmp_path: Path) -> None:
    rows = [{"question": f"q{place}", "final_answer": 1, "difficulty": place % 10} for place in range(50)]
    write_jsonl(tmp_path / "p.jsonl", rows)
    data = load_nemo_config(BASE, [*GRPO, f"data.train={tmp_path}/p.jsonl"]).data
    kept = chosen_problems(data, 0)
    assert [problem.question for problem in kept] == [f"q{place}" for place in range(50) if place % 10 in (5, 6, 7)]
    few = data.model_copy(update={"subset": 4})
    drawn = [chosen_problems(few, seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(problem in kept for problem in drawn[0])
    write_jsonl(tmp_path / "p.jsonl", [row | {"difficulty": f"Level {row['difficulty']}"} for row in rows])
    assert chosen_problems(data, 0) == kept
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1"}]
    write_jsonl(tmp_path / "p.jsonl", [row | {"question": talk} for row in rows])
    with pytest.raises(DataError, match=r"problem '1' has turns before its question"):
        chosen_problems(data, 0)
