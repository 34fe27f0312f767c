"""The facts behind advice: from responses that are drawn for it, from a run's saved batch, or from a folder of scores.

Shape legend: B = responses, K = problems.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nemo_uecr.audit.advice import Facts
from nemo_uecr.audit.alpha_sweep import SHARE, tie_point
from nemo_uecr.audit.groups import groups_record, table_of
from nemo_uecr.audit.signal import conflicts
from nemo_uecr.audit.store import STUDENT, Scored, asked_alike
from nemo_uecr.config.load import read_written, written_config, written_method
from nemo_uecr.config.schema import Config
from nemo_uecr.core.functions import compute
from nemo_uecr.core.methods import Method, method_of
from nemo_uecr.core.methods.uecr_trust import UecrTrust, trust
from nemo_uecr.core.record import ScoredBatch
from nemo_uecr.errors import DataError
from nemo_uecr.generation.environments import episodes_of
from nemo_uecr.local.episodes import dialogue_of, playing, respond
from nemo_uecr.local.failure import Evidence
from nemo_uecr.local.rollout import StepBatch, check_drawn, draw, samples_of
from nemo_uecr.local.run import load_models, placement_of, readable_prompts, sampler_of
from nemo_uecr.local.sequences import Prompt, Response, Sequences
from nemo_uecr.local.teachers import ModelTeacher, Teachers
from nemo_uecr.local.trainer import Models, Rollouts
from nemo_uecr.reproducible import derive
from nemo_uecr.responses.replay import scored_batch
from nemo_uecr.responses.table import read_responses
from nemo_uecr.stats import DIFFERENT, Array, ClusterBootstrap, Share, clusters_of, pass_at_k, score_interval
from nemo_uecr.steps.metrics import Stopwatch, agreement_metrics, method_metrics
from nemo_uecr.telemetry.run_folder import read_run
from nemo_uecr.verifier.pool import SHARED
from nemo_uecr.verifier.rewards import Rewards

log = logging.getLogger(__name__)

REPLICATES, SEED = 2000, 0
#: Groups of the run's size that are drawn for each problem, so that twice that size can be judged as well.
GROUPS = 2
#: Group sizes for which equal verdicts are counted, where there are as many responses to each problem.
SIZES = (2, 4, 8, 16, 32, 64)
#: Settings of the methods that have the teachers score; no number of an advice depends on them.
SCORING = {"alpha": 1.0, "rho": 0.0, "tau_delta": 1.0, "tau_entropy": 1.0}
#: Names of a step's metrics: from the scores, and what a saved batch has in the step's record alone.
SCORED = (
    "outcome/gap_mean_right", "outcome/gap_mean_wrong", "teacher/gap_mean", "teacher/entropy_mean",
    "response/length_mean",
)  # fmt: skip
RECORDED = (
    "response/truncated_share", "teacher/end_gap_mean", "teacher/top1_agreement", "teacher/top20_overlap",
    "teacher/truncated_share",
)  # fmt: skip


def facts_of_run(folder: Path) -> Facts:
    """Facts from the first batch that a run saved: of the student before training, where that is step 1's."""
    run = read_run(folder)
    if not run.batches_to_read:
        raise DataError(
            f"{folder} has no saved batch; expected a run with telemetry.save_batch_every > 0. "
            f"Draw instead: nemo-uecr audit teacher {folder / 'config.yaml'}"
        )
    number, path = next(iter(run.batches_to_read.items()))
    saved = read_responses(path)
    record = next((step for step in run.steps if step["step"] == number), {})
    return _facts(
        *_asked_in(folder / "config.yaml"),
        scored_batch(saved),
        np.asarray(saved.column("correct")),
        problem_B=asked_alike(*(saved.column(name) for name in ("problem", "prompt_ids", "asked"))),
        teacher=None,
        numbers={name: record.get(name) for name in RECORDED},
        columns={},
    )


