"""Run folders with curves, evaluations and batches that look like training."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import pstdev

from nemo_uecr.core.methods import METHODS
from nemo_uecr.evaluation.samples import Sample

SETS = ("two", "three", "four", "five", "six")
SETTINGS = {"alpha": 1.0, "rho": 0.5, "tau_delta": 1.0, "tau_entropy": 1.0}  # fmt: skip
TEACHERLESS = tuple(name for name, method in METHODS.items() if not method.needs_teacher())


@dataclass(frozen=True)
class Story:
    """A run to write."""

    method: str = "uecr"
    steps: int = 40
    planned: int = 40
    before: float = 0.41
    after: float = 0.88
    seed: int = 0
    evaluations: tuple[int, ...] = (0, 10, 20, 30, 40)
    batches: tuple[int, ...] = (1, 20, 40)


RunMaker = Callable[..., Path]


def write_run(folder: Path, story: Story) -> None:
    """Write every file of a run."""
    folder.mkdir(parents=True)
    dice = random.Random(story.seed)
    _write_head(folder, story)
    records = [_metrics(story, step, dice) for step in range(1, story.steps + 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    shares = {
        step: {
            name: [min(1.0, max(0.0, dice.gauss(_level(story, step) + 0.16 - 0.08 * place, 0.1))) for _ in range(20)]
            for place, name in enumerate(SETS)
        }
        for step in story.evaluations
        if step <= story.steps
    }
    (folder / "evaluations").mkdir()
    write_evaluations(folder, shares, samples=12)
    (folder / "batches").mkdir()
    for step in story.batches:
        if step <= story.steps:
            _write_batch(folder / "batches", story, step)


def _write_head(folder: Path, story: Story) -> None:
    method = "\n".join(f"  {key}: {SETTINGS[key]}" for key in ("alpha", "rho", "tau_delta", "tau_entropy"))
    sets = "\n".join(f"    {name}: demo:bench/{name}" for name in SETS)
    (folder / "config.yaml").write_text(
        "backend: local\nstudent: {dtype: float32}\nrollout: {engine: transformers}\n"
        "data: {prompt_template: '{question}', enable_thinking: false}\n"
        f"method:\n  name: {story.method}\n{method}\ntrain:\n  steps: {story.planned}\n  learning_rate: 0.0002\n"
        f"run:\n  folder: runs/{folder.name}\n  seed: {story.seed}\nevaluation:\n  samples: 12\n"
        "  temperature: 0.6\n  top_p: 0.95\n  top_k: 20\n  max_tokens: 64\n  stop: []\n  seed: 42\n"
        f"  benchmarks:\n{sets}\n"
        "tolerances: {budget: 1.0e-6, decomposition: 1.0e-6, residual_bound: 1.0e-6, log_weight: 1.0e-6, "
        "first_ratio: 1.0e-5}\n"
    )
    origins = {"method.name": "override", "train.steps": "demo.yaml", "evaluation": "base.yaml"}
    (folder / "origins.json").write_text(json.dumps(origins))
    (folder / "provenance.json").write_text(
        json.dumps({
            "objective": "loss = PG(A^U + 0.5 A^task|U q; clip 0.2/0.2) + 0.001 KL3(ref)",
            "versions": {"nemo_uecr": "0.1.0", "torch": "2.13.0"},
            "argv": ["nemo-uecr", "train", "demo.yaml"],
        })
    )  # fmt: skip


def _level(story: Story, step: float) -> float:
    return story.before + (story.after - story.before) * (1 - math.exp(-3.2 * step / story.planned))


def _metrics(story: Story, step: int, dice: random.Random) -> dict[str, float]:
    level = _level(story, step) + dice.gauss(0, 0.03)
    mixed = max(0.05, min(0.95, 2.4 * level * (1 - level) + dice.gauss(0, 0.05)))
    right = (1 - mixed) * level**2 / (level**2 + (1 - level) ** 2)
    record = {
        "step": step, "reward/task_mean": level, "reward/task_std": 0.4,
        "group/count": 16, "group/degenerate_share": 1 - mixed, "group/mixed_share": mixed,
        "group/all_right_share": right, "group/all_wrong_share": 1 - mixed - right, "group/below_noise_share": 0.02,
        "advantage/mean": dice.gauss(0, 0.01), "advantage/std": 0.9 + dice.gauss(0, 0.03),
        "advantage/min": -2.3 + dice.gauss(0, 0.2), "advantage/max": 2.2 + dice.gauss(0, 0.2),
        "advantage/abs_mean": 0.76 + dice.gauss(0, 0.03), "advantage/task_abs_mean": 0.8 * mixed,
        "policy/entropy": 0.42 * math.exp(-step / 30) + 0.08 + dice.gauss(0, 0.008),
        "policy/grad_norm": 0.9 + abs(dice.gauss(0, 0.25)), "policy/loss": dice.gauss(0, 0.02),
        "policy/first_ratio_mean": 0.0, "response/length_mean": 36 + dice.gauss(0, 0.8),
        "response/truncated_share": max(0.0, 0.03 * (1 - level) + dice.gauss(0, 0.004)),
        "identity/finite": 0.0, "time/step_s": 0.71 + dice.random() / 10,
    }  # fmt: skip
    if story.method not in TEACHERLESS:
        record |= {
            "advantage/teacher_abs_mean": 0.3 + dice.gauss(0, 0.03), "teacher/gap_mean": -0.2 + dice.gauss(0, 0.02),
            "advantage/unified_abs_mean": 0.8, "advantage/degenerate_abs_mean": 0.7 + dice.gauss(0, 0.06),
            "identity/decomposition_error": 6e-8 * dice.random(), "identity/budget_error": 2e-8 * dice.random(),
            "identity/residual_bound": 0.0, "identity/sign_kept": 0.0, "ecr/weight_min": 0.81 + dice.gauss(0, 0.02),
        }  # fmt: skip
    return record


def write_evaluations(folder: Path, shares: dict[int, dict[str, list[float]]], *, samples: int) -> None:
    """Replace a run's evaluations: step -> set -> share of correct samples of each problem."""
    lines = []
    for step, sets in shares.items():
        entries, rows = {}, list[Sample]()
        for name, values in sets.items():
            mean, error = sum(values) / len(values), 2 * pstdev(values) / len(values) ** 0.5
            ends = {"avg": mean, "low": max(0.0, mean - error), "high": min(1.0, mean + error)}
            entries[name] = ends | {"problems": len(values), "pass": sum(v > 0 for v in values) / len(values)}
            for problem, k in itertools.product(range(len(values)), range(samples)):
                verdict = "correct" if k < values[problem] * samples else "wrong"
                rows.append(Sample(name, str(problem), k, "q", "a", "r", None, verdict, 3, False))
        average = {key: sum(entry[key] for entry in entries.values()) / len(entries) for key in ("avg", "low", "high")}
        record = {"step": step, "samples": samples, "sets": entries, "average": average, "seconds": 2.2}
        lines.append(json.dumps(record) + "\n")
        path = folder / "evaluations" / f"step-{step:06d}.jsonl"
        path.write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows))
    (folder / "evaluation.jsonl").write_text("".join(lines))


