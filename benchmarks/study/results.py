"""The numbers of a study, from the folders of its runs. Accuracies are in percent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmarks.study.grid import GridCell, finished_runs, selection_cells
from benchmarks.study.pairs import Mean, Paired, mean_interval, paired_difference
from benchmarks.study.schema import StudyConfig
from nemo_uecr.errors import RunFolderError
from nemo_uecr.stats import holm
from nemo_uecr.telemetry.run_folder import RunFolder
from nemo_uecr.telemetry.sinks import Record

#: Fewer pairs have no interval.
LEAST_PAIRS = 2


# One run


@dataclass(frozen=True)
class RunResult:
    """One finished run; averages over the held-out sets are "initial" before training, "final" after the last step."""

    cell: GridCell
    initial: float
    final: float
    initial_sets: dict[str, float]
    sets: dict[str, float]  # after the last step
    curve: tuple[tuple[int, float], ...]  # (step, average) of every evaluation
    degenerate_start: float  # share of groups with equal task rewards in the first step
    degenerate: float  # the same, mean over all steps
    rewards: tuple[float, ...]  # mean task reward of the batch by training step, from the first
    samples: int  # k of avg@k


#: arm -> pair -> its run
ByArm = Mapping[str, Mapping[int, RunResult]]


def read_results(study: StudyConfig, cells: Iterable[GridCell]) -> list[RunResult]:
    """Results of the finished cells.

    All arms of a pair start from the same student, so a run without an evaluation before training
    (`evaluation.at_start=false`) takes that of another run of the pair; a pair without any is left out.
    """
    runs = [(cell, run, (study.level(cell.variant), cell.pair)) for cell, run in finished_runs(study, cells)]
    before = {student: run.evaluations[0] for _, run, student in runs if run.evaluations[0]["step"] == 0}
    return [_result(cell, run, before[student]) for cell, run, student in runs if student in before]


def _result(cell: GridCell, run: RunFolder, first: Record) -> RunResult:
    evaluations = {record["step"]: record for record in (first, *run.evaluations)}
    curve = tuple((step, 100.0 * evaluations[step]["average"]["avg"]) for step in sorted(evaluations))
    degenerate = run.values("group/degenerate_share")[1]
    return RunResult(
        cell=cell,
        initial=curve[0][1],
        final=curve[-1][1],
        initial_sets={name: 100.0 * each["avg"] for name, each in first["sets"].items()},
        sets={name: 100.0 * each["avg"] for name, each in run.evaluations[-1]["sets"].items()},
        curve=curve,
        degenerate_start=degenerate[0],
        degenerate=fmean(degenerate),
        rewards=tuple(100.0 * value for value in run.values("reward/task_mean")[1]),
        samples=int(run.evaluations[-1]["samples"]),
    )


# Learning rates


@dataclass(frozen=True)
class Choice:
    """A chosen learning rate with the mean validation average of every candidate."""

    variant: str
    arm: str
    learning_rate: float
    averages: dict[float, float]
    at_edge: bool


def choose_rates(study: StudyConfig) -> list[Choice]:
    """The chosen learning rates, from the finished runs."""
    runs = finished_runs(study, selection_cells(study))
    return best_rates(study, {cell: 100.0 * run.evaluations[-1]["average"]["avg"] for cell, run in runs})


def best_rates(study: StudyConfig, finals: Mapping[GridCell, float]) -> list[Choice]:
    """The rate with the highest mean validation average after the last step, the lower one on ties."""
    by_candidate: dict[tuple[str, str, float], list[float]] = {}
    for cell, final in finals.items():
        by_candidate.setdefault((cell.variant, cell.arm, cell.learning_rate), []).append(final)
    choices = []
    for variant, arm in dict.fromkeys((cell.variant, cell.arm) for cell in selection_cells(study)):
        averages = {}
        for rate in study.candidates(variant):
            values = by_candidate.get((variant, arm, rate), [])
            if len(values) < study.selection.pairs:
                raise RunFolderError(
                    f"learning rate {rate:g} of arm {arm} ({variant}) has {len(values)} of {study.selection.pairs} "
                    "finished runs; run the study again to complete them"
                )
            averages[rate] = fmean(values)
        best = min(averages, key=lambda rate: (-averages[rate], rate))
        at_edge = len(averages) > 1 and best in (min(averages), max(averages))
        choices.append(Choice(variant, arm, best, averages, at_edge))
    return choices


def rates_of(choices: Iterable[Choice]) -> dict[tuple[str, str], float]:
    """Chosen rate by (variant, arm)."""
    return {(choice.variant, choice.arm): choice.learning_rate for choice in choices}


# Comparisons on pairs


@dataclass(frozen=True)
class Line:
    """One arm in one comparison."""

    arm: str
    final: Mean  # after the last step, over the arm's own pairs
    initial: Mean
    learning_rate: float
    degenerate_start: float  # share of groups with equal task rewards in the first step
    degenerate: float  # the same over all steps
    common: Mean | None  # like `final`, over the common pairs; None with fewer than two
    sets: dict[str, Mean]  # after the last step, over the common pairs
    against: Paired | None  # reference minus arm; None for the reference
    p_holm: float | None  # None without a test


@dataclass(frozen=True)
class Comparison:
    """A table in one variant."""

    name: str  # key in the study file
    title: str
    variant: str
    reference: str
    pairs: tuple[int, ...]  # the common pairs of all arms
    initial: Mean | None  # before training, over the common pairs; None with fewer than two
    initial_sets: dict[str, Mean]
    lines: tuple[Line, ...]


def tables(study: StudyConfig, results: Sequence[RunResult]) -> list[Comparison]:
    """Every table in every variant that its arms run in, with the arms that have at least two finished pairs."""
    comparisons = []
    for variant in study.variants:
        for name, table in study.tables.items():
            if any(variant not in study.variants_of(study.arms[arm]) for arm in table.arms):
                continue
            by_arm = runs_by_arm(results, variant)
            arms = {arm: by_arm[arm] for arm in table.arms if len(by_arm.get(arm, ())) >= LEAST_PAIRS}
            if table.reference in arms:
                comparisons.append(_comparison(study, name, variant, arms))
    return comparisons


def runs_by_arm(results: Iterable[RunResult], variant: str) -> dict[str, dict[int, RunResult]]:
    """The runs of a variant by arm and pair."""
    runs: dict[str, dict[int, RunResult]] = {}
    for result in results:
        if result.cell.variant == variant:
            runs.setdefault(result.cell.arm, {})[result.cell.pair] = result
    return runs


def _comparison(study: StudyConfig, name: str, variant: str, arms: ByArm) -> Comparison:
    """A table in one variant, of the arms that have runs."""
    table, level = study.tables[name], study.confidence
    pairs = common_pairs(arms)
    against = _reference_minus_arms(study, table.reference, arms)
    p_values = _corrected(against)
    students = [arms[table.reference][pair] for pair in pairs]  # the student of a pair is the same for every arm
    return Comparison(
        name=name,
        title=table.title,
        variant=variant,
        reference=table.reference,
        pairs=pairs,
        initial=mean_interval([run.initial for run in students], confidence=level) if pairs else None,
        initial_sets=_set_means([run.initial_sets for run in students], level),
        lines=tuple(
            _line(arm, [*runs.values()], [runs[pair] for pair in pairs], against.get(arm), p_values.get(arm), level)
            for arm, runs in arms.items()
        ),
    )


def _line(
    arm: str,
    own: Sequence[RunResult],
    common: Sequence[RunResult],
    against: Paired | None,
    p_value: float | None,
    confidence: float,
) -> Line:
    """An arm's averages over its own runs, and over those of the common pairs."""
    return Line(
        arm=arm,
        final=mean_interval([run.final for run in own], confidence=confidence),
        initial=mean_interval([run.initial for run in own], confidence=confidence),
        learning_rate=own[0].cell.learning_rate,
        degenerate_start=fmean([run.degenerate_start for run in own]),
        degenerate=fmean([run.degenerate for run in own]),
        common=mean_interval([run.final for run in common], confidence=confidence) if common else None,
        sets=_set_means([run.sets for run in common], confidence),
        against=against,
        p_holm=p_value,
    )


