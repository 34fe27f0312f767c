"""One step's rollouts with their rewards and scores, and how they are handed to `core` and to disk.

Shape legend: B = responses, T = response tokens.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nemo_uecr.config.schema import Config
from nemo_uecr.core.methods import Advantages, Method, RunState
from nemo_uecr.core.record import SCORE_FIELDS, ScoredBatch
from nemo_uecr.data.batch_file import OPTIONAL, REQUIRED, arithmetic, save_batch
from nemo_uecr.data.reproducible import derive
from nemo_uecr.errors import ScoreError, UecrError
from nemo_uecr.files import replace_file
from nemo_uecr.generation.models import turns_before
from nemo_uecr.local.scores import Scores
from nemo_uecr.local.sequences import Reading, Sequences
from nemo_uecr.verifier.rewards import Outcome, Sample

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from nemo_uecr.generation.engines import Tokens

log = logging.getLogger(__name__)

#: Where a failed step or evaluation leaves what was drawn.
FAILURE = "failure"
#: Tensors in nats; each is finite on every sampled token, or the step stops.
IN_NATS = ("old_logp_rollout", *SCORE_FIELDS, "ref_logp")


@dataclass(frozen=True)
class StepBatch:
    """Everything that one step sampled, judged and scored."""

    step: int  # training step, from 1
    sequences: Sequences  # prompts and responses, the responses of a prompt side by side
    micro_rows: list[list[Tensor]]  # rows of each micro-batch, one list for each optimizer step
    group_B: Tensor  # slot of the prompt in the step; two draws of one problem stay apart
    outcomes: Sequence[Outcome]  # task rewards
    student: Scores  # old policy, log-probabilities at (T_r, 1) and entropy
    teacher: Scores | None  # teacher log-probability at 1 and its entropy; None when the method reads no teacher
    reading: Reading | None  # each response's teacher, and what it read; None when the method reads no teacher
    reference: Scores | None  # initial student at T_r and, where the method reads it, at 1; None where nothing reads it
    unscored: ScoreError | None  # why the teacher's scores are missing; the step stops with it
    segments_BT: Tensor | None  # turn labels, None when the response is one turn
    run: RunState  # where the run is, for the methods that depend on it

    @property
    def sample_ids(self) -> tuple[str, ...]:
        """Name of each response: step, problem and place in the batch."""
        return sample_ids(self.step, self.sequences)

    @cached_property
    def scored(self) -> ScoredBatch:
        """The record that the methods read."""
        found = self._record_tensors()
        # The fields of the record carry their shape in the name.
        named: dict[str, Any] = {field: found.get(name) for name, field in (REQUIRED | OPTIONAL).items()}
        return ScoredBatch(**named, sample_ids=self.sample_ids, run=self.run)

    def _record_tensors(self) -> dict[str, Tensor]:
        """The record's tensors by their public names, also where it would refuse them."""
        teacher, reference = self.teacher, self.reference
        found = {
            "task_reward": torch.tensor([outcome.reward for outcome in self.outcomes]),
            "group": self.group_B,
            "mask": self.sequences.mask_BT,
            "old_logp": self.student.logp[1],
            "teacher_logp": None if teacher is None else teacher.logp[0],
            "teacher_entropy": None if teacher is None else teacher.entropy_BT,
            "initial_logp": None if reference is None or len(reference.logp) == 1 else reference.logp[1],
            "student_entropy": self.student.entropy_BT,
            "segments": self.segments_BT,
        }
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of the step by its public name; scores are 0 outside the sampled tokens."""
        tensors = self._record_tensors() | {"old_logp_rollout": self.student.logp[0]}
        if self.reference is not None:
            tensors["ref_logp"] = self.reference.logp[0]
        scores = {name: tensors[name].masked_fill(~self.sequences.mask_BT, 0) for name in IN_NATS if name in tensors}
        return tensors | scores | {"token_ids": self.sequences.token_ids()}

    def check_scores(self) -> None:
        """Refuse scores that are missing, of other tokens or not finite, also where no method reads them."""
        if self.unscored is not None:
            raise self.unscored
        if self.reading is not None and not torch.equal(self.reading.sequences.token_ids(), self.sequences.token_ids()):
            raise ScoreError("the teachers read other response tokens than the student sampled; expected the same")
        tensors = self.tensors()
        for name in IN_NATS:
            if name not in tensors:
                continue
            bad = (~tensors[name].isfinite()).nonzero()
            if bad.numel():
                row, token = bad[0].tolist()
                raise ScoreError(
                    f"{name} of response {row} ({self.sample_ids[row]}) at token {token} is "
                    f"{float(tensors[name][row, token])}; expected a finite number of nats. The model that scored it "
                    "gives logits that are not finite: check its weights"
                )

    def correct(self) -> Tensor:
        """[B] whether the response counts as correct."""
        return torch.tensor([outcome.correct for outcome in self.outcomes])

    def truncated(self) -> Tensor:
        """[B] whether the response reached the token limit."""
        return torch.tensor([response.truncated for response in self.sequences.responses])

    def save(self, path: Path, method: Method, advantages: Advantages | None) -> None:
        """Write the tensors, the advantages among them where there are any."""
        tensors = self.tensors() | ({} if advantages is None else advantages.loss_tensors())
        save_batch(path, tensors, method=method, run=self.run, step=self.step, arithmetic=arithmetic())

    def _read(self, row: int) -> dict[str, str]:
        """The teacher of a response, and hashes of the prompt that it read and of the response behind it."""
        if self.reading is None:
            return {}
        read = self.reading.sequences
        return {
            "teacher": self.reading.names[row],
            "teacher_prompt_sha256": ids_sha256(read.prompts[row].token_ids),
            "teacher_response_sha256": ids_sha256(read.responses[row].token_ids),
        }

    def save_texts(
        self, path: Path, tokenizer: PreTrainedTokenizerBase, terms: Mapping[str, Mapping[str, str]]
    ) -> None:
        """Write questions, responses, the text of every sampled token and its teacher; ``terms`` says what that is."""
        rows = [
            {
                "row": row,
                "id": self.sample_ids[row],
                "problem": prompt.problem.id,
                "question": prompt.problem.question,
                "context": prompt.problem.context,
                "answer": prompt.problem.answer,
                "response": response.text,
                "verdict": outcome.verdict.value,
                "rewards": dict(outcome.parts),
                **self._read(row),
                "tokens": [tokenizer.decode([token]) for token in response.token_ids],
            }
            for row, (prompt, response, outcome) in enumerate(
                zip(self.sequences.prompts, self.sequences.responses, self.outcomes, strict=True)
            )
        ]
        content = json.dumps({"step": self.step, "teachers": terms, "responses": rows}, ensure_ascii=False)
        replace_file(path, content.encode())


def ids_sha256(token_ids: Sequence[int]) -> str:
    """sha256 of token ids, written in decimal with commas."""
    return hashlib.sha256(",".join(map(str, token_ids)).encode()).hexdigest()


def sample_ids(step: int, sequences: Sequences) -> tuple[str, ...]:
    """Name of each response: step, problem and place in the batch."""
    return tuple(f"step {step}, problem {prompt.problem.id}, row {row}" for row, prompt in enumerate(sequences.prompts))


def samples_of(step: int, sequences: Sequences, config: Config, tokens: Tokens) -> list[Sample]:
    """What the rewards read of each response."""
    data, skip = config.data, config.rollout.skip_special_tokens
    return [
        Sample(
            id=name,
            prompt=data.prompt_template.replace("{question}", prompt.problem.question),
            text=response.text if skip else tokens.whole_text(response.token_ids),
            token_ids=response.token_ids,
            answer=prompt.problem.answer,
            columns=prompt.problem.columns,
            dataset=data.train,
            thinking=tokens.opens_thought(prompt.token_ids),
            before=tuple(turns_before(data.system_prompt, prompt.problem.context)),
            skipped=tokens.special_inside(response.token_ids) if skip else (),
        )
        for name, prompt, response in zip(
            sample_ids(step, sequences), sequences.prompts, sequences.responses, strict=True
        )
    ]


def run_state(config: Config, *, step: int, state: Mapping[str, float]) -> RunState:
    """What the run gives the method in one step (steps count from 1; the schedule counts completed ones)."""
    seed = derive(config.run.seed, "shuffle", step) % 2**31
    return RunState(step - 1, config.train.steps, seed, state)


def leave_failure(folder: Path, batch: StepBatch, method: Method, error: UecrError) -> None:
    """Keep a failed step's batch under ``failure/``, with the `nemo-uecr replay` command that looks at it."""
    target = folder / FAILURE
    batch.save(target / "batch.safetensors", method, None)
    run = batch.run
    named = method.settings() | {"step": run.step, "total_steps": run.total_steps, "seed": run.seed}
    named |= {f"state.{name}": value for name, value in run.state.items()}
    assignments = [f"{name}={value}" for name, value in named.items() if value is not None]
    words = ["nemo-uecr", "replay", str(target / "batch.safetensors"), "--method", method.name]
    command = shlex.join([*words, "--set", *assignments, "--out", str(target / "advantages.safetensors")])
    sample = next((name for name in batch.sample_ids if f"({name})" in str(error)), None)
    write_failure(folder, batch.step, error, sample=sample, command=None if batch.unscored else command)


def leave_responses(folder: Path, step: int, samples: Sequence[Sample], error: UecrError) -> None:
    """Keep what a reward could not judge under ``failure/``."""
    replace_file(folder / FAILURE / "responses.json", json.dumps([vars(sample) for sample in samples]).encode())
    about = next((sample.id for sample in samples if f"({sample.id})" in str(error)), None)
    write_failure(folder, step, error, sample=about, command=None)


def write_failure(folder: Path, step: int, error: UecrError, *, sample: str | None, command: str | None) -> None:
    """Say in ``failure/failure.json`` what stopped the run: the response that the error names, and what replays it."""
    record = {"step": step, "error": str(error), "kind": type(error).__name__, "sample": sample, "command": command}
    replace_file(folder / FAILURE / "failure.json", json.dumps(record, indent=1).encode())
    log.error("what was drawn is kept in %s%s", folder / FAILURE, f"; look at it with: {command}" if command else "")
