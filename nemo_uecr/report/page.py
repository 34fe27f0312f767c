"""Puts the sections together into one file that asks nothing of the network."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from pathlib import Path

from nemo_uecr import __version__
from nemo_uecr.errors import RunFolderError
from nemo_uecr.files import replace_file
from nemo_uecr.report.accuracy import accuracy_section
from nemo_uecr.report.audits import audits_section
from nemo_uecr.report.configuration import configuration_section
from nemo_uecr.report.credit_section import credit_section
from nemo_uecr.report.curves import curves_section
from nemo_uecr.report.groups import groups_section
from nemo_uecr.report.identities import identities_section
from nemo_uecr.report.markup import data_block, text
from nemo_uecr.report.overview import masthead
from nemo_uecr.report.section import Section
from nemo_uecr.telemetry.run_folder import RunFolder, read_runs

#: Runs on one page: as many as the page has colours.
MOST_RUNS = 8
SCRIPTS = ("charts.js", "credit.js")
STYLES = ("page.css", "credit.css")


def write_report(folders: list[Path], out: Path) -> Path:
    """Write the report of one run, or of several side by side.

    The page is written aside and renamed, so that ``out`` is never half a page.

    Args:
        folders: run folders.
        out: the HTML file.

    Returns:
        The path written.

    Raises:
        RunFolderError: If a folder is no run, a file in it cannot be read, or ``out`` cannot be written.
    """
    if len(folders) > MOST_RUNS:
        raise RunFolderError(f"{len(folders)} runs were given; expected at most {MOST_RUNS} on one page. Give fewer")
    page = render_page(read_runs(folders))
    if not out.parent.is_dir():
        raise RunFolderError(f"{out} cannot be written (no folder {out.parent}); expected a writable place. Give --out")
    try:
        replace_file(out, page.encode("utf-8"))
    except OSError as error:
        raise RunFolderError(
            f"{out} cannot be written ({error.strerror}); expected a writable place. Give --out"
        ) from error
    return out


def render_page(runs: list[RunFolder]) -> str:
    """The whole page as text."""
    found = [
        curves_section(runs),
        accuracy_section(runs),
        groups_section(runs),
        identities_section(runs),
        credit_section(runs),
        audits_section(runs),
        configuration_section(runs),
    ]
    sections = [section for section in found if section is not None]
    script = _asset(SCRIPTS)
    title = f"{', '.join(run.label for run in runs)} · nemo_uecr report"
    navigation = "".join(f'<a href="#{section.anchor}">{text(section.title)}</a>' for section in sections)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">'
        '<meta name="color-scheme" content="light dark"><meta name="referrer" content="no-referrer">'
        f'<title>{text(title)}</title><link rel="icon" href="data:,"><style>{_asset(STYLES)}</style></head>\n'
        f'<body><div class="page">{masthead(runs)}<nav aria-label="Sections">{navigation}</nav>'
        f"<main>{''.join(map(_section_html, sections))}</main>"
        f"<footer>nemo_uecr {text(__version__)}</footer></div>\n{_data(sections)}"
        f"<script>{script}</script></body></html>\n"
    )


def _policy(script: str) -> str:
    """Nothing is fetched or sent, and no script runs but the page's own, whatever a response contains."""
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _asset(names: tuple[str, ...]) -> str:
    folder = files("nemo_uecr.report") / "assets"
    return "\n".join((folder / name).read_text(encoding="utf-8") for name in names)


def _section_html(section: Section) -> str:
    return f'<section id="{section.anchor}"><h2>{text(section.title)}</h2>{section.body}</section>'


def _data(sections: list[Section]) -> str:
    charts = {name: chart for section in sections for name, chart in section.charts.items()}
    blocks = {"chart-data": charts} | {name: block for section in sections for name, block in section.blocks.items()}
    return "".join(data_block(name, block) for name, block in blocks.items())
