"""Tiny real models and problems: a student that boxes a random digit, and a teacher that likes one of them.

The task is a bandit: the answer is a digit from 0 to 3. The student answers each digit equally often, the teacher
mostly `LIKED`, both in one of two forms of different length, so groups are mixed and responses are ragged. Both were
trained once, on such answers, and lie with the oracle.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from nemo_uecr.config.load import Loaded, load_config
from nemo_uecr.config.schema import Config
from nemo_uecr.errors import UecrError
from nemo_uecr.generation.models import load_tokenizer
from nemo_uecr.local.token_model import TokenModel, load_model
from nemo_uecr.start.local_run import train
from nemo_uecr.stopping import StopRequest
from tests.data.made import write_jsonl
from tests.responses.tables import tensors_of

ROOT = Path(__file__).resolve().parents[2]
STUDENT, TEACHER = (ROOT / "tools" / "oracle" / "models" / name for name in ("student", "teacher"))
BASE = ROOT / "examples" / "configs" / "local" / "base.yaml"
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

    student: Path
    teacher: Path
    problems: Path
    config: Path


def sizes(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """Fields of a small model's configuration, whatever its architecture."""
    return {
        "vocab_size": len(tokenizer), "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id,
    }  # fmt: skip


def new_model(tokenizer: PreTrainedTokenizerFast, *, seed: int, hidden: int = 32, **changes: Any) -> Qwen3ForCausalLM:
    """A Qwen3 model with random weights; ``changes`` are fields of its configuration."""
    fields = {"hidden_size": hidden, "max_position_embeddings": 512, "tie_word_embeddings": True}
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(Qwen3Config(**(sizes(tokenizer) | fields | changes))).eval()


def save_model(model: torch.nn.Module, tokenizer: PreTrainedTokenizerFast, folder: Path) -> Path:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def load(folder: Path = STUDENT, *, role: str = "student", dtype: str = "float32") -> TokenModel:
    """A model as a run has it: the student keeps float32 weights."""
    return load_model(str(folder), role=role, dtype=dtype, device=torch.device("cpu"), master_weights=role == "student")


def tokenizer() -> PreTrainedTokenizerFast:
    return load_tokenizer(str(STUDENT), local_files_only=True)


@functools.cache
def assets() -> Assets:
    """Write problems and configuration once for all tests of the process."""
    folder = Path(tempfile.mkdtemp(prefix="uecr-tiny-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    rows = [{"id": f"p{i}", "question": str(i % DIGITS), "answer": str(i % DIGITS)} for i in range(6)]
    problems = write_jsonl(folder / "problems.jsonl", rows)
    config = folder / "tiny.yaml"
    paths = {
        "defaults": str(BASE),
        "run": {"folder": str(folder / "unused")},
        "student": {"model_name": str(STUDENT)},
        "teacher": {"model_name": str(TEACHER)},
        "data": {"train": str(problems)},
        "train": {"steps": 1},
    }
    config.write_text(json.dumps(paths))  # JSON is YAML
    return Assets(STUDENT, TEACHER, problems, config)


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


def configured(folder: Path, *overrides: str) -> Loaded[Config]:
    """The tiny configuration with a run folder and overrides."""
    return load_config(assets().config, [*SMALL, f"run.folder={folder}", *overrides])


def run(folder: Path, *overrides: str, resume: bool = False, stop: StopRequest | None = None) -> Path:
    """Train in this process."""
    loaded = configured(folder, *overrides)
    return train(loaded.config, resume=resume, origins=loaded.origins, stop=stop or StopRequest())


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
    return ["train", str(assets.config), *SMALL, f"run.folder={folder}", *overrides]


def evaluation(model: object, out: Path) -> tuple[object, ...]:
    """Words that evaluate a model as runs evaluate themselves."""
    sets = ("--benchmarks", f"a={assets().problems}", "--samples", 2, "--max-tokens", 6, "--engine", "transformers")
    return ("evaluate", model, *sets, "--out", out)


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def tensors(folder: Path, step: int = 1) -> dict[str, torch.Tensor]:
    """The token columns and rewards that a run saved of a step."""
    return tensors_of(folder / "batches" / f"step-{step:06d}.parquet")


def metrics(folder: Path) -> list[dict[str, float]]:
    """Step records without what is measured."""
    return [
        {name: value for name, value in record.items() if not name.startswith(MEASURED)}
        for record in records(folder / "metrics.jsonl")
    ]


def outcome(folder: Path) -> dict[str, object]:
    """Everything of a run that must not depend on how often it was interrupted, wherever its folder is."""
    found: dict[str, object] = {"metrics": metrics(folder)}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        # Times, the folder's own name, hashes of such files, and records of starts that differed.
        timed = path.name in ("metrics.jsonl", "artifacts.jsonl", "run.lock", "state.json", "manifest.json")
        if path.is_dir() or timed or name.startswith(("provenance", "source", "tensorboard")):
            continue
        if name == "evaluation.jsonl":
            found[name] = [{key: value for key, value in line.items() if key != "seconds"} for line in records(path)]
        elif path.suffix == ".safetensors":  # the library writes the header's keys in an order of its own
            with safe_open(str(path), framework="pt") as file:
                values = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
                raw = {key: (str(t.dtype), tuple(t.shape), t.numpy().tobytes()) for key, t in sorted(values.items())}
                found[name] = raw, dict(file.metadata() or {})
        else:
            found[name] = path.read_bytes().replace(str(folder).encode(), b"RUN")
    return found


def same(left: dict[str, object], right: dict[str, object], ignoring: Sequence[str] = ()) -> list[str]:
    """Names of what differs between two outcomes; empty when nothing does."""
    names = sorted((left.keys() | right.keys()) - set(ignoring))
    return [name for name in names if left.get(name) != right.get(name)]
