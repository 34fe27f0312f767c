"""Every command in the pages is one that the package takes: its words, its options, its files and its keys."""

from __future__ import annotations

import re
import runpy
from pkgutil import resolve_name

import pytest
from cyclopts import CycloptsError

from nemo_uecr.cli.main import app
from nemo_uecr.config.load import flattened, key_of
from nemo_uecr.config.recipes import load_recipe
from nemo_uecr.config.schema import Config
from tests.cli.commands import commands, options
from tests.docs.pages import PAGES, ROOT, WRITTEN, Typed, commands_of, has_own_test, spans_of

TYPED = [typed for page in PAGES for typed in commands_of(page)]
NAMED = [Typed(where, tuple(text.split())) for page in PAGES for where, text in spans_of(page)]
OURS = [typed for typed in TYPED if typed.words[0] == "nemo-uecr"]
#: Commands whose key=value changes a configuration.
WITH_OVERRIDES = ("train", "config", "plan", "doctor", "smoke", "demo", "audit teacher", "teacher score", "slurm smoke")
#: The keys of a shipped recipe; `++` adds others.
RECIPE = flattened(load_recipe(ROOT / "examples/configs/uecr_qwen3_1p7b.yaml", []).values)
GENERATED = runpy.run_path(str(ROOT / "tools" / "pages.py"))["PAGES"]


def fault_of(words: tuple[str, ...]) -> str | None:
    """What is wrong with the words after `nemo-uecr`; None for a command that would start."""
    if words[0] in ("--help", "--version") or re.fullmatch(r"[A-Z]+", words[0]):
        return None
    chain, apps, rest = app.parse_commands(list(words))
    command = apps[-1]
    if not chain:
        return f"unknown command {words[0]}"
    if command.default_command is None:  # a family of commands, such as `audit`
        return None if not rest or re.fullmatch(r"[A-Z]+|\.{3}|--help", rest[0]) else f"unknown command {rest[0]}"
    if {"...", "--help"} & set(rest):
        named = [word.partition("=")[0] for word in rest if word.startswith("--")]
        return next((f"no option {name}" for name in named if name not in options(command) | {"--help"}), None)
    try:
        app.parse_args(list(words), exit_on_error=False, print_error=False)
    except CycloptsError as error:
        return str(error)
    if " ".join(chain) not in WITH_OVERRIDES:
        return None
    keys = [found[1] for word in rest if (found := re.match(r"\+?([a-z_]+(?:\.[\w-]+)+)=", word))]
    of_recipes = [key for key in keys if any(f"{known}.".startswith(f"{key}.") for known in RECIPE)]
    unknown = [key for key in keys if key not in of_recipes and key_of(key, Config)[1] is None]
    return f"no key {unknown[0]}" if unknown else None


@pytest.mark.parametrize("typed", OURS, ids=str)
def test_a_command_parses(typed: Typed) -> None:
    assert fault_of(typed.words[1:]) is None


def test_commands_named_in_the_text_exist() -> None:
    named = [typed for typed in NAMED if typed.words[0] == "nemo-uecr" and len(typed.words) > 1]
    faults = {str(typed): fault_of((*typed.words[1:], "...")) for typed in named}
    assert {where: fault for where, fault in faults.items() if fault} == {}


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    typed = [typed for typed in [*TYPED, *NAMED] if typed.words[0] == "make" and len(typed.words) > 1]
    assert [str(each) for each in typed if each.words[1] not in targets and each.words[1].islower()] == []


def test_files_of_commands_exist() -> None:
    """Scripts and configurations; a file that the page itself tells to write is its own."""
    ours = re.compile(r"(examples/(configs|audits)|slurm|tests|nemo_uecr|docs|tools)/")
    checked = [typed for typed in TYPED if not has_own_test(typed.where)]
    named = [(typed, word) for typed in checked for word in typed.words if ours.match(word)]
    assert [str(typed) for typed, word in named if not (ROOT / word).exists() and word not in WRITTEN] == []


MAP = (ROOT / "docs" / "paper-map.md").read_text("utf-8")
ROWS = re.findall(r"^- (.*): `(.*?)`, `(.*?)`$", MAP, re.M)


@pytest.mark.parametrize(("item", "function", "line"), ROWS, ids=[row[0][:40] for row in ROWS])
def test_what_a_row_of_the_paper_map_names_exists(item: str, function: str, line: str) -> None:
    """A function or method below `nemo_uecr`, a command's words, and its options."""
    resolve_name(f"nemo_uecr.{function}")
    words, sign, named = line.partition(" --")
    assert set(f"{sign}{named}".split()) <= options(dict(commands())[tuple(words.split())])


@pytest.mark.parametrize("name", GENERATED)
def test_a_page_that_comes_from_the_code_is_current(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["nemo-uecr"])
    page = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    assert page == GENERATED[name](), "run: make pages"
    assert [line for line in page.splitlines() if line.startswith("| `") and "|  |" in line] == []  # no meaning
