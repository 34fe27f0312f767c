"""The loop, meant to be read top to bottom: sample, verify, score, build advantages, update, evaluate, save."""

from __future__ import annotations

import itertools
import resource
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from nemo_uecr.config.schema import Config, judged_by
from nemo_uecr.core.agreement import TokenSample
from nemo_uecr.core.functions import compute
from nemo_uecr.core.invariants import check_identities
from nemo_uecr.core.methods import Advantages
from nemo_uecr.evaluation.runner import judge_generations, name_of, pending_samples, shown
from nemo_uecr.evaluation.samples import write_samples
from nemo_uecr.generation.conversation import Dialogue
from nemo_uecr.generation.engines import Decoding
from nemo_uecr.generation.environments import episodes_of
from nemo_uecr.generation.trained import MANIFEST
from nemo_uecr.hosted_teacher.client import TeacherServerError
from nemo_uecr.local.checkpoint import Checkpoints, Position
from nemo_uecr.local.episodes import respond
from nemo_uecr.local.failure import Evidence, evidence_of_failure
from nemo_uecr.local.memory import Placement, deterministic
from nemo_uecr.local.probes import Comparison, Probe, TokenRanks
from nemo_uecr.local.provenance import APPEND_ONLY, list_files
from nemo_uecr.local.rollout import Drawn, Sampler, StepBatch, check_drawn, response_rows, samples_of, step_prompts
from nemo_uecr.local.scores import score_policy
from nemo_uecr.local.sequences import Prompt, Sequences
from nemo_uecr.local.teachers import Teachers
from nemo_uecr.local.token_model import TokenModel
from nemo_uecr.local.update import UpdateOutcome, check_ratios, update
from nemo_uecr.local.vllm_sampler import VllmSampler, rollout_gap
from nemo_uecr.reproducible import derive
from nemo_uecr.steps.draws import run_state
from nemo_uecr.steps.metrics import (
    Stopwatch,
    count_metrics,
    episode_metrics,
    lag_metrics,
    ratio_metrics,
    scored_metrics,
    turn_metrics,
)
from nemo_uecr.steps.routing import PolicyScores
from nemo_uecr.steps.step_record import StepRecord, sample_ids, turn_labels
from nemo_uecr.stopping import RunStopped, StopRequest
from nemo_uecr.telemetry.sinks import StepLog
from nemo_uecr.verifier.pool import SHARED
from nemo_uecr.verifier.rewards import Outcome, Rewards, component_metrics


@dataclass(frozen=True)
class Models:
    """The student, the teachers, and the initial student where the method or the loss reads it."""

    student: TokenModel
    teachers: Teachers
    reference: TokenModel | None


