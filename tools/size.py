"""Count what the project weighs: lines, files, raises, imports, tests, words of documents, commands.

    python tools/size.py            # this checkout
    python tools/size.py ../other   # another checkout

Python lines count blank lines and comments. The share of imports is taken of the code lines, that is without blank
lines, comments and docstrings. Pages and tables that are generated from the code do not count as written by hand.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

GENERATED = ("cli.md", "configuration.md", "metrics.md")
#: The tables that `make pages` writes into docs/responses.md.
COLUMNS = re.compile(r"^\| column \|.*\n(\|.*\n)*", re.M)


def code_lines(source: str) -> set[int]:
    """The numbers of the lines that hold code: not blank, not a comment, not in a docstring."""
    lines = {n for n, line in enumerate(source.splitlines(), 1) if line.strip() and not line.lstrip().startswith("#")}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and ast.get_docstring(
            node
        ):
            lines -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return lines


def import_lines(source: str) -> set[int]:
    """The numbers of the lines of imports and of `__all__`."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        exported = isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__"
        if exported or isinstance(node, (ast.Import, ast.ImportFrom)):
            lines |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def measure(root: Path) -> dict[str, str]:
    """Every figure by its name, for the checkout at `root`."""
    package = {path: path.read_text(encoding="utf-8") for path in sorted((root / "nemo_uecr").rglob("*.py"))}
    lengths = [len(text.splitlines()) for text in package.values()]
    code = sum(len(code_lines(text)) for text in package.values())
    imports = sum(len(import_lines(text) & code_lines(text)) for text in package.values())
    raises = sum(isinstance(node, ast.Raise) for text in package.values() for node in ast.walk(ast.parse(text)))
    tests = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in (root / "tests").rglob("*.py"))
    pages = [*(root / "docs").rglob("*.md"), *(root / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md"))]
    texts = [page.read_text(encoding="utf-8") for page in pages if page.name not in GENERATED]
    words = sum(len(COLUMNS.sub("", text).split()) for text in texts)
    return {
        "package, lines of Python": f"{sum(lengths):,}",
        "package, lines of code": f"{code:,}",
        "package, files": f"{len(lengths)}",
        "package, files under 50 lines": f"{sum(length < 50 for length in lengths)}",
        "package, raise statements": f"{raises}",
        "imports' share of the code lines": f"{imports / code:.1%}",
        "tests, lines of Python": f"{tests:,}",
        "documents by hand, words": f"{words:,}",
        "commands in --help": f"{commands(root)}",
    }


def commands(root: Path) -> int:
    """How many commands `nemo-uecr --help` lists."""
    call = [sys.executable, "-m", "nemo_uecr", "--help"]
    shown = subprocess.run(call, cwd=root, capture_output=True, text=True, check=True).stdout
    return len(re.findall(r"^[ │]+([a-z][a-z-]*(?: [a-z-]+)?)  +\S", shown, re.M))


if __name__ == "__main__":
    checkout = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1]
    for name, figure in measure(checkout).items():
        sys.stdout.write(f"{name:34} {figure:>8}\n")
