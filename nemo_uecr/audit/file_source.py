"""Responses of an evaluation folder, and of a JSONL file of anyone's making."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nemo_uecr.audit.sources import Encode, Rollout, Source, encode_text, evaluated, fixed, parse_lines, step_of
from nemo_uecr.errors import DataError
from nemo_uecr.evaluation.engines import ChatSettings, Tokens
from nemo_uecr.evaluation.samples import SAMPLES, read_samples
from nemo_uecr.evaluation.settings import SETTINGS
from nemo_uecr.files import read_object
from nemo_uecr.verifier.pool import check_response

#: Fields of a JSONL row that must be there, with their types.
NEEDED: dict[str, type] = {"problem": str, "response": str}
#: Fields that may be there.
OPTIONAL: dict[str, type | tuple[type, ...]] = {
    "id": str, "checkpoint": int, "benchmark": str, "sample": int, "group": str, "question": str, "answer": str,
    "reward": (int, float), "prompt": str, "prompt_ids": list, "token_ids": list, "truncated": bool,
}  # fmt: skip
#: Token ids are kept as int32, numbers as int64.
MOST_ID, MOST_NUMBER = 2**31, 2**63


def evaluation_source(folder: Path, *, step: int | None) -> Source:
    """Responses of a folder of `nemo-uecr evaluate`.

    Args:
        folder: one model's folder.
        step: training steps of the model; None reads it from the model's name.

    Raises:
        DataError: If the step is not known.
    """
    plan = read_object(folder / SETTINGS)
    try:
        model, chat = str(plan["model"]["name"]), ChatSettings(**plan["chat"])
    except (KeyError, TypeError) as error:
        raise DataError(f"{folder / SETTINGS} lacks the model or its chat ({error}); evaluate again") from error
    checkpoint = step_of(model) if step is None else step
    if checkpoint is None:
        raise DataError(f"{folder} evaluates {model!r}, whose name says no step; give it as STEP={folder}, 0 at first")
    samples = read_samples(folder / SAMPLES)
    rollouts = [evaluated(each, checkpoint, _with_chat(each.question, chat)) for each in samples]
    return Source(rollouts, lambda _: str(model), None, [folder / SAMPLES])


def _with_chat(question: str, chat: ChatSettings) -> Encode:
    return lambda tokenizer: Tokens(tokenizer, frozenset()).prompt(question, chat)


def jsonl_source(path: Path, *, step: int | None) -> Source:
    """Responses of a JSONL file: ``problem``, ``response`` and ``prompt`` (the text the model read) or ``prompt_ids``.

    ``checkpoint`` must stand in each row unless ``step`` is given. A row with ``answer`` and no ``reward`` is verified.

    Raises:
        DataError: naming the line and the field.
    """
    counts: dict[str, int] = {}
    rollouts = [_rollout(row, place, step, counts) for place, row in parse_lines(path)]
    return Source(rollouts, None, None, [path])


def _rollout(row: Mapping[str, Any], place: str, step: int | None, counts: dict[str, int]) -> Rollout:
    _check_fields(row, place)
    checkpoint = row.get("checkpoint", step)
    if checkpoint is None:
        raise DataError(f"{place}: no 'checkpoint'; expected the generating policy's step in each row, or STEP=FILE")
    benchmark = row.get("benchmark", "file")
    group = row.get("group", f"{checkpoint}/{benchmark}/{row['problem']}")
    number = counts[group] = counts.get(group, -1) + 1
    sample = row.get("sample", number)
    reward = row.get("reward")
    if reward is None and "answer" in row:
        reward = check_response(row["response"], row["answer"]).reward
    ids = row.get("token_ids")
    if ids is not None and not ids:
        raise DataError(f"{place}: token_ids is empty; expected at least one sampled token (an end token counts)")
    return Rollout(
        id=row.get("id", f"step {checkpoint}/{benchmark}/{row['problem']}/{sample}"),
        checkpoint=checkpoint,
        benchmark=benchmark,
        problem=row["problem"],
        sample=sample,
        group=group,
        question=row.get("question"),
        answer=row.get("answer"),
        response=row["response"],
        reward=None if reward is None else float(reward),
        prompt=fixed(row["prompt_ids"]) if "prompt_ids" in row else encode_text(row["prompt"]),
        token_ids=None if ids is None else tuple(ids),
        truncated=row.get("truncated"),
    )


def _check_values(row: Mapping[str, Any], place: str) -> None:
    """What a field of the right type may hold."""
    for name in ("prompt_ids", "token_ids"):
        odd = [each for each in row.get(name) or () if type(each) is not int or not 0 <= each < MOST_ID]
        if odd:
            raise DataError(f"{place}: {name!r} holds {str(odd[0])[:40]!r}; expected token ids, whole numbers from 0")
    for name in ("checkpoint", "sample"):
        if name in row and not 0 <= row[name] < MOST_NUMBER:
            raise DataError(f"{place}: {name!r} is {str(row[name])[:40]}; expected a whole number from 0 below 2^63")
    if "reward" in row and row["reward"] not in (0, 1):
        raise DataError(f"{place}: 'reward' is {row['reward']!r}; expected 0 or 1")
    for name, value in row.items():
        if isinstance(value, str) and any("\ud800" <= sign <= "\udfff" for sign in value):
            raise DataError(f"{place}: {name!r} has half a surrogate pair; expected text that UTF-8 can write")


def _check_fields(row: Mapping[str, Any], place: str) -> None:
    for name, kind in NEEDED.items():
        if not isinstance(row.get(name), kind):
            raise DataError(f"{place}: {name!r} is {row.get(name)!r}; expected a text in every row")
    if "prompt" not in row and "prompt_ids" not in row:
        raise DataError(f"{place}: neither 'prompt' nor 'prompt_ids'; expected what the model read before it answered")
    for name, legal in OPTIONAL.items():
        value = row.get(name)
        wrong = isinstance(value, bool) and legal is not bool
        if name in row and (wrong or not isinstance(value, legal)):
            raise DataError(f"{place}: {name!r} is {value!r}; see `nemo-uecr score --help` for what it may be")
    _check_values(row, place)
    if row.get("token_ids") is None and row.get("truncated") is None:
        raise DataError(
            f"{place}: neither 'token_ids' nor 'truncated'; expected one of them, because the end token of a response "
            "that was not truncated is scored too"
        )