@dataclass
class Rollouts:
    """Draws, judges and scores a step's responses; `Trainer` adds the update, audits use this part alone."""

    config: Config  # the resolved configuration
    models: Models  # the models it names
    placement: Placement  # which of their weights are on the device
    sample: Sampler | VllmSampler  # draws responses from the student as it is
    rewards: Rewards  # judge them
    prompts: Sequence[Prompt]  # encoded training problems
    folder: Path  # run folder
    dialogue: Dialogue | None = field(default=None, kw_only=True)  # holds them in turns; None: a response is one turn

    @property
    def decoding(self) -> Decoding:
        rollout = self.config.rollout
        return Decoding(rollout.temperature, rollout.top_p, rollout.top_k, rollout.max_response_tokens, rollout.stop)

    @property
    def _sampling(self) -> tuple[str, ...]:
        """Members that must be on the device to sample; with an adapter vLLM keeps a base model of its own, so none."""
        return () if self.config.rollout.engine == "vllm" and self.config.student.lora_rank else ("student",)

    def rollout(self, step: int, watch: Stopwatch, state: Mapping[str, float], evidence: Evidence) -> StepBatch:
        """A step's batch of the student as it is, its scores checked; ``state`` is what the method carried over."""
        return self.scored(step, self.draw(step, watch, policy=step - 1), watch, state, evidence)

    def draw(self, step: int, watch: Stopwatch, *, policy: int) -> Drawn:
        """Responses to a step's prompts by the student as it is, after ``policy`` steps."""
        prompts = step_prompts(self.prompts, self.config, step)
        with watch.phase("rollout"):
            self.placement.move_to_device(*self._sampling)
            seeds = [derive(self.config.run.seed, "rollout", step, row) for row in range(len(prompts))]
            problems = [prompt.problem for prompt in prompts]
            names = sample_ids(step, [problem.id for problem in problems])
            episodes = episodes_of(names, problems, self.config.run.seed, step)
            prompts, responses = respond(self.sample, prompts, seeds, self.decoding, self.dialogue, episodes)
        return Drawn(Sequences(prompts, responses), policy)

    def scored(
        self, step: int, drawn: Drawn, watch: Stopwatch, state: Mapping[str, float], evidence: Evidence
    ) -> StepBatch:
        """The batch of a step's responses: judged, scored by the models as they are, and checked."""
        config, sequences = self.config, drawn.sequences
        samples = samples_of(step, sequences, config, self.models.student.tokens)
        evidence.responses({"id": [sample.id for sample in samples]} | response_rows(sequences), sequences.tokens)
        with watch.phase("verify"):
            outcomes = self.rewards.judge(samples, step=step)
        with deterministic(config.train.deterministic):
            batch = self._score(step, state, drawn, outcomes, watch, evidence)
        # Now: the evidence has the scores.
        check_drawn(sequences.responses, batch.record.sample_ids, self.models.student)
        batch.record.check_finite()
        return batch

    def _micro_rows(self, sequences: Sequences) -> list[list[Tensor]]:
        train = self.config.train
        return sequences.micro_rows(minibatch=train.minibatch_responses, microbatch=train.microbatch_responses)

    def _score_student(self, sequences: Sequences, watch: Stopwatch, probes: Sequence[Probe]) -> PolicyScores:
        """The student's scores as it is."""
        micro_rows = list(itertools.chain.from_iterable(self._micro_rows(sequences)))
        with watch.phase("score_student"):
            self.placement.move_to_device("student")
            return score_policy(
                self.models.student, sequences, micro_rows, rollout_temperature=self.config.rollout.temperature,
                entropy=True, probes=probes,
            )  # fmt: skip

    def _score(
        self,
        step: int,
        state: Mapping[str, float],
        drawn: Drawn,
        outcomes: list[Outcome],
        watch: Stopwatch,
        evidence: Evidence,
    ) -> StepBatch:
        """Score the responses by student, teachers and reference, and put everything into the step's record.

        If a teacher fails, the evidence is the record without its scores.
        """
        config, models, sequences = self.config, self.models, drawn.sequences
        ids_BT, mask_BT = sequences.token_ids(), sequences.mask_BT
        rollout, method, minibatches = config.rollout, config.method, self._micro_rows(sequences)
        micro_rows = list(itertools.chain.from_iterable(minibatches))
        inputs = models.teachers.inputs(sequences) if models.teachers.by_name else None
        comparison = None if inputs is None else self._comparison(step, mask_BT)
        student = self._score_student(sequences, watch, () if comparison is None else (comparison.student,))
        teacher = compared = reference = None
        ranks = [TokenRanks(mask_BT.shape, models.student.vocabulary)] if self._saves(step) else []
        try:
            if inputs is not None and comparison is not None:
                with watch.phase("score_teacher"):
                    entropy = "teacher_entropy" in method.reads
                    teacher = models.teachers.score(
                        inputs, micro_rows, self.placement, student, entropy=entropy,
                        probes=(comparison.teacher, *ranks),
                    )  # fmt: skip
                compared = comparison.result()
            if models.reference is not None:
                with watch.phase("score_reference"):
                    self.placement.move_to_device(models.reference.member)
                    reference = score_policy(
                        models.reference, sequences, micro_rows, rollout_temperature=rollout.temperature, entropy=False
                    )
        finally:
            record = StepRecord(
                step=step,
                problems=[prompt.problem.id for prompt in sequences.prompts],
                task_reward_B=torch.tensor([outcome.reward for outcome in outcomes]),
                # Two draws of one problem stay apart.
                group_B=torch.arange(rollout.prompts_per_step).repeat_interleave(rollout.responses_per_prompt),
                mask_BT=mask_BT,
                token_ids_BT=ids_BT,
                correct_B=torch.tensor([outcome.correct for outcome in outcomes]),
                truncated_B=torch.tensor([response.truncated for response in sequences.responses]),
                student=student,
                run=run_state(seed=config.run.seed, steps=config.train.steps, step=step, state=state),
                teacher=teacher,
                teachers=inputs.names if inputs is not None and teacher is not None and config.teachers else (),
                reference_rollout_logp_BT=None if reference is None else reference.rollout_logp_BT,
                initial_logp_BT=None if reference is None or "initial_logp" not in method.reads else reference.logp_BT,
                teacher_rank_BT=ranks[0].complete(mask_BT) if ranks else None,
                segments_BT=turn_labels(ids_BT, mask_BT, method, models.student.tokenizer),
                compared=compared,
                generator_logp_BT=drawn.logp_BT,
                lag=step - 1 - drawn.policy,
            )
            batch = StepBatch(sequences, minibatches, outcomes, inputs, record)
            evidence.batch(batch, method, models.student.tokenizer)
        return batch

    def _saves(self, step: int) -> bool:
        """Whether the step's table is saved: the first step's shows the student as it was."""
        every = self.config.telemetry.save_batch_every
        return every > 0 and (step == 1 or step % every == 0)

    def _comparison(self, step: int, mask_BT: Tensor) -> Comparison:
        """The sampled tokens at which student and teacher are compared, over the columns that all models have."""
        columns = min(model.vocabulary for model in (self.models.student, *self.models.teachers.models))
        seed = derive(self.config.run.seed, "agreement", step)
        return Comparison(TokenSample.of(mask_BT, columns=columns, seed=seed))


