"""The sections of the audits that were run on a run folder, as `nemo-uecr audit` wrote them."""

from __future__ import annotations

from pathlib import Path

from nemo_uecr.errors import RunFolderError
from nemo_uecr.report.fragment import fault_of
from nemo_uecr.report.section import Section, run_key
from nemo_uecr.telemetry.run_folder import RunFolder

FOLDER, FRAGMENT = "audits", "section.html"


def audits_section(runs: list[RunFolder]) -> Section | None:
    """Every audit of every run, or None where no run has one."""
    rows = []
    for index, run in enumerate(runs):
        fragments = [_fragment(path) for path in audit_fragments(run.path)]
        if fragments:
            name = f"<h3>{run_key(run.label, index)}</h3>" if len(runs) > 1 else ""
            rows.append(f'<div class="run-row">{name}{"".join(fragments)}</div>')
    return Section("audits", "Audits", "".join(rows)) if rows else None


def audit_fragments(folder: Path) -> list[Path]:
    """The audits' sections of a run folder; one that is being written has another name."""
    return sorted(path for path in folder.glob(f"{FOLDER}/*/{FRAGMENT}") if not path.parent.name.startswith("."))


def _fragment(path: Path) -> str:
    """The section, of allowed tags alone.

    Raises:
        RunFolderError: If it is none that an audit wrote, or cannot be read.
    """
    if not path.is_file():  # a pipe would be waited for
        raise RunFolderError(f"{path} is no regular file; run the audit again or remove its folder")
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RunFolderError(f"{path} cannot be read ({error}); run the audit again") from error
    fault = fault_of(content)
    if fault is not None:
        raise RunFolderError(f"{path} is no section of an audit: {fault}; run the audit again or remove its folder")
    return content
