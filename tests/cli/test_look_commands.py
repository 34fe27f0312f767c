"""`plan`, `doctor` and `config`: what they print, write and refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nemo_uecr.cli.main import entry_point
from tests.config.shipped import CONFIGS
from tests.reliability.commands import refused

FOUR = [str(CONFIGS / "uecr_qwen3_4b.yaml"), "uecr.teacher.model_name=Qwen/Qwen3-8B", "uecr.data.subset=null"]
FITS = "what fits: policy.megatron_cfg.tensor_model_parallel_size=2 policy.megatron_cfg.sequence_parallel=true"
SHARE = "policy.generation.vllm_cfg.gpu_memory_utilization"
DEMO = [str(CONFIGS / "local" / "demo.yaml")]


def test_what_cannot_fit_is_refused_with_what_would(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "plan.json"
    models = ["policy.model_name=Qwen/Qwen3-14B", "--device", "h100", "--json", str(out)]
    assert entry_point(["plan", *FOUR, *models]) == 2
    printed = capsys.readouterr()
    assert FITS in printed.err
    assert "phases of a step" in printed.out
    written = json.loads(out.read_text())
    assert written["fits"] is False
    assert written["what_fits"][0] in printed.err
    nearest = refused(capsys, "plan", *FOUR, f"{SHARE}=0.95", "--device", "h100")
    assert f"what fits: {SHARE}=0.9, or " in nearest
    assert "plan --memory 40 lists what fits" in refused(capsys, "plan", *FOUR, "--fit", "40")


def test_a_local_run_that_does_not_fit_names_its_lever(capsys: pytest.CaptureFixture[str]) -> None:
    assert "lower train.microbatch_responses" in refused(capsys, "plan", *DEMO, "--memory", "0.08")
    assert entry_point(["plan", *DEMO, "--memory", "0.08", "train.microbatch_responses=16"]) == 0


def test_doctor_on_a_run_that_is_ready_and_on_one_that_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("nemo_uecr.start.machine.PLAIN", {"pydantic": ""})  # one real import in place of all
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    out = tmp_path / "doctor.json"
    assert entry_point(["doctor", *DEMO, f"run.folder={tmp_path}/run", "--json", str(out)]) == 0
    assert capsys.readouterr().out.rstrip().endswith("0 fail")
    written = json.loads(out.read_text())
    assert len(written["findings"]) == sum(written["counts"].values())
    assert all(one["remedy"] for one in written["findings"] if one["status"] != "ok")
    assert entry_point(["doctor", *DEMO, "run.folder=/proc/run"]) == 1
    printed = capsys.readouterr().out
    assert "fail  run folder" in printed
    assert "choose another folder" in printed


def test_config_check_counts_problems(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "mine.jsonl").write_text('{"question": "1 + 1", "answer": "2", "id": 1}\n')
    words = [f"data.train={tmp_path / 'mine.jsonl'}", f"evaluation.benchmarks.held={tmp_path / 'mine.jsonl'}"]
    assert entry_point(["config", "check", *DEMO, *words]) == 0
    assert "problems: data.train 1, level1 of the demo, " in (said := capsys.readouterr().out)
    assert "level5 of the demo, held 1; fields" in said
    assert "held: 1 of 1 questions are also in data.train; it is not held out" in caplog.text
