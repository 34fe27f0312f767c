"""The loop, meant to be read top to bottom: sample, verify, score, build advantages, update, evaluate, save."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from nemo_uecr.config.schema import Config
from nemo_uecr.core.functions import compute
from nemo_uecr.core.invariants import check_identities
from nemo_uecr.core.methods import Advantages, RunState
from nemo_uecr.data.batch_file import turn_labels
from nemo_uecr.data.reproducible import derive, step_indices
from nemo_uecr.errors import InvariantError, RewardError, ScoreError
from nemo_uecr.generation.engines import Decoding
from nemo_uecr.local.batch import StepBatch, leave_failure, leave_responses, run_state, samples_of
from nemo_uecr.local.checkpoint import Checkpoints, Position
from nemo_uecr.local.memory import Placement, deterministic
from nemo_uecr.local.provenance import GROWING, checkpoint_entry, list_files
from nemo_uecr.local.rollout import Fault, Sampler, evaluate
from nemo_uecr.local.scores import score
from nemo_uecr.local.sequences import Prompt, Sequences
from nemo_uecr.local.step_metrics import Stopwatch, step_metrics
from nemo_uecr.local.teachers import Teachers
from nemo_uecr.local.token_model import TokenModel
from nemo_uecr.local.update import UpdateInputs, UpdateOutcome, check_ratios, update
from nemo_uecr.local.vllm_sampler import VllmSampler
from nemo_uecr.stopping import RunStopped, StopRequest
from nemo_uecr.telemetry.sinks import StepLog, check_record
from nemo_uecr.verifier.rewards import Outcome, Rewards


@dataclass(frozen=True)
class Models:
    """The student, the teachers, and the initial student where the method or the loss reads it."""

    student: TokenModel
    teachers: Teachers | None
    reference: TokenModel | None


@dataclass
class Rollouts:
    """The part of a step that trains nothing: it draws, judges and scores."""

    config: Config  # the resolved configuration
    models: Models  # the models it names
    placement: Placement  # which of their weights are on the device
    sample: Sampler | VllmSampler  # draws responses from the student as it is
    rewards: Rewards  # judge them
    prompts: Sequence[Prompt]  # encoded training problems
    folder: Path  # run folder

    @property
    def decoding(self) -> Decoding:
        """How training draws."""
        rollout = self.config.rollout
        return Decoding(rollout.temperature, rollout.top_p, rollout.top_k, rollout.max_response_tokens, rollout.stop)

    @property
    def _sampling(self) -> tuple[str, ...]:
        """What a draw needs on the device; with an adapter vLLM has a base of its own."""
        return () if self.config.rollout.engine == "vllm" and self.config.student.lora_rank else ("student",)

    def rollout(self, step: int, watch: Stopwatch, state: Mapping[str, float]) -> tuple[StepBatch, Fault | None]:
        """A step's batch, and the first fault of its draw; ``state`` is what the method carried over."""
        config = self.config
        rollout, seed = config.rollout, config.run.seed
        indices = step_indices(
            problems=len(self.prompts),
            per_step=rollout.prompts_per_step,
            step=step,
            seed=seed,
            shuffle=config.data.shuffle,
        )
        prompts = [self.prompts[index] for index in indices for _ in range(rollout.responses_per_prompt)]
        with watch.phase("rollout"):
            self.placement.need(*self._sampling)
            seeds = [derive(seed, "rollout", step, row) for row in range(len(prompts))]
            responses, fault = self.sample(prompts, seeds, self.decoding)
        sequences = Sequences(prompts, responses)
        samples = samples_of(step, sequences, config, self.models.student.tokens)
        with watch.phase("verify"):
            try:
                outcomes = self.rewards.judge(samples, step=step)
            except RewardError as error:
                leave_responses(self.folder, step, samples, error)
                raise
        with deterministic(config.train.deterministic):
            return self._score(run_state(config, step=step, state=state), sequences, outcomes, watch), fault

    def _score(self, run: RunState, sequences: Sequences, outcomes: list[Outcome], watch: Stopwatch) -> StepBatch:
        config, models, step = self.config, self.models, run.step + 1
        micro_rows = sequences.micro_rows(
            minibatch=config.train.minibatch_responses, microbatch=config.train.microbatch_responses
        )
        rows = [rows for minibatch in micro_rows for rows in minibatch]
        reading = teacher = reference = unscored = places = None
        if models.teachers is not None:
            seed = derive(config.run.seed, "agreement", step)
            places = models.teachers.places(sequences.mask_BT, models.student, seed=seed)
            reading = models.teachers.reading(sequences, places)
        with watch.phase("score_student"):  # both temperatures from one forward
            self.placement.need("student")
            both = (config.rollout.temperature, 1.0)
            student = score(models.student, sequences, rows, temperatures=both, entropy=True, places=places)
        if models.teachers is not None and reading is not None:
            with watch.phase("score_teacher"):
                wants_entropy = "teacher_entropy" in config.method.reads
                try:
                    teacher = models.teachers.score(reading, rows, self.placement, student, entropy=wants_entropy)
                except ScoreError as error:  # a server's; what was drawn is kept first
                    unscored = error
        if models.reference is not None:
            with watch.phase("score_reference"):
                self.placement.need("student" if models.reference.module is models.student.module else "reference")
                wanted = (config.rollout.temperature, *((1.0,) if "initial_logp" in config.method.reads else ()))
                reference = score(models.reference, sequences, rows, temperatures=wanted, entropy=False)
        prompts, per_prompt = config.rollout.prompts_per_step, config.rollout.responses_per_prompt
        return StepBatch(
            step=step,
            sequences=sequences,
            micro_rows=micro_rows,
            group_B=torch.arange(prompts).repeat_interleave(per_prompt),
            outcomes=outcomes,
            student=student,
            teacher=teacher,
            reading=reading,
            reference=reference,
            unscored=unscored,
            segments_BT=turn_labels(sequences.token_ids(), sequences.mask_BT, config.method, models.student.tokenizer),
            run=run,
        )


