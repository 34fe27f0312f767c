"""What a failure leaves: the last complete thing that the step or evaluation drew, and what stopped it."""

from __future__ import annotations

import contextlib
import json
import logging
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from nemo_uecr.core.methods import Method
from nemo_uecr.errors import InvariantError, RewardError, ScoreError
from nemo_uecr.files import replace_file
from nemo_uecr.local.rollout import StepBatch
from nemo_uecr.responses.table import write_responses

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)

#: In the run folder: where a failed step or evaluation leaves what was drawn, and as which file.
FAILURE, RESPONSES = "failure", "responses.parquet"


@dataclass
class Evidence:
    """The table that a failure would leave now; a later one replaces it as the step goes on."""

    write: Callable[[Path], None] | None = None
    sample_ids: Sequence[str] = ()  # the error names one of them in parentheses
    words: Sequence[str] = ()  # arguments of ``nemo-uecr replay`` after the file; none while it cannot be replayed

    def responses(self, rows: Mapping[str, Sequence[Any]], tokens: Mapping[str, Tensor]) -> None:
        """Keep what was drawn."""
        self.write = lambda path: write_responses(path, rows, tokens, about={})
        self.sample_ids, self.words = rows["id"], ()

    def batch(self, batch: StepBatch, method: Method, tokenizer: PreTrainedTokenizerBase) -> None:
        """Keep the step's table, with the command that replays it once the teacher's scores are there."""
        record = batch.record
        self.write = lambda path: batch.save(path, method, None, tokenizer=tokenizer, teachers={})
        self.sample_ids, self.words = record.sample_ids, ()
        if record.teacher is not None or not method.needs_teacher():
            run = record.run
            settings = method.settings() | {"step": run.step, "total_steps": run.total_steps, "seed": run.seed}
            settings |= {f"state.{name}": value for name, value in run.state.items()}
            assignments = [f"{name}={value}" for name, value in settings.items() if value is not None]
            self.words = ("--method", method.name, "--set", *assignments)


@contextlib.contextmanager
def evidence_of_failure(folder: Path, step: int) -> Iterator[Evidence]:
    """If a score, reward or identity check stops the run, leave the evidence and ``failure.json`` in ``failure/``."""
    evidence, target = Evidence(), folder / FAILURE
    try:
        yield evidence
    except (InvariantError, RewardError, ScoreError) as error:
        if evidence.write is not None:
            evidence.write(target / RESPONSES)
            sample = next((name for name in evidence.sample_ids if f"({name})" in str(error)), None)
            out = str(target / "advantages.parquet")
            words = ["nemo-uecr", "replay", str(target / RESPONSES), *evidence.words, "--out", out]
            command = shlex.join(words) if evidence.words else None
            record = {"step": step, "error": str(error), "kind": type(error).__name__, "sample": sample}
            replace_file(target / "failure.json", json.dumps(record | {"command": command}, indent=1).encode())
            log.error("what was drawn is kept in %s%s", target, f"; look at it with: {command}" if command else "")
        raise
