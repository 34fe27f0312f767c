"""How errors of every kind leave the program, and how commands are found."""

from __future__ import annotations

import argparse
import errno
import itertools
import sys
from collections.abc import Callable
from importlib.util import find_spec
from types import ModuleType

import pytest

from nemo_uecr.cli import extras, table
from nemo_uecr.cli.main import entry_point
from nemo_uecr.cli.table import COMMANDS, Command
from nemo_uecr.errors import DataError, DependencyError

Run = Callable[[argparse.Namespace], int]


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Callable[[Run], None]:
    """Puts a command `probe [words ...] [--flag]` into the table, with the given body."""

    def install(body: Run) -> None:
        module = ModuleType("probe_command", "A probe.")

        def add_arguments(parser: argparse.ArgumentParser) -> None:
            parser.add_argument("words", nargs="*", default=[])
            parser.add_argument("--flag", action="store_true")

        module.add_arguments = add_arguments  # type: ignore[attr-defined]
        module.run = body  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "probe_command", module)
        monkeypatch.setattr(table, "COMMANDS", (Command(("probe",), "probe_command", "a probe"),))

    return install


def raising(error: BaseException) -> Run:
    def body(args: argparse.Namespace) -> int:
        raise error

    return body


def test_the_exit_code_is_the_commands(probe: Callable[[Run], None]) -> None:
    probe(lambda args: 7)
    assert entry_point(["probe"]) == 7


def test_options_and_words_may_mix(probe: Callable[[Run], None]) -> None:
    seen: list[argparse.Namespace] = []
    probe(lambda args: seen.append(args) or 0)
    assert entry_point(["probe", "a", "--flag", "b=1"]) == 0
    assert (seen[0].words, seen[0].flag) == (["a", "b=1"], True)


def test_a_users_error_is_one_line(probe: Callable[[Run], None], capsys: pytest.CaptureFixture[str]) -> None:
    probe(raising(DataError("line one\n  line two")))
    assert entry_point(["probe"]) == 2
    assert capsys.readouterr() == ("", "nemo-uecr: error: line one line two\n")


def test_a_missing_extra_is_named(probe: Callable[[Run], None], capsys: pytest.CaptureFixture[str]) -> None:
    probe(raising(ModuleNotFoundError("No module named 'transformers'", name="transformers.models")))
    assert entry_point(["probe"]) == 2
    message = "transformers is not installed; run: pip install 'nemo-uecr[local]'"
    assert capsys.readouterr().err == f"nemo-uecr: error: {message}\n"


@pytest.mark.parametrize("error", [ModuleNotFoundError("x", name="nemo_uecr.nowhere"), ValueError("a defect")])
def test_a_defect_is_not_hidden(probe: Callable[[Run], None], error: Exception) -> None:
    probe(raising(error))
    with pytest.raises(type(error)):
        entry_point(["probe"])


def test_an_interruption_is_130(probe: Callable[[Run], None], capsys: pytest.CaptureFixture[str]) -> None:
    probe(raising(KeyboardInterrupt()))
    assert entry_point(["probe"]) == 130
    assert capsys.readouterr().err == "nemo-uecr: interrupted\n"


def test_a_missing_module_of_an_extra_refuses_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "jinja2" else object())
    with pytest.raises(DependencyError, match=r"jinja2 is not installed; run: pip install 'nemo-uecr\[local\]'"):
        extras.require_extra("local")


def test_the_overview_keeps_groups_together() -> None:
    first_words = [entry.words[0] for entry in COMMANDS]
    groups = [word for word, _ in itertools.groupby(first_words)]
    assert len(groups) == len(set(groups)), groups


@pytest.mark.parametrize("entry", COMMANDS, ids=lambda entry: entry.name)
def test_every_command_has_its_module(entry: Command) -> None:
    assert find_spec(entry.module) is not None


@pytest.mark.parametrize("entry", COMMANDS, ids=lambda entry: entry.name)
def test_every_command_has_help(entry: Command, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        entry_point([*entry.words, "--help"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: nemo-uecr {entry.name}")


def test_a_full_disk_is_one_line(probe: Callable[[Run], None], capsys: pytest.CaptureFixture[str]) -> None:
    probe(raising(OSError(errno.ENOSPC, "No space left on device", "out/train.jsonl")))
    assert entry_point(["probe"]) == 2
    assert capsys.readouterr().err.startswith("nemo-uecr: error: out/train.jsonl: No space left on device; make room")


def named(error: OSError, path: str) -> OSError:
    """As it is after the one who wrote a folder has said which."""
    error.filename = path
    return error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            OSError(errno.ENAMETOOLONG, "File name too long", "x" * 300),
            f"{'x' * 300}: File name too long; name another",
        ),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory", "a/b"), "a/b: Not a directory; name another path"),
        (OSError("no model here\nhint"), "no model here\n"),
        (named(OSError(["a library's list"]), "out"), 'out: ["a library\'s list"]\n'),
    ],
)
def test_what_the_system_refuses_is_one_line(
    error: OSError, said: str, probe: Callable[[Run], None], capsys: pytest.CaptureFixture[str]
) -> None:
    probe(raising(error))
    assert entry_point(["probe"]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"nemo-uecr: error: {said}")
    assert printed.count("\n") == 1
