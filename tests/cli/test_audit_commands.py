"""The audits as commands: on made scores, into the report, and with wrong input."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from nemo_uecr.cli.main import entry_point
from nemo_uecr.config.load import dump_config, load_config, written_config
from nemo_uecr.responses.table import read_responses, write_again
from tests.audit.made import TOKENIZER, Made, failed_groups, random_responses, write_scores
from tests.config.shipped import DEMO
from tests.local import tiny
from tests.reliability.commands import refused
from tests.report.stories import write_run

SETTINGS = ("--set", "alpha=1", "rho=.5", "tau_delta=1", "tau_entropy=1")


def numbers_of(name: str, scores: Path, *words: object) -> dict[str, Any]:
    """What an audit writes beside the scores."""
    assert entry_point(["audit", name, str(scores), *map(str, words)]) == 0
    out = scores.parent / "audits" / f"{name}-{scores.name}"  # other scores beside it have audits of their own
    assert sorted(path.name for path in out.iterdir()) == ["figure.png", "figure.svg", "numbers.json", "section.json"]
    return json.loads((out / "numbers.json").read_text())["numbers"]


def test_audits_of_scores_and_the_report_with_them(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_run(run, steps=3, planned=3, evaluations=(0,), batches=())
    made = write_scores(run / "scores", random_responses({0: 12, 30: 12}, problems=6, tokens=4, seed=0))
    for name, words in {"signal": (), "token-credit": SETTINGS, "group-signal": (), "alpha-sweep": ()}.items():
        found = numbers_of(name, made.folder, *words, "--replicates", 100)
        assert found["scores"]["responses"] == 144
    assert entry_point(["report", str(run)]) == 0
    page = (run / "report.html").read_text()
    assert '<section id="audits"><h2>Audits</h2>' in page
    assert ", scores</h3>" in page
    assert page.count("data:image/svg+xml;base64,") >= 4


def test_localization_with_the_demos_judge(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scores, judging, labels = tmp_path / "scores", tmp_path / "judging", tmp_path / "labels.jsonl"
    write_scores(scores, failed_groups())
    assert entry_point(["audit", "localization", str(scores), "--write-steps", str(judging)]) == 0
    assert "15 responses, 60 steps" in capsys.readouterr().out
    judge = runpy.run_path(str(Path(__file__).resolve().parents[2] / "examples" / "audits" / "step_judge.py"))["main"]
    judge(judging / "steps.jsonl", labels)
    TOKENIZER.save_pretrained(tmp_path / "tokenizer")
    words = ["--judge", labels, "--key", judging / "key.jsonl", "--tokenizer", tmp_path / "tokenizer", *SETTINGS]
    found = numbers_of("localization", scores, *words, "--shuffles", 2, "--replicates", 100)
    assert found["selection"]["eligible"] == 15


def test_audits_read_what_a_run_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both saved batches, without a forward pass, by the run's own settings; without a teacher one line."""
    run = tiny.run(tmp_path / "run", "train.steps=2", "telemetry.save_batch_every=1")
    for name in ("signal", "alpha-sweep", "token-credit"):
        assert entry_point(["audit", name, str(run), "--replicates", "100"]) == 0
        numbers = json.loads((run / "audits" / name / "numbers.json").read_text())["numbers"]
        assert numbers["scores"]["checkpoints"] == [0, 1]
    assert numbers["settings"]["rho"] == written_config(run / "config.yaml").method.settings()["rho"]
    assert numbers["strata"]["top1"] is not None
    # Without the column that a teacher on a server and the NeMo-RL back end do not have.
    for path in (run / "batches").iterdir():
        saved = read_responses(path)
        write_again(saved, path, rows={}, tokens={}, without={"teacher_rank"}, about=saved.about)
    capsys.readouterr()
    assert entry_point(["audit", "token-credit", str(run), "--replicates", "100"]) == 0
    assert "not ranked: the teacher showed no logits to this back end" in capsys.readouterr().out
    plain = tiny.run(tmp_path / "plain", "train.steps=1", "telemetry.save_batch_every=1", "method.name=grpo")
    said = refused(capsys, "audit", "signal", plain)
    assert "step-000001.parquet has no scores of a teacher, which method grpo does not read" in said


def test_the_settings_are_those_of_a_run(tmp_path: Path) -> None:
    """rho of the run's config.yaml is used, and a setting on the command line goes before it."""
    run, scores = tmp_path / "run", tmp_path / "scores"
    run.mkdir()
    config = load_config(DEMO, ("method.alpha=0.75", "method.rho=0.25", "method.tau_delta=2", "method.sample_std=true"))
    (run / "config.yaml").write_text(dump_config(config.config))
    write_scores(scores, random_responses({0: 4}, problems=6, tokens=4, seed=0))
    words = ("--run", run, "--replicates", 20)
    used = numbers_of("token-credit", scores, *words)["settings"]
    assert [used[name] for name in ("alpha", "rho", "tau_delta", "tau_entropy", "std_floor")] == [0.75, 0.25, 2, 1, 0]
    assert numbers_of("token-credit", scores, *words, "--set", "rho=0.125")["settings"] == used | {"rho": 0.125}


def test_pairs_for_a_judge_and_the_judges_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scores, judging, verdicts = tmp_path / "scores", tmp_path / "judging", tmp_path / "verdicts"
    write_scores(scores, [Made(name, 0.0, [0.1 * i], response=str(i)) for name in "abc" for i in range(2)])
    assert entry_point(["audit", "signal", str(scores), "--write-pairs", str(judging)]) == 0
    assert "3 pairs" in capsys.readouterr().out
    pairs = [json.loads(line)["pair"] for line in (judging / "pairs.jsonl").read_text().splitlines()]
    verdicts.write_text("".join(json.dumps({"pair": pair, "preferred": "first"}) + "\n" for pair in pairs))
    found = numbers_of("signal", scores, "--judge", verdicts, "--key", judging / "key.jsonl", "--replicates", 20)
    assert found["judge"]["judgeable"] == 3


def test_wrong_input_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_scores(tmp_path / "s", [Made("a", reward, [0.1]) for reward in (0.0, 1.0)])
    row = {"problem": "p", "response": "1", "prompt": "1", "checkpoint": 0, "truncated": False}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    before = sorted(tmp_path.rglob("*"))
    for line, complaint in {
        "audit signal nowhere": "no scores.json",
        "audit signal s --judge x": "--judge and --key go together",
        "audit token-credit s": "method.alpha, method.rho, method.tau_delta, method.tau_entropy: missing",
        "score nowhere --out o": "expected responses to score",
        "score rows.jsonl --out o": "give --teacher",
    }.items():
        assert complaint in refused(capsys, *line.split())
    assert sorted(tmp_path.rglob("*")) == before
