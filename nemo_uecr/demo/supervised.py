"""Supervised training of the demo's models: small Qwen3 models on worked solutions.

Shapes: B sequences, T tokens (padded on the right), N response tokens in a flat list, V vocabulary, H hidden.
"""

from __future__ import annotations

import json
import logging
import math
import random
import time
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from nemo_uecr.config.schema import Section
from nemo_uecr.demo.task import LEVELS, build_tokenizer, read_questions, sample_unseen, worked_solution
from nemo_uecr.files import new_folder
from nemo_uecr.generation.models import save_pretrained
from nemo_uecr.generation.prompts import ChatSettings, prompt_ids
from nemo_uecr.ranges import Count, Positive, ZeroToOne

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

logger = logging.getLogger(__name__)

ADAM_BETAS = (0.9, 0.98)
WEIGHT_DECAY = 0.01
MAX_GRADIENT_NORM = 1.0
WARMUP_STEPS = 50
STEPS_PER_LINE = 100
#: How the demo asks.
PLAIN = ChatSettings("{question}", None, thinking=False)
#: File beside a model's weights: seconds of training, and the last loss.
TEACHING = "teaching.json"

MOMENTUM = 0.95
#: Coefficients of the quintic Newton-Schulz iteration of Jordan et al.
LINEAR, CUBIC, QUINTIC = 3.4445, -4.7750, 2.0315
ITERATIONS = 5
SMALLEST_NORM = 1e-7


class CourseConfig(Section):
    """Supervised training of a model before reinforcement learning."""

    steps: Count  # of the optimizer
    adam_learning_rate: Positive  # peak for the embedding and the norms
    muon_learning_rate: Positive  # peak for the weight matrices
    skip_rate: ZeroToOne  # probability that the demonstrator does not write down an operation
    error_rate: ZeroToOne  # probability that a line is wrong; the demonstrator continues from the wrong value
    tokens_per_batch: Count  # prompts included


class ModelConfig(Section):
    """Sizes of a model and its courses."""

    hidden_size: Count
    intermediate_size: Count
    layers: Count
    heads: Count
    key_value_heads: Count
    head_dim: Count
    course: CourseConfig
    habits: CourseConfig | None = None  # a second course: bad habits for an able model


class Batch(NamedTuple):
    """Token ids padded on the right, and a mask of the solution and its end token."""

    ids_BT: torch.Tensor
    response_BT: torch.Tensor


@dataclass(frozen=True)
class ModelJob:
    """One model to train."""

    folder: Path  # output
    config: ModelConfig
    weights_seed: int  # of the initial weights
    rng: random.Random  # draws the demonstrations
    held_out: tuple[Path, ...]  # files of questions that it must not see


def teach_model(job: ModelJob) -> float:
    """Train one model on one thread and save it with its tokenizer, complete or not at all; returns the last loss."""
    import torch
    from transformers.utils import logging as transformers_logging

    started = time.monotonic()
    torch.set_num_threads(1)
    transformers_logging.disable_progress_bar()
    tokenizer, held_out = build_tokenizer(), read_questions(job.held_out)
    model = build_model(job.config, tokenizer, job.weights_seed)
    for course in filter(None, (job.config.course, job.config.habits)):
        batches = demonstrations(tokenizer, course, job.rng, held_out)
        for step, loss in enumerate(train_supervised(model, batches, course), start=1):
            if step % STEPS_PER_LINE == 0 or step == course.steps:
                at, seconds = f"step {step} of {course.steps}", time.monotonic() - started
                logger.info("%s: %s, loss %.4f nats per token, %.0f s", job.folder.name, at, loss, seconds)
    with new_folder(job.folder) as aside:
        save_pretrained(model, tokenizer, aside)
        taught = {"seconds": time.monotonic() - started, "last_loss": loss}
        (aside / TEACHING).write_text(json.dumps(taught) + "\n", encoding="utf-8")
    return loss


