"""The real command in a process of its own: its exit codes, its one line, kill -9 and --resume."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nemo_uecr.cli.main import entry_point
from tests.local.tiny import Assets, outcome, same, train_words

ROOT = Path(__file__).resolve().parents[2]


def refused(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    """The error of a command that must fail: exit code 2 and one line that begins with the program's name."""
    capsys.readouterr()
    assert entry_point(arguments) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("nemo-uecr: error: ")]
    assert len(lines) == 1
    return lines[0]


def test_error_of_a_process_is_one_line_and_code_2(tmp_path: Path, tiny: Assets) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nemo_uecr", *train_words(tiny, tmp_path / "run", "teacher.model_name=/missing")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        "nemo-uecr: error: teacher.model_name '/missing' is no model folder (no config.json); "
        "expected a folder or a hub name"
    ]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("data.train=/missing.jsonl",), "/missing.jsonl: no such file"),
        (("data.answer_key=final",), "problems.jsonl:1: no field 'final'"),
        (("method.rho=1.0",), "method.rho"),
        (("device=cuda",), "torch sees no GPU"),
    ],
)
def test_bad_input(
    tmp_path: Path, tiny: Assets, capsys: pytest.CaptureFixture[str], overrides: tuple[str, ...], message: str
) -> None:
    import torch

    if overrides == ("device=cuda",) and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert message in refused(capsys, train_words(tiny, tmp_path / "run", *overrides))
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_tiny_helper_trains_like_the_command(tmp_path: Path, tiny: Assets) -> None:
    """The other tests call the function beneath the command; both give the same run."""
    from tests.local.tiny import run

    assert entry_point(train_words(tiny, tmp_path / "command")) == 0
    ours = outcome(run(tmp_path / "function"))
    assert same(outcome(tmp_path / "command"), ours) == []
