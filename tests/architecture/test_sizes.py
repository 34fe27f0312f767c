"""Files and functions stay short enough to be read in one sitting."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILE_LIMIT, FUNCTION_LIMIT = 400, 80
SOURCES = sorted(ROOT.glob("nemo_uecr/**/*.py"))
FORBIDDEN_NAMES = {"utils.py", "util.py", "helpers.py", "common.py", "misc.py"}


def long_functions(source: str) -> list[tuple[str, int]]:
    """Name and length of every function over the limit."""
    functions = (
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    lengths = [(node.name, (node.end_lineno or node.lineno) - node.lineno + 1) for node in functions]
    return [(name, length) for name, length in lengths if length > FUNCTION_LIMIT]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_file_and_functions_are_short(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= FILE_LIMIT, "split the file by responsibility"
    assert long_functions(source) == []


def test_a_long_function_is_found() -> None:
    source = "def short():\n    pass\n\n\ndef long():\n" + "    x = 1\n" * FUNCTION_LIMIT
    assert long_functions(source) == [("long", FUNCTION_LIMIT + 1)]


def test_no_file_is_a_drawer() -> None:
    assert [str(path.relative_to(ROOT)) for path in SOURCES if path.name in FORBIDDEN_NAMES] == []
