"""Run folders as a run leaves them, without a run: curves, evaluations and batches that look like training."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable
from pathlib import Path

from nemo_uecr.config.load import load_config
from nemo_uecr.config.methods import objective
from nemo_uecr.core.methods import Method, RunState
from nemo_uecr.evaluation.samples import write_samples
from nemo_uecr.responses.replay import about_step
from nemo_uecr.responses.table import sampled_tokens, write_responses
from nemo_uecr.telemetry.metric_table import identity_name
from nemo_uecr.telemetry.run_folder import write_first_files
from tests.config.shipped import DEMO

SETS = ("level1", "level5")
PROMPTS = SAMPLES = 8
CURVES = ("policy/entropy", "policy/grad_norm", "response/length_mean", "advantage/abs_mean", "advantage/task_abs_mean")
OF_THE_TEACHER = ("teacher/gap_mean", "advantage/teacher_abs_mean", "advantage/unified_abs_mean")


RunMaker = Callable[..., Path]


def write_run(
    folder: Path,
    *,
    method: str = "uecr",
    steps: int = 40,
    planned: int = 40,
    seed: int = 0,
    evaluations: tuple[int, ...] = (0, 10, 20, 30, 40),
    batches: tuple[int, ...] = (1, 20, 40),
) -> None:
    """Write every file of a run that has come to a step, with its evaluations and batches up to there."""
    (folder / "batches").mkdir(parents=True)
    benchmarks = ", ".join(f"{name}: demo:bench/{name}" for name in SETS)
    loaded = load_config(DEMO, [
        f"method.name={method}", f"train.steps={planned}", f"run.folder={folder}",
        f"evaluation.benchmarks={{_override_: true, {benchmarks}}}",
    ])  # fmt: skip
    write_first_files(folder, loaded.config, loaded.origins, {"objective": objective(loaded.config), "versions": {}})
    dice = random.Random(seed)
    levels = [0.9 - 0.5 * math.exp(-3.0 * step / planned) for step in range(steps + 1)]  # share of right responses
    records = [_metrics(step, levels[step], loaded.config.method, dice) for step in range(1, steps + 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    shares = {
        step: {name: [dice.gauss(levels[step], 0.1) for _ in range(20)] for name in SETS}
        for step in evaluations
        if step <= steps
    }
    write_evaluations(folder, shares, samples=12)
    for step in batches:
        if step <= steps:
            _write_batch(folder / "batches", step, loaded.config.method)


def _metrics(step: int, level: float, method: Method, dice: random.Random) -> dict[str, float]:
    right, wrong = level**2, (1 - level) ** 2
    names = CURVES + (OF_THE_TEACHER if method.needs_teacher() else ())
    return {
        "step": step, "reward/task_mean": level, "time/step_s": 0.7, "policy/first_ratio_mean": 0.0,
        "group/all_right_share": right, "group/all_wrong_share": wrong, "group/mixed_share": 1 - right - wrong,
        **{name: dice.random() for name in names}, **{identity_name(name): 0.0 for name in method.identities},
    }  # fmt: skip


def write_evaluations(folder: Path, shares: dict[int, dict[str, list[float]]], *, samples: int) -> None:
    """Replace a run's evaluations: step -> set -> share of correct samples of each problem."""
    lines = []
    for step, sets in shares.items():
        rows = [
            (name, str(problem), k, k < share * samples)
            for name, by_problem in sets.items()
            for problem, share in enumerate(by_problem)
            for k in range(samples)
        ]
        table = dict(zip(("benchmark", "problem", "sample", "correct"), zip(*rows, strict=True), strict=True))
        asked = [f"q{problem}" for _, problem, _, _ in rows]
        texts = {"question": asked, "asked": asked, "answer": ["a"] * len(rows)}
        started, tokens = time.perf_counter() - 2.2, sampled_tokens([[1]] * len(rows))
        lines.append(json.dumps(write_samples(folder, step, table | texts, tokens, started=started)) + "\n")
    (folder / "evaluation.jsonl").write_text("".join(lines))


def _write_batch(folder: Path, step: int, method: Method) -> None:
    """Eight groups of eight, from none right to all right; the teacher dislikes one token of each that is wrong."""
    import torch

    generator = torch.Generator().manual_seed(step)
    rows, width = PROMPTS * SAMPLES, 40
    group_B, sample_B = torch.arange(rows) // SAMPLES, torch.arange(rows) % SAMPLES
    right_B = sample_B * (PROMPTS - 1) < group_B * SAMPLES
    mask_BT = torch.arange(width) < torch.randint(12, width + 1, (rows, 1), generator=generator)
    gap_BT = 0.1 + 0.15 * torch.randn(rows, width, generator=generator)
    gap_BT[~right_B, 5] -= 2.5
    old_BT = -1.0 - 2.0 * torch.rand(rows, width, generator=generator)
    scores = {"old_logp": old_BT, "initial_logp": old_BT - 0.1, "student_entropy": gap_BT.abs()}
    if method.needs_teacher():
        scores |= {"teacher_logp": old_BT + gap_BT, "teacher_entropy": gap_BT.abs()}
    tokens = {"token_ids": torch.ones(rows, width, dtype=torch.long), "sampled": mask_BT}
    tokens |= {name: value.masked_fill(~mask_BT, math.nan) for name, value in scores.items()}
    about = about_step(method, RunState(total_steps=40), step=step) | {"teachers": {}}
    texts = {
        "id": [f"s{step}-r{row}" for row in range(rows)],
        "checkpoint": [step - 1] * rows,
        "problem": [f"train-{row // SAMPLES}" for row in range(rows)],
        "group": list(map(str, group_B.tolist())),
        "sample": sample_B.tolist(),
        "question": ["47+8*3-5 = ?"] * rows,
        "answer": ["60"] * rows,
        "verdict": ["correct" if right else "wrong" for right in right_B.tolist()],
        "correct": right_B.tolist(),
        "reward": right_B.float().numpy(),
    }
    write_responses(folder / f"step-{step:06d}.parquet", texts, tokens, about=about, word=str)
