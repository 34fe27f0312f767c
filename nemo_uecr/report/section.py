"""A part of the page: what every section of the report hands to the page."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from nemo_uecr.report.chart import line_chart, reading
from nemo_uecr.report.lines import Panel
from nemo_uecr.report.markup import equation, text


@dataclass(frozen=True)
class Section:
    """A heading with its content.

    Attributes:
        anchor: identity within the page.
        title: heading, also the entry in the page's navigation.
        body: HTML.
        charts: what the script needs to read values off each chart, by chart name.
        blocks: other data for the script, by block name.
    """

    anchor: str
    title: str
    body: str
    charts: dict[str, Any] = field(default_factory=dict)
    blocks: dict[str, Any] = field(default_factory=dict)


def figure(panel: Panel, *, drawing: str | None = None) -> str:
    """A chart with its caption; the script finds it by ``data-chart``."""
    return (
        f'<figure class="chart" data-chart="{text(panel.name)}" tabindex="0">'
        f'<figcaption><b>{text(panel.title)}</b> <span class="unit">{equation(panel.unit)}</span></figcaption>'
        f'<div class="plot-box">{drawing or line_chart(panel)}<div class="tip" aria-live="polite"></div></div></figure>'
    )


def readings(panels: list[Panel]) -> dict[str, Any]:
    """The script's data of several charts."""
    return {panel.name: reading(panel) for panel in panels}


def run_key(label: str, colour: int) -> str:
    """A run's name with its colour."""
    return f'<span class="key run-{colour}"><i></i>{text(label)}</span>'
