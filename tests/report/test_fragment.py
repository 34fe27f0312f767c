"""An audit's section in the page: the audits' own pass unchanged, and nothing else gets in."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from nemo_uecr.audit.output import Audit, Table, section_html
from nemo_uecr.errors import RunFolderError
from nemo_uecr.report.audits import audits_section
from nemo_uecr.report.fragment import fault_of
from nemo_uecr.report.page import render_page
from nemo_uecr.telemetry.run_folder import read_runs

RunMaker = Callable[..., Path]
ODD = 'a < b & c > "d" it\'s <meta> \u2212 \u00e9'
OWN = section_html(
    Audit("odd", ODD, ODD, {}, Table((ODD, ""), ((ODD, "1"), ("", ODD))), lambda figure, numbers: None, (1.0, 1.0)),
    b"<svg xmlns='http://www.w3.org/2000/svg'/>",
)


def put(run: Path, section: str) -> Path:
    folder = run / "audits" / "odd"
    folder.mkdir(parents=True)
    (folder / "section.html").write_text(section, encoding="utf-8")
    return run


def test_an_audits_own_section_is_on_the_page_unchanged(make_run: RunMaker) -> None:
    assert fault_of(OWN) is None
    section = audits_section(read_runs([put(make_run("run", batches=()), OWN)]))
    assert section is not None
    assert OWN in section.body


@pytest.mark.parametrize(
    "inside",
    [
        '<meta http-equiv="refresh" content="0;url=https://evil.example/">',
        '<form action="https://evil.example/"><input type="password"></form>',
        '<form action="https://evil.example/">a</form>',
        '<a href="https://evil.example/">a</a>',
        '<div style="position:fixed;inset:0">a</div>',
        '<div class="scroll" onclick="x">a</div>',
        '<div class="masthead">a</div>',
        '<p class="note" id="credit">a</p>',
        '<img alt="a" style="max-width:100%;background:#fff" src="https://evil.example/a.png">',
        '<img alt="a" style="max-width:100%;background:#fff" src="data:image/svg+xml;base64,PHN2Zz4=" onerror="x">',
        '<img alt="a" onerror="x" style="max-width:100%;background:#fff" src="data:image/svg+xml;base64,PHN2Zz4=">',
        '<table style="position:fixed;inset:0"></table>',
        "<style>body{display:none}</style>",
        "<META http-equiv=refresh>",
        "<H3>a</H3>",
        "<h3 >a</h3>",
        "<h3>a<",
        "<h3>a>",
        "<!-- a -->",
        "<h3>a</h3 >",
        "<h3>a</tr>",
        "<h3>a",
        "a</article><h3>b</h3>",
        '</article><article class="audit">',
        '<article class="audit">a</article>',
    ],
)
def test_whatever_no_audit_writes_is_refused(inside: str) -> None:
    assert fault_of(f'<article class="audit"><h3>a</h3>{inside}</article>\n') is not None


def test_a_foreign_section_is_one_line(make_run: RunMaker) -> None:
    run = put(make_run("run", batches=()), '<article class="audit"><meta http-equiv="refresh" content="0"></article>')
    with pytest.raises(
        RunFolderError, match=r"section\.html is no section of an audit: '<meta .*; run the audit again"
    ):
        audits_section(read_runs([run]))


@pytest.mark.parametrize("section", ["", "\n", "text", "<h3>a</h3>", f"a{OWN}", f"{OWN}a", OWN * 2, OWN[:-12], OWN[9:]])
def test_a_section_is_one_article(section: str) -> None:
    assert fault_of(section) is not None


def test_a_section_that_is_no_file_is_not_waited_for(make_run: RunMaker) -> None:
    folder = make_run("run", batches=()) / "audits" / "odd"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "section.html")
    with pytest.raises(RunFolderError, match="is no regular file"):
        audits_section(read_runs([folder.parent.parent]))


def test_the_page_sends_no_form(make_run: RunMaker) -> None:
    policy = (
        render_page(read_runs([make_run("run", batches=())]))
        .split('Content-Security-Policy" content="')[1]
        .split('"')[0]
    )
    assert {"base-uri 'none'", "form-action 'none'"} <= set(policy.split("; "))
