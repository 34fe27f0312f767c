"""docs/reliability.md names tests that exist, and every test of this folder stands on it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def names_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def named() -> list[tuple[str, str]]:
    return NAMED.findall((ROOT / "docs" / "reliability.md").read_text(encoding="utf-8"))


def test_each_named_test_exists() -> None:
    assert len(named()) > 60
    missing = [f"{path}::{name}" for path, name in named() if name not in names_in(ROOT / path)]
    assert missing == []


def test_each_row_names_a_test() -> None:
    lines = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| ") and not line.startswith(("| fault |", "| what |"))]
    assert [row for row in rows if not NAMED.search(row)] == []


def test_the_tests_of_this_folder_stand_on_the_page() -> None:
    helpers = {"test_a_deep_override_is_one_line", "test_the_search_finds_what_it_looks_for"}
    helpers |= {"test_the_search_sees_every_way_to_the_time_of_day"}
    helpers |= {"test_a_nemo_rl_run_holds_its_folder_while_it_runs"}
    helpers |= {"test_the_folder_would_run_code_if_transformers_were_left_to_ask"}
    shown = {name for _, name in named()}
    files = sorted(path for path in Path(__file__).parent.glob("test_*.py") if path.name != "test_page.py")
    assert {name for path in files for name in names_in(path)} - shown == helpers