def facts_of_scores(scores: Scored) -> Facts:
    """Facts from the scored responses of the first checkpoint, with the settings of the run that the folder lies in."""
    tokens = scores.tokens(STUDENT, scores.checkpoints[0])
    rows, run = tokens.rows, scores.folder.resolve().parent / "config.yaml"
    responses, right_B = scores, scores.verified_rewards()[rows] == 1.0
    method, limit = method_of("uecr", SCORING), None
    if run.is_file():
        method, _, limit = _asked_in(run)
    return _facts(
        method,
        int(np.unique(responses.group_B[rows], return_counts=True)[1].min()),
        limit,
        groups_record(scores, tokens, np.arange(len(rows))),
        right_B,
        problem_B=np.unique(responses.problem_B[rows], return_inverse=True)[1],
        teacher=None,
        numbers=dict.fromkeys(RECORDED) | {"response/truncated_share": float(responses.truncated_B[rows].mean())},
        columns={},
    )


def _asked(config: Config) -> tuple[Method, int, int]:
    """What the advice takes from a configuration: method, group size and the limit of a response."""
    return config.method, config.rollout.responses_per_prompt, config.rollout.max_response_tokens


def _asked_in(written: Path) -> tuple[Method, int, int]:
    """The same of the `config.yaml` that a run of either back end wrote."""
    values: Any = read_written(written)
    if "uecr" not in values:
        return _asked(written_config(written))
    group, generation = values["grpo"]["num_generations_per_prompt"], values["policy"]["generation"]
    return written_method(written), int(group), int(generation["max_new_tokens"])


