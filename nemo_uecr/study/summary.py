"""All numbers of a study: what tables and figures show, and nothing that they do not come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nemo_uecr.stats import Mean, Paired, holm, mean_interval, paired_difference
from nemo_uecr.study.results import RunResult
from nemo_uecr.study.schema import StudyConfig

#: pair -> its run
Runs = Mapping[int, RunResult]
#: Fewer pairs have no interval.
LEAST_PAIRS = 2


@dataclass(frozen=True)
class Line:
    """One arm in one table and variant.

    Attributes:
        arm: its name.
        final: average of the sets after the last step, over the arm's own pairs.
        initial: the same before training.
        learning_rate: of its runs.
        degenerate_start: share of groups with equal task rewards in the first step.
        degenerate: the same over all steps.
        common: like ``final``, over the pairs that every arm of the table has.
        sets: after the last step by set, over those pairs.
        against: reference minus arm; None for the reference itself.
        p_holm: corrected p-value; None without a test.
    """

    arm: str
    final: Mean
    initial: Mean
    learning_rate: float
    degenerate_start: float
    degenerate: float
    common: Mean | None
    sets: dict[str, Mean]
    against: Paired | None
    p_holm: float | None


@dataclass(frozen=True)
class TableSummary:
    """A table in one variant.

    Attributes:
        name: key of the table.
        title: its heading.
        variant: where its runs are from.
        reference: arm that is compared with the others.
        pairs: those that every arm has; an average over other pairs is one over other students.
        initial: average of the sets before training over those pairs; None with fewer than two.
        initial_sets: the same by set.
        lines: one an arm.
    """

    name: str
    title: str
    variant: str
    reference: str
    pairs: tuple[int, ...]
    initial: Mean | None
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
            present = [arm for arm in table.arms if len(by_arm.get(arm, {})) >= LEAST_PAIRS]
            if len(by_arm.get(table.reference, {})) < LEAST_PAIRS or not present:
                continue
            summaries.append(_table(study, name, variant, {arm: by_arm[arm] for arm in present}, by_arm))
    return summaries


def curves(study: StudyConfig, results: Sequence[RunResult], variant: str, arm: str) -> list[tuple[int, Mean]]:
    """Mean over pairs, at least two, of the average of the sets at every evaluated step."""
    runs = list(_by_arm(results, variant)[arm].values())
    steps = [step for step, _ in runs[0].curve]
    return [
        (step, mean_interval([dict(run.curve)[step] for run in runs], confidence=study.confidence)) for step in steps
    ]


def reward_curves(study: StudyConfig, results: Sequence[RunResult], variant: str, arm: str) -> list[tuple[int, Mean]]:
    """Mean over pairs, at least two, of the task reward of the training batches, in percent, at every step."""
    runs = list(_by_arm(results, variant)[arm].values())
    return [
        (step, mean_interval(values, confidence=study.confidence))
        for step, values in enumerate(zip(*(run.rewards for run in runs), strict=True), start=1)
    ]


def costs(study: StudyConfig, results: Sequence[RunResult], baseline: str) -> list[Cost]:
    """Seconds of a step of every arm, and the ratio to ``baseline`` in the same variant.

    The runs of the first stage were interleaved on one machine, so that its load falls on all of them alike; later
    stages ran at another time and are left out.
    """
    found = []
    for variant in study.variants:
        by_arm = _by_arm(results, variant)
        base = by_arm.get(baseline, {})
        for arm, runs in by_arm.items():
            if study.arms[arm].stage > 1:
                continue
            seconds = _mean_seconds(runs)
            total = sum(seconds.values())
            ratio = total / sum(_mean_seconds(base).values()) if base else None
            found.append(Cost(arm, variant, total, seconds, ratio))
    return found


def _table(
    study: StudyConfig, name: str, variant: str, arms: Mapping[str, Runs], by_arm: Mapping[str, Runs]
) -> TableSummary:
    table = study.tables[name]
    pairs = sorted(set.intersection(*(set(runs) for runs in arms.values())))
    common = [by_arm[next(iter(arms))][pair] for pair in pairs]
    return TableSummary(
        name=name,
        title=table.title,
        variant=variant,
        reference=table.reference,
        pairs=tuple(pairs),
        initial=_common_mean([run.initial for run in common], study),
        initial_sets=_set_means([run.initial_sets for run in common], study),
        lines=_lines(study, arms, by_arm[table.reference], table.reference, pairs),
    )


def _lines(
    study: StudyConfig, arms: Mapping[str, Runs], reference: Runs, reference_name: str, pairs: Sequence[int]
) -> tuple[Line, ...]:
    against = {
        arm: paired_difference(_finals(reference), _finals(runs), confidence=study.confidence, seed=study.task.seed)
        for arm, runs in arms.items()
        if arm != reference_name and len(reference.keys() & runs.keys()) >= LEAST_PAIRS
    }
    tested = {arm: found.p_value for arm, found in against.items() if found.p_value is not None}
    corrected = dict(zip(tested, holm(list(tested.values())), strict=True))
    return tuple(_line(study, arm, runs, pairs, against.get(arm), corrected.get(arm)) for arm, runs in arms.items())


def _line(
    study: StudyConfig, arm: str, by_pair: Runs, pairs: Sequence[int], against: Paired | None, p_holm: float | None
) -> Line:
    runs, common = list(by_pair.values()), [by_pair[pair] for pair in pairs]
    return Line(
        arm=arm,
        final=mean_interval([run.final for run in runs], confidence=study.confidence),
        initial=mean_interval([run.initial for run in runs], confidence=study.confidence),
        learning_rate=runs[0].cell.learning_rate,
        degenerate_start=sum(run.degenerate_start for run in runs) / len(runs),
        degenerate=sum(run.degenerate for run in runs) / len(runs),
        common=_common_mean([run.final for run in common], study),
        sets=_set_means([run.sets for run in common], study),
        against=against,
        p_holm=p_holm,
    )


def _finals(runs: Runs) -> dict[int, float]:
    return {pair: run.final for pair, run in runs.items()}


def _common_mean(values: Sequence[float], study: StudyConfig) -> Mean | None:
    return mean_interval(values, confidence=study.confidence) if len(values) >= LEAST_PAIRS else None


def _set_means(found: Sequence[Mapping[str, float]], study: StudyConfig) -> dict[str, Mean]:
    if len(found) < LEAST_PAIRS:
        return {}
    return {name: mean_interval([sets[name] for sets in found], confidence=study.confidence) for name in found[0]}


def _by_arm(results: Sequence[RunResult], variant: str) -> dict[str, dict[int, RunResult]]:
    found: dict[str, dict[int, RunResult]] = {}
    for result in results:
        if result.cell.variant == variant:
            found.setdefault(result.cell.arm, {})[result.cell.pair] = result
    return found


def _mean_seconds(runs: Runs) -> dict[str, float]:
    phases = dict.fromkeys(phase for run in runs.values() for phase in run.seconds)
    return {phase: sum(run.seconds.get(phase, 0.0) for run in runs.values()) / len(runs) for phase in phases}
