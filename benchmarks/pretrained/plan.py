"""How much of the study, where it is, and its problems on disk."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from benchmarks.pretrained.arithmetic import KINDS, problems
from nemo_uecr.files import replace_file

HERE = Path(__file__).parent
CONFIG, REWARD = HERE / "config.yaml", HERE / "arithmetic.py"
ARMS = ("grpo", "uecr", "grpo_plus_opd", "uecr_trust")
TEACHERS = ("wrong", "right")
#: Of each kind. What is left of the products, the fewest, is trained on.
HELD_OUT, TRAINED = 100, 261


@dataclass(frozen=True)
class Plan:
    """How much of it: sizes of a student's step, of the teachers, and of the evaluation."""

    pairs: int
    steps: int
    prompts: int  # per step
    responses: int  # per prompt
    every: int  # steps between evaluations
    saved: int  # steps between checkpoints; 0: none before the end
    held_out: int  # problems of each kind
    teacher_steps: int  # of GRPO
    teacher_prompts: int  # per step
    wrong_steps: int  # of supervised training
    wrong_rows: int  # per step
    learning_rate: float = 2e-5
    wrong_learning_rate: float = 5e-5


PLANS = {
    "full": Plan(5, 60, 8, 8, 10, 0, 100, 50, 16, 120, 32),
    "short": Plan(2, 20, 4, 8, 10, 5, 50, 30, 8, 60, 16),
    "tiny": Plan(1, 2, 2, 2, 1, 1, 2, 2, 2, 2, 2),
}


@dataclass(frozen=True)
class Study:
    """Where it is, and on what."""

    work: Path
    device: str
    plan: Plan
    arms: tuple[str, ...]

    @property
    def dtype(self) -> str:
        """Of the student's computation."""
        return "bfloat16" if self.device == "cuda" else "float32"

    def teacher(self, name: str) -> Path:
        """Folder of a teacher's model."""
        return self.work / "teachers" / name


def write_problems(study: Study) -> None:
    """The training problems, and as many held out as the plan evaluates."""
    held_out, trained = problems(held_out=HELD_OUT, trained=TRAINED)
    for name, chosen in {"train": trained, "held_out": held_out[: len(KINDS) * study.plan.held_out]}.items():
        lines = [json.dumps(problem._asdict()) + "\n" for problem in chosen]
        replace_file(study.work / f"{name}.jsonl", "".join(lines).encode())
