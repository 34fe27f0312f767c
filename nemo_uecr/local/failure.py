"""What a failure leaves: the last complete thing that the step or evaluation drew, and what stopped it."""

from __future__ import annotations

import contextlib
import json
import logging
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nemo_uecr.core.methods import Method
from nemo_uecr.errors import InvariantError, RewardError, ScoreError
from nemo_uecr.files import replace_file
from nemo_uecr.steps.step_record import StepRecord
from nemo_uecr.verifier.rewards import Sample

log = logging.getLogger(__name__)

#: In the run folder: where a failed step or evaluation leaves what was drawn.
FAILURE = "failure"


@dataclass
class Evidence:
    """The file that a failure would leave now; a later one replaces it as the step goes on."""

    name: str = ""
    write: Callable[[Path], None] | None = None
    sample_ids: Sequence[str] = ()  # the error names one of them in parentheses
    words: Sequence[str] = ()  # arguments of ``nemo-uecr replay`` after the file; none while it cannot be replayed

    def responses(self, samples: Sequence[Sample]) -> None:
        """Keep what was drawn."""
        names = [sample.id for sample in samples]
        self.file("responses.json", lambda: json.dumps([vars(sample) for sample in samples]).encode(), names)

    def file(self, name: str, content: Callable[[], bytes], sample_ids: Sequence[str]) -> None:
        """Keep this content."""
        self.name, self.write = name, lambda path: replace_file(path, content())
        self.sample_ids, self.words = sample_ids, ()

    def batch(self, record: StepRecord, method: Method) -> None:
        """Keep the step's tensors, with the command that replays them once the teacher's scores are there."""
        self.name, self.write = "batch.safetensors", lambda path: record.save(path, method, None)
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
            evidence.write(target / evidence.name)
            sample = next((name for name in evidence.sample_ids if f"({name})" in str(error)), None)
            out = str(target / "advantages.safetensors")
            words = ["nemo-uecr", "replay", str(target / evidence.name), *evidence.words, "--out", out]
            command = shlex.join(words) if evidence.words else None
            record = {"step": step, "error": str(error), "kind": type(error).__name__, "sample": sample}
            replace_file(target / "failure.json", json.dumps(record | {"command": command}, indent=1).encode())
            log.error("what was drawn is kept in %s%s", target, f"; look at it with: {command}" if command else "")
        raise
