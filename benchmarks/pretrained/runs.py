"""The runs as jobs of processes, and what is kept of them as they end."""

from __future__ import annotations

import json
import shutil
import sys
import tarfile
import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.pretrained.figures import curve, step_of, tables
from benchmarks.pretrained.models import free, teach_wrong
from benchmarks.pretrained.plan import CONFIG, REWARD, TEACHERS, Plan, Study, write_problems
from benchmarks.study.grid import GridCell, finished_run
from benchmarks.study.runner import train_cell
from nemo_uecr.core.methods import METHODS
from nemo_uecr.demo import workers
from nemo_uecr.files import read_object, replace_file
from nemo_uecr.stopping import RunStopped, StopRequest
from nemo_uecr.telemetry.sinks import STEPS

#: Steps and pairs whose saved batches come back.
KEPT_STEPS, KEPT_PAIRS = 20, 2
#: Of the right teacher's run; no pair has it.
TEACHER_SEED = 1000


@dataclass(frozen=True)
class Job:
    """A teacher to make, or a student's run: what one process does."""

    study: Study
    teacher: str  # the teacher that is made or read; "none" for a student that reads none
    cell: GridCell | None  # the run; None: the wrong teacher's supervised training


def jobs(study: Study) -> list[Job]:
    """Teachers and students that read none first, then pair by pair; the wrong teacher is ready before the right."""
    plan = study.plan
    teach = replace(plan, steps=plan.teacher_steps, prompts=plan.teacher_prompts, every=plan.teacher_steps)
    first = [Job(study, "wrong", None), Job(study, "right", _cell(study, teach, "teacher", "grpo", TEACHER_SEED))]
    alone = [arm for arm in study.arms if not METHODS[arm].reads]
    first += [Job(study, "none", _cell(study, plan, "none", arm, pair)) for pair in range(plan.pairs) for arm in alone]
    reading = [
        (pair + 1.5 * (teacher == "right"), Job(study, teacher, _cell(study, plan, teacher, arm, pair)))
        for pair in range(plan.pairs)
        for teacher in TEACHERS
        for arm in study.arms
        if arm not in alone
    ]
    return first + [job for _, job in sorted(reading, key=lambda each: each[0])]


def _cell(study: Study, plan: Plan, teacher: str, arm: str, pair: int) -> GridCell:
    work, folder = study.work, study.work / "runs" / teacher / arm / f"pair-{pair}"
    micro = 128 if teacher == "teacher" else 64
    overrides = (
        f"run.folder={folder}", f"run.seed={pair}", f"device={study.device}", f"method.name={arm}",
        f"student.model_name={work / 'model'}", f"student.dtype={study.dtype}",
        f"teacher.model_name={study.teacher(teacher) if teacher in TEACHERS else work / 'model'}",
        f"data.train={work / 'train.jsonl'}", f"evaluation.benchmarks.held_out={work / 'held_out.jsonl'}",
        f'reward={{call: "{REWARD}:right"}}', f"train.steps={plan.steps}", f"train.learning_rate={plan.learning_rate}",
        f"train.microbatch_responses={min(micro, plan.prompts * plan.responses)}", f"evaluation.every={plan.every}",
        f"evaluation.at_start={str(teacher == 'teacher').lower()}", f"checkpoint.every={plan.saved}",
        f"rollout.prompts_per_step={plan.prompts}", f"rollout.responses_per_prompt={plan.responses}",
    )  # fmt: skip
    return GridCell(arm, teacher, pair, plan.learning_rate, overrides, folder, selection=False)


