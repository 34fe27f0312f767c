"""Audits of a run's own records, as in the paper's appendix: its batch facts against the configuration, and its costs.

Batch faults are a changed batch size, a prompt drawn twice, dropped trajectories, or micro-batches counted as steps.
The facts come from the step records; saved batches must agree with them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nemo_uecr.audit.output import Audit, Numbers
from nemo_uecr.config.load import written_config
from nemo_uecr.config.schema import Config
from nemo_uecr.data.manifest import training_problems
from nemo_uecr.data.problems import Problem
from nemo_uecr.errors import DataError
from nemo_uecr.generation.models import load_tokenizer
from nemo_uecr.generation.prompts import fitting_prompts
from nemo_uecr.paths import locate_path
from nemo_uecr.responses.table import read_responses
from nemo_uecr.steps.draws import step_indices
from nemo_uecr.tables import shown
from nemo_uecr.telemetry.run_folder import RunFolder, read_run
from nemo_uecr.telemetry.sinks import STEPS, read_records

Record = Mapping[str, Any]
Fault = tuple[int, str]  # a step, and what is wrong with it


def _check_metrics(steps: Sequence[Record], names: Sequence[str], run: str) -> None:
    if not steps:
        raise DataError(f"{run} has no step; expected a run that has trained")
    for step in steps:
        if missing := next((name for name in names if name not in step), None):
            raise DataError(f"step {step['step']} of {run} has no {missing}; expected a run of the back end `local`")


# Batch facts

#: Metrics per step, with their names on the page.
FACTS = {
    "count/prompts": "prompts",
    "count/unique_prompts": "problems",
    "count/trajectories": "generated",
    "count/rewarded": "rewarded",
    "count/trained": "in the loss",
    "count/valid_tokens": "tokens in the loss",
    "count/global_steps": "global steps",
    "count/optimizer_steps": "optimizer steps",
}
TOTALS = ("count/prompts", "count/trajectories", "count/rewarded", "count/trained", "count/valid_tokens")
BATCH_NOTE = (
    "What each step drew, judged and trained on, against the configuration (dashed). A fault is a step whose counts "
    "are not the configured ones, prompts that are not those of seed and data, a trajectory that was generated but not "
    "trained on, a step that is missing or counted twice, or a saved batch that disagrees with its record."
)


def batch_audit(run: Path, train: Path) -> Audit:
    """Facts and faults of a run; its prompts are checked if the training data is on this machine."""
    config = written_config(run / "config.yaml")
    steps, cut_off = read_records(run / STEPS)  # in their order, with repeated steps
    batches = read_run(run).batches_to_read
    problems = _problem_ids(config, train)
    filtered = ("response/truncated_share",) if config.rollout.overlong_filter else ()
    _check_metrics(steps, (*FACTS, "response/length_mean", "reward/task_mean", *filtered), str(run))
    last = steps[-1]
    faults: list[Fault] = [
        *([(last["step"] + 1, "the last line of the record is incomplete")] if cut_off else []),
        *_sequence_faults([step["step"] for step in steps], config.train.steps),
        *_missing_batches({step["step"] for step in steps} - batches.keys(), config.telemetry.save_batch_every),
        *_count_faults(steps, config, problems),
    ]
    for number, path in batches.items():
        record = next((step for step in steps if step["step"] == number), None)
        faults += [(number, f"saved batch: {fault}") for fault in _batch_faults(number, path, record, config, problems)]
    totals = {FACTS[name]: sum(step[name] for step in steps) for name in TOTALS}
    totals |= {"steps": len(steps), "optimizer steps": last["count/optimizer_steps"]}
    numbers: Numbers = {
        "intended": _intended(config),
        "steps": [step["step"] for step in steps],
        "facts": {name: [step[name] for step in steps] for name in FACTS},
        "truncated_share": [step.get("response/truncated_share") for step in steps],
        "totals": totals,
        "saved_batches_checked": len(batches),
        "prompt_order_checked": problems is not None,
        "faults": [{"step": step, "fault": text} for step, text in faults],
    }
    rows = [
        *((name, _count(value)) for name, value in totals.items()),
        ("saved batches checked", str(len(batches))),
        ("prompts compared with the order of the data", "no" if problems is None else "yes"),
        ("faults", str(len(faults))),
        *((f"fault at step {step}", text) for step, text in faults),
    ]
    suffix = f", after step {last['step']}"
    return Audit("batch", "Batch facts", BATCH_NOTE, numbers, ("fact", "value"), rows, title_suffix=suffix)


def _problem_ids(config: Config, train: Path) -> list[str] | None:
    """Ids of the problems that the run drew from; None if this machine has not the data or the tokenizer."""
    try:
        return [problem.id for problem in _drawn_from(config, train)]
    except (DataError, OSError):  # a run from another machine: the rest is still checked
        return None


def _drawn_from(config: Config, train: Path) -> list[Problem]:
    """The training problems without those whose prompts are too long for the student's tokenizer."""
    problems = training_problems(config.data, train)
    if config.data.long_prompts == "refuse":
        return problems
    tokenizer = load_tokenizer(locate_path(config.student.model_name), local_files_only=True)
    return [problems[place] for place in fitting_prompts(tokenizer, problems, config.data)]


