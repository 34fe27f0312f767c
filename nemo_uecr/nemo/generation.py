"""Generation at a decoding of one's own by the vLLM engines that the training loop keeps.

NeMo-RL's own call samples with the settings of training and without seeds. Here every request has its seed, so that
each evaluation draws on the same random numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nemo_uecr.evaluation.engines import Decoding, Generation, Request, generate_with
from nemo_uecr.nemo.dispatch import wait


def answer_in_worker(
    worker: Any, requests: Sequence[Request], decoding: Decoding, end_ids: frozenset[int]
) -> list[Generation]:
    """Runs inside a generation worker, which holds its engine under ``llm``."""
    return generate_with(worker.llm, requests, decoding, end_ids)


@dataclass(frozen=True)
class WorkersEngine:
    """An evaluation engine over the vLLM workers of a run.

    Attributes:
        workers: name and Ray actor of each engine's first worker.
        end_ids: token ids that end a response.
        seconds: longest wait for all answers.
    """

    workers: Sequence[tuple[str, Any]]
    end_ids: frozenset[int]
    seconds: float

    def generate(self, requests: Sequence[Request], decoding: Decoding) -> list[Generation]:
        """One generation a request, in order; request i goes to worker i modulo their number.

        Raises:
            WorkerError: a worker died, raised, or did not answer in time.
        """
        used = self.workers[: len(requests)]
        futures = [
            actor.__ray_call__.remote(answer_in_worker, requests[place :: len(used)], decoding, self.end_ids)
            for place, (_, actor) in enumerate(used)
        ]
        answers = wait("generate for evaluation", futures, [name for name, _ in used], seconds=self.seconds)
        found: list[Generation] = [Generation((), truncated=True)] * len(requests)
        for place, answer in enumerate(answers):
            found[place :: len(used)] = answer
        return found