def _write_batch(folder: Path, story: Story, step: int) -> None:
    """Responses of digits; the teacher dislikes one token of each that is wrong."""
    import torch
    from safetensors.torch import save_file
    from torch.nn.utils.rnn import pad_sequence

    dice = random.Random(f"{story.seed}-{step}")
    level = _level(story, step)
    texts, values, labels = [], [], []
    for prompt in range(8):
        skill = min(0.98, max(0.02, dice.betavariate(8 * level, 8 * (1 - level))))
        for sample in range(8):
            right, size = dice.random() < skill, dice.randint(12, 40)
            gaps, tokens = [dice.gauss(0.1, 0.15) for _ in range(size)], [str(dice.randrange(10)) for _ in range(size)]
            if not right:
                gaps[dice.randrange(size)] = dice.gauss(-2.4, 0.8)
            texts.append({"row": len(texts), "id": f"s{step}-p{prompt}-r{sample}", "problem": f"train-{prompt}",
                         "question": "47+8*3-5 = ?", "answer": "60", "response": "".join(tokens),
                         "verdict": "correct" if right else "wrong", "tokens": tokens})  # fmt: skip
            old = [-1.0 - 0.4 * dice.random() for _ in gaps]
            entropies = [abs(dice.gauss(0.2, 0.2)) for _ in gaps]
            values.append(torch.tensor([old, [x + gap for x, gap in zip(old, gaps, strict=True)], entropies]).T)
            labels.append(prompt)
    old_BT, teacher_BT, entropy_BT = pad_sequence(values, batch_first=True, padding_value=math.nan).unbind(-1)
    rewards = torch.tensor([float(each["verdict"] == "correct") for each in texts])
    tensors = {"task_reward": rewards, "group": torch.tensor(labels), "mask": ~old_BT.isnan(), "old_logp": old_BT}
    if story.method not in TEACHERLESS:
        tensors |= {"teacher_logp": teacher_BT, "teacher_entropy": entropy_BT}
    if "initial_logp" in METHODS[story.method].reads:
        tensors["initial_logp"] = old_BT - 0.1
    if "student_entropy" in METHODS[story.method].reads:
        tensors["student_entropy"] = entropy_BT
    header = {
        "format": "nemo_uecr.batch/1",
        "method": story.method,
        "settings": json.dumps(SETTINGS),
        "run": json.dumps({"total_steps": 40}),
        "step": str(step),
    }
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(tensors, folder / f"step-{step:06d}.safetensors", metadata=header)
    (folder / f"step-{step:06d}.json").write_text(json.dumps({"step": step, "responses": texts}))
