"""The audits as commands: on made scores of the paper's checkpoints, into the report, and with wrong input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nemo_uecr.cli.main import entry_point
from nemo_uecr.errors import RunFolderError
from nemo_uecr.report.audits import audits_section
from nemo_uecr.report.page import write_report
from nemo_uecr.report.run_folder import read_runs
from tests.audit.made import Made, write_scores
from tests.report.conftest import Story, write_run

pytest.importorskip("pyarrow", reason="scores are read with pyarrow (extra 'data')")
pytest.importorskip("matplotlib", reason="figures are drawn with matplotlib (extra 'plots')")

SETTINGS = ("--set", "alpha=1", "rho=.5", "tau_delta=1", "tau_entropy=1")
AUDITS = {"signal": (), "token-credit": SETTINGS, "group-signal": (), "alpha-sweep": ()}


@pytest.mark.parametrize("name", AUDITS)
def test_an_audit_of_the_papers_size(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Checkpoints, problems and samples as in the paper; responses of 64 tokens."""
    scores = tmp_path / "scores"
    assert entry_point(["audit", "synthetic", name, str(scores), "--tokens", "64"]) == 0
    assert entry_point(["audit", name, str(scores), *AUDITS[name]]) == 0
    out = tmp_path / "audits" / name
    assert f"audit: {out}" in capsys.readouterr().out
    assert sorted(path.name for path in out.iterdir()) == ["figure.png", "figure.svg", "numbers.json", "section.html"]
    numbers = json.loads((out / "numbers.json").read_text())["numbers"]
    responses = {
        "signal": 19 * 150 * 8,
        "token-credit": 2400,
        "group-signal": 13 * 480,
        "alpha-sweep": 8 * 960 + 9 * 480,
    }
    assert numbers["scores"]["responses"] == responses[name]
    if name == "token-credit":
        assert numbers["weights"]["projected"]["largest_error"] <= 1e-14


def test_the_report_shows_the_audits_of_a_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_run(run, Story(steps=3, planned=3, evaluations=(0,), batches=()))
    page = write_report([run], tmp_path / "before.html").read_text()
    assert 'id="audits"' not in page
    make = ["audit", "synthetic", "group-signal", str(run / "scores"), "--tokens", "4"]
    assert entry_point(make) == 0
    assert entry_point(["audit", "group-signal", str(run / "scores")]) == 0
    page = write_report([run], tmp_path / "after.html").read_text()
    assert '<section id="audits"><h2>Audits</h2>' in page
    assert "PUU signal in pseudo-groups" in page
    assert "data:image/svg+xml;base64," in page
    (run / "audits" / "group-signal" / "section.html").write_text("<article>other")
    with pytest.raises(RunFolderError, match="is no section of an audit"):
        audits_section(read_runs([run]))


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
        (["audit", "group-signal", "s"], "expected a multiple of 12"),
        (["audit", "group-signal", "s", "--anchor", "other"], "--anchor other=MODEL"),
        (["audit", "group-signal", "s", "--sizes", "1", "4"], "expected whole numbers from 2"),
        (["audit", "token-credit", "s"], "--set"),
        (["audit", "token-credit", "s", "--set", "rho=1.5"], "expected 0 <= rho < 1"),
        (["audit", "token-credit", "s", "--set", "alpha=1", "rho=.5", "tau_delta=1"], "tau_entropy"),
        (["audit", "alpha-swep", "s"], "did you mean 'audit alpha-sweep'"),
        (["audit", "synthetic", "signal", "s"], "expected a new folder"),
        (["score", "nowhere", "--out", "o"], "expected responses to score"),
        (["score", "rows.jsonl", "--out", "o"], "give --teacher"),
        (["score", "rows.jsonl", "--teacher", "t", "--out", "o"], "give --student"),
        (["score", "rows.jsonl", "--teacher", "t", "--student", "s{0}", "--out", "o"], "expected no braces but"),
        (
            ["score", "rows.jsonl", "--teacher", "t", "--student", "s", "--anchor", "student=x", "--out", "o"],
            "other than",
        ),
        (["score", "rows.jsonl", "--batch", "0", "--out", "o"], "--batch: got 0"),
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
