"""Models that do not fit the run or each other, whatever the layout: one sentence each, with the remedy."""

from __future__ import annotations

from nemo_uecr.plan.shapes import ModelShape

__all__ = ["other_columns", "too_long"]


def too_long(role: str, shape: ModelShape, prompt: int, response: int, key: str) -> list[str]:
    """Whether the longest sequence has more tokens than the model has positions.

    Args:
        role: section of the configuration.
        shape: the model.
        prompt: most tokens of a prompt.
        response: most tokens of a response.
        key: of the configuration that says so.
    """
    if not 0 < shape.positions < prompt + response:
        return []
    left = shape.positions - prompt
    remedy = f"{key}={left}" if left > 0 else f"data.max_prompt_tokens below {shape.positions}"
    return [
        f"data.max_prompt_tokens + {key} = {prompt + response}, but the {role} was made for "
        f"{shape.positions} positions; take {remedy}, or a {role} that was made for more"
    ]


def other_columns(student: ModelShape, teacher: ModelShape) -> list[str]:
    """Whether the teacher's output columns are not the student's."""
    if teacher.vocabulary == student.vocabulary:
        return []
    return [
        f"the student has {student.vocabulary} output columns, the teacher {teacher.vocabulary}; take a teacher whose "
        f"config.json has vocab_size {student.vocabulary}"
    ]