def _reference_minus_arms(study: StudyConfig, reference: str, arms: ByArm) -> dict[str, Paired]:
    """The reference minus each other arm, over the pairs that both have; none with fewer than two."""
    finals = {arm: {pair: run.final for pair, run in runs.items()} for arm, runs in arms.items()}
    return {
        arm: paired_difference(finals[reference], own, confidence=study.confidence, seed=study.task.seed)
        for arm, own in finals.items()
        if arm != reference and len(finals[reference].keys() & own.keys()) >= LEAST_PAIRS
    }


def _corrected(against: Mapping[str, Paired]) -> dict[str, float]:
    """Holm's p of each difference that has a test."""
    tested = {arm: difference.p_value for arm, difference in against.items() if difference.p_value is not None}
    return dict(zip(tested, holm([*tested.values()]), strict=True))


def _set_means(runs: Sequence[Mapping[str, float]], confidence: float) -> dict[str, Mean]:
    """Mean of every held-out set over runs; none of no runs."""
    sets = runs[0] if runs else ()
    return {name: mean_interval([run[name] for run in runs], confidence=confidence) for name in sets}


def common_pairs(arms: ByArm) -> tuple[int, ...]:
    """The pairs that every arm has; none if there are fewer than two."""
    pairs = sorted(set.intersection(*(set(runs) for runs in arms.values()))) if arms else []
    return tuple(pairs) if len(pairs) >= LEAST_PAIRS else ()
