"""Trains one of the demo's models in a process of its own.

    python -m nemo_uecr.demo.prepare FOLDER student|teacher SEED

The folder must hold the recipe and the held-out sets; the model is saved in it. A progress line goes to standard
output every hundred steps. When the process that reads them is gone, writing the next one ends this process too.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

from nemo_uecr.data.models import save_pretrained
from nemo_uecr.demo.recipe import BENCH_FOLDER, RECIPE_FILE, ModelRecipe, recipe_from_json
from nemo_uecr.demo.supervised import build_model, demonstrations, train_supervised
from nemo_uecr.demo.task import read_questions
from nemo_uecr.demo.tokenizer import build_tokenizer

STEPS_PER_LINE = 100
WORKER_THREADS = 1


def prepare_model(folder: Path, name: str, recipe: ModelRecipe, seed: int) -> None:
    """Train a model by its recipe and save it with its tokenizer as `folder / name`."""
    tokenizer = build_tokenizer()
    held_out = {question for path in (folder / BENCH_FOLDER).glob("*.jsonl") for question in read_questions(path)}
    model = build_model(recipe.shape, tokenizer, seed)
    batches = demonstrations(tokenizer, recipe.course, random.Random(f"{seed} {name}"), held_out)
    train_supervised(model, batches, recipe.course, _progress(name, recipe.course.steps))
    save_pretrained(model, tokenizer, folder / name)


def main(arguments: list[str]) -> None:
    """Prepare the model that the command line names."""
    import torch
    from transformers.utils import logging as transformers_logging

    torch.set_num_threads(WORKER_THREADS)
    transformers_logging.disable_progress_bar()
    folder, name, seed = Path(arguments[0]), arguments[1], int(arguments[2])
    recipe = recipe_from_json((folder / RECIPE_FILE).read_text(encoding="utf-8"))
    try:
        prepare_model(folder, name, {"student": recipe.student, "teacher": recipe.teacher}[name], seed)
    except OSError as error:
        sys.exit(f"{name}: {folder / name} cannot be written: {error.strerror or error}")


def _progress(name: str, steps: int) -> Callable[[int, float], None]:
    started = time.monotonic()

    def report(step: int, loss: float) -> None:
        if step % STEPS_PER_LINE == 0 or step == steps:
            seconds = time.monotonic() - started
            sys.stdout.write(f"{name}: step {step} of {steps}, loss {loss:.4f} nats a token, {seconds:.0f} s\n")
            sys.stdout.flush()

    return report


if __name__ == "__main__":
    main(sys.argv[1:])
