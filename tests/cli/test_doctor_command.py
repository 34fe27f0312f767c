"""The command `doctor`: exit codes, the report and its file."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from nemo_uecr.cli.main import entry_point

DEMO = Path(__file__).resolve().parents[2] / "examples" / "configs" / "local" / "demo.yaml"


@pytest.fixture(autouse=True)
def few_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real imports in processes of their own, but of two packages instead of all."""
    from nemo_uecr.plan import machine

    monkeypatch.setattr(machine, "PLAIN", machine.PLAIN[1:3])
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def test_a_run_that_is_ready(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "doctor.json"
    assert entry_point(["doctor", str(DEMO), f"run.folder={tmp_path}/run", "--json", str(out)]) == 0
    printed = capsys.readouterr().out
    assert printed.rstrip().endswith("0 fail")
    written = json.loads(out.read_text())
    assert written["counts"]["fail"] == 0
    assert len(written["findings"]) == sum(written["counts"].values())
    assert all(one["remedy"] for one in written["findings"] if one["status"] != "ok")


def test_a_failed_check_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert entry_point(["doctor", str(DEMO), "run.folder=/proc/run"]) == 1
    printed = capsys.readouterr().out
    assert "fail  run folder" in printed
    assert "choose another folder" in printed


def test_the_machine_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as server:
        server.bind(("", 0))
        server.listen()
        port = server.getsockname()[1]
        assert entry_point(["doctor", "--ray-port", str(port)]) == 1
    assert f"fail  ray port                    {port} is taken" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ([str(DEMO), "train.steps=none"], "train.steps"),
        (["--ray-port", "99999"], "--ray-port"),
    ],
)
def test_an_unusable_configuration_is_exit_code_2(
    arguments: list[str], fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert entry_point(["doctor", *arguments]) == 2
    assert fault in capsys.readouterr().err
