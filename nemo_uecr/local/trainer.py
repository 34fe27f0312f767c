"""The loop, meant to be read top to bottom: sample, verify, score, build advantages, update, evaluate, save."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from nemo_uecr.config.schema import Config
from nemo_uecr.core.invariants import check_identities
from nemo_uecr.core.methods import METHODS
from nemo_uecr.core.records import Advantages, ScoredBatch, Settings
from nemo_uecr.data.reproducible import derive, step_indices
from nemo_uecr.errors import InvariantError, ScoreError
from nemo_uecr.evaluation.engines import Decoding
from nemo_uecr.local.artifacts import GROWING, checkpoint_entry, list_files
from nemo_uecr.local.batch import StepBatch, method_settings, turn_segments
from nemo_uecr.local.checkpoint import Checkpoints, Position
from nemo_uecr.local.evaluate import evaluate
from nemo_uecr.local.failure import leave_failure
from nemo_uecr.local.models import TokenModel
from nemo_uecr.local.prompts import Prompt
from nemo_uecr.local.rollout import Fault, draw
from nemo_uecr.local.scores import score
from nemo_uecr.local.sequences import Sequences, micro_slices
from nemo_uecr.local.step_metrics import check_ratios, step_metrics
from nemo_uecr.local.stopwatch import Stopwatch, timing
from nemo_uecr.local.update import UpdateInputs, UpdateOutcome, update
from nemo_uecr.stopping import RunStopped, StopRequest
from nemo_uecr.telemetry.sinks import Progress, StepLog, append_record, check_record
from nemo_uecr.verifier.extract import Checked
from nemo_uecr.verifier.pool import check_response

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Models:
    """The student, and the frozen models that the method and the loss ask for."""

    student: TokenModel
    teacher: TokenModel | None
    reference: TokenModel | None


class Trainer:
    """One run from a position to its last step."""

    def __init__(
        self,
        config: Config,
        *,
        models: Models,
        optimizer: torch.optim.AdamW,
        prompts: Sequence[Prompt],
        benchmarks: Mapping[str, Sequence[Prompt]],
        folder: Path,
        steps_log: StepLog,
        checkpoints: Checkpoints,
        position: Position,
        stop: StopRequest,
    ) -> None:
        """Collect the parts; nothing runs before `run`."""
        self._config = config
        self._models = models
        self._optimizer = optimizer
        self._prompts = prompts
        self._benchmarks = benchmarks
        self._folder = folder
        self._log = steps_log
        self._checkpoints = checkpoints
        self._position = position
        self._stop = stop
        self._method = METHODS[config.method.name]
        rollout = config.rollout
        self._slices = micro_slices(
            rollout.prompts_per_step * rollout.responses_per_prompt,
            minibatch=config.train.minibatch_responses,
            microbatch=config.train.microbatch_responses,
        )
        self._flat_slices = [rows for slices in self._slices for rows in slices]

    def run(self, progress: Progress) -> None:
        """Train to the last step.

        Raises:
            RunStopped: If the run was asked to end; the step under way is finished and saved.
        """
        config = self._config
        saving = 0.0
        with self._log, contextlib.closing(progress):
            if self._position.step == 0 and config.evaluation.at_start and self._benchmarks:
                self._evaluate(0, progress)
            for step in range(self._position.step + 1, config.train.steps + 1):
                metrics = self._step(step, progress) | {"time/save_s": saving}
                self._log.write(step, metrics)
                progress.step(step, metrics)
                # After the record: a checkpoint of a step must never exist without the step's record.
                started = time.perf_counter()
                asked = self._stop.asked
                self._save_checkpoint(step, asked=asked)
                saving = time.perf_counter() - started
                if asked and step < config.train.steps:
                    raise RunStopped(
                        f"stopped by {self._stop.reason} after step {step} of {config.train.steps}; "
                        f"{self._checkpoints.path(step)} is complete. Run again with --resume to continue"
                    )

    def _step(self, step: int, progress: Progress) -> dict[str, float]:
        watch = Stopwatch()
        batch, fault = self._rollout(step, watch)
        settings = method_settings(self._config.method, step=step, seed=self._config.run.seed)
        try:
            if fault is not None:
                raise fault.error(self._models.student, batch.sample_ids[fault.row])
            batch.check_scores()
            with watch.phase("advantage"):
                scored, advantages, residuals = self._advantages(batch, settings)
            with watch.phase("update"):
                outcome = self._update(batch, advantages)
            with watch.phase("advantage"):
                check_ratios(outcome, batch.sample_ids, self._config.tolerances)
                metrics = step_metrics(batch, scored, advantages, residuals, outcome, settings, self._config)
                check_record(step, metrics)
        except (InvariantError, ScoreError) as error:
            leave_failure(self._folder, batch, self._config.method, settings, error)
            raise
        metrics["count/global_steps"] = float(step)
        self._keep(step, batch, settings, advantages)
        self._advance(step, outcome, watch, progress)
        return metrics | timing(watch, int(scored.mask_BT.sum()))

    def _rollout(self, step: int, watch: Stopwatch) -> tuple[StepBatch, Fault | None]:
        config = self._config
        rollout, seed = config.rollout, config.run.seed
        indices = step_indices(
            problems=len(self._prompts),
            per_step=rollout.prompts_per_step,
            step=step,
            seed=seed,
            shuffle=config.data.shuffle,
        )
        prompts = [self._prompts[index] for index in indices for _ in range(rollout.responses_per_prompt)]
        decoding = Decoding(rollout.temperature, rollout.top_p, rollout.top_k, rollout.max_response_tokens)
        with watch.phase("rollout"):
            drawn = draw(
                self._models.student,
                prompts,
                decoding,
                seed=derive(seed, "rollout", step),
                microbatch=rollout.microbatch_responses,
            )
        with watch.phase("verify"):
            checked = [
                check_response(response.text, prompt.problem.answer)
                for prompt, response in zip(prompts, drawn.responses, strict=True)
            ]
        return self._score(step, Sequences(prompts, drawn.responses), checked, watch), drawn.fault

    def _score(self, step: int, sequences: Sequences, checked: list[Checked], watch: Stopwatch) -> StepBatch:
        config, models, slices = self._config, self._models, self._flat_slices
        teacher = reference = None
        with watch.phase("score_student"):  # both temperatures from one forward
            student = score(
                models.student, sequences, slices, temperatures=(config.rollout.temperature, 1.0), entropy=True
            )
        if models.teacher is not None:
            with watch.phase("score_teacher"):
                wants_entropy = "teacher_entropy" in self._method.scores
                teacher = score(models.teacher, sequences, slices, temperatures=(1.0,), entropy=wants_entropy)
        if models.reference is not None:
            with watch.phase("score_reference"):
                wanted = (config.rollout.temperature, *((1.0,) if self._method.needs_initial else ()))
                reference = score(models.reference, sequences, slices, temperatures=wanted, entropy=False)
        prompts, per_prompt = config.rollout.prompts_per_step, config.rollout.responses_per_prompt
        return StepBatch(
            step=step,
            sequences=sequences,
            group_B=torch.arange(prompts).repeat_interleave(per_prompt),
            checked=checked,
            student=student,
            teacher=teacher,
            reference=reference,
            segments_BT=turn_segments(sequences, config.method.turn_separator, models.student.tokenizer),
        )

    def _advantages(self, batch: StepBatch, settings: Settings) -> tuple[ScoredBatch, Advantages, dict[str, float]]:
        scored = batch.scored()
        advantages = self._method.compute(scored, settings, detail=True)
        tolerances = self._config.tolerances.model_dump()
        return scored, advantages, check_identities(self._method, scored, settings, advantages, tolerances)

    def _update(self, batch: StepBatch, advantages: Advantages) -> UpdateOutcome:
        config = self._config
        loss_mask_BT = batch.sequences.mask()
        if config.rollout.overlong_filter:
            loss_mask_BT &= ~batch.truncated().unsqueeze(1)
        surrogates = [(advantages.advantage_BT, 1.0)]
        if advantages.advantage_opd_BT is not None:
            surrogates.append((advantages.advantage_opd_BT, config.method.opd_coef))
        inputs = UpdateInputs(
            sequences=batch.sequences,
            sample_ids=batch.sample_ids,
            slices=self._slices,
            loss_mask_BT=loss_mask_BT,
            old_logp_BT=batch.student.logp[0],
            surrogates=tuple(surrogates),
            ref_logp_BT=batch.reference.logp[0] if batch.reference and config.loss.reference_kl > 0 else None,
        )
        done = self._position.optimizer_steps
        return update(self._models.student, self._optimizer, inputs, config, steps_done=done)

    def _keep(self, step: int, batch: StepBatch, settings: Settings, advantages: Advantages) -> None:
        every = self._config.telemetry.save_batch_every
        if every == 0 or (step > 1 and step % every):  # the first step shows the student as it was
            return
        folder, name = self._folder / "batches", f"step-{step:06d}"
        batch.save(folder, name, self._config.method, settings, advantages)
        batch.save_texts(folder / f"{name}.json", self._models.student.tokenizer)
        list_files(self._folder, step, (f"batches/{name}.safetensors", f"batches/{name}.json"))

    def _advance(self, step: int, outcome: UpdateOutcome, watch: Stopwatch, progress: Progress) -> None:
        best_step, best_average = self._position.best_step, self._position.best_average
        last = step == self._config.train.steps
        if self._benchmarks and (last or _due(step, self._config.evaluation.every)):
            with watch.phase("evaluate"):
                average = self._evaluate(step, progress)
            if best_average is None or average > best_average:
                best_step, best_average = step, average
        self._position = Position(step, outcome.optimizer_steps, best_step, best_average)

    def _save_checkpoint(self, step: int, *, asked: bool) -> None:
        wanted = self._config.checkpoint
        last = step == self._config.train.steps
        best_now = wanted.keep_best and self._position.best_step == step
        if last or best_now or asked or _due(step, wanted.every):
            self._checkpoints.save(self._models.student, self._optimizer, self._position)
            list_files(self._folder, step, (checkpoint_entry(step), *GROWING))

    def _evaluate(self, step: int, progress: Progress) -> float:
        result = evaluate(self._models.student, self._benchmarks, self._config, step=step, folder=self._folder)
        append_record(self._folder / "evaluation.jsonl", result.record)
        list_files(self._folder, step, (f"evaluations/step-{step:06d}.jsonl",))
        self._log.evaluation(step, vars(result.average))
        progress.evaluation(step, result.record)
        return result.average.avg


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
