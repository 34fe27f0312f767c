"""Made run folders of the paper's size, for the audits that read a run: records, saved batches, times of known ratio.

Nothing in them says anything about a model or a machine. They hold what `audit batch` and `audit efficiency` read, not
all that a run has.

Shape legend: B = responses of a step, T = longest response of a saved batch, S = steps.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nemo_uecr.audit.progress import ProgressLine
from nemo_uecr.config.load import dump_config
from nemo_uecr.config.schema import Config
from nemo_uecr.data.batch_file import save_batch
from nemo_uecr.data.reproducible import step_indices
from nemo_uecr.files import new_folder

Array = np.ndarray

ANSWER, PROBLEMS = "answer.json", "problems.jsonl"
#: Made microseconds a token of each phase; the ratios are the answer that `audit efficiency` must give.
RATES: dict[str, dict[str, float]] = {
    "uecr": {
        "rollout": 40.0, "verify": 1.0, "score_student": 6.0, "score_teacher": 10.0, "score_reference": 6.0,
        "advantage": 0.5, "update": 30.0,
    },
    "grpo": {
        "rollout": 40.0, "verify": 1.0, "score_student": 6.0, "score_reference": 6.0, "advantage": 0.2, "update": 30.0,
    },
}  # fmt: skip
#: MiB: what the process takes, and its GPU, which grows a little from step to step.
PROCESS_MB, GPU_MB = 24_000.0, 61_000.0


@dataclass(frozen=True)
class RunSize:
    """How much to make.

    Attributes:
        steps: training steps.
        prompts: a step.
        responses: a prompt.
        tokens: mean tokens a response.
        limit: most tokens of a response.
        save_every: every how many steps a batch is saved.
    """

    steps: int
    prompts: int
    responses: int
    tokens: int
    limit: int
    save_every: int

    @property
    def trajectories(self) -> int:
        """Responses a step."""
        return self.prompts * self.responses


#: The paper's 1.7B run; its mean length is that of the token-credit audit: 21.55 million tokens of 2,400 responses.
PAPER_RUN = RunSize(steps=515, prompts=126, responses=8, tokens=8_980, limit=16_384, save_every=250)


def make_run(folder: Path, size: RunSize, *, method: str, batches: bool, seed: int) -> None:
    """Write a run folder that is complete or absent: one pass over its problems, one optimizer step a step.

    Args:
        folder: a new folder.
        size: how much.
        method: a key of `RATES`.
        batches: whether the first batch and every ``save_every``-th are saved.
        seed: of everything; two runs of one seed have the same lengths and rewards.
    """
    with new_folder(folder) as out:
        _fill(out, folder, size, method, batches=batches, seed=seed)


def make_runs(folder: Path, size: RunSize, *, seed: int) -> None:
    """Write a folder with one run of every method of `RATES`, complete or absent as a whole."""
    with new_folder(folder) as out:
        for method in RATES:
            (out / method).mkdir()
            _fill(out / method, folder / method, size, method, batches=False, seed=seed)


def _fill(out: Path, folder: Path, size: RunSize, method: str, *, batches: bool, seed: int) -> None:
    """Write a run's files into ``out``, which will be called ``folder``."""
    config = _config(folder.resolve(), size, method, batches=batches, seed=seed)
    generator = np.random.default_rng(seed)
    steps, counted = [], []
    with ProgressLine("made steps", size.steps) as progress:
        _write_head(out, config, size)
        for step in range(1, size.steps + 1):
            length_B = generator.gamma(4.0, size.tokens / 4.0, size.trajectories).astype(np.int64)
            length_B = np.clip(length_B, 1, size.limit)
            reward_B = (generator.random(size.trajectories) < 0.3 + 0.4 * step / size.steps).astype(np.float32)
            slowness = 1.0 + 0.1 * generator.random()
            steps.append(_record(step, size, length_B, reward_B, RATES[method], slowness))
            counted.append(int(length_B.sum()))
            if batches and (step == 1 or step % size.save_every == 0):
                _write_batch(out / "batches", step, config, size, length_B, reward_B)
            progress.advance(1)
        (out / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in steps), encoding="utf-8")
        answer = json.dumps(_answer(size, counted), indent=1) + "\n"
        (out / ANSWER).write_text(answer, encoding="utf-8")


