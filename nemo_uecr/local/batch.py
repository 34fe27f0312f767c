"""One step's rollouts with their rewards and scores, and how they are handed to `core` and to disk.

Shape legend: B = responses, T = response tokens.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nemo_uecr.config.schema import MethodConfig
from nemo_uecr.core.records import Advantages, ScoredBatch, Settings
from nemo_uecr.data.batch_file import advantages_of, arithmetic, save_batch, tensors_of
from nemo_uecr.data.reproducible import derive
from nemo_uecr.errors import ScoreError
from nemo_uecr.files import replace_file
from nemo_uecr.local.scores import Scores
from nemo_uecr.local.sequences import Sequences
from nemo_uecr.verifier.extract import Checked

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class StepBatch:
    """Everything that one step sampled, judged and scored.

    Attributes:
        step: training step, from 1.
        sequences: prompts and responses, the responses of a prompt side by side.
        group_B: slot of the prompt in the step; two draws of one problem stay apart.
        checked: verdicts.
        student: old policy, log-probabilities at (T_r, 1) and entropy.
        teacher: teacher log-probability at 1 and its entropy; None when the method reads no teacher.
        reference: initial student at T_r and, where the method reads it, at 1; None where nothing reads it.
        segments_BT: turn labels, None when the response is one turn.
    """

    step: int
    sequences: Sequences
    group_B: Tensor
    checked: Sequence[Checked]
    student: Scores
    teacher: Scores | None
    reference: Scores | None
    segments_BT: Tensor | None

    @property
    def sample_ids(self) -> tuple[str, ...]:
        """Name of each response: step, problem and place in the batch."""
        return tuple(
            f"step {self.step}, problem {prompt.problem.id}, row {row}"
            for row, prompt in enumerate(self.sequences.prompts)
        )

    @property
    def initial_logp_BT(self) -> Tensor | None:
        """The initial student at temperature 1, where the method reads it."""
        return None if self.reference is None or len(self.reference.logp) == 1 else self.reference.logp[1]

    def scored(self) -> ScoredBatch:
        """The record that the methods read."""
        return ScoredBatch(
            task_reward_B=torch.tensor([checked.reward for checked in self.checked]),
            group_B=self.group_B,
            mask_BT=self.sequences.mask(),
            old_logp_BT=self.student.logp[1],
            teacher_logp_BT=None if self.teacher is None else self.teacher.logp[0],
            teacher_entropy_BT=None if self.teacher is None else self.teacher.entropy_BT,
            initial_logp_BT=self.initial_logp_BT,
            segments_BT=self.segments_BT,
            sample_ids=self.sample_ids,
        )

    def check_scores(self) -> None:
        """Refuse scores that are not finite, those that the method does not read included.

        Raises:
            ScoreError: naming field, sample and token.
        """
        mask_BT = self.sequences.mask()
        fields = {"old_logp_rollout": self.student.logp[0], "old_logp": self.student.logp[1]}
        if self.teacher is not None:
            fields["teacher_logp"] = self.teacher.logp[0]
            if self.teacher.entropy_BT is not None:
                fields["teacher_entropy"] = self.teacher.entropy_BT
        if self.reference is not None:
            fields["ref_logp"] = self.reference.logp[0]
        if self.initial_logp_BT is not None:
            fields["initial_logp"] = self.initial_logp_BT
        for name, value_BT in fields.items():
            bad = (mask_BT & ~value_BT.isfinite()).nonzero()
            if bad.numel():
                row, token = bad[0].tolist()
                raise ScoreError(
                    f"{name} of response {row} ({self.sample_ids[row]}) at token {token} is "
                    f"{float(value_BT[row, token])}; expected a finite number of nats. The model that scored it gives "
                    "logits that are not finite: check its weights"
                )

    def truncated(self) -> Tensor:
        """[B] whether the response reached the token limit."""
        return torch.tensor([response.truncated for response in self.sequences.responses])

    def save(
        self, folder: Path, name: str, method: MethodConfig, settings: Settings, advantages: Advantages | None
    ) -> None:
        """Write the tensors, the advantages among them where there are any, as ``<name>.safetensors``."""
        tensors = tensors_of(self.scored())
        tensors |= {"old_logp_rollout": self.student.logp[0], "token_ids": self.sequences.token_ids()}
        if self.reference is not None:
            tensors["ref_logp"] = self.reference.logp[0]
        if advantages is not None:
            tensors |= advantages_of(advantages)
        save_batch(
            folder / f"{name}.safetensors",
            tensors,
            method=method.name,
            settings=vars(settings),
            step=self.step,
            arithmetic=arithmetic(),
        )

    def save_texts(self, path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
        """Write questions, responses and the text of every sampled token."""
        rows = [
            {
                "row": row,
                "id": self.sample_ids[row],
                "problem": prompt.problem.id,
                "question": prompt.problem.question,
                "answer": prompt.problem.answer,
                "response": response.text,
                "verdict": checked.verdict.value,
                "tokens": token_texts(response.token_ids, tokenizer),
            }
            for row, (prompt, response, checked) in enumerate(
                zip(self.sequences.prompts, self.sequences.responses, self.checked, strict=True)
            )
        ]
        content = json.dumps({"step": self.step, "responses": rows}, ensure_ascii=False)
        replace_file(path, content.encode())


def token_texts(token_ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Text of each token by itself; special tokens by their names."""
    return [tokenizer.decode([token]) for token in token_ids]


def turn_segments(sequences: Sequences, separator: str | None, tokenizer: PreTrainedTokenizerBase) -> Tensor | None:
    """[B, T] turn of each token: a token whose text contains ``separator`` ends its turn. None without a separator."""
    if separator is None:
        return None
    segments_BT = torch.zeros(len(sequences.responses), sequences.width, dtype=torch.long)
    for row, response in enumerate(sequences.responses):
        turn = 0
        for column, text in enumerate(token_texts(response.token_ids, tokenizer)):
            segments_BT[row, column] = turn
            turn += separator in text
    return segments_BT


def method_settings(method: MethodConfig, *, step: int, seed: int) -> Settings:
    """The method's scalars for one step (steps count from 1; the schedule counts completed ones)."""
    return Settings(**method.core_settings(), step=step - 1, seed=derive(seed, "shuffle", step) % 2**31)
