"""What the runs have written, as curves and tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from benchmarks.pretrained.arithmetic import Problem, problems, right
from benchmarks.pretrained.plan import ARMS, HELD_OUT, TEACHERS, TRAINED
from benchmarks.study.pairs import mean_interval
from nemo_uecr.core import GAP_CLIP
from nemo_uecr.tables import markdown_row
from nemo_uecr.telemetry.sinks import STEPS, read_records

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_uecr.core.record import Groups, ScoredBatch

#: A run's figures over its first and its last steps.
ENDS = 5
#: Heading and metric of the table by arm; a run has those that its method reads.
METRICS = {
    "reward": "reward/task_mean", "gap, nats": "teacher/gap_mean", "abs gap": "teacher/gap_abs_mean", "AUC": "auc",
    "z": "z", "z, raised": "raised", "kappa": "trust/kappa", "mixed groups": "group/mixed_share",
    "tokens": "response/length_mean", "first ratio off 1": "policy/first_ratio_mean", "step s": "time/step_s",
}  # fmt: skip
CONFIDENCE = 0.95


@cache
def _problems_by_question() -> dict[str, Problem]:
    return {problem.question: problem for part in problems(held_out=HELD_OUT, trained=TRAINED) for problem in part}


def shares(answered: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Of (question, response): the shares with the right and with the wrong answer, by kind too, and some of them."""
    known = [(_problems_by_question()[question], text) for question, text in answered]
    found: dict[str, Any] = {"samples": [f"{problem.question} {text}" for problem, text in known[:6]]}
    for name in ("right", "wrong"):
        hits = [(one.kind, right(text, one.answer if name == "right" else one.wrong)) for one, text in known]
        by_kind = {kind: [hit for other, hit in hits if other == kind] for kind, _ in hits}
        found[name] = sum(hit for _, hit in hits) / len(hits)
        found |= {f"{name}/{kind}": sum(each) / len(each) for kind, each in by_kind.items()}
    return found


def curve(folder: Path) -> dict[str, Any]:
    """What a run has written so far: its metrics by step, held-out shares, and how far the teacher separates."""
    from nemo_uecr.responses.replay import scored_batch
    from nemo_uecr.responses.table import read_responses

    held_out, separated = {}, {}
    for path in sorted(folder.glob("evaluations/step-*.parquet")):
        table = read_responses(path)
        held_out[step_of(path)] = shares(list(zip(table.column("question"), table.column("response"), strict=True)))
    for path in sorted(folder.glob("batches/step-*.parquet")):
        batch = scored_batch(read_responses(path))
        if batch.teacher_logp_BT is not None:
            separated[step_of(path)] = separation(batch)
    return {"steps": read_records(folder / STEPS)[0], "held_out": held_out, "separated": separated}


def separation(batch: ScoredBatch) -> dict[str, float | None]:
    """AUC and z of R^T, and z of what the teacher raises, mean clip(delta, 0, 5), against the verdicts of a group."""
    raised_B = batch.gap_BT.clamp(0, GAP_CLIP).mul(batch.mask_BT).sum(1) / batch.token_count_B
    given = (batch.teacher_reward_B, batch.task_reward_B, batch.group_B)
    return {
        "auc": area(*(each.tolist() for each in given)),
        "z": z_within(batch.teacher_reward_B, batch.task_reward_B, batch.groups),
        "raised": z_within(raised_B, batch.task_reward_B, batch.groups),
    }


def z_within(value_B: Tensor, verdict_B: Tensor, groups: Groups) -> float | None:
    """``C / sqrt(V)``, both moments those of verdicts permuted within groups of n; None without a mixed group.

    C = sum r x,   V = sum over groups of sum r^2 sum x^2 / (n - 1),   r and x less their group's mean
    """
    x_B, r_B = groups.centre(value_B), groups.centre(verdict_B)
    size_B = groups.size_P[groups.index_B]
    variance = (groups.mean(r_B**2) * groups.mean(x_B**2) * size_B / (size_B - 1)).sum()
    return float((r_B * x_B).sum() / variance.sqrt()) if variance > 0 else None


def step_of(path: Path) -> int:
    """The step in a file's name."""
    return int(path.stem.removeprefix("step-"))


