"""Samples responses with the model's own generation code, on a random stream fixed by seed and position."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import GenerationConfig

from nemo_uecr.data.reproducible import derive
from nemo_uecr.errors import ScoreError
from nemo_uecr.evaluation.engines import Decoding, until_end
from nemo_uecr.local.models import TokenModel
from nemo_uecr.local.prompts import Prompt


@dataclass(frozen=True)
class Response:
    """A sampled response: its token ids, the end token included, and its text without special tokens."""

    token_ids: tuple[int, ...]
    text: str
    truncated: bool


@dataclass(frozen=True)
class Fault:
    """The first token that could not be drawn: the logits at token ``token`` of response ``row`` were not finite."""

    row: int
    token: int
    problem: str

    def error(self, model: TokenModel, where: str) -> ScoreError:
        """The error to stop with; ``where`` names the sample."""
        return ScoreError(
            f"the {model.name} gives logits that are not finite while it answers ({where}) at token {self.token}; "
            "expected finite numbers. Check its weights, or lower train.learning_rate if training began well"
        )


@dataclass(frozen=True)
class Drawn:
    """Responses, and the first fault. A response with a fault ends there, with an end token that was not drawn."""

    responses: list[Response]
    fault: Fault | None


@torch.no_grad()
def draw(model: TokenModel, prompts: Sequence[Prompt], decoding: Decoding, *, seed: int, microbatch: int) -> Drawn:
    """One response for each prompt given; repeat a prompt to sample it again.

    Args:
        model: the policy.
        prompts: one entry a response.
        decoding: how to draw.
        seed: fixes the draws; the stream of each micro-batch is derived from it.
        microbatch: responses sampled at once.
    """
    responses: list[Response] = []
    faults: list[Fault] = []
    for start in range(0, len(prompts), microbatch):
        chunk = prompts[start : start + microbatch]
        finite = _FiniteLogits(max(len(prompt.token_ids) for prompt in chunk), min(model.end_ids))
        with seeded(derive(seed, "microbatch", start), model.device):
            rows_bt = _generate(model, chunk, decoding, finite)
        found = [_response(model, row.tolist(), decoding.max_tokens) for row in rows_bt]
        for row, token in finite.faults.items():
            if token < len(found[row].token_ids):  # what follows an end token is nobody's
                faults.append(Fault(start + row, token, chunk[row].problem.id))
        responses.extend(found)
    return Drawn(responses, min(faults, key=lambda fault: fault.row, default=None))


@contextlib.contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Run a block on its own random stream and put the global streams back afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def _generate(model: TokenModel, prompts: Sequence[Prompt], decoding: Decoding, finite: _FiniteLogits) -> Tensor:
    pad = _pad_id(model)
    width = max(len(prompt.token_ids) for prompt in prompts)
    ids_bt = torch.full((len(prompts), width), pad, dtype=torch.long)
    mask_bt = torch.zeros_like(ids_bt)
    for row, prompt in enumerate(prompts):
        ids_bt[row, width - len(prompt.token_ids) :] = torch.tensor(prompt.token_ids)
        mask_bt[row, width - len(prompt.token_ids) :] = 1
    drawing: dict[str, float | int | bool] = {"do_sample": False}
    if decoding.temperature > 0:
        drawing = {
            "do_sample": True,
            "temperature": decoding.temperature,
            "top_p": decoding.top_p,
            "top_k": decoding.top_k,
        }
    config = GenerationConfig(
        max_new_tokens=decoding.max_tokens, eos_token_id=sorted(model.end_ids), pad_token_id=pad, **drawing
    )
    with model.forward_context(), _without_model_defaults(model, config):
        out_bt: Tensor = model.module.generate(
            inputs=ids_bt.to(model.device),
            attention_mask=mask_bt.to(model.device),
            generation_config=config,
            logits_processor=[finite],
        )
    return out_bt[:, width:].cpu()


class _FiniteLogits:
    """Ends a response at logits from which nothing can be drawn; greedy decoding would not even notice them."""

    def __init__(self, prompt_width: int, end_id: int) -> None:
        self._prompt_width = prompt_width
        self._end_id = end_id
        self.faults: dict[int, int] = {}

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        bad_b = (scores.isnan() | (scores == torch.inf)).any(dim=1) | (scores == -torch.inf).all(dim=1)
        if not bool(bad_b.any()):
            return scores
        for row in bad_b.nonzero()[:, 0].tolist():
            self.faults.setdefault(row, input_ids.shape[1] - self._prompt_width)
        ended = torch.full_like(scores[0], -torch.inf)
        ended[self._end_id] = 0.0
        return torch.where(bad_b.unsqueeze(1), ended, scores)


@contextlib.contextmanager
def _without_model_defaults(model: TokenModel, config: GenerationConfig) -> Iterator[None]:
    """A checkpoint's own sampling defaults (a repetition penalty, say) must not fill what ``config`` leaves open."""
    own = model.module.generation_config
    model.module.generation_config = config
    try:
        yield
    finally:
        model.module.generation_config = own


def _pad_id(model: TokenModel) -> int:
    pad = model.tokenizer.pad_token_id
    return min(model.end_ids) if pad is None else int(pad)


def _response(model: TokenModel, ids: list[int], limit: int) -> Response:
    cut = until_end(ids, model.end_ids, limit)
    text = model.tokenizer.decode(list(cut.token_ids), skip_special_tokens=True)
    return Response(cut.token_ids, text, cut.truncated)
