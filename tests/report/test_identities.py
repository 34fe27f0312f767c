"""Verdicts on the declared identities."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from nemo_uecr.errors import RunFolderError
from nemo_uecr.report.identities import identities_section, metric_of, verdicts
from nemo_uecr.telemetry.names import METRICS
from nemo_uecr.telemetry.run_folder import RunFolder, read_run

RunMaker = Callable[..., Path]


def with_metric(folder: Path, step: int, metric: str, value: float) -> RunFolder:
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    records[step - 1][metric] = value
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return read_run(folder)


def test_declared_identities_hold_with_their_worst_residual(make_run: RunMaker) -> None:
    run = with_metric(make_run("good"), 17, "identity/budget_error", 9e-7)
    budget = next(verdict for verdict in verdicts(run) if verdict.name == "budget")
    assert (budget.word, budget.worst, budget.step, budget.tolerance) == ("holds", 9e-7, 17, 1e-6)
    assert {verdict.word for verdict in verdicts(run)} == {"holds"}


@pytest.mark.parametrize("value", [1.1e-6, -2e-6])
def test_residual_above_tolerance_is_violated(make_run: RunMaker, value: float) -> None:
    run = with_metric(make_run("bad"), 17, "identity/budget_error", value)
    budget = next(verdict for verdict in verdicts(run) if verdict.name == "budget")
    assert (budget.word, budget.step) == ("violated", 17)
    assert "✗ violated" in identities_section([run]).body


def test_residual_that_is_no_number_is_refused(make_run: RunMaker) -> None:
    """No run writes one: its log takes finite numbers only."""
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl:17"):
        with_metric(make_run("bad"), 17, "identity/budget_error", float("nan"))


def test_counts_allow_none_at_all(make_run: RunMaker) -> None:
    run = with_metric(make_run("count"), 3, "identity/sign_kept", 1.0)
    assert next(verdict.word for verdict in verdicts(run) if verdict.name == "sign_kept") == "violated"


def test_monitored_identity_has_no_verdict(make_run: RunMaker) -> None:
    run = with_metric(make_run("monitored", method="ecr_no_projection"), 5, "identity/budget_error", 0.2)
    budget = next(verdict for verdict in verdicts(run) if verdict.name == "budget")
    assert (budget.word, budget.worst) == ("monitored", 0.2)
    assert "violated" not in identities_section([run]).body.split("</p>")[1]


def test_identity_without_metric_is_not_called_held(make_run: RunMaker) -> None:
    run = read_run(make_run("early", steps=0))
    assert {verdict.word for verdict in verdicts(run)} == {"not measured"}


def test_method_without_projection_declares_less(make_run: RunMaker) -> None:
    names = [verdict.name for verdict in verdicts(read_run(make_run("grpo", method="grpo")))]
    assert names == ["finite", "first_ratio"]


def test_every_identity_has_a_metric() -> None:
    from nemo_uecr.core.invariants import IDENTITIES

    assert {name for name in IDENTITIES if metric_of(name) not in METRICS} == set()