def facts_of_config(config: Config, *, problems: int) -> Facts:
    """Facts from responses to the first problems that a run would draw; nothing is trained.

    The teachers score even where the configured method reads no scores, and give half a group of responses to each
    problem.
    """
    scoring = _with_scores(config)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    size = config.rollout.responses_per_prompt
    each = GROUPS * size
    rewarded = Rewards(config.reward, correct_at=config.correct_at, pool=SHARED)
    with closing(rewarded) as rewards, playing(config) as environment:
        models = load_models(scoring, None, () if environment is None else environment.tools)
        dialogue = dialogue_of(config, environment, models.student.tokens)
        prompts, _ = readable_prompts(scoring, models, dialogue)
        count = min(problems, len(prompts))
        rollout = scoring.rollout.model_copy(update={"prompts_per_step": count, "responses_per_prompt": each})
        drawing = scoring.model_copy(update={"rollout": rollout})
        sample, placement = sampler_of(drawing, models.student, prompts, {}), placement_of(drawing, models, None)
        folder = Path(drawing.run.folder)
        rollouts = Rollouts(drawing, models, placement, sample, rewards, prompts, folder, dialogue=dialogue)
        log.info("audit teacher: %d responses of the student to %d problems", count * each, count)
        batch = rollouts.rollout(1, Stopwatch(), {}, Evidence())
        asked = [prompt for prompt in batch.sequences.prompts[::each] for _ in range(size // 2)]
        right_T, cut = _verdicts_of_teachers(rollouts, asked)
    record = batch.record
    drawn = batch.sequences.prompts
    problem_B = clusters_of([each.problem.observation(played=environment is not None) for each in drawn])
    problem_T = np.repeat(problem_B[::each], size // 2)
    return _facts(
        *_asked(config),
        replace(record.scored, group_B=torch.arange(count * each) // size),
        record.correct_B.numpy(),
        problem_B=problem_B,
        teacher=None if right_T is None else [right_T[problem_T == problem] for problem in np.unique(problem_B)],
        numbers=_numbers_of(batch) | {"teacher/truncated_share": cut},
        columns=_columns_of(models),
    )


def _with_scores(config: Config) -> Config:
    """The configuration with a method whose teachers score, and without the reference that no fact needs."""
    teachers = (config.teacher, *config.teachers.values())
    entropy = all(getattr(teacher, "entropy", "") != "none" for teacher in teachers)
    method = method_of("uecr" if entropy else "puu", SCORING)
    loss = config.loss.model_copy(update={"reference_kl": 0.0})
    return config.model_copy(update={"method": method, "loss": loss})


def _verdicts_of_teachers(rollouts: Rollouts, prompts: Sequence[Prompt]) -> tuple[Array | None, float | None]:
    """Whether each prompt's own teacher answers it correctly, and the share of its responses that are cut off.

    Both are None where no teacher is read, or one is on a server.
    """
    models, config = rollouts.models, rollouts.config
    own = own_responses(rollouts, models.teachers, prompts) if models.teachers.by_name else None
    if own is None:
        return None, None
    judged = rollouts.rewards.judge(samples_of(0, Sequences(prompts, own), config, models.student.tokens), step=0)
    cut = float(np.mean([response.truncated for response in own]))
    return np.asarray([outcome.correct for outcome in judged]), cut


def _numbers_of(batch: StepBatch) -> dict[str, float | None]:
    """What a run would have recorded of the batch, by the names of the metrics."""
    record = batch.record
    numbers: dict[str, float | None] = dict.fromkeys(RECORDED)
    if batch.inputs is not None and bool((ends_BT := batch.inputs.ends_BT).any()):
        numbers["teacher/end_gap_mean"] = float(record.scored.gap_BT[ends_BT].mean())
    if record.compared is not None:
        numbers |= agreement_metrics(record.compared, record.mask_BT, [])
    return numbers | {"response/truncated_share": float(record.truncated_B.double().mean())}


def _columns_of(models: Models) -> dict[str, int]:
    """Output columns of the models that were loaded here."""
    teachers = {name: each for name, each in models.teachers.by_name.items() if isinstance(each, ModelTeacher)}
    return {"student": models.student.vocabulary} | {name: each.model.vocabulary for name, each in teachers.items()}


def own_responses(rollouts: Rollouts, teachers: Teachers, prompts: Sequence[Prompt]) -> list[Response] | None:
    """Each prompt's own teacher answers the prompt as it reads it; None where a teacher is on a server.

    The ``prompts`` are those of a rollout, with what the environment showed at the beginning.
    """
    config, inputs = rollouts.config, teachers.inputs(Sequences(prompts, ()))
    responses: dict[int, Response] = {}
    for name in dict.fromkeys(inputs.names):
        teacher = teachers.by_name[name]
        if not isinstance(teacher, ModelTeacher):
            return None
        rows = [row for row, own in enumerate(inputs.names) if own == name]
        log.info("audit teacher: %d responses of the %s", len(rows), teacher.model.name)
        rollouts.placement.move_to_device(teacher.model.member)
        views = [inputs.sequences.prompts[row] for row in rows]
        seeds = [derive(config.run.seed, "advise", row) for row in rows]
        size = config.rollout.microbatch_responses
        names = [f"problem {view.problem.id}" for view in views]
        episodes = episodes_of(names, [view.problem for view in views], config.run.seed, 1)
        sample = partial(draw, teacher.model, microbatch=size)
        _, drawn = respond(sample, views, seeds, rollouts.decoding, rollouts.dialogue, episodes, told=True)
        check_drawn(drawn, names, teacher.model)
        responses |= zip(rows, drawn, strict=True)
    return [responses[row] for row in range(len(prompts))]


def _facts(
    method: Method,
    size: int,
    limit: int | None,
    batch: ScoredBatch,
    right_B: Array,
    *,
    problem_B: Array,
    teacher: Sequence[Array] | None,
    numbers: Mapping[str, float | None],
    columns: Mapping[str, int],
) -> Facts:
    """``teacher`` has the verdicts of the teacher's own responses to each problem."""
    scored = batch.teacher_logp_BT is not None
    sampler = ClusterBootstrap.draw(problem_B, replicates=REPLICATES, seed=SEED)
    problem_K = np.arange(sampler.clusters)
    rewards = [right_B[problem_B == problem].astype(float) for problem in problem_K]
    equal_K2 = _equal_groups(rewards, sorted({*SIZES, size}))
    table = table_of(right_B, batch.group_B.numpy(), np.zeros_like(problem_B), problem_B)
    mixed = len(np.unique(table.problem_P[table.mixed_P]))

    def mean(value_K: Array) -> Share:
        return sampler.mean(value_K, np.ones(len(value_K), dtype=bool), problem_K)

    strength = lead = order = kappa = None
    spread = safe_alpha = None
    if scored:
        groups, reward_B = batch.groups, batch.teacher_reward_B
        spread = float(groups.std(groups.centre(reward_B), sample=False).mean())
        if mixed >= DIFFERENT:  # an interval of fewer would be too narrow
            order = sampler.mean(1.0 - conflicts(table, reward_B.numpy()), table.mixed_P, table.problem_P)
            rule = method if isinstance(method, UecrTrust) else UecrTrust  # the class has the defaults
            kappa = kappa_interval(batch, problem_B, sampler, horizon=rule.horizon, margin=rule.margin)
            ties = [tie_point(correct_C, wrong_W) for correct_C, wrong_W in table.mixed(reward_B.numpy())]
            safe_alpha = float(np.quantile(ties, SHARE, method="inverted_cdf"))
    if teacher is not None:
        theirs = [rows.astype(float) for rows in teacher]
        strength = _pass_rate(theirs)
        lead = mean(np.asarray([own.mean() - rows.mean() for own, rows in zip(theirs, rewards, strict=True)]))
    student, equal = _pass_rate(rewards), mean(equal_K2[size].sum(axis=1))
    metrics = _metrics(method, batch, right_B)
    return Facts(
        shares={
            "teacher": strength, "lead": lead, "order": order, "kappa": kappa, "student": student, "equal": equal,
        },
        problems=sampler.clusters,
        mixed=mixed,
        numbers={
            **numbers, **{name: metrics.get(name) for name in SCORED}, "spread": spread, "safe_alpha": safe_alpha,
            "noise": method.settings().get("scoring_noise"),
        },
        equal={each: both_K2.mean(axis=0).tolist() for each, both_K2 in equal_K2.items()},
        columns=columns,
        method=method,
        group_size=size,
        limit=limit,
    )  # fmt: skip


def _equal_groups(rewards: Sequence[Array], sizes: Sequence[int]) -> dict[int, Array]:
    """By group size, [K, 2] the chances that a group of a problem's responses is all right, and all wrong."""
    verdicts = [((1.0 - row).tolist(), row.tolist()) for row in rewards]
    return {
        size: 1.0 - np.asarray([(pass_at_k([wrong], size), pass_at_k([right], size)) for wrong, right in verdicts])
        for size in sizes
        if size <= min(map(len, rewards))
    }


def _pass_rate(verdicts: Sequence[Array]) -> Share:
    """avg@k over problems for the largest k that all have: a problem may be drawn for several prompts."""
    k = min(map(len, verdicts))
    interval = score_interval({"": [row[:k].tolist() for row in verdicts]})
    low, high = (interval.low, interval.high) if len(verdicts) > 1 else (math.nan, math.nan)
    return {"value": interval.avg, "low": low, "high": high}


def _metrics(method: Method, batch: ScoredBatch, right_B: Array) -> Mapping[str, float]:
    """The metrics of a step on this batch, by a method that reads what the batch has."""
    name = "grpo" if batch.teacher_logp_BT is None else "puu"
    used = method_of(name, {"alpha": 1.0} | method.settings())
    right = torch.from_numpy(right_B)
    return method_metrics(batch, compute(used, batch), used, {}, correct_B=right, truncated_B=right)


def kappa_interval(
    batch: ScoredBatch, problem_B: Array, sampler: ClusterBootstrap, *, horizon: float, margin: float
) -> Share:
    """Kappa of `uecr_trust` as if the batch were the first of a run, with its interval over problems.

    The 1 in its ``lead / (groups + 1)`` is 1/K of each problem, since every replicate has K.
    """
    problem_K = np.arange(sampler.clusters)
    parts = [batch.select(torch.from_numpy(problem_B == problem)) for problem in problem_K]
    found = [trust(part, horizon=horizon, margin=margin, memory=0.0) for part in parts]
    lead_K, groups_K = (np.asarray([each[name] for each in found]) for name in ("lead", "groups"))
    share = sampler.ratio(lead_K, groups_K + 1 / len(problem_K), problem_K)
    return {name: max(0.0, value) for name, value in share.items()}
