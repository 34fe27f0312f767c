"""Tiny real models and problems: a student that boxes a random digit, and a teacher that likes one of them.

The task is a bandit: the answer is a digit from 0 to 3. The student answers each digit equally often, the teacher
mostly `LIKED`, both in one of two forms of different length, so groups are mixed and responses are ragged.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import safe_open
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging as transformers_logging

from nemo_uecr.config.load import LoadedConfig, load_config
from nemo_uecr.errors import UecrError
from nemo_uecr.local.run import train
from nemo_uecr.stopping import StopRequest
from nemo_uecr.study.task import build_tokenizer

BASE = Path(__file__).resolve().parents[2] / "examples" / "configs" / "local" / "base.yaml"
DIGITS = 4
LIKED = 2
#: Metrics that are measured, not computed.
MEASURED = ("time/", "throughput/", "memory/")
#: What makes a run of this size; every test adds its own.
SMALL = (
    "device=cpu",
    "threads=1",
    "rollout.prompts_per_step=2",
    "rollout.responses_per_prompt=4",
    "rollout.max_response_tokens=6",
    "rollout.microbatch_responses=8",
    "rollout.temperature=0.8",
    "data.max_prompt_tokens=64",
    "train.minibatch_responses=4",
    "train.microbatch_responses=2",
    "train.learning_rate=0.003",
    "train.steps=2",
    "evaluation.at_start=false",
    "evaluation.samples=2",
    "evaluation.max_tokens=6",
    "checkpoint.every=0",
    "telemetry.tensorboard=off",
    "telemetry.progress=off",
    "telemetry.save_batch_every=0",
)


@dataclass(frozen=True)
class Assets:
    """Folders and files that every test may read and none may change."""

    folder: Path
    student: Path
    teacher: Path
    problems: Path
    config: Path


def new_model(tokenizer: PreTrainedTokenizerFast, *, seed: int, hidden: int = 32, **changes: Any) -> Qwen3ForCausalLM:
    """A Qwen3 model with random weights; ``changes`` are fields of its configuration."""
    fields = {
        "vocab_size": len(tokenizer),
        "hidden_size": hidden,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "intermediate_size": 64,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(Qwen3Config(**(fields | changes))).eval()


def save_model(model: torch.nn.Module, tokenizer: PreTrainedTokenizerFast, folder: Path) -> Path:
    """Write a Hugging Face folder."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@functools.cache
def assets() -> Assets:
    """Build the models once for all tests of the process."""
    torch.set_num_threads(1)
    transformers_logging.disable_progress_bar()
    folder = Path(tempfile.mkdtemp(prefix="uecr-tiny-"))
    owner = os.getpid()  # a forked child must not tidy up after its parent
    atexit.register(lambda: shutil.rmtree(folder, ignore_errors=True) if os.getpid() == owner else None)
    tokenizer = build_tokenizer()
    student, teacher = new_model(tokenizer, seed=0), new_model(tokenizer, seed=1, hidden=48)
    _teach(student, tokenizer, liking=1 / DIGITS, steps=60)
    _teach(teacher, tokenizer, liking=0.7, steps=60)
    problems = folder / "problems.jsonl"
    rows = [{"id": f"p{i}", "question": str(i % DIGITS), "answer": str(i % DIGITS)} for i in range(6)]
    problems.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = folder / "tiny.yaml"
    paths = {
        "defaults": str(BASE),
        "run": {"folder": str(folder / "unused")},
        "student": {"model_name": str(save_model(student, tokenizer, folder / "student"))},
        "teacher": {"model_name": str(save_model(teacher, tokenizer, folder / "teacher"))},
        "data": {"train": str(problems)},
        "train": {"steps": 1},
    }
    config.write_text(json.dumps(paths))  # JSON is YAML
    return Assets(folder, folder / "student", folder / "teacher", problems, config)


