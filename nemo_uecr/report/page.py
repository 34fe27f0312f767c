"""Render a self-contained HTML report of one or several runs."""

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
from nemo_uecr.report.charts import chart_data, draw
from nemo_uecr.report.credit import credit_data, credit_fault
from nemo_uecr.report.markup import DASH, data_block, templates
from nemo_uecr.telemetry.run_folder import RunFolder, read_runs

#: Most runs on one page: the number of its colours.
MOST_RUNS = 8
ASSETS = files("nemo_uecr.report") / "assets"


def write_report(folders: list[Path], out: Path) -> Path:
    """Write the report of the runs, complete or not at all, and return its path."""
    if len(folders) > MOST_RUNS:
        raise RunFolderError(f"got {len(folders)} runs; expected at most {MOST_RUNS} on one page")
    replace_file(out, render_page(read_runs(folders)).encode("utf-8"))
    return out


def render_page(runs: list[RunFolder]) -> str:
    """The whole page as text."""
    named, others = curves.curves(runs)
    groups = [curves.groups(run, colour) for colour, run in enumerate(runs)]
    groups = [group for group in groups if any(group[part] for part in curves.PARTS)]
    panels = [*named, *others, *(group[part] for group in groups for part in curves.PARTS if group[part])]
    ends = [outcomes.outcome_of(run) for run in runs]
    credit = credit_data(runs)
    blocks = {"chart-data": {panel.name: chart_data(panel) for panel in panels}, "credit-data": credit}
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
            differences=outcomes.differences(runs),
            cards=[_card(run, end) for run, end in zip(runs, ends, strict=True)],
            curves=named,
            others=others,
            drawn_note=curves.drawn_note(runs),
            accuracy=outcomes.accuracy_tables(runs),
            groups=groups,
            verdicts=[outcomes.identity_results(run) for run in runs],
            credit=credit,
            audits=[
                {"label": run.label, "colour": colour, "sections": sections}
                for colour, run in enumerate(runs)
                if (sections := _audits(run))
            ],
            configuration=_table([(run.config, run.origins) for run in runs]),
            provenance=_table([(run.provenance, {}) for run in runs]),
        )
    )


def _policy(script: str) -> str:
    """A policy that fetches and sends nothing, and runs no script but the page's own."""
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _card(run: RunFolder, outcome: outcomes.Outcome) -> dict[str, Any]:
    stopped = [] if run.failure is None else [run.failure.get("error", "no reason was recorded")]
    return {
        "run": run,
        "status": outcomes.status(run),
        "equation": outcomes.method_equation(run),
        "objective": outcomes.objective(run),
        "figures": outcomes.card_numbers(run, outcome),
        "warnings": [*run.notes, *filter(None, [credit_fault(run)]), *stopped],
    }


def _audits(run: RunFolder) -> list[dict[str, Any]]:
    sections = []
    for path in sorted(run.path.glob("audits/*/section.json")):
        if not path.parent.name.startswith("."):
            figure = path.with_name("figure.svg")  # advice has none
            picture = base64.b64encode(figure.read_bytes()).decode("ascii") if figure.is_file() else None
            sections.append({**read_object(path), "picture": picture})
    return sections


def _table(given: Sequence[tuple[Mapping[str, Any], Mapping[str, str]]]) -> list[dict[str, Any]]:
    """A row per dotted key: every run's value with its origin, and whether the values differ."""
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
    """The origin of a key's value, or that of the section that contains it."""
    parts = key.split(".")
    names = (".".join(parts[:depth]) for depth in range(len(parts), 0, -1))
    return next((str(origins[name]) for name in names if name in origins), "")
