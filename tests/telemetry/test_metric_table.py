"""The table of metric names."""

from __future__ import annotations

from collections import Counter

from nemo_uecr.core.invariants import IDENTITIES
from nemo_uecr.telemetry import metric_table


def test_names_are_unique() -> None:
    counted = Counter(
        [row[0] for row in metric_table._TABLE] + [metric.name for metric in metric_table._split_metrics()]
    )
    assert [name for name, count in counted.items() if count > 1] == []


def test_every_identity_has_a_metric() -> None:
    assert {metric_table.identity_name(identity) for identity in IDENTITIES} <= metric_table.METRICS.keys()