@dataclass
class Trainer(Rollouts):
    """One run from a position to its last step."""

    optimizer: torch.optim.Optimizer  # the student's
    benchmarks: Mapping[str, Sequence[Prompt]]  # encoded problems of each benchmark
    log: StepLog  # takes the metrics of every step
    checkpoints: Checkpoints  # the run's checkpoints
    position: Position  # where the run stands; it moves on with every step
    stop: StopRequest  # read after each step

    def run(self) -> None:
        """Train to the last step; a run that is asked to end finishes and saves the step under way (`RunStopped`)."""
        config, saving = self.config, 0.0
        with self.log:
            if self.position.step == 0 and config.evaluation.at_start and self.benchmarks:
                self._evaluate(0)
            for step in range(self.position.step + 1, config.train.steps + 1):
                self.log.step(step, self.step(step) | {"time/save_s": saving})
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
        watch = Stopwatch()
        batch, fault = self.rollout(step, watch, self.position.method_state)
        method = self.config.method
        try:
            if fault is not None:
                raise fault.error(self.models.student, batch.sample_ids[fault.row])
            batch.check_scores()
            gap = self._rollout_gap(batch)
            with watch.phase("advantage"):
                advantages = compute(method, batch.scored)
                tolerances = self.config.tolerances
                residuals = check_identities(method, batch.scored, advantages, tolerances.model_dump())
            with watch.phase("update"):
                self.placement.need("student", "optimizer")
                with deterministic(self.config.train.deterministic):
                    outcome = self._update(batch, advantages)
                self.optimizer.zero_grad(set_to_none=True)  # the other phases have the memory
            with watch.phase("advantage"):
                metrics = gap | step_metrics(batch, advantages, residuals, outcome, self.config)
                check_ratios(outcome, metrics, batch.sample_ids, tolerances)
                check_record(step, metrics)
        except (InvariantError, ScoreError) as error:
            leave_failure(self.folder, batch, method, error)
            if batch.unscored is not None and self.position.step not in (0, *self.checkpoints.steps()):
                self._save_checkpoint(self.position.step, asked=True)  # the student is as that step left it
            raise
        self._keep(step, batch, advantages)
        self._advance(step, outcome, advantages.state or {}, watch)
        return metrics | watch.metrics(int(batch.scored.mask_BT.sum()))

    def _rollout_gap(self, batch: StepBatch) -> dict[str, float]:
        if not isinstance(self.sample, VllmSampler):
            return {}
        tolerance = self.config.tolerances.rollout_gap
        return {"policy/rollout_gap": self.sample.gap(batch.student.logp[1], tolerance=tolerance)}

    def _update(self, batch: StepBatch, advantages: Advantages) -> UpdateOutcome:
        config = self.config
        loss_mask_BT = advantages.trained(batch.scored.mask_BT)
        if config.rollout.overlong_filter:
            loss_mask_BT = loss_mask_BT & ~batch.truncated().unsqueeze(1)
        surrogates = [(advantages.advantage_BT, 1.0)]
        if advantages.advantage_opd_BT is not None and config.method.opd_coef is not None:
            surrogates.append((advantages.advantage_opd_BT, config.method.opd_coef))
        inputs = UpdateInputs(
            sequences=batch.sequences,
            sample_ids=batch.sample_ids,
            micro_rows=batch.micro_rows,
            loss_mask_BT=loss_mask_BT,
            old_logp_BT=batch.student.logp[0],
            surrogates=tuple(surrogates),
            ref_logp_BT=batch.reference.logp[0] if batch.reference and config.loss.reference_kl > 0 else None,
        )
        done = self.position.optimizer_steps
        return update(self.models.student, self.optimizer, inputs, config, steps_done=done)

    def _keep(self, step: int, batch: StepBatch, advantages: Advantages) -> None:
        every = self.config.telemetry.save_batch_every
        if every == 0 or (step > 1 and step % every):  # the first step shows the student as it was
            return
        tensors, texts = f"batches/step-{step:06d}.safetensors", f"batches/step-{step:06d}.json"
        batch.save(self.folder / tensors, self.config.method, advantages)
        terms = {} if self.models.teachers is None else self.models.teachers.terms(step)
        batch.save_texts(self.folder / texts, self.models.student.tokenizer, terms)
        list_files(self.folder, step, tensors, texts)

    def _advance(self, step: int, outcome: UpdateOutcome, state: Mapping[str, float], watch: Stopwatch) -> None:
        best_step, best_average = self.position.best_step, self.position.best_average
        if self.benchmarks and self._due(step, self.config.evaluation.every):
            with watch.phase("evaluate"):
                average = self._evaluate(step)
            if best_average is None or average > best_average:
                best_step, best_average = step, average
        self.position = Position(step, outcome.optimizer_steps, best_step, best_average, state)

    def _evaluate(self, step: int) -> float:
        self.placement.need(*self._sampling)
        result = evaluate(self.models.student, self.sample, self.benchmarks, self.config, step=step, folder=self.folder)
        list_files(self.folder, step, f"evaluations/step-{step:06d}.jsonl")
        self.log.evaluation(result)
        return float(result["average"]["avg"])

    def _save_checkpoint(self, step: int, *, asked: bool) -> None:
        best_now = self.config.checkpoint.keep_best and self.position.best_step == step
        if asked or best_now or self._due(step, self.config.checkpoint.every):
            self.checkpoints.save(self.models.student, self.optimizer, self.position)
            list_files(self.folder, step, checkpoint_entry(step), *GROWING)

    def _due(self, step: int, every: int) -> bool:
        """Whether something that is done every so often, and at the end, is done now."""
        return step == self.config.train.steps or (every > 0 and step % every == 0)
