"""What the demo's data and models are made of, and the fingerprint that names their folder."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

RECIPE_FILE = "recipe.json"
BENCH_FOLDER = "bench"
FINGERPRINT_DIGITS = 12
# A change in one of these files can change what is made, so it makes a new folder.
SOURCES = ("recipe.py", "task.py", "tokenizer.py", "supervised.py", "muon.py", "prepare.py")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a Qwen3 model."""

    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    key_value_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class Course:
    """One supervised course on freshly drawn problems.

    Attributes:
        steps: optimizer steps.
        adam_learning_rate: peak for the embedding and the norms.
        muon_learning_rate: peak for the weight matrices.
        skip_rate: probability that the demonstrator does the next operation in the head.
        tokens_per_batch: tokens of a batch, prompts included; a batch holds problems of one level.
    """

    steps: int
    adam_learning_rate: float
    muon_learning_rate: float
    skip_rate: float
    tokens_per_batch: int


@dataclass(frozen=True, slots=True)
class ModelRecipe:
    """A model and the course it takes."""

    shape: ModelShape
    course: Course


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that determines the demo's files besides the seed.

    Attributes:
        student: the small model; its demonstrator often skips steps, but never writes a wrong line.
        teacher: the larger model; its demonstrator writes every step.
        train_problems: problems for reinforcement learning.
        bench_problems: problems of each of the five held-out sets.
    """

    student: ModelRecipe
    teacher: ModelRecipe
    train_problems: int
    bench_problems: int


DEMO_RECIPE = Recipe(
    student=ModelRecipe(
        ModelShape(hidden_size=64, intermediate_size=192, layers=3, heads=2, key_value_heads=2, head_dim=32),
        Course(700, adam_learning_rate=3e-3, muon_learning_rate=0.02, skip_rate=0.35, tokens_per_batch=2400),
    ),
    teacher=ModelRecipe(
        ModelShape(hidden_size=128, intermediate_size=192, layers=3, heads=4, key_value_heads=2, head_dim=32),
        Course(760, adam_learning_rate=3e-3, muon_learning_rate=0.02, skip_rate=0.0, tokens_per_batch=1200),
    ),
    train_problems=4096,
    bench_problems=20,
)


def recipe_to_json(recipe: Recipe) -> str:
    """Write a recipe as JSON."""
    return json.dumps(asdict(recipe), indent=2) + "\n"


def recipe_from_json(text: str) -> Recipe:
    """Read what `recipe_to_json` wrote."""
    fields = json.loads(text)
    return Recipe(
        student=_model_from(fields["student"]),
        teacher=_model_from(fields["teacher"]),
        train_problems=fields["train_problems"],
        bench_problems=fields["bench_problems"],
    )


def fingerprint(recipe: Recipe, seed: int) -> str:
    """Name what a recipe and a seed make: a digest of both and of the source that carries them out."""
    digest = hashlib.sha256(f"{seed}\n{recipe_to_json(recipe)}".encode())
    for name in SOURCES:
        digest.update((Path(__file__).parent / name).read_bytes())
    return digest.hexdigest()[:FINGERPRINT_DIGITS]


def _model_from(fields: dict[str, Any]) -> ModelRecipe:
    return ModelRecipe(ModelShape(**fields["shape"]), Course(**fields["course"]))
