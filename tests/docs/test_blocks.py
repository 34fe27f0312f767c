"""Code blocks do what they claim: configurations load, Python runs and prints what stands below it, JSON is JSON.

A block that cannot is marked by an HTML comment on the line before it: `<!-- not run: REASON -->` or
`<!-- not a configuration: REASON -->`. A tutorial with a test of its own is left to it.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from nemo_uecr.config.load import load_config
from nemo_uecr.config.recipes import is_recipe, load_recipe
from nemo_uecr.start.recipe_form import accepted, layout
from tests.docs.pages import PAGES, ROOT, Block, blocks_of, has_own_test, name_of

BLOCKS = [block for page in PAGES for block in blocks_of(page)]
YAML = [block for block in BLOCKS if block.language == "yaml" and not block.note.startswith("not a configuration: ")]
HERE = [page for page in PAGES if not has_own_test(name_of(page))]
PYTHON = [page for page in HERE if any(block.language == "python" for block in blocks_of(page))]


@pytest.mark.parametrize("block", YAML, ids=lambda block: block.where)
def test_a_configuration_loads(block: Block, tmp_path: Path) -> None:
    """Beside a copy of the shipped configurations, under the name in its first line."""
    named = re.match(r"# (\S+\.yaml)\n", block.text)
    assert named, f"{block.where}: begin the block with '# NAME.yaml', the file that it is"
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    path = tmp_path / named[1]
    path.write_text(block.text, encoding="utf-8")
    if is_recipe(path):
        layout(accepted(load_recipe(path, [])), with_models=True)
    else:
        load_config(path, [])


@pytest.mark.parametrize("page", PYTHON, ids=name_of)
def test_python_runs_and_prints_what_is_shown(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a page share their names; a `text` block that follows one is its output."""
    monkeypatch.chdir(tmp_path)
    blocks = blocks_of(page)
    names: dict[str, Any] = {"__name__": "page"}
    for block, following in zip(blocks, [*blocks[1:], None], strict=True):
        if block.language != "python" or block.note.startswith("not run: "):
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block.text, block.where, "exec"), names)
        adjoins = following is not None and following.line <= block.line + len(block.text.splitlines()) + 3
        if adjoins and following.language == "text":
            assert printed.getvalue().strip() == following.text.strip(), following.where


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "json"], ids=lambda block: block.where)
def test_json_is_json(block: Block) -> None:
    for line in block.text.splitlines():
        json.loads(line)
