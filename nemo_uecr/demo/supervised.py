"""Supervised training of the demo's models on written solutions.

Shapes: B sequences, T tokens (padded on the right), N response tokens in a flat list, V vocabulary, H hidden.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nemo_uecr.demo.muon import Muon
from nemo_uecr.demo.recipe import Course, ModelShape
from nemo_uecr.demo.task import LEVELS, Problem, sample_unseen, worked_solution

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

ADAM_BETAS = (0.9, 0.98)
WEIGHT_DECAY = 0.01
MAX_GRADIENT_NORM = 1.0
WARMUP_STEPS = 50


@dataclass(frozen=True, slots=True)
class Batch:
    """Token ids `ids_BT` padded on the right, and `response_BT`, true on the solution and its end token."""

    ids_BT: torch.Tensor
    response_BT: torch.Tensor


def build_model(shape: ModelShape, tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    """Build a Qwen3 model of a given shape with random weights drawn by `seed`."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_value_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=tokenizer.model_max_length,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(config)


def demonstrations(
    tokenizer: PreTrainedTokenizerFast, course: Course, rng: random.Random, held_out: Set[str]
) -> Iterator[Batch]:
    """Yield batches of fresh problems with the solutions of `worked_solution`, never a question of `held_out`."""

    def solve(problem: Problem) -> str:
        return worked_solution(problem, rng, course.skip_rate)

    return solved_batches(tokenizer, course.tokens_per_batch, rng, held_out, solve)


def solved_batches(
    tokenizer: PreTrainedTokenizerFast,
    tokens_per_batch: int,
    rng: random.Random,
    held_out: Set[str],
    solve: Callable[[Problem], str],
) -> Iterator[Batch]:
    """Yield batches of fresh problems of one level each with the solutions of `solve`."""
    while True:
        level = rng.choice(LEVELS)
        rows: list[tuple[list[int], list[int]]] = []
        tokens = 0
        while tokens < tokens_per_batch:
            problem = sample_unseen(rng, level, held_out)
            solution = solve(problem)
            rows.append(encode(tokenizer, problem.question, solution))
            tokens += sum(map(len, rows[-1]))
        yield _collate(rows, int(tokenizer.pad_token_id))


def encode(tokenizer: PreTrainedTokenizerFast, question: str, solution: str) -> tuple[list[int], list[int]]:
    """Return the token ids of the non-thinking prompt and of the solution with its end token."""
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}],
        tokenize=False,
        add_generation_prompt=True,
        enable_thinking=False,
    )
    prompt_ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    solution_ids = tokenizer(solution, add_special_tokens=False)["input_ids"]
    return prompt_ids, [*solution_ids, tokenizer.eos_token_id]


def train_supervised(
    model: Qwen3ForCausalLM, batches: Iterator[Batch], course: Course, report: Callable[[int, float], None]
) -> None:
    """Train `model` in place with cross-entropy on the response tokens only.

    loss = -mean over response tokens of log p(y_t | prompt, y_<t)   [nats]

    Args:
        model: the model to train. Its weight matrices are trained with Muon, its embedding and its norms with AdamW.
        batches: at least `course.steps` batches.
        course: steps and peak learning rates; linear warm-up, then a cosine to zero.
        report: called with (step, loss in nats) after each step.
    """
    import torch

    embedding = model.get_input_embeddings().weight
    matrices = [weight for weight in model.parameters() if weight.ndim == 2 and weight is not embedding]
    others = [weight for weight in model.parameters() if weight.ndim != 2 or weight is embedding]
    muon = Muon(matrices)
    adam = torch.optim.AdamW(others, lr=course.adam_learning_rate, betas=ADAM_BETAS, weight_decay=WEIGHT_DECAY)
    model.train()
    for step in range(1, course.steps + 1):
        loss = response_loss(model, next(batches))
        model.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM)
        factor = learning_rate_factor(step - 1, course.steps)
        for group in adam.param_groups:
            group["lr"] = course.adam_learning_rate * factor
        adam.step()
        muon.step(course.muon_learning_rate * factor)
        report(step, loss.item())
    model.eval()


def response_loss(model: Qwen3ForCausalLM, batch: Batch) -> torch.Tensor:
    """Return the mean negative log-likelihood, in nats, of the batch's response tokens."""
    import torch

    hidden_BTH = model.model(input_ids=batch.ids_BT[:, :-1], use_cache=False).last_hidden_state
    target_BT = batch.response_BT[:, 1:]
    logits_NV = model.lm_head(hidden_BTH[target_BT])
    return torch.nn.functional.cross_entropy(logits_NV, batch.ids_BT[:, 1:][target_BT])


def learning_rate_factor(step: int, steps: int) -> float:
    """Return the share of the peak learning rate at `step` of `steps`: linear warm-up, then a cosine to zero."""
    warmup = min(WARMUP_STEPS, max(1, steps // 2))
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1.0 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def _collate(rows: list[tuple[list[int], list[int]]], pad: int) -> Batch:
    import torch

    width = max(len(prompt) + len(response) for prompt, response in rows)
    ids_BT = torch.full((len(rows), width), pad)
    response_BT = torch.zeros((len(rows), width), dtype=torch.bool)
    for row, (prompt, response) in enumerate(rows):
        end = len(prompt) + len(response)
        ids_BT[row, :end] = torch.tensor(prompt + response)
        response_BT[row, len(prompt) : end] = True
    return Batch(ids_BT, response_BT)
