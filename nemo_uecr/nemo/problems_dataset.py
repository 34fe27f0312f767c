"""Our problem files as a NeMo-RL dataset; NeMo-RL finds the class by its dotted name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nemo_uecr.nemo import upstream
from nemo_uecr.nemo.problem_rows import selected_rows, text_field


class ProblemsDataset(upstream.raw_dataset_class()):  # type: ignore[misc]
    """Problems of a JSONL file, kept by difficulty and drawn by seed, as NeMo-RL's message rows."""

    def __init__(
        self,
        data_path: str,
        question_key: str,
        answer_key: str,
        difficulty_key: str | None,
        difficulty_low: float | None,
        difficulty_high: float | None,
        problem_count: int | None,
        seed: int,
        dropped: Sequence[int],
        **unread: Any,
    ) -> None:
        """Read and select; NeMo-RL hands over its whole section, the rest of which it reads itself."""
        from datasets import Dataset

        rows = selected_rows(
            data_path,
            difficulty_key=difficulty_key,
            low=difficulty_low,
            high=difficulty_high,
            subset=problem_count,
            seed=seed,
        )
        left_out = frozenset(dropped)
        self.task_name = "problems"
        self.val_dataset = None
        self.dataset = Dataset.from_list(
            [
                {
                    "messages": [
                        {"role": "user", "content": text_field(row, question_key, data_path, "data.question_key")},
                        {"role": "assistant", "content": text_field(row, answer_key, data_path, "data.answer_key")},
                    ],
                    "task_name": self.task_name,
                }
                for place, row in enumerate(rows)
                if place not in left_out
            ]
        )
