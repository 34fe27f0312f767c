"""The avg@k table, the change with its paired interval, and the results of the identities."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from nemo_uecr.report.outcomes import differences, headline, identity_results, outcome_of
from nemo_uecr.report.page import render_page
from nemo_uecr.telemetry.run_folder import RunFolder, read_run, read_runs
from tests.report.stories import RunMaker, write_evaluations


def plain(html: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


def test_the_change_is_that_of_a_paired_comparison(make_run: RunMaker) -> None:
    one, other = make_run("one", steps=2), make_run("other", steps=2)
    # six problems better by 1/2: only 2 of 64 sign changes are as extreme, p = 1/32
    write_evaluations(one, {0: {"a": [0.0] * 6}, 2: {"a": [0.5] * 6}}, samples=2)
    write_evaluations(other, {0: {"a": [0.0] * 6}, 2: {"a": [0.5, 0.5, 0.5, 1.0, 0.0, 0.5]}}, samples=2)
    runs = read_runs([one, other, one / "."])
    assert len(runs) == 2
    outcomes = [outcome_of(run) for run in runs]
    lift = outcomes[0].lift
    assert (lift.difference, lift.p_value) == (0.5, 1 / 32)
    assert differences(runs)[0]["lift"].difference == 0.0
    assert "no clear difference" in plain(render_page(runs))
    (other / "evaluations" / "step-000002.parquet").unlink()
    assert outcome_of(read_run(other)).lift is None
    assert differences(runs)[0]["lift"] is None
    assert "other not compared" in plain(render_page(runs))


def test_the_headline_reports_only_clear_changes(make_run: RunMaker) -> None:
    folder = make_run("words", steps=2)

    def words(after: list[float]) -> str:
        write_evaluations(folder, {0: {"a": [0.0, 0.5, *[0.0] * 6]}, 2: {"a": after}}, samples=2)
        run = read_run(folder)
        return plain(headline([run], [outcome_of(run)]))

    assert "raised avg@2 by 87.5 points, from 6.2 to 93.8 %" in words([1.0, 1.0, 1.0, 0.5, 1.0, 1.0, 1.0, 1.0])
    assert "no clear change, from 6.2 to 18.8 %" in words([0.5, 1.0, *[0.0] * 6])
    write_evaluations(folder, {0: {"a": [0.5, 0.0]}, 2: {"a": [0.0, 0.5]}}, samples=2)
    (folder / "evaluations" / "step-000002.parquet").unlink()  # equal averages need no samples
    run = read_run(folder)
    assert "no clear change, from 25.0 to 25.0 %" in plain(headline([run], [outcome_of(run)]))


def with_metric(folder: Path, step: int, metric: str, value: float) -> RunFolder:
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    records[step - 1][metric] = value
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return read_run(folder)


@pytest.mark.parametrize(("residual", "word"), [(9e-7, "holds"), (1.1e-6, "violated")])
def test_an_identity_is_judged_by_its_worst_residual(make_run: RunMaker, residual: float, word: str) -> None:
    run = with_metric(make_run("run"), 17, "identity/budget_error", residual)
    by_name = {result.name: result for result in identity_results(run)}
    budget = by_name.pop("budget")
    assert (budget.word, budget.worst, budget.step, budget.tolerance) == (word, residual, 17, 1e-6)
    assert {result.word for result in by_name.values()} == {"holds"}
    assert ("✗ violated" in render_page([run])) == (word == "violated")


def test_an_identity_without_tolerance_or_metric_has_no_verdict(make_run: RunMaker) -> None:
    run = with_metric(make_run("monitored", method="ecr_no_projection"), 5, "identity/budget_error", 0.2)
    budget = next(result for result in identity_results(run) if result.name == "budget")
    assert (budget.word, budget.worst) == ("monitored", 0.2)
    assert {result.word for result in identity_results(read_run(make_run("early", steps=0)))} == {"not measured"}
