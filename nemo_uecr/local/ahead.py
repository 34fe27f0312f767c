"""Responses that are drawn steps before they are trained on (`rollout.lag`), and how a checkpoint keeps them.

Step n trains on responses of the policy after n - 1 - k steps, as where rollouts go on during training: they are drawn,
and scored by the policy that drew them, k steps before.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch.nn.utils.rnn import pad_sequence

from nemo_uecr.local.rollout import Drawn, response_rows
from nemo_uecr.local.sequences import Prompt, Response, Sequences
from nemo_uecr.responses.table import read_responses, sampled_tokens, write_responses

#: In a checkpoint: the responses drawn ahead, those of one step after those of another.
AHEAD = "ahead.parquet"
LOGP = "generator_logp_rollout"


def save_ahead(folder: Path, ahead: Mapping[int, Drawn]) -> None:
    """Write what is drawn ahead, if anything is, as a table of responses."""
    rows: dict[str, list[object]] = {"checkpoint": []}
    ids, logp = list[Sequence[int]](), list[torch.Tensor]()
    for _, drawn in sorted(ahead.items()):
        responses = drawn.sequences.responses
        own = response_rows(drawn.sequences) | {"checkpoint": [drawn.policy] * len(responses)}
        for name, values in own.items():
            rows.setdefault(name, []).extend(values)
        ids += [response.token_ids for response in responses]
        if drawn.logp_BT is not None:
            logp += [row_T[mask_T] for row_T, mask_T in zip(drawn.logp_BT, drawn.sequences.mask_BT, strict=True)]
    if ids:
        tokens = sampled_tokens(ids) | {LOGP: pad_sequence(logp, batch_first=True)}
        write_responses(folder / AHEAD, rows, tokens, about={"steps": sorted(ahead)})


def load_ahead(folder: Path, prompts_of: Callable[[int], Sequence[Prompt]]) -> dict[int, Drawn]:
    """What a checkpoint has drawn ahead; ``prompts_of`` a step are those of its responses."""
    saved = read_responses(folder / AHEAD)
    columns = [saved.column(name) for name in ("checkpoint", "token_ids", LOGP, "truncated", "response")]
    rows = zip(*columns, strict=True)
    ahead = {}
    for step in saved.about["steps"]:
        prompts = prompts_of(step)
        policies, ids, logp, truncated, texts = zip(*itertools.islice(rows, len(prompts)), strict=True)
        responses = [Response(tuple(own), cut, text) for own, cut, text in zip(ids, truncated, texts, strict=True)]
        sequences = Sequences(prompts, responses)
        logp_BT = sequences.no_scores()
        logp_BT[sequences.mask_BT] = torch.tensor([value for own in logp for value in own])
        ahead[step] = Drawn(sequences, policies[0], logp_BT)
    return ahead
