"""The table of metric names."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from nemo_uecr.telemetry import names
from nemo_uecr.telemetry.reference import metrics_page


def test_names_are_unique_and_described() -> None:
    counted = Counter(row[0] for row in names._ROWS)
    assert [name for name, count in counted.items() if count > 1] == []
    for name, metric in names.METRICS.items():
        assert name.count("/") == 1, name
        assert name == metric.name == name.lower()
        assert metric.unit, name
        assert metric.reduction, name
        assert metric.meaning, name


def test_every_identity_has_a_metric() -> None:
    from nemo_uecr.core.invariants import IDENTITIES
    from nemo_uecr.telemetry.of_method import identity_metrics

    for identity in IDENTITIES:
        assert identity_metrics({identity: 0.0}).keys() <= names.METRICS.keys()


def test_the_page_is_current() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
    assert page.read_text(encoding="utf-8") == metrics_page(), (
        "renew it: python -m nemo_uecr.telemetry.reference > docs/metrics.md"
    )
