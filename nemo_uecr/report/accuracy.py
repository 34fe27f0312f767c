"""avg@k: the table of sets by evaluations, and the change from the first evaluation to the last."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from nemo_uecr.evaluation.samples import read_samples, rewards_by_benchmark
from nemo_uecr.report.markup import DASH, points, text
from nemo_uecr.report.section import Section, run_key
from nemo_uecr.telemetry.run_folder import RunFolder

#: A run with more evaluations than this shows the first, the best, the last and some between.
SHOWN_EVALUATIONS = 9
#: Beside other runs, only the first, the best and the last are shown.
SHOWN_BESIDE = 2
AVERAGE = "Average"


@dataclass(frozen=True)
class Lift:
    """Change of the average over sets, as shares; its interval is paired by problem, None where problems differ."""

    change: float
    low: float | None
    high: float | None

    @property
    def clear(self) -> bool:
        """True when the 95% interval leaves out zero."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def lift_of(run: RunFolder) -> Lift | None:
    """Change of the average from the first to the last evaluation; None when there are not two."""
    if len(run.evaluations) < 2:
        return None
    return _change(run, run.evaluations[0], run, run.evaluations[-1])


def difference_of(run: RunFolder, other: RunFolder) -> Lift | None:
    """How far ``other`` lies above ``run`` at the last evaluation of each; None when one has none."""
    if not run.evaluations or not other.evaluations:
        return None
    return _change(run, run.evaluations[-1], other, other.evaluations[-1])


def _change(run: RunFolder, before: dict[str, Any], other: RunFolder, after: dict[str, Any]) -> Lift:
    change = after["average"]["avg"] - before["average"]["avg"]
    error = _paired_error(_problem_means(run, before["step"]), _problem_means(other, after["step"]))
    if error is None:
        return Lift(change, None, None)
    return Lift(change, change - 1.96 * error, change + 1.96 * error)


def _problem_means(run: RunFolder, step: int) -> dict[str, dict[str, float]]:
    """Share of right samples of each problem, by set; none when the samples are not there."""
    path = run.path / "evaluations" / f"step-{step:06d}.jsonl"
    rewards = rewards_by_benchmark(read_samples(path)) if path.is_file() else {}
    return {
        name: {problem: sum(values) / len(values) for problem, values in problems.items()}
        for name, problems in rewards.items()
    }


def _paired_error(before: dict[str, dict[str, float]], after: dict[str, dict[str, float]]) -> float | None:
    """Standard error of the equal-weight mean over sets of the mean change a problem."""
    if not before or before.keys() != after.keys():
        return None
    variance = 0.0
    for name, problems in before.items():
        if problems.keys() != after[name].keys() or len(problems) < 2:
            return None
        changes = [after[name][problem] - share for problem, share in problems.items()]
        mean = sum(changes) / len(changes)
        variance += sum((change - mean) ** 2 for change in changes) / (len(changes) - 1) / len(changes)
    return math.sqrt(variance) / len(before)


def accuracy_section(runs: list[RunFolder]) -> Section:
    """Tables of avg@k and pass@k: one row an evaluation, one column a set."""
    if not any(run.evaluations for run in runs):
        return Section("accuracy", "Accuracy", '<p class="empty">No evaluation has been written yet.</p>')
    counts = sorted({int(record["samples"]) for run in runs for record in run.evaluations})
    title = f"avg@{'/'.join(map(str, counts))}"
    body = (
        f'<p class="note">Percent of {" or ".join(map(str, counts))} samples a problem that are right; below, the 95% '
        "interval over problems. Bold: the best of the column, whether or not the interval sets it apart. "
        f"{AVERAGE}: every set weighs the same.</p>{_table(runs, 'avg')}"
    )
    if any("pass" in entry for run in runs for record in run.evaluations for entry in record["sets"].values()):
        body += (
            f"<details><summary>pass@{'/'.join(map(str, counts))}: problems with at least one right sample</summary>"
            f"{_table(runs, 'pass')}</details>"
        )
    return Section("accuracy", title, body)


def _table(runs: list[RunFolder], figure: str) -> str:
    sets = list(dict.fromkeys(name for run in runs for record in run.evaluations for name in record["sets"]))
    columns = [*sets, AVERAGE] if figure == "avg" else sets
    most = SHOWN_EVALUATIONS if len(runs) == 1 else SHOWN_BESIDE
    shown = [(colour, run, record) for colour, run in enumerate(runs) for record in shown_evaluations(run, most)]
    best = {
        name: max((round(cell[figure], 9) for *_, record in shown if (cell := _cell(record, name)) is not None))
        for name in columns
    }
    head = "".join(f'<th scope="col">{text(name)}</th>' for name in columns)
    corner = "Run, step" if len(runs) > 1 else "Step"
    rows, previous = [], -1
    for colour, run, record in shown:
        label = run_key(run.label, colour) if len(runs) > 1 and colour != previous else ""
        cells = "".join(_cell_html(_cell(record, name), figure, best[name]) for name in columns)
        opening = ' class="first"' if colour != previous and previous >= 0 else ""
        rows.append(f'<tr{opening}><th scope="row">{label}<span>step {int(record["step"])}</span></th>{cells}</tr>')
        previous = colour
    return (
        f'<div class="scroll"><table class="accuracy"><thead><tr><th scope="col">{corner}'
        f"</th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def shown_evaluations(run: RunFolder, most: int) -> list[dict[str, Any]]:
    """All evaluations of a run, or of many ``most`` from first to last and the best."""
    records = run.evaluations
    if len(records) <= most:
        return records
    last = len(records) - 1
    keep = {round(index * last / (most - 1)) for index in range(most)}
    keep.add(max(range(len(records)), key=lambda index: records[index]["average"]["avg"]))
    return [records[index] for index in sorted(keep)]


def _cell(record: dict[str, Any], name: str) -> dict[str, Any] | None:
    cell: dict[str, Any] | None = record["average"] if name == AVERAGE else record["sets"].get(name)
    return cell


def _cell_html(cell: dict[str, Any] | None, figure: str, best: float) -> str:
    if cell is None or figure not in cell:
        return f"<td>{DASH}</td>"
    value = points(cell[figure])
    shown = f"<b>{value}</b>" if round(cell[figure], 9) == best else value
    interval = f"<small>{points(cell['low'])}{DASH}{points(cell['high'])}</small>" if figure == "avg" else ""
    return f"<td>{shown}{interval}</td>"
