"""All numbers of a study: what tables and figures show, and nothing that they do not come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nemo_uecr.study.results import RunResult
from nemo_uecr.study.schema import StudyConfig
from nemo_uecr.study.statistics import Mean, Paired, holm, mean_interval, paired_difference


@dataclass(frozen=True)
class Line:
    """One arm in one table and variant; ``against`` is None for the reference itself, ``p_holm`` without a test."""

    arm: str
    final: Mean
    initial: Mean
    sets: dict[str, Mean]
    learning_rate: float
    degenerate_start: float
    degenerate: float
    against: Paired | None
    p_holm: float | None


@dataclass(frozen=True)
class TableSummary:
    """A table in one variant; the initial values are those of the reference's students before training."""

    name: str
    title: str
    variant: str
    reference: str
    initial: Mean
    initial_sets: dict[str, Mean]
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Cost:
    """Mean seconds of a step, by phase, and as a ratio to another arm."""

    arm: str
    variant: str
    step_seconds: float
    seconds: dict[str, float]
    ratio: float | None


def table_summaries(study: StudyConfig, results: Sequence[RunResult]) -> list[TableSummary]:
    """Every table in every variant that its arms run in, with the lines that have at least two finished pairs."""
    summaries = []
    for variant in study.variants:
        by_arm = _by_arm(results, variant)
        for name, table in study.tables.items():
            if any(variant not in study.variants_of(study.arms[arm]) for arm in table.arms):
                continue
            present = [arm for arm in table.arms if len(by_arm.get(arm, {})) >= 2]
            if len(by_arm.get(table.reference, {})) < 2 or not present:
                continue
            lines = _lines(study, by_arm, table.reference, present)
            runs, level = list(by_arm[table.reference].values()), study.confidence
            summaries.append(
                TableSummary(
                    name=name,
                    title=table.title,
                    variant=variant,
                    reference=table.reference,
                    initial=mean_interval([run.initial for run in runs], confidence=level),
                    initial_sets=_set_means([run.initial_sets for run in runs], confidence=level),
                    lines=lines,
                )
            )
    return summaries


def curves(study: StudyConfig, results: Sequence[RunResult], variant: str, arm: str) -> list[tuple[int, Mean]]:
    """Mean over pairs of the average of the sets at every evaluated step."""
    runs = list(_by_arm(results, variant).get(arm, {}).values())
    if len(runs) < 2:
        return []
    steps = [step for step, _ in runs[0].curve]
    return [
        (step, mean_interval([dict(run.curve)[step] for run in runs], confidence=study.confidence)) for step in steps
    ]


def reward_curves(study: StudyConfig, results: Sequence[RunResult], variant: str, arm: str) -> list[tuple[int, Mean]]:
    """Mean over pairs of the task reward of the training batches, in percent, at every step."""
    runs = list(_by_arm(results, variant).get(arm, {}).values())
    if len(runs) < 2:
        return []
    return [
        (step, mean_interval(values, confidence=study.confidence))
        for step, values in enumerate(zip(*(run.rewards for run in runs), strict=True), start=1)
    ]


def costs(study: StudyConfig, results: Sequence[RunResult], baseline: str) -> list[Cost]:
    """Seconds of a step of every arm, and the ratio to ``baseline`` in the same variant.

    The runs of all arms were interleaved on one machine, so that its load falls on all of them alike.
    """
    found = []
    for variant in study.variants:
        by_arm = _by_arm(results, variant)
        base = by_arm.get(baseline, {})
        for arm, runs in by_arm.items():
            seconds = _mean_seconds(runs)
            total = sum(seconds.values())
            ratio = total / sum(_mean_seconds(base).values()) if base else None
            found.append(Cost(arm, variant, total, seconds, ratio))
    return found


def _lines(
    study: StudyConfig, by_arm: Mapping[str, Mapping[int, RunResult]], reference: str, arms: Sequence[str]
) -> tuple[Line, ...]:
    finals = {arm: {pair: run.final for pair, run in by_arm[arm].items()} for arm in {reference, *arms}}
    against = {
        arm: paired_difference(finals[reference], finals[arm], confidence=study.confidence, seed=study.task.seed)
        for arm in arms
        if arm != reference and len(finals[reference].keys() & finals[arm].keys()) >= 2
    }
    tested = {arm: found.p_value for arm, found in against.items() if found.p_value is not None}
    corrected = dict(zip(tested, holm(list(tested.values())), strict=True))
    lines = []
    for arm in arms:
        runs = list(by_arm[arm].values())
        lines.append(
            Line(
                arm=arm,
                final=mean_interval([run.final for run in runs], confidence=study.confidence),
                initial=mean_interval([run.initial for run in runs], confidence=study.confidence),
                sets=_set_means([run.sets for run in runs], confidence=study.confidence),
                learning_rate=runs[0].cell.learning_rate,
                degenerate_start=sum(run.degenerate_start for run in runs) / len(runs),
                degenerate=sum(run.degenerate for run in runs) / len(runs),
                against=against.get(arm),
                p_holm=corrected.get(arm),
            )
        )
    return tuple(lines)


def _set_means(found: Sequence[Mapping[str, float]], *, confidence: float) -> dict[str, Mean]:
    return {name: mean_interval([sets[name] for sets in found], confidence=confidence) for name in found[0]}


def _by_arm(results: Sequence[RunResult], variant: str) -> dict[str, dict[int, RunResult]]:
    found: dict[str, dict[int, RunResult]] = {}
    for result in results:
        if result.cell.variant == variant:
            found.setdefault(result.cell.arm, {})[result.cell.pair] = result
    return found


def _mean_seconds(runs: Mapping[int, RunResult]) -> dict[str, float]:
    phases = dict.fromkeys(phase for run in runs.values() for phase in run.seconds)
    return {phase: sum(run.seconds.get(phase, 0.0) for run in runs.values()) / len(runs) for phase in phases}
