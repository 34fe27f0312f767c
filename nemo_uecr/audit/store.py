"""A folder of scores: what `nemo-uecr score` writes and every audit reads.

``scores.json`` says how everything was scored and names every response that was asked for. A part,
``part-000000.parquet``, has one row a response, with the scores of its tokens as lists. It is written whole or not at
all, and its pages hold checksums, which are verified when they are read.

Shape legend: B = responses, P = groups, K = problems, b = responses of one part, N = tokens in a flat list.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nemo_uecr.errors import DataError, RunFolderError
from nemo_uecr.files import replace_file

Array = np.ndarray

FORMAT = "nemo_uecr.scores/3"
PLAN = "scores.json"
#: Key of the plan with the names of all responses that were asked for, by any call.
ASKED = "asked"
#: Keys that grow with every checkpoint scored; the first call fixes all others.
GROWING = ("students", "sources")
#: Columns that every audit reads, one value a response.
TABLE = {
    "id": "string", "checkpoint": "int64", "benchmark": "string", "problem": "string", "sample": "int64",
    "group": "string", "reward": "float64", "sampled_tokens": "int64", "scored_tokens": "int64", "truncated": "bool",
    "cut": "bool", "ids_from": "string", "nonfinite_tokens": "int64",
}  # fmt: skip
TEXTS = ("question", "answer", "response")
#: Columns with one value a token. Each anchor adds one of its log-probabilities.
TOKENS = {"token_ids": "int32", "teacher_logp": "float32", "teacher_entropy": "float32", "teacher_top1": "bool"}
ANCHOR = "anchor_"
#: The anchor that generated the responses.
STUDENT = "student"


# Reading


@dataclass(frozen=True)
class Responses:
    """One entry a response, in the order of the parts.

    Attributes:
        ids: unique names.
        checkpoint_B: [B] int, training steps that the generating policy had behind it.
        problems: name of each response's problem, with its benchmark.
        problem_B: [B] int in [0, K), the cluster of the bootstrap.
        sample_B: [B] int, number among the responses to one prompt.
        group_B: [B] int in [0, P): responses to one prompt by one checkpoint.
        reward_B: [B] float, verifier reward; NaN where it was never verified.
        scored_B: [B] int, tokens that were scored; fewer than were sampled where the response was cut.
        truncated_B: [B] bool, generation ended at its token limit.
        cut_B: [B] bool, scoring ended at its length limit.
        from_text_B: [B] bool, token ids come from the response's text and not from the sampler.
    """

    ids: tuple[str, ...]
    checkpoint_B: Array
    problems: tuple[str, ...]
    problem_B: Array
    sample_B: Array
    group_B: Array
    reward_B: Array
    scored_B: Array
    truncated_B: Array
    cut_B: Array
    from_text_B: Array

    @property
    def checkpoints(self) -> list[int]:
        """The checkpoints, ascending."""
        return [int(step) for step in np.unique(self.checkpoint_B)]

    def verified_rewards(self) -> Array:
        """[B] rewards.

        Raises:
            DataError: A response was never verified.
        """
        missing = np.flatnonzero(np.isnan(self.reward_B))
        if missing.size:
            raise DataError(
                f"{missing.size} responses have no verdict, {self.ids[missing[0]]!r} first; score rollouts with a "
                "reward, or with a reference answer to verify against"
            )
        return self.reward_B


@dataclass(frozen=True)
class Tokens:
    """Token scores of some responses in flat lists.

    Attributes:
        rows: [b] which responses.
        offsets: [b + 1] first token of each response.
        token_ids: [N].
        teacher_logp: [N] log pi_T(y) at temperature 1, float32 nats.
        teacher_entropy: [N] full-vocabulary entropy of the teacher, float32 nats.
        teacher_top1: [N] bool, whether the token has the teacher's largest logit.
        anchor_logp: [N] log-probability of the anchor at temperature 1, float32 nats.
    """

    rows: Array
    offsets: Array
    token_ids: Tensor
    teacher_logp: Tensor
    teacher_entropy: Tensor
    teacher_top1: Tensor
    anchor_logp: Tensor

    def span(self, row: int) -> slice:
        """The tokens of a response."""
        return slice(int(self.offsets[row]), int(self.offsets[row + 1]))

    @property
    def row_N(self) -> Array:
        """[N] response of each token, counted here."""
        return np.repeat(np.arange(len(self.rows)), np.diff(self.offsets))


@dataclass(frozen=True)
class Scores:
    """A folder that ``nemo-uecr score`` wrote: how everything in it was scored, and the responses."""

    folder: Path
    plan: dict[str, Any]
    responses: Responses

    def tokens(self, anchor: str, checkpoint: int) -> Tokens:
        """The tokens of one checkpoint's responses with the log-probabilities of one anchor.

        Raises:
            DataError: The anchor or the checkpoint was not scored.
        """
        if anchor not in self.plan["anchors"]:
            hint = "--student MODEL" if anchor == STUDENT else f"--anchor {anchor}=MODEL"
            raise DataError(
                f"{self.folder} has no scores of anchor {anchor!r} (it has {', '.join(self.plan['anchors'])}); score "
                f"into a new folder with {hint}"
            )
        if checkpoint not in self.responses.checkpoints:
            known = ", ".join(map(str, self.responses.checkpoints))
            raise DataError(f"{self.folder} has no response of checkpoint {checkpoint}; expected one of {known}")
        lengths, values = token_lists(part_paths(self.folder), (*TOKENS, ANCHOR + anchor), checkpoint)
        return Tokens(np.flatnonzero(self.responses.checkpoint_B == checkpoint), _offsets(lengths), *values)

    def ranks(self, checkpoint: int) -> Tensor | None:
        """[N] rank of each of the tokens under the teacher, 1 the largest; None unless all parts were ranked."""
        paths = [rank_path(path) for path in part_paths(self.folder)]
        return token_lists(paths, ["rank"], checkpoint)[1][0] if all(path.is_file() for path in paths) else None

    def column(self, name: str) -> list[Any]:
        """One column of the responses as Python values, for example ``response``."""
        values: list[Any] = _read(part_paths(self.folder), [name])[name].to_pylist()
        return values

    def provenance(self) -> dict[str, Any]:
        """What was scored and how, for the numbers of an audit."""
        found = self.responses
        return {
            "plan": {key: value for key, value in self.plan.items() if key not in ("format", ASKED)},
            "responses": len(found.ids),
            "groups": int(found.group_B.max()) + 1,
            "problems": int(found.problem_B.max()) + 1,
            "checkpoints": found.checkpoints,
            "scored_tokens": int(found.scored_B.sum()),
            "responses_truncated_in_generation": int(found.truncated_B.sum()),
            "responses_cut_in_scoring": int(found.cut_B.sum()),
            "responses_with_token_ids_from_text": int(found.from_text_B.sum()),
        }


def read_scores(folder: Path) -> Scores:
    """Read the responses of a finished folder of scores; tokens are read when asked for.

    Raises:
        DataError: The folder holds no scores, or not all of them: numbers of some look like those of all.
    """
    plan, paths = _read_plan(folder), part_paths(folder)
    column = _read(paths, list(TABLE)).to_pydict() if paths else {"id": []}
    if sorted(column["id"]) != plan[ASKED]:
        raise DataError(
            f"{folder} holds {len(column['id'])} of {len(plan[ASKED])} responses: `nemo-uecr score` was interrupted, "
            "or a part is gone; run the same command again to finish it"
        )
    problems = tuple(map("/".join, zip(column["benchmark"], column["problem"], strict=True)))
    responses = Responses(
        ids=tuple(column["id"]),
        checkpoint_B=np.asarray(column["checkpoint"], dtype=np.int64),
        problems=problems,
        problem_B=_numbered(problems),
        sample_B=np.asarray(column["sample"], dtype=np.int64),
        group_B=_numbered(column["group"]),
        reward_B=np.asarray(column["reward"], dtype=np.float64),  # None becomes NaN
        scored_B=np.asarray(column["scored_tokens"], dtype=np.int64),
        truncated_B=np.asarray(column["truncated"], dtype=bool),
        cut_B=np.asarray(column["cut"], dtype=bool),
        from_text_B=np.asarray(column["ids_from"]) == "text",
    )
    return Scores(folder, plan, responses)


def _numbered(names: Sequence[str]) -> Array:
    """[len] int, equal names equal numbers, in the order of first appearance."""
    numbers: dict[str, int] = {}
    return np.asarray([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)


def _offsets(length_b: Array) -> Array:
    return np.concatenate([[0], np.cumsum(length_b)])


def _read_plan(folder: Path) -> dict[str, Any]:
    path = folder / PLAN
    if not path.is_file():
        raise DataError(f"{folder} has no {PLAN}; expected a folder that `nemo-uecr score` wrote")
    plan: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if plan.get("format") != FORMAT:
        raise DataError(f"{path} has format {plan.get('format')!r}, expected {FORMAT!r}; score into a new folder")
    return plan


def part_paths(folder: Path) -> list[Path]:
    """The parts, in order."""
    return sorted(folder.glob("part-??????.parquet"))


def rank_path(part: Path) -> Path:
    """The teacher's exact rank of each token of a part, where the second pass was asked for."""
    return part.with_suffix(".rank.parquet")