def build_model(config: ModelConfig, tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    """A Qwen3 model with random weights."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.key_value_heads,
            head_dim=config.head_dim,
            max_position_embeddings=tokenizer.model_max_length,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def demonstrations(
    tokenizer: PreTrainedTokenizerFast, course: CourseConfig, rng: random.Random, held_out: Set[str]
) -> Iterator[Batch]:
    """Endless batches of new problems with solutions, one level per batch, without the questions of `held_out`."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    while True:
        level = rng.choice(LEVELS)
        ids: list[torch.Tensor] = []
        response: list[torch.Tensor] = []
        while sum(map(len, ids)) < course.tokens_per_batch:
            problem = sample_unseen(rng, level, held_out)
            solution = worked_solution(problem, rng, skip_rate=course.skip_rate, error_rate=course.error_rate)
            prompt = prompt_ids(tokenizer, problem.question, PLAIN)
            written = [*tokenizer(solution, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
            ids.append(torch.tensor(prompt + written))
            response.append(torch.tensor([False] * len(prompt) + [True] * len(written)))
        padded_BT = pad_sequence(ids, batch_first=True, padding_value=int(tokenizer.pad_token_id))
        yield Batch(padded_BT, pad_sequence(response, batch_first=True))


def train_supervised(model: Qwen3ForCausalLM, batches: Iterator[Batch], course: CourseConfig) -> Iterator[float]:
    """Train `model` in place, yielding the loss of each step.

    loss = -mean over response tokens of log p(y_t | prompt, y_<t)   [nats]

    Weight matrices are trained with Muon, which needs about half the steps of AdamW here, the embedding and the norms
    with AdamW; linear warm-up, then a cosine to zero.
    """
    import torch

    embedding = model.get_input_embeddings().weight
    matrices = [weight for weight in model.parameters() if weight.ndim == 2 and weight is not embedding]
    others = [weight for weight in model.parameters() if weight.ndim != 2 or weight is embedding]
    momenta = [torch.zeros_like(matrix) for matrix in matrices]
    adam = torch.optim.AdamW(others, lr=course.adam_learning_rate, betas=ADAM_BETAS, weight_decay=WEIGHT_DECAY)
    model.train()
    for step in range(course.steps):
        loss = response_loss(model, next(batches))
        model.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM)
        factor = learning_rate_factor(step, course.steps)
        adam.param_groups[0]["lr"] = course.adam_learning_rate * factor
        adam.step()
        muon_step(matrices, momenta, course.muon_learning_rate * factor)
        yield loss.item()
    model.eval()


def response_loss(model: Qwen3ForCausalLM, batch: Batch) -> torch.Tensor:
    """Mean negative log-likelihood, in nats, of the batch's response tokens."""
    import torch

    hidden_BTH = model.model(input_ids=batch.ids_BT[:, :-1], use_cache=False).last_hidden_state
    target_BT = batch.response_BT[:, 1:]
    logits_NV = model.lm_head(hidden_BTH[target_BT])
    return torch.nn.functional.cross_entropy(logits_NV, batch.ids_BT[:, 1:][target_BT])


def learning_rate_factor(step: int, steps: int) -> float:
    """Share of the peak learning rate at `step`, from 0: linear warm-up, then a cosine to zero."""
    warmup = min(WARMUP_STEPS, max(1, steps // 2))
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1.0 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def muon_step(matrices: Sequence[torch.nn.Parameter], momenta: Sequence[torch.Tensor], learning_rate: float) -> None:
    """Nesterov momentum whose direction is replaced by a nearly semi-orthogonal matrix of the same singular vectors.

    M <- m M + (1 - m) G;   U = orthogonalise((1 - m) G + m M);
    W <- (1 - lr decay) W - lr sqrt(max(1, rows / columns)) U

    References: Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024. `torch.optim.Muon`
    orthogonalises in bfloat16 alone, which takes a CPU about ten times as long.
    """
    import torch

    with torch.no_grad():
        for matrix, momentum in zip(matrices, momenta, strict=True):
            assert matrix.grad is not None  # noqa: S101  every matrix takes part in the loss
            momentum.lerp_(matrix.grad, 1.0 - MOMENTUM)
            update = orthogonalise(matrix.grad.lerp(momentum, MOMENTUM))
            rows, columns = matrix.shape
            matrix.mul_(1.0 - learning_rate * WEIGHT_DECAY)
            matrix.add_(update, alpha=-learning_rate * float(max(1.0, rows / columns)) ** 0.5)


def orthogonalise(matrix: torch.Tensor) -> torch.Tensor:
    """A matrix with the singular vectors of `matrix` and singular values near one.

    X <- a X + (b X X^T + c (X X^T)^2) X, repeated, from X = matrix / |matrix|_F. The singular values end between about
    0.7 and 1.2, except that those far below the largest are left smaller.
    """
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    x: torch.Tensor = wide / wide.norm().clamp(min=SMALLEST_NORM)
    for _ in range(ITERATIONS):
        gram = x @ x.T
        x = LINEAR * x + (CUBIC * gram + QUINTIC * gram @ gram) @ x
    return x if matrix.shape[0] <= matrix.shape[1] else x.T
