"""Responses of several turns in the local back end: a step's prompts, each with an episode of the environment."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace

from nemo_uecr.config.schema import Config
from nemo_uecr.generation.conversation import Asked, Conversation, Dialogue, Turn, turn_seed
from nemo_uecr.generation.engines import Decoding, ModelTokens
from nemo_uecr.generation.environments import Environment, Episode
from nemo_uecr.generation.prompts import ChatSettings
from nemo_uecr.local.rollout import Sampler
from nemo_uecr.local.sequences import Prompt, Response
from nemo_uecr.local.vllm_sampler import VllmSampler


def playing(config: Config) -> AbstractContextManager[Environment | None]:
    """The run's environment, whose processes end with the block."""
    return nullcontext() if config.environment is None else closing(Environment(config.environment))


def dialogue_of(config: Config, environment: Environment | None, tokens: ModelTokens) -> Dialogue | None:
    """How the run's responses are held in turns; None where they are one turn."""
    if environment is None:
        return None
    chat = ChatSettings.of(config.data.model_dump(), environment.tools)
    return Dialogue.of(environment, tokens, chat, max_prompt_tokens=config.data.max_prompt_tokens)


def respond(
    sampler: Sampler | VllmSampler,
    prompts: Sequence[Prompt],
    seeds: Sequence[int],
    decoding: Decoding,
    dialogue: Dialogue | None,
    episodes: Sequence[Episode],
    *,
    told: bool = False,
) -> tuple[list[Prompt], list[Response]]:
    """One response for each prompt, in turns where there is a ``dialogue``; the prompts with what it shows first.

    ``told`` prompts have that already.
    """
    with _awake(sampler) as sample:
        if dialogue is None:
            return list(prompts), sample(prompts, seeds, decoding)

        def draw(turns: Sequence[Turn]) -> list[Response]:
            heads = [replace(prompts[turn.row], token_ids=turn.prompt_ids) for turn in turns]
            own = [turn_seed(seeds[turn.row], turn.number) for turn in turns]
            return sample(heads, own, decoding, [turn.limit for turn in turns])

        asked = [Asked(prompt.problem, prompt.token_ids) for prompt in prompts]
        asked, held = dialogue.hold(draw, asked, episodes, max_tokens=decoding.max_tokens, told=told)
    shown = [Prompt(each.problem, each.prompt_ids) for each in asked]
    role = dialogue.environment.settings.role
    made = [_response(each, episode, role, dialogue.tokens) for each, episode in zip(held, episodes, strict=True)]
    return shown, made


def _awake(sampler: Sampler | VllmSampler) -> AbstractContextManager[Sampler]:
    return sampler.awake() if isinstance(sampler, VllmSampler) else nullcontext(sampler)


def _response(held: Conversation[Response], episode: Episode, role: str, tokens: ModelTokens) -> Response:
    made = Response(
        held.token_ids,
        held.truncated,
        "",
        finite=all(turn.finite for turn in held.turns),
        engine_logp=tuple(logp for turn in held.turns for logp in turn.engine_logp),
        turns=held.spans,
        messages=tuple(held.messages("user" if role == "text" else role)),
        episode=episode,
    )
    return replace(made, text=tokens.texts(made))
