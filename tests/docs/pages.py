"""The pages that a person reads, and what stands in them: code blocks, commands, links."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md")])
FENCE = re.compile(r"^( *)```([\w-]*)$")
NOTE = re.compile(r"^\s*<!-- (.*) -->\s*$")
#: Ends of a command within a shell line.
SHELL = ("&&", "|", ";", ">", "||")


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: Path
    line: int
    language: str
    text: str
    note: str
    """The HTML comment on the line before, where there is one."""

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


def blocks_of(page: Path) -> list[Block]:
    """Every fenced block of a page, in order."""
    found: list[Block] = []
    lines = page.read_text(encoding="utf-8").splitlines()
    number = 0
    while number < len(lines):
        opened = FENCE.match(lines[number])
        if opened:
            end = next(at for at in range(number + 1, len(lines)) if lines[at] == f"{opened[1]}```")
            note = NOTE.match(lines[number - 1]) if number else None
            text = "\n".join(line.removeprefix(opened[1]) for line in lines[number + 1 : end])
            found.append(Block(page, number + 1, opened[2], text, note[1] if note else ""))
            number = end
        number += 1
    return found


def prose_of(page: Path) -> str:
    """A page without its fenced blocks; line numbers stay."""
    lines = page.read_text(encoding="utf-8").splitlines()
    for block in blocks_of(page):
        for at in range(block.line - 1, block.line + len(block.text.splitlines()) + 1):
            lines[at] = ""
    return "\n".join(lines)


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


def spans_of(page: Path) -> Iterator[tuple[str, str]]:
    """(where, text) of every code span outside fences; a span may run over a line's end."""
    text = prose_of(page)
    for found in re.finditer(r"(?<!`)`([^`]+)`(?!`)", text):
        yield f"{name_of(page)}:{text.count(chr(10), 0, found.start()) + 1}", " ".join(found[1].split())


#: Files that a page tells its reader to write: a block begins with the name.
WRITTEN = frozenset(
    found[1] for page in PAGES for block in blocks_of(page) if (found := re.match(r"# (\S+/\S+)\n", block.text))
)
