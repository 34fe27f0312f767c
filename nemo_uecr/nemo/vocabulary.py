"""Student and teacher must mean the same text by every token id."""

from __future__ import annotations

from typing import Any, Protocol

from nemo_uecr.errors import DataError


class Vocabulary(Protocol):
    """A tokenizer as far as it is compared."""

    def get_vocab(self) -> dict[str, int]:
        """Id of every token text."""


def check_same_tokenizer(student: Vocabulary, teacher: Vocabulary) -> None:
    """Compare two tokenizers id by id.

    Raises:
        DataError: naming the first id that means something else.
    """
    ours = {index: text for text, index in student.get_vocab().items()}
    theirs = {index: text for text, index in teacher.get_vocab().items()}
    for index in sorted(ours.keys() | theirs.keys()):
        if ours.get(index) != theirs.get(index):
            raise DataError(
                f"token id {index} is {ours.get(index)!r} for the student and {theirs.get(index)!r} for the teacher; "
                "expected one tokenizer, because the teacher scores the student's token ids"
            )


def check_columns(model: Any, *, expected: int, who: str) -> None:
    """Compare a model's output columns with ``student.vocabulary``.

    Raises:
        DataError: when they differ.
    """
    found = int(model.vocab_size)
    if found != expected:
        raise DataError(
            f"the {who} has {found} output columns; expected student.vocabulary={expected} for student and teacher "
            "alike, because the entropy is over all of them"
        )