@dataclass
class Trainer(Rollouts):
    """One run from a position to its last step."""

    optimizer: torch.optim.Optimizer  # the student's
    benchmarks: Mapping[str, Sequence[Prompt]]  # encoded problems of each benchmark
    log: StepLog  # takes the metrics of every step
    checkpoints: Checkpoints  # the run's checkpoints
    position: Position  # where the run stands; it moves on with every step
    ahead: dict[int, Drawn]  # responses of coming steps that are drawn already, where `rollout.lag` asks for it
    stop: StopRequest  # read after each step

    def run(self) -> None:
        """Train to the last step; a run that is asked to end finishes and saves the step under way (`RunStopped`)."""
        config, saving = self.config, 0.0
        with self.log:
            if self.position.step == 0 and config.evaluation.at_start and self.benchmarks:
                self._evaluate(0)
            for step in range(self.position.step + 1, config.train.steps + 1):
                try:
                    metrics = self.step(step)
                except TeacherServerError:  # the server may be back after a resume; the student is as it was
                    if self.position.step not in (0, *self.checkpoints.steps()):
                        self._save_checkpoint(self.position.step, asked=True)
                    raise
                self.log.step(step, metrics | {"time/save_s": saving})
                # After the record: a checkpoint of a step must never exist without the step's record.
                started = time.perf_counter()
                asked = self.stop.asked
                self._save_checkpoint(step, asked=asked)
                saving = time.perf_counter() - started
                if asked and step < config.train.steps:
                    raise RunStopped(
                        f"stopped by {self.stop.reason} after step {step} of {config.train.steps}; "
                        f"{self.checkpoints.path(step)} is complete. Run again with --resume to continue"
                    )

    def step(self, step: int) -> dict[str, float]:
        """Take one training step; returns its metrics."""
        watch, config, method = Stopwatch(), self.config, self.config.method
        with evidence_of_failure(self.folder, step) as evidence:
            if config.rollout.lag:
                gap = self._draw_ahead(step, watch, evidence)
                batch = self.scored(step, self.ahead[step], watch, self.position.method_state, evidence)
            else:
                batch = self.rollout(step, watch, self.position.method_state, evidence)
                gap = self._rollout_gap(batch.sequences, batch.record.student)
            with watch.phase("advantage"):
                advantages = compute(method, batch.record.scored)
                residuals = check_identities(method, batch.record.scored, advantages, config.tolerances.model_dump())
            with watch.phase("update"):
                self.placement.move_to_device("student", "optimizer")
                with deterministic(config.train.deterministic):
                    done = self.position.optimizer_steps
                    outcome = update(self.models.student, self.optimizer, batch, advantages, config, steps_done=done)
                self.optimizer.zero_grad(set_to_none=True)  # the other phases have the memory
            with watch.phase("advantage"):
                metrics = gap | step_metrics(batch, advantages, residuals, outcome, config)
                check_ratios(outcome, metrics, batch.record.sample_ids, config.tolerances)
        self._save_batch(step, batch, advantages)
        self.ahead.pop(step, None)
        self._advance(step, outcome, advantages.state or {}, watch)
        return metrics | watch.metrics(int(batch.record.mask_BT.sum()))

    def _draw_ahead(self, step: int, watch: Stopwatch, evidence: Evidence) -> dict[str, float]:
        """Draw up to the step that is `rollout.lag` steps ahead; the policy that draws scores what it has drawn.

        Beyond the last step too, so that a run with more steps goes on from the same responses.
        """
        gap: dict[str, float] = {}
        for later in range(step, step + self.config.rollout.lag + 1):
            if later in self.ahead:
                continue
            drawn = self.draw(later, watch, policy=step - 1)
            names = sample_ids(later, [prompt.problem.id for prompt in drawn.sequences.prompts])
            evidence.responses({"id": names} | response_rows(drawn.sequences), drawn.sequences.tokens)
            check_drawn(drawn.sequences.responses, names, self.models.student)
            with deterministic(self.config.train.deterministic):
                scores = self._score_student(drawn.sequences, watch, ())
            gap = self._rollout_gap(drawn.sequences, scores)
            self.ahead[later] = replace(drawn, logp_BT=scores.rollout_logp_BT)
        return gap

    def _rollout_gap(self, sequences: Sequences, student: PolicyScores) -> dict[str, float]:
        """How far vLLM's log-probabilities of what it drew are from those of the student that it drew by."""
        if not isinstance(self.sample, VllmSampler):
            return {}
        most = self.config.tolerances.rollout_gap
        return {"policy/rollout_gap": rollout_gap(sequences, student.logp_BT, tolerance=most)}

    def _save_batch(self, step: int, batch: StepBatch, advantages: Advantages) -> None:
        if not self._saves(step):
            return
        name, teachers = f"batches/step-{step:06d}.parquet", self.models.teachers.provenance(step)
        tokenizer = self.models.student.tokenizer
        batch.save(self.folder / name, self.config.method, advantages, tokenizer=tokenizer, teachers=teachers)
        list_files(self.folder, step, name)

    def _advance(self, step: int, outcome: UpdateOutcome, state: Mapping[str, float], watch: Stopwatch) -> None:
        best_step, best_average = self.position.best_step, self.position.best_average
        if self.benchmarks and self._due(step, self.config.evaluation.every):
            with watch.phase("evaluate"):
                average = self._evaluate(step)
            if best_average is None or average > best_average:
                best_step, best_average = step, average
        self.position = Position(step, outcome.optimizer_steps, best_step, best_average, state)

    def _evaluate(self, step: int) -> float:
        """Record avg@k of every benchmark and all samples; returns the average. Seeds are the same at every step."""
        settings, model, started = self.config.evaluation, self.models.student, time.perf_counter()
        decoding = Decoding(settings.temperature, settings.top_p, settings.top_k, settings.max_tokens, settings.stop)
        problems = {name: [(each.problem, each.token_ids) for each in own] for name, own in self.benchmarks.items()}
        pending = pending_samples(problems, samples=settings.samples, seed=settings.seed)
        prompts = [Prompt(each.problem, each.request.prompt_ids) for each in pending]
        self.placement.move_to_device(*self._sampling)
        names, seeds = [name_of(each.key, step) for each in pending], [each.request.seed for each in pending]
        episodes = episodes_of(names, [each.problem for each in pending], settings.seed)
        prompts, responses = respond(self.sample, prompts, seeds, decoding, self.dialogue, episodes)
        pending = [shown(each, prompt.problem, prompt.token_ids) for each, prompt in zip(pending, prompts, strict=True)]
        rows, tokens = judge_generations(
            pending, responses, model.tokens, SHARED, checkpoint=step,
            episodes=() if self.dialogue is None else episodes, correct_at=judged_by(self.config),
        )  # fmt: skip
        with evidence_of_failure(self.folder, step) as evidence:
            evidence.responses(rows, tokens)
            check_drawn(responses, rows["id"], model)
        word = model.tokens.word if self.dialogue else None
        result = write_samples(self.folder, step, rows, tokens, started=started, word=word)
        list_files(self.folder, step, f"evaluations/step-{step:06d}.parquet")
        self.log.evaluation(result)
        return float(result["average"]["avg"])

    def _save_checkpoint(self, step: int, *, asked: bool) -> None:
        best_now = self.config.checkpoint.keep_best and self.position.best_step == step
        if asked or best_now or self._due(step, self.config.checkpoint.every):
            self.checkpoints.save(self.models.student, self.optimizer, self.position, self.ahead)
            hashes = f"checkpoints/step-{step:06d}/{MANIFEST}"  # it stands for the checkpoint's files
            list_files(self.folder, step, hashes, *APPEND_ONLY)

    def _due(self, step: int, every: int) -> bool:
        """Whether something that is done every so often, and at the end, is done now."""
        return step == self.config.train.steps or (every > 0 and step % every == 0)


