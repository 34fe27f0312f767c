"""Samples responses; every random stream is a function of its seed, so a resumed run draws what it would have drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nemo_uecr.errors import ScoreError
from nemo_uecr.generation.decode import NOT_FINITE, decode
from nemo_uecr.generation.engines import Decoding
from nemo_uecr.local.sequences import Prompt, Response
from nemo_uecr.local.token_model import TokenModel

#: One response for each prompt: prompts, seeds, how to draw.
Sampler = Callable[[Sequence[Prompt], Sequence[int], Decoding], list[Response]]


def draw(
    model: TokenModel, prompts: Sequence[Prompt], seeds: Sequence[int], decoding: Decoding, *, microbatch: int
) -> list[Response]:
    """One response for each prompt, its draws fixed by its seed; ``microbatch`` are sampled at once."""
    responses: list[Response] = []
    for start in range(0, len(prompts), microbatch):
        rows = slice(start, start + microbatch)
        with model.forward_context(keep_casts=True):
            chunk = [prompt.token_ids for prompt in prompts[rows]]
            drawn = decode(model.module, model.tokens, chunk, seeds[rows], decoding)
        for ids in drawn:
            finite = ids[-1] != NOT_FINITE
            if not finite:
                ids[-1] = min(model.tokens.end_ids)
            finished = model.tokens.finished(ids, decoding.stop)
            responses.append(Response(tuple(ids), not finished, model.tokens.text(ids), finite))
    return responses


def check_drawn(responses: Sequence[Response], names: Sequence[str], model: TokenModel) -> None:
    """Refuse a response with a token that could not be drawn; ``names`` has each response's own."""
    for response, name in zip(responses, names, strict=True):
        if not response.finite:
            raise ScoreError(
                f"the {model.name} gives logits that are not finite while it answers ({name}) at token "
                f"{len(response.token_ids) - 1}; expected finite numbers. Check its weights, or lower "
                "train.learning_rate if training began well"
            )
