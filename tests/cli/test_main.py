"""How a command line is parsed, and how results and errors leave the program."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from importlib import invalidate_caches
from importlib.util import find_spec
from pathlib import Path

import pytest

from nemo_uecr import __version__
from nemo_uecr.__main__ import main
from nemo_uecr.cli import common, train
from nemo_uecr.cli.main import app, entry_point
from nemo_uecr.errors import DependencyError, RewardError, require_extra
from nemo_uecr.stopping import RunStopped
from tests.cli.commands import commands
from tests.config.shipped import CONFIGS, DEMO
from tests.reliability.commands import refused


def probed(monkeypatch: pytest.MonkeyPatch, outcome: BaseException | int) -> int:
    """The exit code of an app in the place of ours whose only command returns a code or raises."""

    def probe() -> int:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    other = common.family("probes")
    other.command(probe)
    monkeypatch.setattr("nemo_uecr.cli.main.app", other)
    monkeypatch.setattr("sys.argv", ["nemo-uecr", "probe"])
    return main()


ROOM = "out/train.jsonl: No space left on device; make room or name another path, and run the command again"
OUTCOMES = [
    (7, 7, ""),
    (RewardError('it failed:\n  File "f.py"'), 2, 'nemo-uecr: error: it failed:\n  File "f.py"\n'),
    (RunStopped("SIGTERM: saved step 3"), 75, "nemo-uecr: SIGTERM: saved step 3\n"),
    (KeyboardInterrupt(), 130, "nemo-uecr: interrupted\n"),
    (
        ModuleNotFoundError("No module named 'transformers'", name="transformers.models"),
        2,
        "nemo-uecr: error: transformers is not installed; run: pip install 'nemo-uecr[local]'\n",
    ),
    (OSError(errno.ENOSPC, "No space left on device", "out/train.jsonl"), 2, f"nemo-uecr: error: {ROOM}\n"),
]


@pytest.mark.parametrize(("outcome", "code", "said"), OUTCOMES)
def test_exit_codes(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    outcome: BaseException | int,
    code: int,
    said: str,
) -> None:
    assert probed(monkeypatch, outcome) == code
    assert capsys.readouterr() == ("", said)


@pytest.mark.parametrize(
    "error", [ModuleNotFoundError("x", name="nemo_uecr.nowhere"), ValueError("a defect"), OSError("a library's text")]
)
def test_a_defect_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    with pytest.raises(type(error)):
        probed(monkeypatch, error)


def test_a_missing_module_of_an_extra_refuses_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nemo_uecr.errors.find_spec", lambda name: None if name == "tokenizers" else find_spec(name))
    with pytest.raises(DependencyError, match=r"tokenizers .*nemo-uecr\[local\]"):
        require_extra("local")
    monkeypatch.setattr("nemo_uecr.errors.find_spec", lambda name: None)
    with pytest.raises(DependencyError, match=r"torchao and matplotlib .*\[lowbit,plots\]"):
        require_extra("lowbit", "plots")


def test_a_folder_of_an_extras_name_is_no_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m nemo_uecr` in a folder where Ray, say, keeps its logs."""
    monkeypatch.setattr("nemo_uecr.errors.EXTRAS", {"ray": ("uecr_logs",)})
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "uecr_logs").mkdir()
    with pytest.raises(DependencyError, match="uecr_logs is not installed"):
        require_extra("ray")
    (tmp_path / "uecr_logs" / "__init__.py").touch()
    invalidate_caches()
    require_extra("ray")


@pytest.mark.parametrize("words", [words for words, _ in commands()], ids=" ".join)
def test_every_command_has_help(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert entry_point([*words, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"Usage: nemo-uecr {' '.join(words)} ")


def test_options_may_follow_overrides() -> None:
    words = ["a.b=1", "--resume", "c=[1,2]"]
    command, bound, _ = app.parse_args(["train", "x.yaml", *words], exit_on_error=False, print_error=False)
    assert command is train.train
    assert (bound.args, bound.kwargs) == (("x.yaml", "a.b=1", "c=[1,2]"), {"resume": True})
    words = ["smoke", "x.yaml", "--steps", "1,5", "a.b=1"]
    _, bound, _ = app.parse_args(words, exit_on_error=False, print_error=False)
    assert (bound.args, bound.kwargs) == (("x.yaml", "a.b=1"), {"steps": (1, 5)})


REFUSALS = {
    ("train", DEMO, "train.step=3"): "the nearest known key is train.steps",
    ("train", "nowhere.yaml"): "nowhere.yaml: ",
    ("config", "check", CONFIGS / "local" / "my_problems.yaml"): "data.train: no file ",
    ("evaluate", "m", "--out", "o"): "--max-tokens",
    ("train", DEMO, "--resum"): "See: nemo-uecr train --help",
    ("train", DEMO, "--steps", "3"): "A configuration's keys have no dashes: train.steps=3.",
    ("evaluate", "compare", ".", "."): ". holds no samples of an evaluation; expected a folder that nemo-uecr",
    ("plan", DEMO, "device=cuda", "--fit", "24", "rollout.max_response_tokens=999"): "has 512 positions",
    ("plan", DEMO, "--fit", "24", "device=cpu"): "--fit 24 plans for a GPU",
    ("plan", CONFIGS / "one_gpu" / "qwen3_4b_8b.yaml", "--fit", "12"): "nothing that was tried fits 12 GB: update",
    ("smoke", DEMO, "--steps", "1,x"): "--steps",
    ("doctor", DEMO, "train.steps=none"): "train.steps",
}


@pytest.mark.parametrize(("words", "expected"), REFUSALS.items(), ids=REFUSALS.values())
def test_a_users_mistake_is_one_line(
    words: tuple[object, ...],
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert expected in refused(capsys, *words)
    assert list(tmp_path.iterdir()) == []


#: The console script of this environment, or the module where the package is not installed.
COMMAND = shutil.which("nemo-uecr", path=str(Path(sys.executable).parent)) or f"{sys.executable} -m nemo_uecr"


def test_the_installed_command(tmp_path: Path) -> None:
    """Its version, a refusal, and a reader of its output that leaves."""
    root = str(Path(__file__).resolve().parents[2])
    line = f"{COMMAND} --version; {COMMAND} train {DEMO} train.step=3; {COMMAND} config show {DEMO} | head -n 1"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, check=False, cwd=tmp_path, env=environment
    )
    version, shown = done.stdout.splitlines()
    assert version == __version__
    assert shown.startswith("backend: local")
    assert done.stderr.startswith("nemo-uecr: error: ")
    assert done.stderr.count("\n") == 1
