"""A whole GRPO step of the local back end beside TRL's GRPOTrainer: the same model, prompts, rewards and threads.

  PYTHONPATH=.venv-guests python -m benchmarks.step_vs_trl

The two take turns in one process, step by step: prompts of the demo in the file's order, its student and decoding, one
optimizer step per batch, rewards by this package's verifier. The learning rate is so small that no weight changes, so
both answer from the same distribution in every step. TRL runs once for each way of splitting its batch, with every
default that costs it time turned off, and its best counts. Seconds are per sampled token, and of the processor: logging
and saving are left out on both sides.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measure import outputs_of
from nemo_uecr.cli.common import write_json
from nemo_uecr.tables import markdown_row

CONFIG = Path(__file__).resolve().parents[1] / "examples" / "configs" / "local" / "demo.yaml"
#: AdamW moves a weight by about its learning rate; this one is below float32's resolution of any weight but zero.
SETTINGS = (
    "method.name=grpo", "train.learning_rate=1e-30", "train.warmup_steps=0", "data.shuffle=false",
    "telemetry.save_batch_every=0", "telemetry.progress=off", "device=cpu",
)  # fmt: skip
#: The first steps fill caches and allocate memory.
WARM = 2


def our_step(folder: Path) -> tuple[Any, list[Any], Callable[[int], int]]:
    """Configuration, training problems, and a function that takes a step and returns its number of sampled tokens."""
    import torch

    from nemo_uecr.config.load import load_config
    from nemo_uecr.data.problems import problems_of
    from nemo_uecr.local.checkpoint import Checkpoints, Position
    from nemo_uecr.local.memory import Placement
    from nemo_uecr.local.rollout import draw
    from nemo_uecr.local.sequences import encode_prompts
    from nemo_uecr.local.teachers import Teachers
    from nemo_uecr.local.token_model import load_model
    from nemo_uecr.local.trainer import Models, Trainer
    from nemo_uecr.local.update import build_optimizer
    from nemo_uecr.paths import resolve_path
    from nemo_uecr.stopping import StopRequest
    from nemo_uecr.telemetry.sinks import Progress, StepLog
    from nemo_uecr.verifier.pool import SHARED
    from nemo_uecr.verifier.rewards import Rewards

    config = load_config(CONFIG, [*SETTINGS, f"run.folder={folder}"]).config
    name, device = resolve_path(config.student.model_name), torch.device("cpu")
    student = load_model(name, role="student", dtype="float32", device=device, master_weights=True)
    data = config.data
    problems = problems_of(data, resolve_path(data.train), "data.train")
    trainer = Trainer(
        config,
        models=Models(student, Teachers(), None),
        optimizer=build_optimizer(student, config),
        placement=Placement(config.offload, device, {}),
        sample=partial(draw, student, microbatch=config.rollout.microbatch_responses),
        rewards=Rewards(config.reward, correct_at=config.correct_at, pool=SHARED),
        prompts=encode_prompts(problems, student.tokenizer, data),
        benchmarks={},
        folder=folder,
        log=StepLog(folder, [], Progress(total=config.train.steps, style="off")),
        checkpoints=Checkpoints(folder / "checkpoints", config),
        ahead={},
        position=Position(),
        stop=StopRequest(),
    )
    return config, problems, lambda step: int(trainer.step(step)["count/valid_tokens"])


def alternate(folder: Path, steps: int, batch: int) -> dict[str, list[dict[str, float]]]:
    """Seconds and tokens of each step of either side.

    Args:
        folder: for what either side writes.
        steps: steps of each side.
        batch: responses of one forward and backward pass of TRL.
    """
    import transformers
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from nemo_uecr.paths import resolve_path
    from nemo_uecr.verifier.pool import check_response

    config, problems, ours = our_step(folder)
    rollout, data, train = config.rollout, config.data, config.train
    responses = rollout.prompts_per_step * rollout.responses_per_prompt
    steps_of: dict[str, list[dict[str, float]]] = {"this package": [], "TRL": []}
    sampled = 0

    def reward(completions: Sequence[Any], answer: Sequence[str], completion_ids: Any, **_: Any) -> list[float]:
        nonlocal sampled
        sampled += sum(map(len, completion_ids))
        texts = [turns[0]["content"] for turns in completions]
        return [check_response(text, expected).reward for text, expected in zip(texts, answer, strict=True)]

    class Turns(transformers.TrainerCallback):
        """Times TRL's step, then takes one of ours."""

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            nonlocal sampled
            sampled = 0
            self.began = time.process_time(), time.perf_counter()

        def on_step_end(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
            note("TRL", self.began, sampled)
            began = time.process_time(), time.perf_counter()
            note("this package", began, ours(state.global_step))

    def note(side: str, began: tuple[float, float], tokens: int) -> None:
        cpu_s, wall_s = time.process_time() - began[0], time.perf_counter() - began[1]
        steps_of[side].append({"cpu_s": cpu_s, "wall_s": wall_s, "tokens": tokens})

    questions = [data.prompt_template.replace("{question}", each.question) for each in problems]
    rows = {
        "prompt": [[{"role": "user", "content": question}] for question in questions],
        "answer": [each.answer for each in problems],
    }
    GRPOTrainer(
        model=resolve_path(config.student.model_name),
        reward_funcs=reward,
        train_dataset=Dataset.from_dict(rows),
        callbacks=[Turns()],
        args=GRPOConfig(
            output_dir=str(folder / "trl"),
            max_steps=steps,
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=responses // batch,
            num_generations=rollout.responses_per_prompt,
            generation_batch_size=responses,
            max_completion_length=rollout.max_response_tokens,
            temperature=rollout.temperature,
            top_p=rollout.top_p,
            top_k=rollout.top_k,
            chat_template_kwargs={"enable_thinking": data.enable_thinking},
            shuffle_dataset=False,
            beta=0.0,
            epsilon=config.loss.clip_low,
            learning_rate=train.learning_rate,
            lr_scheduler_type="constant",
            adam_beta1=train.betas[0],
            adam_beta2=train.betas[1],
            max_grad_norm=train.max_grad_norm,
            optim="adamw_torch_fused",
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=True,
            dataloader_num_workers=0,
            logging_steps=steps + 1,
            logging_nan_inf_filter=False,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
    ).train()
    return steps_of


def per_token(steps: Sequence[dict[str, float]], clock: str) -> list[float]:
    """Microseconds per sampled token of each warm step."""
    return [1e6 * step[clock] / step["tokens"] for step in steps[WARM:]]


def table(runs: dict[int, dict[str, list[dict[str, float]]]]) -> list[str]:
    """A Markdown table, one row per batch size of TRL."""
    lines = [
        "| TRL's batch | tokens per step | ours, us per token | TRL, us per token | TRL / ours | wall |",
        "|---|---|---|---|---|---|",
    ]
    for batch, sides in runs.items():
        cells = [str(batch), f"{median(step['tokens'] for step in sides['this package'][WARM:]):.0f}"]
        cells += [f"{median(per_token(steps, 'cpu_s')):.0f}" for steps in sides.values()]
        for clock in ("cpu_s", "wall_s"):
            pairs = zip(*(per_token(steps, clock) for steps in sides.values()), strict=True)
            ratios = sorted(theirs / ours for ours, theirs in pairs)
            cells.append(f"{median(ratios):.2f} [{ratios[0]:.2f}, {ratios[-1]:.2f}]")
        lines.append(markdown_row(cells))
    return lines


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=14, help="steps of each side (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="threads (default: %(default)s)")
    parser.add_argument("--batches", type=int, nargs="+", default=[128, 64, 32], help="TRL's, one run each")
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write the figures to this file")
    args = parser.parse_args()
    if "RANK" in os.environ:  # one run, in a process of its own
        import torch

        torch.set_num_threads(args.threads)
        with tempfile.TemporaryDirectory() as folder:
            sys.stdout.write(json.dumps(alternate(Path(folder), args.steps, args.batches[0])))
        return
    runs = {}
    for batch in args.batches:
        words = ["--steps", str(args.steps), "--threads", str(args.threads), "--batches", str(batch)]
        (output,) = outputs_of("benchmarks.step_vs_trl", words, threads=args.threads)
        runs[batch] = json.loads(output.splitlines()[-1])
    sys.stdout.write("".join(f"{line}\n" for line in table(runs)))
    write_json(args.json, {"runs": runs})


if __name__ == "__main__":
    main()
