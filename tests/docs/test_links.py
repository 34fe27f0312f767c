"""What `make docs` does not check: links of the pages beside docs/, and paths that pages and code name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, WRITTEN, has_own_test, inline_of, name_of, spans_of

#: Folders of the repository in which a path that is named must exist.
FOLDERS = ("docs/", "examples/", "nemo_uecr/", "slurm/", "tests/")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_that_are_linked_exist(page: Path) -> None:
    found = [token.attrs["href"] for _, token in inline_of(page, "link_open")]
    found += [token.attrs["src"] for _, token in inline_of(page, "image")]
    files = [target.partition("#")[0] for target in found if not re.match(r"[a-z]+:", target)]
    assert [file for file in files if not (page.parent / file).exists()] == []


def test_named_paths_exist() -> None:
    named = [(where, text) for page in PAGES for where, text in spans_of(page) if text.startswith(FOLDERS)]
    plain = [(where, text) for where, text in named if re.fullmatch(r"[\w./-]+", text) and text not in WRITTEN]
    assert [each for each in plain if not has_own_test(each[0]) and not (ROOT / each[1]).exists()] == []


def test_named_tests_exist() -> None:
    named = {text.partition("::")[::2] for page in PAGES for _, text in spans_of(page) if re.match(r"tests/.*::", text)}
    assert [each for each in named if f"def {each[1]}(" not in (ROOT / each[0]).read_text(encoding="utf-8")] == []


def test_pages_named_in_the_code_exist() -> None:
    files = [file for folder in ("nemo_uecr", "examples", "slurm") for file in (ROOT / folder).rglob("*")]
    texts = [file for file in files if file.suffix in (".py", ".yaml", ".sbatch", ".sh", ".md")]
    named = [(file, page) for file in texts for page in re.findall(r"docs/[\w-]+\.md", file.read_text("utf-8"))]
    assert [f"{file.name}: {page}" for file, page in named if not (ROOT / page).is_file()] == []
