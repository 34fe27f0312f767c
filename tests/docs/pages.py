"""The pages that a person reads, and what stands in them: code blocks, commands, code spans, links, headings."""

from __future__ import annotations

import functools
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

    page: Path
    line: int
    language: str
    text: str
    note: str

    @property
    def where(self) -> str:
        return f"{name_of(self.page)}:{self.line}"


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
            note = NOTE.search(before)
            found.append(Block(page, token.map[0] + 1, token.info, token.content, note[1] if note else ""))
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


def commands_in(block: Block) -> Iterator[Typed]:
    """The commands of a block without a language: its lines, or where it shows output the lines behind `$ `."""
    joined = re.sub(r"\\\n\s*", " ", block.text).splitlines()
    prompted = any(line.startswith("$ ") for line in joined)
    for line in joined:
        if line.startswith("$ ") or not prompted:
            yield from _typed(line.removeprefix("$ "), block.where)


def _typed(line: str, where: str) -> Iterator[Typed]:
    try:
        words = shlex.split(line, comments=True)
    except ValueError:  # a line of output with an apostrophe
        return
    command: list[str] = []
    for word in [*words, ";"]:
        if word in SHELL:
            if command:
                yield Typed(where, tuple(command))
            command = []
        elif command or not re.fullmatch(r"[A-Z_]+=.*", word):  # leading variables belong to the shell
            command.append(word)


def commands_of(page: Path) -> list[Typed]:
    return [typed for block in blocks_of(page) if block.language == "" for typed in commands_in(block)]


#: Files that a page tells its reader to write: a block begins with the name.
WRITTEN = frozenset(
    found[1] for page in PAGES for block in blocks_of(page) if (found := re.match(r"# (\S+/\S+)\n", block.text))
)
