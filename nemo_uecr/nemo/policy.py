"""The policy that NeMo-RL's loop drives: scoring with the teacher, and training with our columns.

Shape legend: B = responses, S = tokens of prompt and response (padded).
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from nemo_uecr.generation.models import check_sampled
from nemo_uecr.nemo import upstream
from nemo_uecr.nemo.loss import FIRST_STEP_COLUMN, OPD_COLUMN, PREFIX
from nemo_uecr.nemo.score_checks import ContractError, check_same, score
from nemo_uecr.nemo.step import StepContext, StepScores
from nemo_uecr.nemo.teacher import RayTeacher, score_by_teachers
from nemo_uecr.nemo.telemetry import check_step_counts, save_step, training_metrics
from nemo_uecr.nemo.worker_scoring import ScoreRequest, spot_checked_token
from nemo_uecr.steps.metrics import scored_metrics
from nemo_uecr.steps.routing import PolicyScores
from nemo_uecr.steps.step_record import ComparedTokens


class PolicyMethods:
    """What our policy adds to NeMo-RL's: both temperatures, the teacher, and the method's columns.

    Mixed in before NeMo-RL's policy, whose own methods it calls.
    """

    def __init__(self, *args: Any, context: StepContext, teachers: Mapping[str, RayTeacher], **kwargs: Any) -> None:
        """Take the step to share, and the teachers by name, already off the GPU."""
        self._context = context
        self._seconds = context.settings.timeout_s
        self._teachers = teachers
        self._student_waits = self._refits = False
        super().__init__(*args, **kwargs)

    def prepare_for_lp_inference(self, *args: Any, **kwargs: Any) -> None:
        """Only note the request: the student stays off the GPU until the teacher has left it."""
        self._student_waits = True

    def get_logprobs(self, data: Any, timer: Any = None) -> Any:
        """Score with the teachers, then with the student; NeMo-RL gets the column at T_r for its PPO ratio."""
        context, names, rows = self._context, list[str](), data["input_ids"].shape[0]
        settings = context.settings
        if context.routes is not None:
            names = context.routes.of_prompts(data["input_ids"], data["token_mask"])
        self._make_room()
        teacher = None
        if self._teachers:
            with context.watch.phase("score_teacher"):
                if {each.columns for each in self._teachers.values()} != {settings.vocabulary}:
                    check_sampled(data["input_ids"], data["token_mask"].bool(), context.tokenizer)
                of_rows = names or list(self._teachers) * rows
                teacher, teacher_BK = score_by_teachers(self._teachers, of_rows, data, context.teacher_request)
        with context.watch.phase("score_student"):
            self._bring_student()
            columns = score(self, data, context.student_request, name="student")
            rollout_logp_BS = columns["rollout_logp"]
            if settings.filters == "recipe":
                rollout_logp_BS = super().get_logprobs(data, timer=timer)["logprobs"]  # type: ignore[misc]
                check_sampled_inside(rollout_logp_BS, data["token_mask"].bool())
        compared = None
        if teacher is not None:
            spot_B = spot_checked_token(data["input_lengths"])
            compared = ComparedTokens(torch.arange(rows), spot_B, columns["top_ids"], teacher_BK)
        student = PolicyScores(rollout_logp_BS, columns["logp"], columns["entropy"])
        context.scores = StepScores(
            student, teacher, data["token_mask"], data["sample_mask"], data["input_ids"], names, compared
        )
        return type(data)({"logprobs": rollout_logp_BS})

    @property
    def row_multiple(self) -> int:
        """Rows of a scoring pass come in this multiple."""
        return upstream.row_multiple(self)

    def score_tokens(self, data: Any, request: ScoreRequest) -> Any:
        """Columns of the request."""
        return upstream.score_on_workers(self, data, request, seconds=self._seconds)

    def get_reference_policy_logprobs(self, data: Any, micro_batch_size: int | None = None, timer: Any = None) -> Any:
        """NeMo-RL's own, with the student on the GPU."""
        self._bring_student()
        with self._context.watch.phase("score_reference"):
            return super().get_reference_policy_logprobs(data, micro_batch_size=micro_batch_size, timer=timer)  # type: ignore[misc]

    def prepare_for_training(self, *args: Any, **kwargs: Any) -> Any:
        """NeMo-RL's own; it brings the student to the GPU itself."""
        self._student_waits = False
        return super().prepare_for_training(*args, **kwargs)  # type: ignore[misc]

    def offload_before_refit(self) -> None:
        """NeMo-RL's own; where vLLM shares the GPUs, the last thing before it wakes for new weights."""
        super().offload_before_refit()  # type: ignore[misc]
        self.assert_room(waking=True)
        self._refits = True

    def offload_after_refit(self) -> None:
        """NeMo-RL's own; where no refit came before it, as after an evaluation, the last thing before vLLM wakes."""
        super().offload_after_refit()  # type: ignore[misc]
        if not self._refits:
            self.assert_room(waking=True)
        self._refits = False

    def assert_room(self, *, waking: bool) -> None:
        """An error where a GPU has too little room for vLLM, which is about to wake or must have gone to sleep."""
        share = self._context.settings.generation_share
        if share is not None:
            upstream.call_all(self, "assert_room", seconds=self._seconds, share=share, waking=waking)

    def train(self, data: Any, loss_fn: Any, *args: Any, timer: Any = None, **kwargs: Any) -> Any:
        """Train on the columns that were scored, audit what was trained, and add the step's telemetry."""
        context, outcome = self._context, self._context.outcome
        self._check_columns(data)
        advantages, columns = outcome.advantages, dict(data)
        if advantages.loss_mask_BT is not None:  # NeMo-RL counts and masks its tokens by these two columns
            rows_B = advantages.loss_mask_BT.any(dim=1)
            masks = {"token_mask": advantages.loss_mask_BT, "sample_mask": rows_B & data["sample_mask"].bool()}
            columns |= {name: mask.to(data[name].dtype) for name, mask in masks.items()}
        if advantages.advantage_opd_BT is not None:
            columns[OPD_COLUMN] = advantages.advantage_opd_BT
        first = torch.arange(len(data["input_ids"])) < context.settings.minibatch_responses
        batch = type(data)(columns | {FIRST_STEP_COLUMN: first.float()})
        with ThreadPoolExecutor(1) as aside:  # the workers update meanwhile
            method = context.settings.method
            scored = aside.submit(scored_metrics, outcome.record, advantages, method, outcome.residuals)
            with context.watch.phase("update"):
                result = super().train(batch, loss_fn, *args, timer=timer, **kwargs)  # type: ignore[misc]
        check_step_counts(context, columns, result)
        metrics = scored.result() | training_metrics(context, columns, result)
        save_step(context, columns)
        native = {name: v for name, v in result["all_mb_metrics"].items() if not name.startswith(PREFIX)}
        result["all_mb_metrics"] = native | {name: [value] for name, value in metrics.items()}
        context.finish()
        return result

    def shutdown(self) -> bool:
        """End the teachers' workers and the student's."""
        ended = [teacher.shutdown() for teacher in set(self._teachers.values())]
        return bool(super().shutdown()) and all(ended)  # type: ignore[misc]

    def _make_room(self) -> None:
        """The student's GPUs for the teacher: vLLM has left them; on GPUs of its own, it has left the student there."""
        self.assert_room(waking=False)
        settings = self._context.settings
        stay = all(teacher.stays for teacher in settings.teachers.values())
        if settings.generation_share is None and not stay:
            super().offload_after_refit()  # type: ignore[misc]

    def _bring_student(self) -> None:
        if self._student_waits:
            super().prepare_for_lp_inference()  # type: ignore[misc]
            self._student_waits = False

    def _check_columns(self, data: Any) -> None:
        scores, outcome = self._context.scores, self._context.outcome
        check_same(data["input_ids"], scores.token_ids_BS, what="input_ids")
        check_same(data["prev_logprobs"], scores.student.rollout_logp_BT, what="prev_logprobs")
        check_same(data["advantages"], outcome.handed_out_BS, what="advantages")
        check_same(data["token_mask"], scores.token_mask_BS, what="token_mask")
        check_same(data["token_mask"] * data["sample_mask"].unsqueeze(1), outcome.mask_BS, what="sample_mask")


def check_sampled_inside(logp_BS: Tensor, mask_BS: Tensor) -> None:
    """Refuse a sampled token outside NeMo-RL's filter, whose log-probability is -inf there."""
    if outside := int((logp_BS.isinf() & mask_BS).sum()):
        raise ContractError(
            f"NeMo-RL's filtered log-probabilities are -inf at {outside} sampled tokens; expected finite ones: take "
            "uecr.filters=paper, which does not filter"
        )