def area(teacher_reward: Sequence[float], task_reward: Sequence[float], group: Sequence[int]) -> float | None:
    """Share of (right, wrong) pairs of one group whose right one has the higher R^T, ties half; None without a pair."""
    rows = list(zip(teacher_reward, task_reward, group, strict=True))
    won = [
        (high > low) + 0.5 * (high == low)
        for high, verdict, one in rows
        for low, other, two in rows
        if one == two and verdict > other
    ]
    return sum(won) / len(won) if won else None


# -- tables -----------------------------------------------------------------------------------------------------------


def tables(found: Mapping[str, Any]) -> str:
    """Models, held-out averages with paired differences, averages by step, and what the arms' steps measured."""
    return "\n".join(
        line for part in (_models(found), _differences(found), _by_step(found), _measured(found)) for line in part
    )


def _runs(found: Mapping[str, Any], teacher: str) -> dict[str, dict[int, Mapping[str, Any]]]:
    """Runs by arm and pair of the students with a teacher, those that read none among them."""
    chosen: dict[str, dict[int, Mapping[str, Any]]] = {}
    for one in found["runs"]:
        if one["teacher"] in ("none", teacher):
            chosen.setdefault(one["arm"], {})[one["pair"]] = one
    return chosen


def _right(runs: Mapping[int, Mapping[str, Any]], step: int) -> dict[int, float]:
    """Percent right after a step, by pair."""
    return {
        pair: 100 * one["held_out"][str(step)]["right"]
        for pair, one in sorted(runs.items())
        if str(step) in one["held_out"]
    }


def _last(found: Mapping[str, Any], runs: Mapping[str, Mapping[int, Mapping[str, Any]]]) -> int | None:
    """The last evaluation that all arms of two pairs have, or of one where no more is there."""
    steps = range(found["plan"]["steps"], 0, -1)
    for enough in (2, 1):
        for step in steps:
            if runs and len(set.intersection(*(set(_right(arm, step)) for arm in runs.values()))) >= enough:
                return step
    return None


def _models(found: Mapping[str, Any]) -> Iterator[str]:
    """The model as it is, and both teachers."""
    teachers = [one for one in found["runs"] if one["teacher"] == "teacher" and one["held_out"]]
    asked = [each for one in teachers for _, each in sorted(one["held_out"].items(), key=lambda item: int(item[0]))]
    named = dict(zip(("as it is", "right teacher"), asked, strict=False)) | {"wrong teacher": found["wrong"]}
    kinds = sorted({key.partition("/")[2] for each in named.values() for key in each if "/" in key})
    yield from (
        "## Held-out problems, %",
        "",
        markdown_row(["", "right", *kinds, "the wrong answer"]),
        "|---" * (3 + len(kinds)) + "|",
    )
    for name, each in named.items():
        if each:
            keys = ["right", *(f"right/{kind}" for kind in kinds), "wrong"]
            yield markdown_row([name, *(f"{100 * each[key]:.1f}" for key in keys)])
    yield ""


def _differences(found: Mapping[str, Any]) -> Iterator[str]:
    """Each arm after the last common evaluation, and its paired differences."""
    for teacher in TEACHERS:
        runs = _runs(found, teacher)
        step = _last(found, runs)
        if step is None:
            continue
        after = {arm: _right(each, step) for arm, each in runs.items()}
        others = [arm for arm in ("grpo", "uecr") if arm in after]
        yield from (f"## {teacher.capitalize()} teacher, after step {step}, % right", "")
        yield from (
            markdown_row(["arm", "pairs", "after", *(f"minus {arm}" for arm in others)]),
            "|---" * (3 + len(others)) + "|",
        )
        for arm, values in after.items():
            gaps = (
                [values[pair] - after[other][pair] for pair in values if pair in after[other]] if other != arm else []
                for other in others
            )
            yield markdown_row(
                [arm, str(len(values)), _mean([*values.values()], ""), *(_mean(gap, "+") for gap in gaps)]
            )
        yield ""


def _mean(values: Sequence[float], sign: str) -> str:
    """Mean with Student's t interval over pairs; one value has none."""
    if len(values) < 2:
        return f"{values[0]:{sign}.1f}" if values else "-"
    found = mean_interval(values, confidence=CONFIDENCE)
    return f"{found.mean:{sign}.1f} [{found.low:{sign}.1f}, {found.high:{sign}.1f}]"