def _teach(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, *, liking: float, steps: int) -> None:
    """Supervise on answers that are `LIKED` with a given probability and otherwise another digit, uniformly."""
    dice = random.Random(7)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(steps):
        rows = []
        for _ in range(24):
            question = dice.randrange(DIGITS)
            others = [digit for digit in range(DIGITS) if digit != LIKED]
            digit = LIKED if dice.random() < liking else dice.choice(others)
            text = rf"\boxed{{{digit}}}" if dice.random() < 0.6 else rf"{digit}=\boxed{{{digit}}}"
            prompt = tokenizer.apply_chat_template(
                [{"role": "user", "content": str(question)}],
                add_generation_prompt=True,
                tokenize=False,
                enable_thinking=False,
            )
            ids = [tokenizer(part, add_special_tokens=False)["input_ids"] for part in (prompt, text)]
            rows.append((ids[0], [*ids[1], tokenizer.eos_token_id]))
        width = max(len(a) + len(b) for a, b in rows)
        ids_BT = torch.zeros(len(rows), width, dtype=torch.long)
        label_BT = torch.full_like(ids_BT, -100)
        for row, (a, b) in enumerate(rows):
            ids_BT[row, : len(a) + len(b)] = torch.tensor(a + b)
            label_BT[row, len(a) : len(a) + len(b)] = torch.tensor(b)
        logits_BTV = model(input_ids=ids_BT[:, :-1]).logits
        loss = F.cross_entropy(logits_BTV.flatten(0, 1), label_BT[:, 1:].flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def every() -> tuple[str, ...]:
    """Overrides under which two steps leave a checkpoint, a batch and an evaluation each."""
    return (
        "train.steps=2",
        f"evaluation.benchmarks={{a: {assets().problems}}}",
        "evaluation.every=1",
        "checkpoint.every=1",
        "checkpoint.keep_last=5",
        "telemetry.save_batch_every=1",
    )


def configured(folder: Path, *overrides: str) -> LoadedConfig:
    """The tiny configuration with a run folder and overrides."""
    return load_config(assets().config, [*SMALL, f"run.folder={folder}", *overrides])


def run(folder: Path, *overrides: str, resume: bool = False) -> Path:
    """Train in this process."""
    return train_loaded(configured(folder, *overrides), resume=resume)


def train_loaded(loaded: LoadedConfig, *, resume: bool, stop: StopRequest | None = None) -> Path:
    """Train a loaded configuration; names are paths."""
    return train(
        loaded.config,
        resume=resume,
        origins=loaded.origins,
        objective="objective",
        locate=lambda name: name,
        stop=StopRequest() if stop is None else stop,
    )


def in_child(work: Callable[[], object]) -> tuple[int, str]:
    """Run something in a forked process.

    Returns:
        (exit code, text of the user's error or ""); a negative code is the signal that ended it.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover
        os.close(reading)
        code = 1
        try:
            os.environ["TOKENIZERS_PARALLELISM"] = "false"
            work()
            code = 0
        except UecrError as error:
            os.write(writing, str(error).encode())
            code = 2
        except BaseException as error:  # noqa: BLE001 - the child must report and leave, whatever happens
            os.write(writing, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as lines:
        text = lines.read().decode()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text


def train_words(assets: Assets, folder: Path, *overrides: str) -> list[str]:
    """The words of a small run's command."""
    return ["train", str(assets.config), *SMALL, f"run.folder={folder}", *overrides]


def records(path: Path) -> list[dict[str, Any]]:
    """Lines of a JSONL file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def metrics(folder: Path) -> list[dict[str, float]]:
    """Step records without what is measured."""
    return [
        {name: value for name, value in record.items() if not name.startswith(MEASURED)}
        for record in records(folder / "metrics.jsonl")
    ]


def outcome(folder: Path) -> dict[str, object]:
    """Everything of a run that must not depend on how often it was interrupted."""
    found: dict[str, object] = {"metrics": metrics(folder)}
    if (folder / "evaluation.jsonl").exists():
        lines = records(folder / "evaluation.jsonl")
        found["evaluation"] = [{key: value for key, value in line.items() if key != "seconds"} for line in lines]
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_dir() or name in ("metrics.jsonl", "evaluation.jsonl", "run.lock", "provenance.json"):
            continue
        if name == "artifacts.jsonl" or name.startswith("provenance-"):
            continue  # hashes of files with times in them; records of starts that differed
        if name.startswith("tensorboard") or path.name in ("state.json", "manifest.json"):
            continue  # the run folder's name stands in them
        found[name] = content(path, folder)
    return found


def content(path: Path, folder: Path) -> object:
    """What a file of a run says, wherever the run's folder is."""
    # safetensors writes the header's keys in an order of its own
    return _opened(path) if path.suffix == ".safetensors" else path.read_bytes().replace(str(folder).encode(), b"RUN")


def _opened(path: Path) -> tuple[object, ...]:
    with safe_open(str(path), framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        raw = {name: (str(t.dtype), tuple(t.shape), t.numpy().tobytes()) for name, t in sorted(tensors.items())}
        return raw, dict(file.metadata() or {})


def same(left: dict[str, object], right: dict[str, object], ignoring: Sequence[str] = ()) -> list[str]:
    """Names of what differs between two outcomes; empty when nothing does."""
    return [
        name
        for name in sorted(left.keys() | right.keys())
        if left.get(name) != right.get(name) and name not in ignoring
    ]
