"""Links of the pages lead somewhere: to a page, a heading in it, a file; and paths that are named exist."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, WRITTEN, has_own_test, inline_of, name_of, spans_of, tokens_of

#: Folders of the repository in which a path that is named must exist.
FOLDERS = ("docs/", "examples/", "nemo_uecr/", "slurm/", "tests/")


def links_of(page: Path) -> list[str]:
    """The targets within the repository."""
    found = [token.attrs["href"] for _, token in inline_of(page, "link_open")]
    found += [token.attrs["src"] for _, token in inline_of(page, "image")]
    return [target for target in found if not re.match(r"[a-z]+:", target)]


def anchors_of(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    pairs = itertools.pairwise(tokens_of(page))
    heads = [after.content for token, after in pairs if token.type == "heading_open"]
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def fault_of(page: Path, target: str) -> str | None:
    path, _, anchor = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    if not file.exists():
        return f"no file {target}"
    return f"no heading {target}" if anchor and anchor not in anchors_of(file) else None


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    assert [fault for target in links_of(page) if (fault := fault_of(page, target))] == []


def test_a_broken_link_is_found() -> None:
    page = ROOT / "docs" / "README.md"
    assert fault_of(page, "configuration.md#files") is None
    assert fault_of(page, "metric.md") == "no file metric.md"
    assert fault_of(page, "configuration.md#filez") == "no heading configuration.md#filez"


def test_named_paths_exist() -> None:
    named = [(where, text) for page in PAGES for where, text in spans_of(page) if text.startswith(FOLDERS)]
    named = [(where, text) for where, text in named if not has_own_test(where)]
    assert len(named) > 15
    plain = [(where, text) for where, text in named if re.fullmatch(r"[\w./-]+", text) and text not in WRITTEN]
    assert [f"{where} {text}" for where, text in plain if not (ROOT / text).exists()] == []


def test_pages_named_in_the_code_exist() -> None:
    files = [file for folder in ("nemo_uecr", "examples", "slurm") for file in (ROOT / folder).rglob("*")]
    texts = [file for file in files if file.suffix in (".py", ".yaml", ".sbatch", ".sh", ".md")]
    named = [(file, page) for file in texts for page in re.findall(r"docs/[\w-]+\.md", file.read_text("utf-8"))]
    assert named
    assert [f"{file.name}: {page}" for file, page in named if not (ROOT / page).is_file()] == []


def test_every_page_is_in_the_navigation_and_the_index() -> None:
    """The site's menu and the list in docs/README.md both lead to every page."""
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in PAGES if (ROOT / "docs") in page.parents}
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    assert set(re.findall(r"([\w/-]+\.md)\s*$", navigation, re.M)) == pages
    assert pages - set(links_of(ROOT / "docs" / "README.md")) == {"README.md"}