def _read(parts: Sequence[Path], columns: Sequence[str], checkpoint: int | None = None) -> Any:
    import pyarrow.parquet as parquet

    chosen = None if checkpoint is None else [("checkpoint", "==", checkpoint)]
    return parquet.read_table(parts, columns=list(columns), filters=chosen, page_checksum_verification=True)


def token_lists(
    parts: Sequence[Path], columns: Sequence[str], checkpoint: int | None = None
) -> tuple[Array, list[Tensor]]:
    """[B] tokens of each response, of one checkpoint or of all, and [N] values of each column."""
    import pyarrow.compute as compute

    table = _read(parts, columns, checkpoint)
    values = [torch.tensor(compute.list_flatten(table[name]).to_numpy()) for name in columns]
    return compute.list_value_length(table[columns[0]]).to_numpy(), values


# Writing


def joined_plan(folder: Path, plan: Mapping[str, Any], ids: Set[str]) -> tuple[dict[str, Any], set[str]]:
    """The plan of a call on top of what the folder holds, and the responses that are scored already.

    Args:
        folder: the folder of scores, new or begun.
        plan: ``teacher``, ``anchors``, ``students``, ``sources`` and the settings of the scoring.
        ids: names of the call's responses.

    Raises:
        RunFolderError: The folder was scored differently.
    """
    done = set(_read(paths, ["id"])["id"].to_pylist()) if (paths := part_paths(folder)) else set()
    joined = {"format": FORMAT, **plan, ASKED: sorted(ids)}
    if not done:
        return joined, done
    written = _read_plan(folder)
    lost = set(written[ASKED]) - done - ids
    if lost:
        raise RunFolderError(
            f"{folder} lacks {len(lost)} responses of an interrupted `nemo-uecr score`, {min(lost)!r} for one, and so "
            "does this call; finish that one first, or choose another --out"
        )
    for key, own in plan.items():
        known = written[key]
        if key in GROWING:
            joined[key] = known | own
            own, known = ({name: each[name] for name in known.keys() & own.keys()} for each in (own, known))
        if own != known:
            raise RunFolderError(f"{folder} was scored with {key}={known!r}, not {own!r}; choose another --out")
    return joined | {ASKED: sorted({*written[ASKED], *ids})}, done


