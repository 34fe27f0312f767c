"""The pages that a person reads, and what stands in them: code blocks, commands, code spans, links, headings."""

from __future__ import annotations

import functools
import itertools
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md")])
NOTE = re.compile(r"<!-- (.*) -->\s*$")
#: Ends of a command within a shell line.
SHELL = ("&&", "|", ";", ">", "||")


@dataclass(frozen=True)
class Block:
    """One block of code, and the HTML comment on the line before it."""

    where: str
    line: int
    language: str
    text: str
    note: str


@dataclass(frozen=True)
class Typed:
    """One command that a page tells its reader to type."""

    where: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.where} {' '.join(self.words)}"


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def has_own_test(where: str) -> bool:
    """Whether a page, named as in `name_of` or with a line behind it, is a tutorial that a test of its own follows."""
    name = Path(where.partition(":")[0]).stem.replace("-", "_")
    return (ROOT / "tests" / "docs" / f"test_{name}.py").exists()


@functools.cache
def tokens_of(page: Path) -> list[Any]:
    return MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8"))


@functools.cache
def blocks_of(page: Path) -> list[Block]:
    """Every block of code of a page, in order."""
    found, before = [], ""
    for token in tokens_of(page):
        if token.type in ("fence", "code_block"):
            note, line = NOTE.search(before), token.map[0] + 1
            found.append(Block(f"{name_of(page)}:{line}", line, token.info, token.content, note[1] if note else ""))
        before = token.content if token.type == "html_block" else ""
    return found


def inline_of(page: Path, kind: str) -> Iterator[tuple[str, Any]]:
    """(where, token) of every `code_inline`, `link_open` or `image` of a page's text."""
    for token in tokens_of(page):
        for child in token.children or ():
            if child.type == kind:
                yield f"{name_of(page)}:{token.map[0] + 1}", child


def spans_of(page: Path) -> Iterator[tuple[str, str]]:
    """(where, text) of every code span."""
    return ((where, token.content) for where, token in inline_of(page, "code_inline"))


def commands_of(page: Path) -> list[Typed]:
    """The commands of blocks without a language: their lines, or where a block shows output the lines behind `$ `."""
    found: list[Typed] = []
    for block in blocks_of(page):
        lines = re.sub(r"\\\n\s*", " ", block.text).splitlines() if block.language == "" else []
        prompted = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        for line in prompted or lines:
            found += _typed(line, block.where)
    return found


def _typed(line: str, where: str) -> Iterator[Typed]:
    try:
        words = shlex.split(line, comments=True)
    except ValueError:  # a line of output with an apostrophe
        return
    for ends, group in itertools.groupby(words, SHELL.__contains__):
        # Leading variables belong to the shell.
        command = tuple(itertools.dropwhile(lambda word: re.fullmatch(r"[A-Z_]+=.*", word), group))
        if command and not ends:
            yield Typed(where, command)


#: Files that a page tells its reader to write: a block begins with the name.
WRITTEN = frozenset(
    found[1] for page in PAGES for block in blocks_of(page) if (found := re.match(r"# (\S+/\S+)\n", block.text))
)
