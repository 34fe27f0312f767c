"""The audits as commands: on made scores, into the report, and with wrong input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nemo_uecr.cli.main import entry_point
from nemo_uecr.config.load import dump_config, load_config
from nemo_uecr.report.page import write_report
from tests.audit.made import TOKENIZER, Made, make_scores, write_scores, write_texts
from tests.audit.test_localization import responses
from tests.report.conftest import Story, write_run

pytest.importorskip("pyarrow", reason="scores are read with pyarrow (extra 'data')")
pytest.importorskip("matplotlib", reason="figures are drawn with matplotlib (extra 'plots')")

DEMO = Path(__file__).resolve().parents[2] / "examples" / "configs" / "local" / "demo.yaml"
SETTINGS = ("--set", "alpha=1", "rho=.5", "tau_delta=1", "tau_entropy=1")
AUDITS = {"signal": (), "token-credit": SETTINGS, "group-signal": (), "alpha-sweep": ()}


@pytest.mark.parametrize("name", AUDITS)
def test_an_audit_of_scores(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    made = make_scores(tmp_path / "scores", {0: 12, 30: 12}, problems=20, tokens=8, seed=0)
    assert entry_point(["audit", name, str(made.folder), *AUDITS[name]]) == 0
    out = tmp_path / "audits" / name
    assert f"audit: {out}" in capsys.readouterr().out
    assert sorted(path.name for path in out.iterdir()) == ["figure.png", "figure.svg", "numbers.json", "section.json"]
    numbers = json.loads((out / "numbers.json").read_text())["numbers"]
    assert numbers["scores"]["responses"] == 480


def test_localization_with_the_demos_judge(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from nemo_uecr.study.judge import main as judge

    scores, judging, labels = tmp_path / "scores", tmp_path / "judging", tmp_path / "labels.jsonl"
    write_texts(scores, responses(), question="Start with 1: +1 +2 +1 = ?")
    assert entry_point(["audit", "localization", str(scores), "--write-steps", str(judging)]) == 0
    assert "15 responses, 60 steps" in capsys.readouterr().out
    judge(judging / "steps.jsonl", labels)
    TOKENIZER.save_pretrained(tmp_path / "tokenizer")
    words = ["--judge", str(labels), "--key", str(judging / "key.jsonl"), "--tokenizer", str(tmp_path / "tokenizer")]
    numbers = ["--shuffles", "2", "--replicates", "100"]
    assert entry_point(["audit", "localization", str(scores), *words, *SETTINGS, *numbers]) == 0
    found = json.loads((tmp_path / "audits" / "localization" / "numbers.json").read_text())["numbers"]
    assert found["selection"]["eligible"] == 15


def test_the_settings_are_those_of_a_run(tmp_path: Path) -> None:
    """rho of the run's config.yaml is used, and a setting on the command line goes before it."""
    run, scores = tmp_path / "run", tmp_path / "scores"
    run.mkdir()
    config = load_config(DEMO, ("method.alpha=0.75", "method.rho=0.25", "method.tau_delta=2", "method.std=sample"))
    (run / "config.yaml").write_text(dump_config(config.config))
    make_scores(scores, {0: 4}, problems=6, tokens=4, seed=0)
    used = []
    for more in ([], ["--set", "rho=0.125"]):
        assert entry_point(["audit", "token-credit", str(scores), "--run", str(run), *more]) == 0
        found = json.loads((tmp_path / "audits" / "token-credit" / "numbers.json").read_text())["numbers"]
        used.append(found["settings"])
    assert {name: used[0][name] for name in ("alpha", "rho", "tau_delta", "tau_entropy", "std_floor")} == {
        "alpha": 0.75, "rho": 0.25, "tau_delta": 2.0, "tau_entropy": 1.0, "std_floor": 0.0,
    }  # fmt: skip
    assert used[1] == used[0] | {"rho": 0.125}


def test_the_report_shows_the_audits_of_a_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_run(run, Story(steps=3, planned=3, evaluations=(0,), batches=()))
    page = write_report([run], tmp_path / "before.html").read_text()
    assert 'id="audits"' not in page
    make_scores(run / "scores", {0: 12}, problems=6, tokens=4, seed=0)
    assert entry_point(["audit", "group-signal", str(run / "scores")]) == 0
    page = write_report([run], tmp_path / "after.html").read_text()
    assert '<section id="audits"><h2>Audits</h2>' in page
    assert "PUU signal in pseudo-groups" in page
    assert "data:image/svg+xml;base64," in page


def test_pairs_for_a_judge_and_the_judges_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scores, judging = tmp_path / "scores", tmp_path / "judging"
    write_scores(scores, [Made(name, 0.0, [0.1 * i], response=str(i)) for name in "abc" for i in range(2)])
    assert entry_point(["audit", "signal", str(scores), "--write-pairs", str(judging)]) == 0
    assert "3 pairs" in capsys.readouterr().out
    pairs = [json.loads(line)["pair"] for line in (judging / "pairs.jsonl").read_text().splitlines()]
    (tmp_path / "verdicts").write_text("".join(json.dumps({"pair": p, "preferred": "first"}) + "\n" for p in pairs))
    judge = ["--judge", str(tmp_path / "verdicts"), "--key", str(judging / "key.jsonl")]
    assert entry_point(["audit", "signal", str(scores), *judge]) == 0
    found = json.loads((tmp_path / "audits" / "signal" / "numbers.json").read_text())["numbers"]["judge"]
    assert found["judgeable"] == 3


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["audit", "signal", "nowhere"], "no scores.json"),
        (["audit", "signal", "s", "--judge", "x"], "--judge and --key go together"),
        (["audit", "token-credit", "s"], "method.alpha, method.rho, method.tau_delta, method.tau_entropy: missing"),
        (["score", "nowhere", "--out", "o"], "expected responses to score"),
        (["score", "rows.jsonl", "--out", "o"], "give --teacher"),
    ],
)
def test_wrong_input_is_one_line(
    arguments: list[str],
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write_scores(tmp_path / "s", [Made("a", reward, [0.1]) for reward in (0.0, 1.0)])
    row = {"problem": "p", "response": "1", "prompt": "1", "checkpoint": 0, "truncated": False}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    before = sorted(tmp_path.rglob("*"))
    assert entry_point(arguments) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert complaint in error
    assert sorted(tmp_path.rglob("*")) == before
