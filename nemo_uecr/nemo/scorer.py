"""What can score tokens: the student, and a teacher that is on the GPU only while it scores."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from nemo_uecr.nemo.contract import Scores, verified
from nemo_uecr.nemo.errors import WorkerError
from nemo_uecr.nemo.request import ScoreRequest
from nemo_uecr.nemo.rows import padding_rows, with_masked_rows, without_masked_rows


class TokenScorer(Protocol):
    """A model over one or many workers that scores the tokens of a batch."""

    @property
    def data_parallel_size(self) -> int:
        """Into how many equal parts it cuts a batch."""

    def score_tokens(self, data: Any, request: ScoreRequest) -> Mapping[str, Any]:
        """Columns of the request, ``row_hash`` [B] and ``terms``, one text a row."""


class Teacher(TokenScorer, Protocol):
    """A frozen scorer with a place to rest."""

    def load(self) -> None:
        """Bring the weights to where they compute."""

    def offload(self) -> None:
        """Give their memory back."""

    def shutdown(self) -> bool:
        """End its workers."""


def score(scorer: TokenScorer, data: Any, request: ScoreRequest, *, name: str) -> Scores:
    """Score a batch of any number of rows and verify the answer.

    Args:
        scorer: who scores.
        data: NeMo-RL's batch: ``input_ids`` [B, S], ``input_lengths`` [B] and the masks.
        request: what is asked.
        name: who that is, for messages.
    """
    rows = data["input_ids"].shape[0]
    extra = padding_rows(rows, scorer.data_parallel_size)
    answer = scorer.score_tokens(type(data)(with_masked_rows(data, extra)), request)
    return verified(without_masked_rows(answer, rows), request, data, scorer=name)


@contextlib.contextmanager
def on_device(teacher: Teacher) -> Iterator[None]:
    """The teacher's weights in place inside the block, and gone after it.

    A worker that is dead or silent ends the run: its memory goes with it, and asking it again would only wait a second
    time and hide the error that names it.
    """
    teacher.load()
    try:
        yield
    except WorkerError:
        raise
    except BaseException:
        with contextlib.suppress(WorkerError):
            teacher.offload()
        raise
    teacher.offload()
