"""Render a self-contained HTML report of one run, or of several side by side."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from markupsafe import Markup

from nemo_uecr import __version__
from nemo_uecr.config.load import flattened
from nemo_uecr.errors import RunFolderError
from nemo_uecr.files import read_object, replace_file
from nemo_uecr.report import curves, outcomes
from nemo_uecr.report.charts import draw, reading
from nemo_uecr.report.credit import credit_data
from nemo_uecr.report.markup import DASH, data_block, templates
from nemo_uecr.telemetry.run_folder import RunFolder, read_runs

#: Runs on one page: as many as the page has colours.
MOST_RUNS = 8
ASSETS = files("nemo_uecr.report") / "assets"


def write_report(folders: list[Path], out: Path) -> Path:
    """Write the report of the runs, and return its path; ``out`` is never half a page."""
    if len(folders) > MOST_RUNS:
        raise RunFolderError(f"{len(folders)} runs were given; expected at most {MOST_RUNS} on one page. Give fewer")
    replace_file(out, render_page(read_runs(folders)).encode("utf-8"))
    return out


def render_page(runs: list[RunFolder]) -> str:
    """The whole page as text."""
    named, others = curves.curves(runs)
    groups = [curves.groups(run, colour) for colour, run in enumerate(runs)]
    parts = ("shares", "components", "teachers")
    groups = [group for group in groups if any(group[part] for part in parts)]
    panels = [*named, *others, *(group[part] for group in groups for part in parts if group[part])]
    ends = [outcomes.outcome_of(run) for run in runs]
    credit = credit_data(runs)
    blocks = {"chart-data": {panel.name: reading(panel) for panel in panels}, "credit-data": credit}
    script = Markup("\n".join((ASSETS / name).read_text(encoding="utf-8") for name in ("charts.js", "credit.js")))
    return (
        templates()
        .get_template("page.html.jinja")
        .render(
            draw=draw,
            version=__version__,
            policy=_policy(script),
            script=script,
            style=Markup("\n".join((ASSETS / name).read_text(encoding="utf-8") for name in ("page.css", "credit.css"))),
            blocks=[data_block(name, content) for name, content in blocks.items() if content is not None],
            runs=runs,
            headline=outcomes.headline(runs, ends),
            scale=outcomes.scale(ends),
            differences=outcomes.differences(runs, ends),
            cards=[_card(run, end) for run, end in zip(runs, ends, strict=True)],
            curves=named,
            others=others,
            drawn_note=curves.drawn_note(runs),
            accuracy=outcomes.accuracy_tables(runs),
            groups=groups,
            verdicts=[outcomes.verdicts(run) for run in runs],
            credit=credit,
            audits=[
                {"label": run.label, "colour": colour, "sections": found}
                for colour, run in enumerate(runs)
                if (found := _audits(run))
            ],
            configuration=_table([(run.config, run.origins) for run in runs]),
            provenance=_table([(run.provenance, {}) for run in runs]),
        )
    )


def _policy(script: str) -> str:
    """Nothing is fetched or sent, and no script runs but the page's own, whatever a response contains."""
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _card(run: RunFolder, outcome: outcomes.Outcome) -> dict[str, Any]:
    stopped = [] if run.failure is None else [run.failure.get("error", "The run left no reason.")]
    return {
        "run": run,
        "status": outcomes.status(run),
        "equation": outcomes.method_equation(run),
        "objective": outcomes.objective(run),
        "figures": outcomes.figures(run, outcome),
        "warnings": [*run.notes, *stopped],
    }


def _audits(run: RunFolder) -> list[dict[str, Any]]:
    """The sections of a run's audits; one that is being written has another name."""
    found = []
    for path in sorted(run.path.glob("audits/*/section.json")):
        if not path.parent.name.startswith("."):
            figure = path.with_name("figure.svg")  # advice has none
            picture = base64.b64encode(figure.read_bytes()).decode("ascii") if figure.is_file() else None
            found.append({**read_object(path), "picture": picture})
    return found


def _table(given: Sequence[tuple[Mapping[str, Any], Mapping[str, str]]]) -> list[dict[str, Any]]:
    """A row a dotted key: every run's value with its origin, and whether the values differ."""
    flat = [
        {key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for key, value in each.items()}
        for each in (flattened(values) for values, _ in given)
    ]
    return [
        {
            "key": key,
            "cells": [(each.get(key, DASH), _origin(own, key)) for each, (_, own) in zip(flat, given, strict=True)],
            "differs": len({each.get(key, DASH) for each in flat}) > 1,
        }
        for key in dict.fromkeys(key for each in flat for key in each)
    ]


def _origin(origins: Mapping[str, str], key: str) -> str:
    """Where a key's value came from; a section given as a whole answers for the keys below it."""
    parts = key.split(".")
    names = (".".join(parts[:depth]) for depth in range(len(parts), 0, -1))
    return next((str(origins[name]) for name in names if name in origins), "")
