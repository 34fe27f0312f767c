"""Draws, judges and scores responses without training, as a run's first step would: what `nemo-uecr advise` reads."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import torch

from nemo_uecr.config.schema import Config
from nemo_uecr.data.reproducible import derive, step_indices
from nemo_uecr.evaluation.engines import Decoding
from nemo_uecr.local.batch import StepBatch, samples_of
from nemo_uecr.local.manifest import Locate
from nemo_uecr.local.memory import Placement
from nemo_uecr.local.models import TokenModel
from nemo_uecr.local.rollout import Sampler, draw
from nemo_uecr.local.run import encoded_problems, load_models, placement_of, sampler_of
from nemo_uecr.local.scores import score
from nemo_uecr.local.sequences import Prompt, Response, Sequences
from nemo_uecr.local.teachers import ModelTeacher, Teachers
from nemo_uecr.verifier.pool import SHARED
from nemo_uecr.verifier.rewards import Outcome, Rewards

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Survey:
    """What was drawn."""

    batch: StepBatch  # the student's responses in groups of the run's size, the groups of a problem side by side
    # The teachers' own responses to the same problems, as many to each; None where a server samples.
    teacher: tuple[Sequences, Sequence[Outcome]] | None
    columns: dict[str, int]  # output columns of the models that are here, by name


def survey(config: Config, *, problems: int, groups: int, locate: Locate) -> Survey:
    """Draw so many groups of the student's responses to each problem, and half a group of its teacher's.

    The problems are the first ones that the run would draw. Its teachers score them, whatever its method reads.
    """
    scoring = config.method.model_copy(update={"name": "puu"})
    loss = config.loss.model_copy(update={"reference_kl": 0.0})
    config = config.model_copy(update={"method": scoring, "loss": loss})
    rollout = config.rollout
    models = load_models(config, None, locate)
    known, _ = encoded_problems(config, models, locate)
    count, placement = min(problems, len(known)), placement_of(config, models, None)
    order = step_indices(problems=len(known), per_step=count, step=1, seed=config.run.seed, shuffle=config.data.shuffle)
    prompts = [known[index] for index in order for _ in range(groups * rollout.responses_per_prompt)]
    log.info("advise: %d responses of the student to %d problems", len(prompts), count)
    placement.need("student")
    sample = sampler_of(config, models.student, locate, known, {})
    sequences = Sequences(prompts, _drawn(config, sample, models.student, prompts))
    with closing(Rewards(config.reward, correct_at=config.correct_at, pool=SHARED)) as rewards:
        outcomes = rewards.judge(samples_of(0, sequences, config.data), step=0)
        rows = torch.split(torch.arange(len(prompts)), config.train.microbatch_responses)
        student = score(models.student, sequences, rows, temperatures=(rollout.temperature, 1.0), entropy=False)
        reading = teacher = own = None
        columns = {"student": models.student.vocabulary}
        if models.teachers is not None:
            reading = models.teachers.reading(sequences, None)
            entropy = all(getattr(each, "entropy", "") != "none" for each in config.active_teachers.values())
            teacher = models.teachers.score(reading, rows, placement, entropy=entropy)
            fewer = [known[index] for index in order for _ in range(rollout.responses_per_prompt // 2)]
            drawn = _of_teachers(config, models.teachers, fewer, placement)
            if drawn is not None:
                own = (drawn, rewards.judge(samples_of(0, drawn, config.data), step=0))
            here = {name: each for name, each in models.teachers.by_name.items() if isinstance(each, ModelTeacher)}
            columns |= {name: each.model.vocabulary for name, each in here.items()}
    batch = StepBatch(
        step=0, sequences=sequences, micro_rows=[list(rows)], outcomes=outcomes, student=student, teacher=teacher,
        group_B=torch.arange(len(prompts)) // rollout.responses_per_prompt, reading=reading, reference=None,
        unscored=None, segments_BT=None,
    )  # fmt: skip
    batch.check_scores()
    return Survey(batch, own, columns)


def _drawn(config: Config, sample: Sampler, model: TokenModel, prompts: Sequence[Prompt]) -> list[Response]:
    rollout = config.rollout
    decoding = Decoding(rollout.temperature, rollout.top_p, rollout.top_k, rollout.max_response_tokens, rollout.stop)
    seeds = [derive(config.run.seed, "advise", model.name, row) for row in range(len(prompts))]
    responses, fault = sample(prompts, seeds, decoding)
    if fault is not None:
        raise fault.error(model, f"problem {prompts[fault.row].problem.id}")
    return responses


def _of_teachers(
    config: Config, teachers: Teachers, prompts: Sequence[Prompt], placement: Placement
) -> Sequences | None:
    """Each problem's teacher answers what it reads in its place; None where one is a server's."""
    reading = teachers.reading(Sequences(prompts, ()), None)
    responses: dict[int, Response] = {}
    for name in dict.fromkeys(reading.names):
        teacher = teachers.by_name[name]
        if not isinstance(teacher, ModelTeacher):
            return None
        placement.need(*teacher.members)
        rows = [row for row, own in enumerate(reading.names) if own == name]
        log.info("advise: %d responses of %s", len(rows), teacher.model.name)
        sample = partial(draw, teacher.model, microbatch=config.rollout.microbatch_responses)
        views = [reading.sequences.prompts[row] for row in rows]
        responses |= zip(rows, _drawn(config, sample, teacher.model, views), strict=True)
    return Sequences(prompts, [responses[row] for row in range(len(prompts))])
