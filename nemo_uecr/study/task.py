"""Problems, students and teachers of a study: made once into its folder, each complete or absent."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nemo_uecr.data.models import save_pretrained
from nemo_uecr.demo.recipe import Course, ModelShape
from nemo_uecr.demo.task import LEVELS, Problem, distinct_problems, read_questions, write_rows
from nemo_uecr.errors import RunFolderError
from nemo_uecr.files import new_folder, replace_file
from nemo_uecr.stopping import StopRequest
from nemo_uecr.study.schema import CourseConfig, ModelConfig, StudyConfig, TaskConfig
from nemo_uecr.study.solutions import flawed_solution
from nemo_uecr.study.workers import end_if_asked, work_on

TASK_FILE = "task.json"
PROBLEMS = "problems"
MODELS = "models"
#: Beside a model's weights: how it was taught.
TEACHING = "teaching.json"


@dataclass(frozen=True)
class TaskFiles:
    """Where a study's problems and models lie."""

    root: Path

    @property
    def train(self) -> Path:
        """Problems for reinforcement learning."""
        return self.root / PROBLEMS / "train.jsonl"

    def held_out(self, kind: str) -> dict[str, Path]:
        """The five sets of a kind, "bench" or "validation", by name."""
        return {f"level{level}": self.root / PROBLEMS / f"{kind}-level{level}.jsonl" for level in LEVELS}

    def model(self, name: str) -> Path:
        """Hugging Face folder of a model."""
        return self.root / MODELS / name


@dataclass(frozen=True)
class ModelJob:
    """One model to teach, in a process of its own."""

    root: Path
    name: str
    model: ModelConfig
    seed: int


def student_name(pair: int, *, selection: bool) -> str:
    """Name of the student of a pair; the students that learning rates are chosen on are others."""
    return f"{'selection' if selection else 'student'}-{pair:03d}"


def task_files(study: StudyConfig) -> TaskFiles:
    """Where the study's problems and models lie."""
    return TaskFiles((Path(study.folder) / "task").resolve())


def model_jobs(study: StudyConfig) -> list[ModelJob]:
    """Every model of the study, missing or not."""
    root, task = task_files(study).root, study.task
    jobs = [ModelJob(root, "teacher", task.teacher, task.seed)]
    if task.bad_teacher is not None:
        jobs.append(ModelJob(root, "bad_teacher", task.bad_teacher, task.seed))
    names = [student_name(pair, selection=False) for pair in range(study.pair_count)]
    names += [student_name(pair, selection=True) for pair in range(study.selection.pairs)]
    return jobs + [ModelJob(root, name, task.student, task.seed) for name in names]


def teaching_seconds(files: TaskFiles, jobs: Iterable[ModelJob]) -> list[float]:
    """Seconds that each model took which is there and says so."""
    paths = [files.model(job.name) / TEACHING for job in jobs]
    return [_seconds(path) for path in paths if path.is_file()]


def _seconds(path: Path) -> float:
    try:
        return float(json.loads(path.read_bytes())["seconds"])
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise RunFolderError(
            f"{path}: no record of a model that was taught ({error}); delete the model's folder, and it is taught again"
        ) from error


def prepare_task(study: StudyConfig, *, stop: StopRequest, report: Callable[[str], None]) -> None:
    """Make what is missing of the problems and models.

    Args:
        study: the study.
        stop: when it is asked, the problems or models under way are given up.
        report: called with a line when something is ready.

    Raises:
        RunFolderError: the folder holds another task, or a worker process died.
        RunStopped: somebody asked to stop.
    """
    files, task = task_files(study), study.task
    root = files.root
    _claim(root, task)
    if not (root / PROBLEMS).is_dir():
        with new_folder(root / PROBLEMS) as folder:
            _write_problems(folder, task, stop)
        report("problems: ready")
    missing = [job for job in model_jobs(study) if not files.model(job.name).is_dir()]
    ready = list[str]()

    def told(job: ModelJob, loss: float) -> None:
        ready.append(job.name)
        report(f"model {len(ready)} of {len(missing)}, {job.name}: last loss {loss:.3f} nats a token")

    work_on(teach_model, missing, processes=study.processes, stop=stop, report=told)


def teach_model(job: ModelJob) -> float:
    """Teach one model and save it with its tokenizer; returns the last loss in nats a token."""
    import torch
    from transformers.utils import logging as transformers_logging

    from nemo_uecr.demo.supervised import build_model, solved_batches, train_supervised
    from nemo_uecr.demo.tokenizer import build_tokenizer

    started = time.monotonic()
    torch.set_num_threads(1)
    transformers_logging.disable_progress_bar()
    tokenizer = build_tokenizer()
    rng = random.Random(f"{job.seed} {job.name}")
    model = build_model(_shape(job.model), tokenizer, rng.randrange(2**31))
    held_out = {
        question
        for kind in ("bench", "validation")
        for path in TaskFiles(job.root).held_out(kind).values()
        for question in read_questions(path)
    }
    losses = list[float]()
    for course in filter(None, (job.model.course, job.model.habits)):
        batches = solved_batches(tokenizer, course.tokens_per_batch, rng, held_out, _demonstrator(course, rng))
        train_supervised(model, batches, _course(course), lambda _, loss: losses.append(loss))
    with new_folder(TaskFiles(job.root).model(job.name)) as folder:
        save_pretrained(model, tokenizer, folder)
        taught = {"seconds": time.monotonic() - started, "last_loss": losses[-1]}
        (folder / TEACHING).write_text(json.dumps(taught) + "\n", encoding="utf-8")
    return losses[-1]


def _demonstrator(course: CourseConfig, rng: random.Random) -> Callable[[Problem], str]:
    def solve(problem: Problem) -> str:
        return flawed_solution(problem, rng, skip_rate=course.skip_rate, error_rate=course.error_rate)

    return solve


def _claim(root: Path, task: TaskConfig) -> None:
    """Refuse a folder that was begun for another task: its models would be taken for ours."""
    content = task.model_dump_json(indent=1)
    path = root / TASK_FILE
    if not path.is_file():
        replace_file(path, content.encode())
        return
    try:
        held = json.loads(path.read_bytes())
    except ValueError as error:
        raise RunFolderError(
            f"{path}: no JSON ({error}); the file is damaged. Put the task back, or choose another folder"
        ) from error
    if held != json.loads(content.encode()):
        raise RunFolderError(
            f"{path} describes another task than the study file; choose another folder, or put the task back"
        )


def _write_problems(folder: Path, task: TaskConfig, stop: StopRequest) -> None:
    rng, seen = random.Random(f"{task.seed} problems"), set[str]()
    for kind, count in (("bench", task.bench_problems), ("validation", task.validation_problems)):
        for level in LEVELS:
            problems = list(_until_asked(distinct_problems(rng, [level] * count, seen), stop))
            seen.update(problem.question for problem in problems)
            write_rows(folder / f"{kind}-level{level}.jsonl", problems, f"{kind}{level}")
    levels = [rng.choice(task.train_levels) for _ in range(task.train_problems)]
    write_rows(folder / "train.jsonl", _until_asked(distinct_problems(rng, levels, seen), stop), "train")


def _until_asked(problems: Iterable[Problem], stop: StopRequest) -> Iterator[Problem]:
    for problem in problems:
        end_if_asked(stop)
        yield problem


def _shape(model: ModelConfig) -> ModelShape:
    return ModelShape(**model.model_dump(exclude={"course", "habits"}))


def _course(course: CourseConfig) -> Course:
    return Course(**course.model_dump(exclude={"error_rate"}))
