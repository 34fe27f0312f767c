"""The commands of docs/cluster.md."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "cluster.md"
#: What a line needs that the tests do not have.
MARKS = ("# needs GPUs", "# needs the hub")


@dataclass(frozen=True)
class Shown:
    """One command of the page."""

    text: str
    marked: bool

    @property
    def words(self) -> list[str]:
        return shlex.split(self.text)


def commands_of(page: str) -> list[Shown]:
    """Every line inside a fence; one that names a language shows no commands."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.M | re.S)
    lines = [line for language, block in blocks if not language for line in block.splitlines()]
    return [
        Shown(re.sub("|".join(MARKS), "", line).strip(), line.rstrip().endswith(MARKS))
        for line in lines
        if line.strip()
    ]


def shown() -> list[Shown]:
    """Every command of the page."""
    return commands_of(PAGE.read_text(encoding="utf-8"))


def smoke_job() -> list[str]:
    """The page's one job that needs no GPU and no checkpoint."""
    [words] = [command.words for command in shown() if "--smoke" in command.words]
    return words


def evaluation_job() -> list[str]:
    """The page's evaluation on a CPU."""
    [words] = [command.words for command in shown() if "--engine" in command.words]
    return words


def conversion_job() -> list[str]:
    """The page's conversion without a container."""
    jobs = [c for c in shown() if c.words[0] == "sbatch" and not c.marked]
    [words] = [c.words for c in jobs if "slurm/convert.sbatch" in c.words]
    return words


def at_home(words: list[str], environment: Path) -> list[str]:
    """What follows `sbatch` on the page, for another working folder and another environment."""
    at = next(number for number, word in enumerate(words) if word.startswith("slurm/"))
    return [*words[1:at], str(ROOT / words[at]), "--venv", str(environment), *words[at + 1 :]]