def _by_step(found: Mapping[str, Any]) -> Iterator[str]:
    """Mean over the pairs that have the step."""
    steps = sorted({int(step) for one in found["runs"] if one["teacher"] != "teacher" for step in one["held_out"]})
    yield from (
        "## % right by step, mean over pairs",
        "",
        markdown_row(["teacher", "arm", *map(str, steps)]),
        "|---" * (2 + len(steps)) + "|",
    )
    for teacher, arm, runs in _arms(found):
        averages = [[*_right(runs, step).values()] for step in steps]
        yield markdown_row([teacher, arm, *(f"{fmean(each):.1f}" if each else "-" for each in averages)])
    yield ""


def _measured(found: Mapping[str, Any]) -> Iterator[str]:
    """What the steps measured: the mean over pairs and the first steps, and over the last."""
    yield from (
        f"## First and last {ENDS} steps",
        "",
        markdown_row(["teacher", "arm", *METRICS]),
        "|---" * (2 + len(METRICS)) + "|",
    )
    for teacher, arm, runs in _arms(found):
        cells = []
        for metric in METRICS.values():
            series = [_series(one, metric) for one in runs.values()]
            series = [each for each in series if each]
            ends = [fmean(fmean(each[part]) for each in series) for part in (slice(ENDS), slice(-ENDS, None)) if series]
            cells.append(" → ".join(f"{end:.3g}" for end in ends) or "-")
        yield markdown_row([teacher, arm, *cells])
    yield ""


def _arms(found: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[int, Mapping[str, Any]]]]:
    for teacher in ("none", *TEACHERS):
        for arm, runs in _runs(found, teacher).items():
            chosen = {pair: one for pair, one in runs.items() if one["teacher"] == teacher}
            if chosen:
                yield teacher, arm, chosen


def _series(one: Mapping[str, Any], metric: str) -> list[float]:
    """A metric of a run by step, without the steps that lack it."""
    by_step = [each for _, each in sorted(one["separated"].items(), key=lambda item: int(item[0]))]
    return [each[metric] for each in (*one["steps"], *by_step) if each.get(metric) is not None]


# -- the figure -------------------------------------------------------------------------------------------------------


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Means over pairs by step: a row per teacher, held-out problems and what the steps measured, a line per arm."""
    import matplotlib
    from matplotlib.figure import Figure

    shown = ("gap, nats", "AUC", "z", "kappa")
    from nemo_uecr.audit.figures import STYLE

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(15, 5.4), layout="constrained")
        rows = figure.subplots(len(TEACHERS), 1 + len(shown), sharex=True, sharey="col", squeeze=False)
        for axes, teacher in zip(rows, TEACHERS, strict=True):
            for place, arm in enumerate(ARMS):
                runs = _runs(found, teacher).get(arm, {})
                steps = sorted({int(step) for one in runs.values() for step in one["held_out"]})
                right = {step: [*_right(runs, step).values()] for step in steps}
                values = [right, *(_by_number(runs.values(), METRICS[name]) for name in shown)]
                for one, by_step in zip(axes, values, strict=True):
                    points = {step: fmean(each) for step, each in by_step.items() if each}
                    one.plot([*points], [*points.values()], color=f"C{place}", label=arm, linewidth=1.4)
            axes[0].set_ylabel(f"{teacher} teacher")
        for one, title in zip(rows[0], ("held-out problems, % right", *shown), strict=True):
            one.set_title(title, fontsize=10)
        for one in rows[-1]:
            one.set_xlabel("step")
        figure.legend(*rows[0][0].get_legend_handles_labels(), loc="outside right center")
        figure.savefig(path, dpi=110)


def _by_number(runs: Iterable[Mapping[str, Any]], metric: str) -> dict[int, list[float]]:
    """A metric by step, of every run that has it."""
    values: dict[int, list[float]] = {}
    for one in runs:
        separated = [{"step": int(step), **each} for step, each in one["separated"].items()]
        for each in (*one["steps"], *separated):
            if each.get(metric) is not None:
                values.setdefault(int(each["step"]), []).append(each[metric])
    return dict(sorted(values.items()))