def _intended(config: Config) -> dict[str, int]:
    """The configured counts of a step."""
    rollout = config.rollout
    trajectories = rollout.prompts_per_step * rollout.responses_per_prompt
    return {
        "prompts": rollout.prompts_per_step,
        "responses_per_prompt": rollout.responses_per_prompt,
        "trajectories": trajectories,
        "optimizer_steps_per_step": -(-trajectories // config.train.minibatch_responses),  # rounded up
    }


def _sequence_faults(numbers: Sequence[int], last_step: int) -> Iterator[Fault]:
    for number, count in Counter(numbers).items():
        if count > 1:
            yield number, f"step {number} appears twice in the record"
    missing = sorted({*range(1, max(last_step, *numbers) + 1)} - {*numbers})
    if missing:
        yield missing[0], f"steps missing in the record: {len(missing)}, {missing[0]} first"


def _missing_batches(unsaved: Collection[int], every: int) -> Iterator[Fault]:
    """Steps without a saved batch though one was due: the first step's, and every so many steps'."""
    for number in sorted(unsaved):
        if every and (number == 1 or number % every == 0):
            yield number, "saved batch: missing"


def _count_faults(steps: Sequence[Record], config: Config, problems: Sequence[str] | None) -> Iterator[Fault]:
    """Counts that are not those expected, step by step."""
    for place, step in enumerate(steps):
        for name, value in _expected(step, steps[:place], config, problems).items():
            if step[name] != value:
                yield step["step"], f"{FACTS[name]}: {_count(step[name])}, expected {_count(value)}"


def _expected(step: Record, before: Sequence[Record], config: Config, problems: Sequence[str] | None) -> dict[str, int]:
    """A step's counts from the configuration, and from what the step and those before it recorded besides."""
    number, generated, intended = step["step"], step["count/trajectories"], _intended(config)
    expected = {
        "count/prompts": intended["prompts"],
        "count/trajectories": intended["trajectories"],
        "count/rewarded": generated,
        "count/global_steps": number,
    }
    if problems is not None:
        expected["count/unique_prompts"] = len({*_drawn(number, config, problems)})
    filtered = step["response/truncated_share"] * generated if config.rollout.overlong_filter else 0
    kept = step.get("advantage/trained_share")  # of a method that masks the loss
    if kept is None:
        expected["count/trained"] = round(generated - filtered)
    if not filtered:
        tokens = step["response/length_mean"] * generated
        expected["count/valid_tokens"] = round(tokens * (1.0 if kept is None else kept))
    done = next((each["count/optimizer_steps"] for each in reversed(before) if each["step"] == number - 1), None)
    if number == 1 or done is not None:
        expected["count/optimizer_steps"] = (done or 0) + intended["optimizer_steps_per_step"]
    return expected


def _batch_faults(
    number: int, path: Path, record: Record | None, config: Config, problems: Sequence[str] | None
) -> Iterator[str]:
    rollout, saved = config.rollout, read_responses(path)
    trained = int(saved.tokens("loss_mask" if "loss_mask" in saved.names else "sampled").sum())
    group = saved.column("group")
    _, sizes = np.unique(group, return_counts=True)
    if len(sizes) != rollout.prompts_per_step or (sizes != rollout.responses_per_prompt).any():
        yield f"groups of {sorted(set(sizes.tolist()))} responses, {len(sizes)} of them"
    if not saved.count_B.all():
        yield f"response {int(saved.count_B.argmin())} is empty"
    if record is not None:
        tokens, reward = record["count/valid_tokens"], float(saved.numbers("reward").mean(dtype=np.float64))
        if not rollout.overlong_filter and trained != tokens:
            yield f"{trained} tokens in the loss, {_count(tokens)} in the record"
        if not math.isclose(reward, record["reward/task_mean"], rel_tol=0.0, abs_tol=1e-6):
            yield f"mean reward {reward:g}, {record['reward/task_mean']:g} in the record"
    drawn: dict[str, str] = {}
    for label, problem in zip(group, saved.column("problem"), strict=True):
        if drawn.setdefault(label, problem) != problem:
            yield f"group {label} has responses to {drawn[label]!r} and {problem!r}"
            return
    if problems is not None and list(drawn.values()) != _drawn(number, config, problems):
        yield "its problems are not those that seed and data give for this step"


def _drawn(number: int, config: Config, problems: Sequence[str]) -> list[str]:
    """A step's problems by seed and data; one may repeat where a pass over the file ends and the next begins."""
    shape = {"problems": len(problems), "per_step": config.rollout.prompts_per_step, "step": number}
    return [problems[index] for index in step_indices(**shape, seed=config.run.seed, shuffle=config.data.shuffle)]


def _count(value: float) -> str:
    return f"{value:g}" if abs(value) < 1e6 else f"{value:.0f}"


# Costs

#: Phases of a step in order, with their names on the page.
PHASES = {
    "time/rollout_s": "rollout",
    "time/verify_s": "verifier",
    "time/score_student_s": "score student",
    "time/score_teacher_s": "score teacher",
    "time/score_reference_s": "score reference",
    "time/advantage_s": "advantages",
    "time/update_s": "update",
}
#: Metrics that every step needs.
NEEDED = ("time/step_s", "time/rollout_s", "response/length_mean", "count/trajectories", "memory/peak_rss_mb")
QUANTILES = (0.25, 0.5, 0.75)
COST_NOTE = (
    "Training time without evaluation and checkpoints. Scorer overhead within the run: time of the teacher's scoring "
    "over all other training time. Overhead against the baseline: training time per token over the baseline's, minus "
    "1; per token, because methods write responses of different lengths. Memory is the process's own peak and, if it "
    "has a GPU, the peak on it."
)
COST_COLUMNS = (
    "run", "method", "steps", "training s", "rollout s", "scorer s", "tokens/s", "scorer overhead %",
    "against baseline, per token %", "peak memory MiB", "peak GPU MiB",
)  # fmt: skip


def efficiency_audit(runs: Sequence[RunFolder], baseline: str | None) -> Audit:
    """Costs of runs, compared with the run labelled ``baseline`` if one is given."""
    for run in runs:
        _check_metrics(run.steps, NEEDED, run.label)
    costs = {run.label: _costs(run) for run in runs}
    for label, cost in costs.items():
        base = None if baseline in (None, label) else costs[baseline]
        cost["overhead_against_baseline"] = base and {
            "per_token": base["tokens_per_s"] / cost["tokens_per_s"] - 1.0,
            "per_step": cost["training_s"] / cost["steps"] / (base["training_s"] / base["steps"]) - 1.0,
        }
    numbers: Numbers = {"baseline": baseline, "runs": costs}
    suffix = f", after step {runs[0].last_step}"
    return Audit("efficiency", "Efficiency", COST_NOTE, numbers, COST_COLUMNS, _cost_rows(costs), title_suffix=suffix)


def _costs(run: RunFolder) -> Numbers:
    steps = run.steps
    training = np.asarray([float(step["time/step_s"] - step.get("time/evaluate_s", 0.0)) for step in steps])
    tokens = np.asarray([float(step["response/length_mean"] * step["count/trajectories"]) for step in steps])
    phases = {name: float(np.sum([one.get(key, 0.0) for one in steps])) for key, name in PHASES.items() if run.has(key)}
    scorer, total = phases.get("score teacher"), float(training.sum())
    return {
        "method": run.method,
        "steps": len(steps),
        "left_out": [note for note in run.notes if "metrics.jsonl" in note],
        "tokens": float(tokens.sum()),
        "wall_clock_s": float(sum(step["time/step_s"] + step.get("time/save_s", 0.0) for step in steps)),
        "training_s": total,
        "evaluation_s": float(sum(step.get("time/evaluate_s", 0.0) for step in steps)),
        "phase_s": phases,
        "other_s": total - sum(phases.values()),
        "rollout_s": phases["rollout"],
        "scorer_s": scorer,
        "tokens_per_s": float(tokens.sum()) / total,
        "rollout_tokens_per_s": float(tokens.sum()) / phases["rollout"],
        "tokens_per_s_by_step": {"step": [int(step["step"]) for step in steps], "value": tokens / training},
        "step_s_quantiles": dict(zip(map(str, QUANTILES), np.quantile(training, QUANTILES).tolist(), strict=True)),
        "scorer_overhead": None if scorer is None else scorer / (total - scorer),
        "peak_memory_mb": {
            "process": max(step["memory/peak_rss_mb"] for step in steps),
            "gpu": max(run.values("memory/peak_gpu_mb")[1], default=None),
        },
    }


def _cost_rows(costs: Mapping[str, Numbers]) -> list[tuple[str, ...]]:
    rows = []
    for label, cost in costs.items():
        against, memory = cost["overhead_against_baseline"] or {"per_token": None}, cost["peak_memory_mb"]
        shares = (cost["scorer_overhead"], against["per_token"])
        rows.append(
            (
                label, cost["method"], str(cost["steps"]) + " and an incomplete one" * bool(cost["left_out"]),
                shown(cost["training_s"]), shown(cost["rollout_s"]), shown(cost["scorer_s"]),
                shown(cost["tokens_per_s"], ".0f"),
                *(shown(None if share is None else 100 * share, "+.1f") for share in shares),
                shown(memory["process"], ".0f"), shown(memory["gpu"], ".0f"),
            )
        )  # fmt: skip
    return rows
