"""One step's prompts and responses with their record, and the texts that are saved beside its tensors.

Shape legend: B = responses.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from nemo_uecr.config.schema import Config
from nemo_uecr.files import replace_file
from nemo_uecr.generation.models import turns_before
from nemo_uecr.local.sequences import Sequences, TeacherInputs
from nemo_uecr.steps.step_record import StepRecord, sample_ids
from nemo_uecr.verifier.rewards import Outcome, Sample

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from nemo_uecr.generation.engines import Tokens


@dataclass(frozen=True)
class StepBatch:
    """One step's responses, how they share forward passes, and what was scored of them."""

    sequences: Sequences  # prompts and responses, the responses of a prompt side by side
    micro_rows: list[list[Tensor]]  # rows of each micro-batch, one list for each optimizer step
    outcomes: Sequence[Outcome]  # task rewards
    inputs: TeacherInputs | None  # each response's teacher, and what it reads; None when the method reads no teacher
    record: StepRecord

    def _teacher(self, row: int) -> dict[str, str]:
        """The teacher of a response, and hashes of the prompt that it read and of the response after it."""
        if self.inputs is None:
            return {}
        read = self.inputs.sequences
        return {
            "teacher": self.inputs.names[row],
            "teacher_prompt_sha256": ids_sha256(read.prompts[row].token_ids),
            "teacher_response_sha256": ids_sha256(read.responses[row].token_ids),
        }

    def save_texts(
        self, path: Path, tokenizer: PreTrainedTokenizerBase, teachers: Mapping[str, Mapping[str, str]]
    ) -> None:
        """Write questions, responses, the text of every token and its teacher; ``teachers`` have their provenance."""
        rows = [
            {
                "row": row,
                "id": self.record.sample_ids[row],
                "problem": prompt.problem.id,
                "question": prompt.problem.question,
                "context": prompt.problem.context,
                "answer": prompt.problem.answer,
                "response": response.text,
                "verdict": outcome.verdict.value,
                "rewards": dict(outcome.parts),
                **self._teacher(row),
                "tokens": [tokenizer.decode([token]) for token in response.token_ids],
            }
            for row, (prompt, response, outcome) in enumerate(
                zip(self.sequences.prompts, self.sequences.responses, self.outcomes, strict=True)
            )
        ]
        content = json.dumps({"step": self.record.step, "teachers": teachers, "responses": rows}, ensure_ascii=False)
        replace_file(path, content.encode())


def ids_sha256(token_ids: Sequence[int]) -> str:
    """sha256 of token ids, written in decimal with commas."""
    return hashlib.sha256(",".join(map(str, token_ids)).encode()).hexdigest()


def samples_of(step: int, sequences: Sequences, config: Config, tokens: Tokens) -> list[Sample]:
    """What the rewards read of each response."""
    data, skip = config.data, config.rollout.skip_special_tokens
    names = sample_ids(step, [prompt.problem.id for prompt in sequences.prompts])
    return [
        Sample(
            id=name,
            prompt=prompt.problem.turn(data.prompt_template),
            text=response.text if skip else tokens.whole_text(response.token_ids),
            token_ids=response.token_ids,
            answer=prompt.problem.answer,
            columns=prompt.problem.columns,
            dataset=data.train,
            thinking=tokens.opens_thought(prompt.token_ids),
            before=tuple(turns_before(data.system_prompt, prompt.problem.context)),
            skipped=tokens.special_inside(response.token_ids) if skip else (),
        )
        for name, prompt, response in zip(names, sequences.prompts, sequences.responses, strict=True)
    ]
