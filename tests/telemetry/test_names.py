"""The table of metric names."""

from __future__ import annotations

from collections import Counter

from nemo_uecr.telemetry import names


def test_names_are_unique_and_described() -> None:
    counted = Counter(row[0] for row in names._TABLE)
    assert [name for name, count in counted.items() if count > 1] == []
    for name, metric in names.METRICS.items():
        assert name.count("/") == 1, name
        assert name == metric.name == name.lower()
        assert metric.unit, name
        assert metric.reduction, name
        assert metric.meaning, name


def test_every_identity_has_a_metric() -> None:
    from nemo_uecr.core.invariants import IDENTITIES
    from nemo_uecr.local.step_metrics import ERROR_NAMES

    for identity in IDENTITIES:
        assert f"identity/{ERROR_NAMES.get(identity, identity)}" in names.METRICS
