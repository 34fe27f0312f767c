"""docs/troubleshooting.md: every line that it quotes is one that the code can say, and every kind of error is there."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from importlib import import_module
from pkgutil import walk_packages

import pytest

import nemo_uecr
from nemo_uecr.errors import UecrError
from tests.docs.pages import ROOT, prose_of

PAGE = ROOT / "docs" / "troubleshooting.md"
#: What varies, in the page and here.
HOLE = "…"
#: Modules that define errors; importing more would need optional packages.
DEFINING = re.compile(r"^class \w+\(.*Error", re.M)


def quoted() -> list[str]:
    """The lines of the page's tables, the kinds of error aside."""
    text = prose_of(PAGE).partition("## Forms that many")[2].partition("## Kinds of error")[0]
    return [row[1] for row in re.finditer(r"^\| `([^`]+)` \|", text, re.M)]


@functools.cache
def templates() -> tuple[str, ...]:
    """Every text of the package with a hole for each value that is put into it."""
    found = []
    for file in sorted((ROOT / "nemo_uecr").rglob("*.py")):
        nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
        comments = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        found += [text for node in nodes if id(node) not in comments and len(text := template(node)) > 5]
    return tuple(found)


def template(node: ast.AST) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(template(part) or HOLE for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return template(node.left) + (template(node.right) or HOLE)
    return ""


def is_said(line: str) -> bool:
    """Whether some text of the package has the line's words in the line's order."""
    words = [re.escape(part.strip()) for part in line.split(HOLE) if part.strip(" ;:,.")]
    pattern = re.compile(".*".join(words), re.S)
    return bool(words) and any(pattern.search(text) for text in templates())


@functools.cache
def classes() -> tuple[type[UecrError], ...]:
    return tuple(defined())


def defined() -> Iterator[type[UecrError]]:
    for file in sorted((ROOT / "nemo_uecr").rglob("*.py")):
        if DEFINING.search(file.read_text(encoding="utf-8")):
            module = import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))
            kinds = (each for each in vars(module).values() if isinstance(each, type))
            yield from (each for each in kinds if issubclass(each, UecrError) and each.__module__ == module.__name__)


def test_the_page_quotes_many_lines_each_once() -> None:
    assert len(quoted()) > 120
    assert len(set(quoted())) == len(quoted())


@pytest.mark.parametrize("line", quoted(), ids=lambda line: line[:60])
def test_a_quoted_line_is_one_of_the_code(line: str) -> None:
    assert is_said(line), "no text of nemo_uecr says this any more"


@pytest.mark.parametrize("line", ["…: no such tile; expected JSONL problems", "… never said by anybody …"])
def test_a_line_that_nobody_says_is_found(line: str) -> None:
    assert not is_said(line)


def test_every_kind_of_error_is_listed() -> None:
    kinds = prose_of(PAGE).partition("## Kinds of error")[2]
    listed = set(re.findall(r"`(\w+Error)`", kinds))
    names = {each.__name__ for each in classes()}
    assert len(names) > 12
    assert names <= listed
    assert listed - names <= {"UecrError"}


def test_most_lines_that_the_code_can_say_are_on_the_page() -> None:
    """A new family of errors needs a row; a layer without one, or more than a tenth of all errors, would be a hole."""
    patterns = [re.compile(".*".join(re.escape(p.strip()) for p in line.split(HOLE) if p.strip())) for line in quoted()]
    silent, found, missed = [], 0, []
    for package in walk_packages(nemo_uecr.__path__):
        files = list((ROOT / "nemo_uecr" / package.name).rglob("*.py"))
        raised = [text for file in files for text in raised_in(file.read_text(encoding="utf-8"))]
        unknown = [text for text in raised if not any(pattern.search(text) for pattern in patterns)]
        silent += [package.name] if raised and len(unknown) == len(raised) else []
        found, missed = found + len(raised), missed + unknown
    assert silent == []
    assert len(missed) <= found / 10, "\n".join(missed)


def raised_in(source: str) -> list[str]:
    """The texts of the errors of ours that a module raises."""
    raised = [node.exc for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Raise)]
    calls = [node for node in raised if isinstance(node, ast.Call) and node.args]
    ours = {each.__name__ for each in (UecrError, *classes())}
    named = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id in ours]
    texts = [template(argument) for call in named for argument in call.args]
    return [text for text in texts if len(re.findall(r"[a-z]", text)) > 10]  # the others hand on what they were given
