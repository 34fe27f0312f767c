"""A world small enough for NeMo-RL's real training loop on a CPU: a GRU policy, its sampler, a task and a tokenizer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from nemo_uecr.nemo.worker_scoring import ModelParallel, ScoreRequest, score_columns
from nemo_uecr.scoring.dense import token_logp
from tests.nemo.on_ranks import padded_rows

VOCABULARY, PROMPT, RESPONSE, TEMPERATURE = 12, 3, 5, 0.7


class TinyModel(torch.nn.Module):
    """Embedding, GRU, output; also as the local back end sees one: features, and an output layer over them."""

    device, recomputed = torch.device("cpu"), ()

    def __init__(self, seed: int, width: int = 16, vocabulary: int = VOCABULARY) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = torch.nn.Embedding(vocabulary, width)
        self.recurrent = torch.nn.GRU(width, width, batch_first=True)
        self.output, self.vocabulary = torch.nn.Linear(width, vocabulary), vocabulary

    @property
    def module(self) -> TinyModel:
        return self

    @property
    def trained(self) -> list[torch.nn.Parameter]:
        return list(self.parameters())

    def features(self, ids_BS: Tensor) -> Tensor:
        return self.recurrent(self.embedding(ids_BS))[0]

    def head_parameters(self) -> list[torch.nn.Parameter]:
        return list(self.output.parameters())

    def head_weights(self) -> dict[str, Tensor]:
        return dict(self.output.named_parameters())

    def head(self, features: Tensor, weights: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(self.output, weights, (features,))

    def forward(self, ids_BS: Tensor) -> Tensor:
        return self.head(self.features(ids_BS), self.head_weights())


def training_logp(model: TinyModel, ids_BS: Tensor) -> Tensor:
    """[B, S - 1] log pi at T_r with gradient."""
    targets = ids_BS[:, 1:]
    logits_NV = model(ids_BS)[:, :-1].flatten(0, 1).div(TEMPERATURE)
    return token_logp(logits_NV, targets.flatten()).view(targets.shape)


def columns_of(model: TinyModel, data: Any, request: ScoreRequest) -> dict[str, Any]:
    """The answer of a scorer that holds the whole model in this process."""
    with torch.no_grad():
        logits = model(data["input_ids"])
    return score_columns(logits, padded_rows(data), request, ModelParallel(None, None))


class TinyTeacher:
    """A teacher that remembers when it was on the device, and what it was asked."""

    def __init__(self, model: TinyModel, events: list[str], parallel: int = 1) -> None:
        self.model, self.events, self.row_multiple = model, events, parallel
        self.columns = model.vocabulary
        self.asked: list[tuple[int, ScoreRequest]] = []

    def load(self) -> None:
        self.events.append("teacher on")

    def offload(self) -> None:
        self.events.append("teacher off")

    def shutdown(self) -> bool:
        return True

    def score_tokens(self, data: Any, request: ScoreRequest) -> dict[str, Any]:
        assert data["input_ids"].shape[0] % self.row_multiple == 0
        self.events.append("teacher scores")
        self.asked.append((data["input_ids"].shape[0], request))
        return columns_of(self.model, data, request)


class TinyPolicy:
    """What NeMo-RL's policy does, in this process: Adam, and metrics as its Megatron worker returns them."""

    data_parallel_size = 1
    use_sequence_packing, use_dynamic_batches = True, False

    def __init__(self, model: TinyModel, *, minibatch: int) -> None:
        self.model, self.reference = model, copy.deepcopy(model)
        self.optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        self.at_rollout = ScoreRequest({"rollout_logp": TEMPERATURE}, False, model.vocabulary, 64)
        self.minibatch = minibatch
        self.events: list[str] = []
        self.losses: list[float] = []
        self.gradients: list[Tensor] = []
        self.trained: list[dict[str, Any]] = []
        self.metrics: list[dict[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        if name in ("offload_before_refit", "start_gpu_profiling", "stop_gpu_profiling"):
            return lambda *args, **kwargs: self.events.append(name)
        raise AttributeError(name)

    def offload_after_refit(self) -> None:
        self.events.append("offload_after_refit")

    def prepare_for_lp_inference(self, *args: Any, **kwargs: Any) -> None:
        self.events.append("student on")

    def prepare_for_training(self, *args: Any, **kwargs: Any) -> None:
        self.events.append("student trains")

    def score_tokens(self, data: Any, request: ScoreRequest) -> dict[str, Any]:
        self.events.append("student scores")
        return columns_of(self.model, data, request)

    def get_logprobs(self, data: Any, timer: Any = None) -> Any:
        return type(data)({"logprobs": columns_of(self.model, data, self.at_rollout)["rollout_logp"]})

    def get_reference_policy_logprobs(self, data: Any, micro_batch_size: int | None = None, timer: Any = None) -> Any:
        return type(data)({"reference_logprobs": columns_of(self.reference, data, self.at_rollout)["rollout_logp"]})

    def train(self, data: Any, loss_fn: Any, timer: Any = None, **kwargs: Any) -> Any:
        size, rows = self.minibatch, data["input_ids"].shape[0]
        assert rows % size == 0, f"{rows} rows do not divide into {size}"
        self.trained.append(dict(data))
        norms, found = [], []
        for start in range(0, rows, size):
            part = {name: value[start : start + size] for name, value in data.items()}
            found += self._step(part, loss_fn, type(data))
            norms.append(float(self.gradients[-1].norm()))
        steps = rows // size
        metrics: dict[str, list[float]] = {}
        for one in found:
            for key, value in one.items():
                metrics.setdefault(key, []).append(value if "_min" in key or "_max" in key else value / steps)
        tokens = float((data["token_mask"][:, 1:] * data["sample_mask"][:, None]).sum())
        metrics |= {"global_valid_toks": [tokens], "global_valid_seqs": [float(rows)], "lr": [1e-2]}
        loss = torch.tensor(self.losses[-steps:])
        return {"loss": loss, "grad_norm": torch.tensor(norms), "all_mb_metrics": metrics}

    def _step(self, part: dict[str, Any], loss_fn: Any, batch_class: Any) -> list[dict[str, float]]:
        """One optimizer step over two micro-batches, the second with the rest."""
        mask = part["token_mask"][:, 1:] * part["sample_mask"][:, None]
        half, total, found = len(mask) // 2, 0.0, []
        self.optimizer.zero_grad()
        for rows in (slice(0, half), slice(half, None)) if half else [slice(None)]:
            loss, metrics = loss_fn(
                next_token_logprobs=training_logp(self.model, part["input_ids"][rows]),
                data=batch_class({name: value[rows] for name, value in part.items()}),
                global_valid_seqs=part["sample_mask"].sum(), global_valid_toks=mask.sum(),
            )  # fmt: skip
            loss.backward()
            total += float(loss.detach())
            found.append(metrics)
        self.losses.append(total)
        self.gradients.append(torch.cat([p.grad.flatten().clone() for p in self.model.parameters()]))  # type: ignore[union-attr]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return found

    def shutdown(self) -> bool:
        return True


class TinyGeneration:
    """Samples from the policy's model at T_r."""

    def __init__(self, model: TinyModel, batch_class: Any, events: list[str]) -> None:
        self.model, self.batch_class, self.events = model, batch_class, events

    def respond(self, prompt: list[int], row: int) -> list[int]:
        """Tokens of one response, of three lengths so that padding matters."""
        current = list(prompt)
        for _ in range(RESPONSE - row % 3):
            p = torch.softmax(self.model(torch.tensor([current]))[0, -1] / TEMPERATURE, -1)
            current.append(int(torch.multinomial(p, 1)))
        return current[len(prompt) :]

    @torch.no_grad()
    def generate(self, data: Any, greedy: bool = False) -> Any:
        ids, lengths = data["input_ids"], data["input_lengths"]
        found = [self.respond(ids[row, : lengths[row]].tolist(), row) for row in range(ids.shape[0])]
        spent = torch.tensor([len(response) for response in found])
        out = torch.zeros(len(found), int((lengths + spent).max()), dtype=torch.long)
        logp = torch.zeros(out.shape)
        for row, response in enumerate(found):
            start, end = int(lengths[row]), int(lengths[row]) + len(response)
            out[row, :start], out[row, start:end] = ids[row, :start], torch.tensor(response)
            logp[row, start:end] = training_logp(self.model, out[row : row + 1, :end])[0, start - 1 :]
        return self.batch_class(
            {
                "output_ids": out, "generation_lengths": spent, "unpadded_sequence_lengths": lengths + spent,
                "logprobs": logp, "truncated": torch.zeros(len(found), dtype=torch.bool),
            }
        )  # fmt: skip

    def prepare_for_generation(self, *args: Any, **kwargs: Any) -> bool:
        return True

    def finish_generation(self, *args: Any, **kwargs: Any) -> bool:
        self.events.append("generation sleeps")
        return True

    def clear_logger_metrics(self) -> None: ...

    def get_logger_metrics(self) -> dict[str, Any]:
        return {}


class TinyTokenizer:
    """Token ids are their own texts."""

    pad_token_id = 0

    def get_vocab(self) -> dict[str, int]:
        return {str(token): token for token in range(VOCABULARY)}

    def batch_decode(self, ids: Any, skip_special_tokens: bool = True) -> list[str]:
        return [self.decode(row) for row in ids]

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
            "message_log": [{"role": "user", "content": "p", "token_ids": ids}], "length": PROMPT,
            "extra_env_info": {}, "loss_multiplier": 1.0, "idx": index, "task_name": "t",
        }  # fmt: skip


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
