"""A world small enough for NeMo-RL's real training loop on a CPU: a GRU policy, its sampler, a task and a tokenizer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from nemo_uecr.nemo.two_temperatures import MicroBatch, ModelParallel, ScoreRequest, score_columns
from nemo_uecr.scoring.dense import token_logp

VOCABULARY, PROMPT, RESPONSE, TEMPERATURE = 12, 3, 5, 0.7


class TinyModel(torch.nn.Module):
    """Embedding, GRU, output."""

    def __init__(self, seed: int, width: int = 16, vocabulary: int = VOCABULARY) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = torch.nn.Embedding(vocabulary, width)
        self.recurrent = torch.nn.GRU(width, width, batch_first=True)
        self.output = torch.nn.Linear(width, vocabulary)

    def forward(self, ids_BS: Tensor) -> Tensor:
        logits: Tensor = self.output(self.recurrent(self.embedding(ids_BS))[0])
        return logits


def training_logp(model: TinyModel, ids_BS: Tensor) -> Tensor:
    """[B, S - 1] log pi at T_r with gradient."""
    logits = model(ids_BS)[:, :-1]
    targets = ids_BS[:, 1:]
    return token_logp(logits.flatten(0, 1), targets.flatten(), temperature=TEMPERATURE).view(targets.shape)


def columns_of(model: TinyModel, data: Any, request: ScoreRequest) -> dict[str, Any]:
    """The answer of a scorer that holds the whole model in this process."""
    ids = data["input_ids"]
    with torch.no_grad():
        logits = model(ids)
    return score_columns(logits, MicroBatch(ids, data["input_lengths"], None), request, ModelParallel(None, None))


class TinyTeacher:
    """A teacher that remembers when it was on the device."""

    def __init__(self, model: TinyModel, events: list[str], parallel: int = 1) -> None:
        self.model, self.events, self.data_parallel_size = model, events, parallel
        self.requests: list[ScoreRequest] = []
        self.rows: list[int] = []

    def load(self) -> None:
        self.events.append("teacher on")

    def offload(self) -> None:
        self.events.append("teacher off")

    def shutdown(self) -> bool:
        return True

    def score_tokens(self, data: Any, request: ScoreRequest) -> dict[str, Any]:
        assert data["input_ids"].shape[0] % self.data_parallel_size == 0
        self.events.append("teacher scores")
        self.requests.append(request)
        self.rows.append(data["input_ids"].shape[0])
        return columns_of(self.model, data, request)


class TinyPolicy:
    """What NeMo-RL's policy does, in this process: Adam, and metrics as its Megatron worker returns them."""

    def __init__(self, model: TinyModel, *, minibatch: int, parallel: int = 1, lr: float = 1e-2) -> None:
        self.model, self.reference = model, copy.deepcopy(model)
        self.optimizer = torch.optim.Adam(model.parameters(), lr)
        self.events: list[str] = []
        self.at_rollout = ScoreRequest((TEMPERATURE,), False, model.output.out_features, 64)
        self.data_parallel_size = parallel
        self.cfg = {
            "sequence_packing": {"enabled": True},
            "dynamic_batching": {"enabled": False},
            "train_micro_batch_size": 4,
            "train_global_batch_size": minibatch,
        }
        self.losses: list[float] = []
        self.gradients: list[Tensor] = []
        self.trained: list[dict[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        quiet = ("offload_before_refit", "offload_after_refit", "start_gpu_profiling", "stop_gpu_profiling")
        if name in quiet:
            return lambda *args, **kwargs: self.events.append(name)
        raise AttributeError(name)

    def prepare_for_lp_inference(self, *args: Any, **kwargs: Any) -> None:
        self.events.append("student on")

    def prepare_for_training(self, *args: Any, **kwargs: Any) -> None:
        self.events.append("student trains")

    def score_tokens(self, data: Any, request: ScoreRequest) -> dict[str, Any]:
        self.events.append("student scores")
        return columns_of(self.model, data, request)

    def get_logprobs(self, data: Any, timer: Any = None) -> Any:
        columns = columns_of(self.model, data, self.at_rollout)
        return type(data)({"logprobs": columns["logp_0"]})

    def get_reference_policy_logprobs(self, data: Any, micro_batch_size: int | None = None, timer: Any = None) -> Any:
        columns = columns_of(self.reference, data, self.at_rollout)
        return type(data)({"reference_logprobs": columns["logp_0"]})

    def train(self, data: Any, loss_fn: Any, gbs: int | None = None, timer: Any = None, **kwargs: Any) -> Any:
        size = gbs or self.cfg["train_global_batch_size"]
        rows = data["input_ids"].shape[0]
        assert rows % size == 0, f"{rows} rows do not divide into {size}"
        self.trained.append(dict(data))
        steps = rows // size
        losses, norms, metrics = [], [], []
        for start in range(0, rows, size):
            part = type(data)({name: value[start : start + size] for name, value in data.items()})
            loss, norm, found = self._step(part, loss_fn)
            losses.append(loss)
            norms.append(norm)
            metrics += [
                {key: value if "_min" in key or "_max" in key else value / steps for key, value in one.items()}
                for one in found
            ]
        self.losses += losses
        collected = {name: [one[name] for one in metrics] for name in metrics[0]}
        tokens = float((data["token_mask"][:, 1:] * data["sample_mask"][:, None]).sum())
        collected |= {"global_valid_toks": [tokens], "global_valid_seqs": [float(rows)], "lr": [1e-2]}
        return {"loss": torch.tensor(losses), "grad_norm": torch.tensor(norms), "all_mb_metrics": collected}

    def _step(self, part: Any, loss_fn: Any) -> tuple[float, float, list[dict[str, float]]]:
        """One optimizer step over two micro-batches, the second with the rest."""
        mask = part["token_mask"][:, 1:] * part["sample_mask"][:, None]
        rows = mask.shape[0]
        half = max(1, rows // 2)
        total, found = 0.0, []
        self.optimizer.zero_grad()
        for rows_of in (slice(0, half), slice(half, rows)):
            micro = type(part)({name: value[rows_of] for name, value in part.items()})
            if micro["input_ids"].shape[0] == 0:
                continue
            loss, metrics = loss_fn(
                next_token_logprobs=training_logp(self.model, micro["input_ids"]),
                data=micro,
                global_valid_seqs=part["sample_mask"].sum(),
                global_valid_toks=mask.sum(),
            )
            loss.backward()
            total += float(loss.detach())
            found.append(metrics)
        self.gradients.append(torch.cat([p.grad.flatten().clone() for p in self.model.parameters()]))  # type: ignore[union-attr]
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0))
        self.optimizer.step()
        return total, norm, found

    def shutdown(self) -> bool:
        return True


class TinyGeneration:
    """Samples from the policy's model at T_r."""

    requires_kv_scale_sync = False

    def __init__(self, model: TinyModel, batch_class: Any, events: list[str]) -> None:
        self.model, self.batch_class, self.events = model, batch_class, events

    def respond(self, prompt: list[int], row: int) -> list[int]:
        """Tokens of one response, of three lengths so that padding matters."""
        current = list(prompt)
        for _ in range(RESPONSE - row % 3):
            p = torch.softmax(self.model(torch.tensor([current]))[0, -1] / TEMPERATURE, -1)
            current.append(int(torch.multinomial(p, 1)))
        return current[len(prompt) :]

    def generate(self, data: Any, greedy: bool = False) -> Any:
        ids, lengths = data["input_ids"], data["input_lengths"]
        rows = ids.shape[0]
        with torch.no_grad():
            found = [self.respond(ids[row, : lengths[row]].tolist(), row) for row in range(rows)]
            spent = torch.tensor([len(response) for response in found])
            out = torch.zeros(rows, int((lengths + spent).max()), dtype=torch.long)
            logp = torch.zeros(out.shape)
            for row, response in enumerate(found):
                start, end = int(lengths[row]), int(lengths[row]) + len(response)
                out[row, :start], out[row, start:end] = ids[row, :start], torch.tensor(response)
                logp[row, start:end] = training_logp(self.model, out[row : row + 1, :end])[0, start - 1 :]
        return self.batch_class(
            {
                "output_ids": out,
                "generation_lengths": spent,
                "unpadded_sequence_lengths": lengths + spent,
                "logprobs": logp,
                "truncated": torch.zeros(rows, dtype=torch.bool),
            }
        )

    def prepare_for_generation(self, *args: Any, **kwargs: Any) -> bool:
        return True

    def finish_generation(self, *args: Any, **kwargs: Any) -> bool:
        self.events.append("generation sleeps")
        return True

    def clear_logger_metrics(self) -> None:
        """Nothing to clear."""

    def get_logger_metrics(self) -> dict[str, Any]:
        return {}


class TinyTokenizer:
    """Token ids are their own texts."""

    pad_token_id = 0

    def batch_decode(self, ids: Any, skip_special_tokens: bool = True) -> list[str]:
        return [" ".join(map(str, row.tolist())) for row in ids]

    def decode(self, ids: Any, skip_special_tokens: bool = True) -> str:
        return " ".join(map(str, ids.tolist() if isinstance(ids, torch.Tensor) else ids))

    def __call__(self, text: str, return_tensors: Any = None, add_special_tokens: bool = False) -> Any:
        return SimpleNamespace(input_ids=torch.zeros(1, 0, dtype=torch.long))


class TinyProblems(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Random prompts; ``seed_of`` may map two indices to one prompt."""

    def __init__(self, seed_of: Callable[[int], int] = lambda index: index) -> None:
        self.seed_of = seed_of

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(self.seed_of(index))
        ids = torch.randint(1, VOCABULARY, (PROMPT,), generator=generator)
        return {
            "message_log": [{"role": "user", "content": "p", "token_ids": ids}],
            "length": PROMPT,
            "extra_env_info": {},
            "loss_multiplier": 1.0,
            "idx": index,
            "task_name": "t",
        }


@cache
def make_environment() -> Any:
    """A Ray actor that rewards; one for all tests, because starting it takes longer than a training step."""
    import ray

    @ray.remote
    class Environment:
        def step(self, logs: Any, metadata: Any) -> Any:
            rewards = torch.tensor([float("7" in log[-1]["content"].split()) for log in logs])
            count = len(logs)
            observations = [{"role": "environment", "content": ""}] * count
            return observations, [None] * count, [None] * count, rewards, torch.ones(count), None

    return Environment.remote()


@dataclass
class Run:
    """What a run of the loop left."""

    policy: Any
    metrics: list[dict[str, Any]]
    teacher: TinyTeacher | None