def step_metrics(
    batch: StepBatch, advantages: Advantages, residuals: dict[str, float], outcome: UpdateOutcome, config: Config
) -> dict[str, float]:
    """Every metric of the step but the times."""
    episodes = [each.episode for each in batch.sequences.responses if each.episode is not None]
    record, clip = batch.record, {"clip_low": config.loss.clip_low, "clip_high": config.loss.clip_high}
    kibi = 1 / 1024 if sys.platform == "darwin" else 1  # macOS reports bytes, Linux kibibytes
    metrics = {
        **scored_metrics(record, advantages, config.method, residuals),
        **component_metrics(batch.outcomes),
        **({} if config.environment is None else turn_metrics(record.scored) | episode_metrics(episodes)),
        **ratio_metrics(
            outcome.ratio_N, outcome.before_N, outcome.first_ratio_N, far=config.tolerances.first_ratio_p99, **clip
        ),
        "policy/loss": statistics.fmean(outcome.loss),
        "policy/pg_loss": statistics.fmean(outcome.surrogate),
        "policy/grad_norm": statistics.fmean(outcome.grad_norm),
        "policy/learning_rate": outcome.learning_rate,
        **count_metrics(
            record,
            trained=int(torch.unique(outcome.place_N2[:, 0]).numel()),
            tokens=outcome.ratio_N.numel(),
            optimizer_steps=outcome.optimizer_steps,
        ),
        "memory/peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * kibi / 1024,
    }
    if record.teacher is not None and batch.inputs is not None:
        ends_BT = batch.inputs.ends_BT & advantages.trained(record.mask_BT)
        if ends_BT.any():
            metrics["teacher/end_gap_mean"] = float(record.scored.gap_BT[ends_BT].mean())
    if config.rollout.lag:
        metrics |= lag_metrics(outcome.ratio_N, outcome.before_N, record.lag, step=record.step)
    if config.loss.reference_kl > 0:
        metrics["policy/ref_kl"] = statistics.fmean(outcome.reference_kl)
    if torch.cuda.is_available():
        metrics["memory/peak_gpu_mb"] = torch.cuda.max_memory_allocated() / 1024**2
        torch.cuda.reset_peak_memory_stats()
    return metrics