def work_at(job: Job) -> str | None:
    """Do a job in this process, unless it is done; returns the error of a run that failed."""
    from transformers.utils import logging as transformers_logging

    from nemo_uecr.local.trainer import Trainer

    transformers_logging.disable_progress_bar()
    study, cell, made = job.study, job.cell, job.study.teacher(job.teacher)
    if cell is None:
        return None if made.is_dir() else teach_wrong(study)
    makes = cell.variant == "teacher"
    done = made.is_dir() if makes else finished_run(cell.folder) is not None
    if done:
        return None
    while not makes and job.teacher != "none" and not made.is_dir():
        time.sleep(0.5)
    unsaved = patch.object(Trainer, "_save_checkpoint")  # 1.6 GB that nobody would read
    try:
        with nullcontext() if makes or study.plan.saved else unsaved:
            error = train_cell(str(CONFIG), cell)
    except (RuntimeError, OSError) as raised:  # as a full device
        error = f"{type(raised).__name__}: {raised}"
    finally:
        free(study.device)
    if error is None and makes:
        from nemo_uecr.conversion.export import export

        export(cell.folder, made, dtype="float32", tolerance=1e-3)
    if error is None:
        shutil.rmtree(cell.folder / "checkpoints", ignore_errors=True)
    elif makes:
        raise RuntimeError(f"the right teacher: {error}")  # all others would wait for it
    return error


class Keeper:
    """Writes OUT/curves.json and OUT/table.md, whole files each time."""

    def __init__(self, study: Study, out: Path) -> None:
        self.study, self.out, self.curves = study, out, dict[Path, dict[str, Any]]()
        out.mkdir(parents=True, exist_ok=True)

    def read(self, cell: GridCell) -> None:
        """Take up what a run has written."""
        if (cell.folder / STEPS).is_file():
            named = {"teacher": cell.variant, "arm": cell.arm, "pair": cell.pair}
            self.curves[cell.folder] = named | curve(cell.folder)

    def write(self) -> str:
        """Both files; returns the tables."""
        wrong = self.study.work / "wrong.json"
        found = {
            "plan": asdict(self.study.plan),
            "wrong": read_object(wrong) if wrong.is_file() else {},
            "runs": list(self.curves.values()),
        }
        found = json.loads(json.dumps(found))  # steps become texts, as in the file
        text = tables(found)
        replace_file(self.out / "curves.json", json.dumps(found).encode())
        replace_file(self.out / "table.md", text.encode())
        return text

    def pack(self, cells: Sequence[GridCell]) -> None:
        """The first saved batches of the first pairs, for questions that come later."""
        with tarfile.open(self.out / "batches.tar.gz", "w:gz") as archive:
            for cell in cells:
                for path in sorted(cell.folder.glob("batches/step-*.parquet")) if cell.pair < KEPT_PAIRS else ():
                    if step_of(path) <= KEPT_STEPS:
                        archive.add(path, path.relative_to(self.study.work))


def run(study: Study, out: Path, *, processes: int, seconds: float) -> int:
    """Everything that is missing, for so long; 1 where a run failed."""
    write_problems(study)
    chosen, stop, failed, started = jobs(study), StopRequest(), list[str](), time.monotonic()
    cells, keep = [job.cell for job in chosen if job.cell is not None], Keeper(study, out)

    def told(job: Job, error: str | None) -> None:
        name = f"{job.cell.variant}/{job.cell.arm}/pair-{job.cell.pair}" if job.cell else "wrong teacher"
        sys.stdout.write(f"{time.monotonic() - started:5.0f} s  {name}  {error or 'done'}\n")
        sys.stdout.flush()
        failed.extend(filter(None, [error]))
        if job.cell is not None:
            keep.read(job.cell)
        keep.write()

    if not study.plan.saved:
        workers.GRACE_SECONDS = 2.0  # no checkpoint is worth waiting for
    timer = threading.Timer(seconds, stop.ask, ["the time limit"])
    timer.daemon = True
    timer.start()
    try:
        for job, error in workers.work_on(work_at, chosen, processes=processes, stop=stop):
            told(job, error)
    except RunStopped as stopped:
        sys.stdout.write(f"{stopped}\n")
    finally:
        for cell in cells:
            keep.read(cell)
        keep.pack(cells)
        sys.stdout.write(f"\n{keep.write()}")
    return int(bool(failed))
