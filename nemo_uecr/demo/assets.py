"""The demo's files: made on first use, cached, and either complete or absent.

The folder holds `recipe.json`, `train.jsonl`, `bench/level1.jsonl` to `bench/level5.jsonl`, and the models `student`
and `teacher` in Hugging Face form with their tokenizer.
"""

from __future__ import annotations

import logging
import os
import random
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

import nemo_uecr
from nemo_uecr.demo.recipe import BENCH_FOLDER, DEMO_RECIPE, RECIPE_FILE, Recipe, fingerprint, recipe_to_json
from nemo_uecr.demo.task import LEVELS, distinct_problems, write_rows
from nemo_uecr.errors import DataError, RunFolderError
from nemo_uecr.files import new_folder

logger = logging.getLogger(__name__)

SCHEME = "demo:"
DEMO_SEED = 0
MODELS = ("student", "teacher")
BENCHMARKS = tuple(f"level{level}" for level in LEVELS)


@dataclass(frozen=True)
class DemoAssets:
    """Where the demo's files lie."""

    root: Path
    student: Path
    teacher: Path
    train: Path
    benchmarks: dict[str, Path]


def ensure_assets(root: Path | None, *, seed: int, recipe: Recipe = DEMO_RECIPE) -> DemoAssets:
    """Return the demo's files, preparing them first when they are missing.

    Two processes that ask at once prepare once: the second waits. A process that is killed leaves no folder behind
    that could be taken for a finished one.

    Args:
        root: folder that holds the caches; None is `$NEMO_UECR_CACHE`, else `nemo_uecr` in the user's cache folder.
        seed: seed of the problems and of both models.
        recipe: what to make.

    Raises:
        RunFolderError: the folder cannot be written, or a model's training failed.
    """
    parent = cache_root() if root is None else root
    folder = parent / f"demo-{fingerprint(recipe, seed)}"
    if not folder.is_dir():
        try:
            parent.mkdir(parents=True, exist_ok=True)
            with FileLock(parent / f".{folder.name}.lock"):  # a second process waits and finds them made
                if not folder.is_dir():
                    _prepare(folder, recipe, seed)
        except OSError as error:
            raise RunFolderError(
                f"{folder}: cannot prepare the demo ({error.strerror or error}); "
                "free space there, or set NEMO_UECR_CACHE to a folder that can be written"
            ) from error
    return _assets_in(folder)


def resolve(uri: str) -> str:
    """Return the path that a `demo:` name stands for, preparing the demo when it is missing.

    `demo:student`, `demo:teacher`, `demo:train` and `demo:bench/level1` to `demo:bench/level5` are known; a text
    without the `demo:` prefix comes back unchanged.

    Raises:
        DataError: a `demo:` name that does not exist.
    """
    if not uri.startswith(SCHEME):
        return uri
    known = [*MODELS, "train", *(f"{BENCH_FOLDER}/{name}" for name in BENCHMARKS)]
    name = uri.removeprefix(SCHEME)
    if name not in known:
        raise DataError(f"{uri}: no such part of the demo; expected one of {', '.join(SCHEME + k for k in known)}")
    return _place(ensure_assets(None, seed=DEMO_SEED).root, name)


def locate(uri: str) -> str:
    """Like `resolve`, but the demo is never prepared: the path may lead nowhere."""
    if not uri.startswith(SCHEME):
        return uri
    return _place(cache_root() / f"demo-{fingerprint(DEMO_RECIPE, DEMO_SEED)}", uri.removeprefix(SCHEME))


def _place(root: Path, name: str) -> str:
    return str(root / (name if name in MODELS else f"{name}.jsonl"))


def cache_root() -> Path:
    """Return the folder of the caches: `$NEMO_UECR_CACHE`, else `nemo_uecr` in the user's cache folder."""
    if chosen := os.environ.get("NEMO_UECR_CACHE"):
        return Path(chosen).expanduser()
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "nemo_uecr"


def _assets_in(folder: Path) -> DemoAssets:
    return DemoAssets(
        root=folder,
        student=folder / "student",
        teacher=folder / "teacher",
        train=folder / "train.jsonl",
        benchmarks={name: folder / BENCH_FOLDER / f"{name}.jsonl" for name in BENCHMARKS},
    )


def _prepare(folder: Path, recipe: Recipe, seed: int) -> None:
    """Make everything; the lock must be held."""
    with new_folder(folder) as staging:
        logger.info("demo: preparing problems, student and teacher in %s (once; about a minute)", folder)
        (staging / RECIPE_FILE).write_text(recipe_to_json(recipe), encoding="utf-8")
        _write_problems(staging, recipe, seed)
        _train_models(staging, seed)


def _write_problems(staging: Path, recipe: Recipe, seed: int) -> None:
    (staging / BENCH_FOLDER).mkdir()
    rng, seen = random.Random(seed), set[str]()
    for level, name in zip(LEVELS, BENCHMARKS, strict=True):
        problems = list(distinct_problems(rng, [level] * recipe.bench_problems, seen))
        seen.update(problem.question for problem in problems)
        write_rows(staging / BENCH_FOLDER / f"{name}.jsonl", problems, name)
    levels = [rng.choice(LEVELS) for _ in range(recipe.train_problems)]
    write_rows(staging / "train.jsonl", distinct_problems(rng, levels, seen), "train")


def _train_models(staging: Path, seed: int) -> None:
    """Train student and teacher side by side, one thread each, and log their progress."""
    workers = {name: _start_worker(staging, name, seed) for name in MODELS}
    try:
        readers = [threading.Thread(target=_log_lines, args=(worker,)) for worker in workers.values()]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        failed = [name for name, worker in workers.items() if worker.wait() != 0]
    finally:
        for worker in workers.values():
            worker.kill()
            worker.wait()
    if failed:
        raise RunFolderError(
            f"training the demo's {' and '.join(failed)} failed; the lines above say why, and nothing was kept"
        )


def _start_worker(staging: Path, name: str, seed: int) -> subprocess.Popen[str]:
    package_parent = str(Path(nemo_uecr.__file__).resolve().parents[1])
    search = os.pathsep.join(filter(None, (package_parent, os.environ.get("PYTHONPATH"))))
    return subprocess.Popen(
        [sys.executable, "-m", "nemo_uecr.demo.prepare", str(staging), name, str(seed)],
        env=os.environ | {"PYTHONPATH": search, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _log_lines(worker: subprocess.Popen[str]) -> None:
    if worker.stdout is not None:
        for line in worker.stdout:
            logger.info("demo: %s", line.rstrip())