def write_plan(folder: Path, plan: Mapping[str, Any]) -> None:
    """Write the plan, before the first scores that it is about."""
    replace_file(folder / PLAN, (json.dumps(plan, indent=1) + "\n").encode())


def write_part(folder: Path, rows: Sequence[Mapping[str, Any]], tokens: Mapping[str, Tensor]) -> None:
    """Write the next part.

    Args:
        folder: the folder of scores.
        rows: [b] `TABLE`, `TEXTS` and ``prompt_ids`` of each response.
        tokens: [N] `TOKENS` and the anchors.
    """
    import pyarrow

    types = {**TABLE, **dict.fromkeys(TEXTS, "string"), "prompt_ids": pyarrow.list_(pyarrow.int32())}
    columns = {
        name: pyarrow.array([row[name] for row in rows], type=pyarrow.field(name, kind).type)
        for name, kind in types.items()
    }
    paths = part_paths(folder)
    number = int(paths[-1].stem.removeprefix("part-")) + 1 if paths else 0
    _write(folder / f"part-{number:06d}.parquet", columns, [row["scored_tokens"] for row in rows], tokens)


def write_ranks(part: Path, rank_N: Tensor) -> None:
    """Write the ranks of a part's tokens."""
    table = _read([part], ["checkpoint", "scored_tokens"])
    _write(rank_path(part), {"checkpoint": table["checkpoint"]}, table["scored_tokens"], {"rank": rank_N.int()})


def _write(path: Path, columns: Mapping[str, Any], lengths: Sequence[int], tokens: Mapping[str, Tensor]) -> None:
    import pyarrow
    import pyarrow.parquet as parquet

    ends = pyarrow.array(_offsets(np.asarray(lengths)), type=pyarrow.int32())
    lists = {
        name: pyarrow.ListArray.from_arrays(ends, pyarrow.array(value_N.numpy())) for name, value_N in tokens.items()
    }
    content = io.BytesIO()
    parquet.write_table(pyarrow.table({**columns, **lists}), content, write_page_checksum=True)
    replace_file(path, content.getvalue())
