"""`train` and `smoke` from the command line to the run folder, on tiny real models."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_uecr.cli.main import entry_point
from nemo_uecr.cli.train import demo_config_path, with_free_folder
from tests.data.made import write_jsonl
from tests.local.tiny import SMALL, assets
from tests.reliability.commands import refused


def steps_in(folder: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_train_report_then_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, problems = tmp_path / "run", assets().problems
    call = ["train", str(assets().config), *SMALL, f"run.folder={folder}", f"evaluation.benchmarks.held={problems}"]
    assert entry_point(call) == 0
    assert capsys.readouterr().out.endswith(f"run: {folder}\n")
    assert steps_in(folder) == [1, 2]
    origins = json.loads((folder / "origins.json").read_text())
    assert (origins["train.steps"], origins["method.sample_std"]) == ("override", "default")
    provenance = json.loads((folder / "provenance.json").read_text())
    assert provenance["objective"].startswith("loss = PG(A; clip 0.2/0.2)")
    assert entry_point(["report", str(folder)]) == 0
    assert "held: 6 of 6 questions are also in data.train; it is not held out" in (folder / "report.html").read_text()
    assert "save_batch_every" in refused(capsys, "audit", "teacher", folder)

    assert "already holds a run" in refused(capsys, *call)
    assert steps_in(folder) == [1, 2]
    assert entry_point([*call, "--resume", "train.steps=3"]) == 0
    assert steps_in(folder) == [1, 2, 3]

    moved = folder.rename(tmp_path / "renamed")
    again = ("train", moved / "config.yaml", "train.steps=4", "--resume")
    assert f"add run.folder={moved}" in refused(capsys, *again)
    assert entry_point([*map(str, again), f"run.folder={moved}"]) == 0
    assert steps_in(moved) == [1, 2, 3, 4]
    assert not folder.exists()


@pytest.mark.slow
def test_ctrl_c_leaves_the_command_that_continues(tmp_path: Path) -> None:
    begin = ["train", str(assets().config), *SMALL, "run.folder=a run", "train.steps=500", "telemetry.progress=lines"]
    saving = ["evaluation.benchmarks={}", "checkpoint.keep_best=false", "checkpoint.every=1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "nemo_uecr", *begin, *saving],
        cwd=tmp_path, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        # A shell that runs the tests in the background has them ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    next(line for line in process.stderr if line.startswith("step 2/500"))
    process.send_signal(signal.SIGINT)
    told, last = process.stderr.read().splitlines()[-2:]
    assert (process.wait(), last) == (130, "nemo-uecr: interrupted")
    words = shlex.split(told.partition(": ")[2])
    assert words == ["nemo-uecr", "train", "a run/config.yaml", "--resume"]
    done = len(steps_in(tmp_path / "a run"))
    subprocess.run([sys.executable, "-m", "nemo_uecr", *words[1:], f"train.steps={done + 2}"], cwd=tmp_path, check=True)
    assert steps_in(tmp_path / "a run") == list(range(1, done + 3))


def test_smoke_prints_tolerances_first_and_compares_every_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    assert entry_point(["smoke", str(assets().config), *SMALL, f"run.folder={folder}", "--steps", "1,2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("objective: loss = PG(A; ")
    assert [line.partition(" ")[0] for line in lines[1:6]] == ["tolerance"] * 5
    assert any(line.startswith("smoke 2: identity/budget_error at most ") for line in lines)
    # One batch a step, two reductions a batch.
    passed = [line.partition(", ")[2].partition(",")[0] for line in lines if ": passed, " in line]
    assert passed == ["2 reductions bit for bit", "4 reductions bit for bit"]
    (attempt,) = (tmp_path / "run-smoke").iterdir()
    assert sorted(path.name for path in attempt.iterdir()) == ["steps-001", "steps-002"]
    assert not folder.exists()


def test_demo_trains_and_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The demo command with the tiny models in the place of the demo's own; each run gets a new folder."""
    assert Path(demo_config_path()).is_file()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("nemo_uecr.cli.train.demo_config_path", lambda: str(assets().config))
    assert entry_point(["demo", "--no-open", *SMALL, "telemetry.save_batch_every=1"]) == 0
    assert steps_in(Path("runs/demo")) == [1, 2]
    printed = capsys.readouterr().out
    assert "report: runs/demo/report.html\n" in printed
    assert "\nmethod      " in printed.partition("the report has the reasons")[2]
    assert "<h3>What the teacher is worth</h3>" in Path("runs/demo/report.html").read_text(encoding="utf-8")
    assert with_free_folder(["run.seed=1"]) == ["run.folder=runs/demo-2", "run.seed=1"]
    assert with_free_folder(["+run.folder=mine"]) == ["+run.folder=mine"]


def test_the_audit_of_a_teacher_draws_or_reads_a_batch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a configuration everything is measured; what a saved batch cannot say is unknown; a report shows it."""
    config, folder = str(assets().config), tmp_path / "run"
    words = [*SMALL, f"run.folder={folder}", "telemetry.save_batch_every=1"]
    rows = [{"question": before + str(digit), "answer": str(digit)} for before in ("", "1+") for digit in range(4)]
    different = f"data.train={write_jsonl(tmp_path / 'different.jsonl', rows)}"  # repeats would be one observation
    assert entry_point(["audit", "teacher", config, *words, different, "method.name=grpo", "--problems", "16"]) == 0
    numbers = json.loads((folder / "audits" / "teacher" / "numbers.json").read_text())["numbers"]
    assert None not in numbers["shares"].values()
    assert {"teacher", "method", "group size"} <= numbers["advice"].keys()
    assert set(numbers["equal"]) == {"2", "4", "8"}
    assert entry_point(["train", config, *words]) == 0
    capsys.readouterr()
    assert entry_point(["audit", "teacher", str(folder)]) == 0  # a batch says less
    told = capsys.readouterr().out.splitlines()[-1]
    assert told == "not written: the run folder has this audit; --out FOLDER writes this one"
    assert json.loads((folder / "audits" / "teacher" / "numbers.json").read_text())["numbers"] == numbers
    assert entry_point(["audit", "teacher", str(folder), "--out", str(tmp_path / "batch")]) == 0
    numbers = json.loads((tmp_path / "batch" / "numbers.json").read_text())["numbers"]
    assert {numbers["shares"][name] for name in ("teacher", "lead")} == {None}
    assert {numbers["shares"][name] for name in ("order", "kappa")} == {None}  # two problems bound no share
    assert numbers["numbers"]["outcome/gap_mean_wrong"] is not None
    assert entry_point(["report", str(folder)]) == 0
    assert "what it means" in (folder / "report.html").read_text()
    assert f"name {folder}/config.yaml" in refused(capsys, "audit", "teacher", folder, "method.alpha=2")
    assert "need a folder of scores" in refused(capsys, "audit", "teacher", folder, "--engines", "vllm")
