"""The commands of docs/cluster.md."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
#: What a line needs that the tests do not have.
MARKS = ("# needs GPUs", "# needs the network")


@dataclass(frozen=True)
class Shown:
    """One command of the page."""

    text: str
    marked: bool

    @property
    def words(self) -> list[str]:
        return shlex.split(self.text)


def shown() -> list[Shown]:
    """Every line inside a fence; one that names a language shows no commands."""
    blocks = re.findall(r"^```\n(.*?)^```$", re.sub(r"^```\w+\n.*?^```$", "", PAGE, flags=re.M | re.S), re.M | re.S)
    lines = [line for block in blocks for line in block.splitlines() if line.strip()]
    return [Shown(re.sub("|".join(MARKS), "", line).strip(), line.rstrip().endswith(MARKS)) for line in lines]


def job(script: str, *parts: str) -> list[str]:
    """The page's last job of a script that runs without what the tests do not have."""
    wanted = {"sbatch", f"slurm/{script}.sbatch", *parts}
    [*_, words] = [one.words for one in shown() if not one.marked and wanted <= {*one.words}]
    return words


def at_home(words: list[str], environment: Path) -> list[str]:
    """What follows `sbatch` on the page, for another working folder and an environment in place of the container."""
    if "--container" in words:
        at = words.index("--container")
        words = [*words[:at], *words[at + 2 :]]
    at = next(number for number, word in enumerate(words) if word.startswith("slurm/"))
    return [*words[1:at], str(ROOT / words[at]), "--venv", str(environment), *words[at + 1 :]]
