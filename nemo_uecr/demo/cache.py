"""The demo's files: problems, a student and a teacher, prepared on first use and cached, complete or not at all.

The folder has `recipe.json`, `train.jsonl`, `bench/level1.jsonl` to `bench/level5.jsonl`, and the Hugging Face models
`student` and `teacher`.
"""

from __future__ import annotations

import hashlib
import logging
import os
import random
import signal
from pathlib import Path
from typing import Annotated

from filelock import FileLock

from nemo_uecr.config.schema import Section
from nemo_uecr.demo.supervised import CourseConfig, ModelConfig, ModelJob, teach_model
from nemo_uecr.demo.task import LEVELS, write_problems
from nemo_uecr.demo.workers import work_on
from nemo_uecr.errors import DataError, RunFolderError
from nemo_uecr.files import new_folder
from nemo_uecr.paths import SCHEME
from nemo_uecr.ranges import Range
from nemo_uecr.stopping import StopRequest, handling

logger = logging.getLogger(__name__)

SEED = 0
MODELS = ("student", "teacher")
BENCH = tuple(f"bench/level{level}" for level in LEVELS)
PARTS = (*MODELS, "train", *BENCH)
#: A change in one of these files may change the demo, so it leads to a new folder.
SOURCES = ("cache.py", "supervised.py", "task.py")
#: Level 1 has 111,466 questions; drawing the last distinct ones would take very long.
Problems = Annotated[int, Range(1, 10_000)]


class RecipeConfig(Section):
    """How many problems, and which models."""

    train_problems: Problems  # for reinforcement learning
    bench_problems: Problems  # per held-out set
    student: ModelConfig
    teacher: ModelConfig


def _model(hidden_size: int, heads: int, *, steps: int, skip_rate: float, tokens_per_batch: int) -> ModelConfig:
    course = CourseConfig(
        steps=steps, adam_learning_rate=3e-3, muon_learning_rate=0.02, skip_rate=skip_rate, error_rate=0.0,
        tokens_per_batch=tokens_per_batch,
    )  # fmt: skip
    return ModelConfig(
        hidden_size=hidden_size, intermediate_size=192, layers=3, heads=heads, key_value_heads=2, head_dim=32,
        course=course,
    )  # fmt: skip


#: The student's demonstrator often skips steps, but never writes a wrong line; the teacher's writes every step.
RECIPE = RecipeConfig(
    student=_model(64, 2, steps=700, skip_rate=0.35, tokens_per_batch=2400),
    teacher=_model(128, 4, steps=760, skip_rate=0.0, tokens_per_batch=1200),
    train_problems=4096,
    bench_problems=20,
)


def ensure_demo(root: Path, recipe: RecipeConfig, *, seed: int) -> Path:
    """The demo's cache folder, prepared if missing; a second process waits for the first.

    Raises:
        RunFolderError: the folder cannot be written, or a worker process died.
    """
    folder = demo_folder(root, recipe, seed=seed)
    if folder.is_dir():
        return folder
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / f".{folder.name}.lock"):
            if not folder.is_dir():
                logger.info("demo: preparing problems, student and teacher in %s (once; about a minute)", folder)
                with new_folder(folder) as staging:
                    _prepare(staging, recipe, seed)
    except OSError as error:
        raise RunFolderError(
            f"{folder}: cannot prepare the demo ({error.strerror or error}); "
            "free space there, or set NEMO_UECR_CACHE to a folder that can be written"
        ) from error
    return folder


def demo_folder(root: Path, recipe: RecipeConfig, *, seed: int) -> Path:
    """The demo's cache folder, named by a digest of recipe, seed and source code."""
    digest = hashlib.sha256(f"{seed}\n{recipe.model_dump_json()}".encode())
    for name in SOURCES:
        digest.update((Path(__file__).parent / name).read_bytes())
    return root / f"demo-{digest.hexdigest()[:12]}"


def cache_root() -> Path:
    """The cache folder: `$NEMO_UECR_CACHE`, or `nemo_uecr` in the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("NEMO_UECR_CACHE") or f"{home}/nemo_uecr").expanduser()


def resolve_path(name: str) -> str:
    """The path that a `demo:` name stands for, preparing the demo when it is missing.

    Raises:
        DataError: there is no such `demo:` name.
    """
    if name.removeprefix(SCHEME) not in PARTS:
        known = ", ".join(f"{SCHEME}{part}" for part in PARTS)
        raise DataError(f"{name}: no such part of the demo; expected one of {known}")
    with handling((signal.SIGTERM,), signal.default_int_handler):  # nothing to save: end as on Ctrl-C
        ensure_demo(cache_root(), RECIPE, seed=SEED)
    return locate_path(name)


def locate_path(name: str) -> str:
    """Like `resolve_path`, but the demo is never prepared: the path may lead nowhere."""
    part = name.removeprefix(SCHEME)
    return str(demo_folder(cache_root(), RECIPE, seed=SEED) / (part if part in MODELS else f"{part}.jsonl"))


def _prepare(folder: Path, recipe: RecipeConfig, seed: int) -> None:
    (folder / "recipe.json").write_text(recipe.model_dump_json(indent=2) + "\n", encoding="utf-8")
    held_out = {
        folder / f"{name}.jsonl": [level] * recipe.bench_problems for name, level in zip(BENCH, LEVELS, strict=True)
    }
    write_problems(random.Random(seed), held_out, folder / "train.jsonl", LEVELS, recipe.train_problems)
    jobs = [
        ModelJob(folder / name, getattr(recipe, name), seed, random.Random(f"{seed} {name}"), tuple(held_out))
        for name in MODELS
    ]
    list(work_on(_teach, jobs, processes=len(jobs), stop=StopRequest()))


def _teach(job: ModelJob) -> float:
    """`teach_model` in a worker process, with its own logging."""
    logging.basicConfig(format="%(asctime)s demo: %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("nemo_uecr").setLevel(logging.INFO)
    return teach_model(job)
