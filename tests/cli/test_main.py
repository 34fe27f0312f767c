"""How a command line is parsed, and how results and errors leave the program."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nemo_uecr import __version__
from nemo_uecr.cli import common, main, train
from nemo_uecr.cli.main import app, entry_point
from nemo_uecr.errors import DataError, DependencyError, require_extra
from nemo_uecr.stopping import RunStopped
from tests.cli.commands import commands

ROOT = Path(__file__).resolve().parents[2]
DEMO = str(ROOT / "examples" / "configs" / "local" / "demo.yaml")
MINE = str(ROOT / "examples" / "configs" / "local" / "my_problems.yaml")


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException | int], None]:
    """Puts an app in the place of ours whose command `probe` returns a code or raises."""

    def install(outcome: BaseException | int) -> None:
        def body() -> int:
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome

        other = common.family("probes")
        other.command(body, name="probe")
        monkeypatch.setattr(main, "app", other)

    return install


@pytest.mark.parametrize(
    ("outcome", "code", "said"),
    [
        (7, 7, ""),
        (DataError("line one\n  line two"), 2, "nemo-uecr: error: line one line two\n"),
        (RunStopped("SIGTERM: saved step 3"), 75, "nemo-uecr: SIGTERM: saved step 3\n"),
        (KeyboardInterrupt(), 130, "nemo-uecr: interrupted\n"),
        (
            ModuleNotFoundError("No module named 'transformers'", name="transformers.models"),
            2,
            "nemo-uecr: error: transformers is not installed; run: pip install 'nemo-uecr[local]'\n",
        ),
        (
            OSError(errno.ENOSPC, "No space left on device", "out/train.jsonl"),
            2,
            "nemo-uecr: error: out/train.jsonl: No space left on device; make room, or write elsewhere, and run the "
            "command again\n",
        ),
    ],
)
def test_exit_codes(
    probe: Callable[[BaseException | int], None],
    capsys: pytest.CaptureFixture[str],
    outcome: BaseException | int,
    code: int,
    said: str,
) -> None:
    probe(outcome)
    assert entry_point(["probe"]) == code
    assert capsys.readouterr() == ("", said)


@pytest.mark.parametrize(
    "error", [ModuleNotFoundError("x", name="nemo_uecr.nowhere"), ValueError("a defect"), OSError("a library's text")]
)
def test_a_defect_keeps_its_traceback(probe: Callable[[BaseException | int], None], error: Exception) -> None:
    probe(error)
    with pytest.raises(type(error)):
        entry_point(["probe"])


def test_a_missing_module_of_an_extra_refuses_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nemo_uecr.errors.find_spec", lambda name: None if name == "jinja2" else object())
    with pytest.raises(DependencyError, match=r"jinja2 is not installed; run: pip install 'nemo-uecr\[local\]'"):
        require_extra("local")


@pytest.mark.parametrize("words", [words for words, _ in commands()], ids=" ".join)
def test_every_command_has_help(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert entry_point([*words, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"Usage: nemo-uecr {' '.join(words)} ")


def test_options_stand_anywhere_among_the_overrides() -> None:
    words = ["a.b=1", "--resume", "c=[1,2]"]
    command, bound, _ = app.parse_args(["train", "x.yaml", *words], exit_on_error=False, print_error=False)
    assert command is train.train
    assert bound.args == ("x.yaml", "a.b=1", "c=[1,2]")
    assert bound.kwargs == {"resume": True}


#: The console script of this environment, or the module where the package is not installed.
COMMAND = shutil.which("nemo-uecr", path=str(Path(sys.executable).parent)) or f"{sys.executable} -m nemo_uecr"


def shell(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    words = ["bash", "-c", line]
    return subprocess.run(words, capture_output=True, text=True, check=False, cwd=folder, env=environment)


REFUSALS = {
    "misspelt key": (("train", DEMO, "train.step=3"), "the nearest known key is train.steps"),
    "no configuration file": (("train", "nowhere.yaml"), "nowhere.yaml: "),
    "no problem file": (("config", "check", MINE), "data.train: path/to/train.jsonl: no such file"),
    "no token limit": (("evaluate", "m", "--out", "o"), "--max-tokens"),
    "unknown command": (("trainn", DEMO), 'Did you mean "train"?'),
    "unknown option": (("train", DEMO, "--resum"), "Unknown option: --resum. Did you mean --resume? See: nemo-uecr"),
    "missing argument": (("train",), "CONFIG requires an argument"),
    "number out of range": (("audit", "signal", "s", "--pairs", "0"), "Must be >= 1"),
}


@pytest.mark.parametrize(("arguments", "expected"), REFUSALS.values(), ids=REFUSALS.keys())
def test_a_users_mistake_is_one_line(
    arguments: tuple[str, ...],
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert entry_point(arguments) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert printed.err.startswith("nemo-uecr: error: ")
    assert expected in printed.err
    assert list(tmp_path.iterdir()) == []


def test_the_installed_command(tmp_path: Path) -> None:
    assert shell(f"{COMMAND} --version", tmp_path).stdout.strip() == __version__
    refused = shell(f"{COMMAND} train {DEMO} train.step=3", tmp_path)
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)


def test_a_reader_that_leaves_is_no_crash(tmp_path: Path) -> None:
    done = shell(f"{COMMAND} config show {DEMO} | head -n 1", tmp_path)
    assert done.stdout.startswith("backend: local")
    assert "Traceback" not in done.stderr