def _config(folder: Path, size: RunSize, method: str, *, batches: bool, seed: int) -> Config:
    settings = {"alpha": 1.0, "rho": 0.5, "tau_delta": 1.0, "tau_entropy": 1.0} if method == "uecr" else {}
    return Config.model_validate({
        "backend": "local", "device": "auto", "threads": None,
        "run": {"folder": str(folder), "seed": seed},
        "student": {"model_name": "made", "dtype": "float32"},
        "teacher": {"model_name": "made", "dtype": "float32"},
        "data": {
            "train": str(folder / PROBLEMS), "question_key": "question", "answer_key": "answer", "id_key": "id",
            "prompt_template": "{question}", "system_prompt": None, "enable_thinking": False,
            "max_prompt_tokens": 2048, "shuffle": True,
        },
        "rollout": {
            "prompts_per_step": size.prompts, "responses_per_prompt": size.responses, "temperature": 0.7,
            "top_p": 0.95, "top_k": 20, "max_response_tokens": size.limit, "microbatch_responses": 64,
            "overlong_filter": False,
        },
        "method": {"name": method, **settings},
        "loss": {"clip_low": 0.2, "clip_high": 0.2, "reference_kl": 0.001},
        "train": {
            "steps": size.steps, "minibatch_responses": size.trajectories, "microbatch_responses": 8,
            "learning_rate": 1e-6, "warmup_steps": 0, "betas": [0.9, 0.999], "weight_decay": 0.0,
            "max_grad_norm": 1.0,
        },
        "evaluation": {
            "every": 0, "at_start": False, "samples": 12, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "seed": 42,
            "max_tokens": size.limit, "benchmarks": {}, "bootstrap": 2000,
        },
        "checkpoint": {"every": 0, "keep_last": 1, "keep_best": False},
        "telemetry": {
            "tensorboard": "off", "save_batch_every": size.save_every if batches else 0, "progress": "off",
        },
    })  # fmt: skip


def _write_head(folder: Path, config: Config, size: RunSize) -> None:
    (folder / "config.yaml").write_text(dump_config(config), encoding="utf-8")
    for name, content in (
        ("origins", {}),
        ("provenance", {"made": "no run; see `audit synthetic`"}),
        ("tolerances", {}),
    ):
        (folder / f"{name}.json").write_text(json.dumps(content) + "\n", encoding="utf-8")
    with (folder / PROBLEMS).open("w", encoding="utf-8") as lines:
        for number in range(size.steps * size.prompts):
            row = {"id": f"made-{number}", "question": f"made problem {number}", "answer": str(number)}
            lines.write(json.dumps(row) + "\n")


def _record(
    step: int, size: RunSize, length_B: Array, reward_B: Array, rates: Mapping[str, float], slowness: float
) -> dict[str, float]:
    """One step; the times of all phases are in the ratio of the rates."""
    tokens = int(length_B.sum())
    times = {f"time/{phase}_s": 1e-6 * rate * tokens * slowness for phase, rate in rates.items()}
    return {
        "step": step,
        "reward/task_mean": float(reward_B.mean(dtype=np.float64)),
        "response/length_mean": tokens / size.trajectories,
        "response/truncated_share": float((length_B == size.limit).mean()),
        "count/prompts": size.prompts,
        "count/unique_prompts": size.prompts,
        **dict.fromkeys(("count/trajectories", "count/rewarded", "count/trained"), size.trajectories),
        "count/valid_tokens": tokens,
        "count/global_steps": step,
        "count/optimizer_steps": step,
        "memory/peak_rss_mb": PROCESS_MB,
        "memory/peak_gpu_mb": GPU_MB + step,
        **times,
        "time/step_s": sum(times.values()),
    }


def _write_batch(folder: Path, step: int, config: Config, size: RunSize, length_B: Array, reward_B: Array) -> None:
    width = int(length_B.max())
    mask_BT = torch.arange(width)[None, :] < torch.from_numpy(length_B)[:, None]
    tensors = {
        "task_reward": torch.from_numpy(reward_B),
        "group": torch.arange(size.prompts).repeat_interleave(size.responses),
        "mask": mask_BT,
        "old_logp": torch.where(mask_BT, -1.0, 0.0),
    }
    path = folder / f"step-{step:06d}.safetensors"
    save_batch(path, tensors, method=config.method.name, settings={}, step=step)
    drawn = step_indices(
        problems=size.steps * size.prompts, per_step=size.prompts, step=step, seed=config.run.seed, shuffle=True
    )
    rows = [
        {"row": row, "problem": f"made-{drawn[row // size.responses]}", "question": "", "answer": "", "response": ""}
        for row in range(size.trajectories)
    ]
    path.with_suffix(".json").write_text(json.dumps({"responses": rows}) + "\n", encoding="utf-8")


def _answer(size: RunSize, tokens_S: Sequence[int]) -> dict[str, Any]:
    """What the two audits must find."""
    total = {method: sum(rates.values()) for method, rates in RATES.items()}
    scorer = RATES["uecr"]["score_teacher"]
    return {
        "totals": {
            "prompts": size.steps * size.prompts,
            **dict.fromkeys(("generated", "rewarded", "in the loss"), size.steps * size.trajectories),
            "tokens in the loss": sum(tokens_S),
            "steps": size.steps,
            "optimizer steps": size.steps,
        },
        "scorer_overhead": scorer / (total["uecr"] - scorer),
        "overhead_per_token": total["uecr"] / total["grpo"] - 1.0,
    }
