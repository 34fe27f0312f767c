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

FORMAT = "nemo_uecr.scores/4"
PLAN = "scores.json"
#: Key of the plan with the names of all responses that were asked for, by any call.
ASKED = "asked"
#: Keys that grow with every checkpoint scored; the first call fixes all others.
APPEND_ONLY = ("students", "sources")
#: Columns that every audit reads, one value a response; texts and prompt ids stand beside them.
TABLE = {
    "id": "string", "checkpoint": "int64", "benchmark": "string", "problem": "string", "sample": "int64",
    "group": "string", "reward": "float64", "sampled_tokens": "int64", "scored_tokens": "int64", "truncated": "bool",
    "cut": "bool", "ids_from": "string", "nonfinite_tokens": "int64",
}  # fmt: skip
TEXTS = {"question": "string", "answer": "string", "response": "string"}
#: Columns with one value a token: nats at temperature 1 in float32, and the token's rank among the teacher's logits, 1
#: the largest. Each anchor adds one of its log-probabilities.
TOKENS = ("token_ids", "teacher_logp", "teacher_entropy", "teacher_rank")
ANCHOR = "anchor_"
#: The anchor that generated the responses.
STUDENT = "student"


# Reading


@dataclass(frozen=True)
class Responses:
    """One entry a response, in the order of the parts."""

    ids: tuple[str, ...]  # unique
    checkpoint_B: Array  # training steps that the generating policy had behind it
    problems: tuple[str, ...]  # names, with the benchmark's
    problem_B: Array  # in [0, K), the cluster of the bootstrap
    sample_B: Array  # number among the responses to one prompt
    group_B: Array  # in [0, P): responses to one prompt by one checkpoint
    reward_B: Array  # the verifier's; NaN where it was never verified
    scored_B: Array  # tokens; fewer than were sampled where the response was cut
    truncated_B: Array  # generation ended at its token limit
    cut_B: Array  # scoring ended at its length limit
    from_text_B: Array  # token ids come from the response's text and not from the sampler

    @property
    def checkpoints(self) -> list[int]:
        """The checkpoints, ascending."""
        return [int(step) for step in np.unique(self.checkpoint_B)]

    def verified_rewards(self) -> Array:
        """[B] rewards, where every response was verified."""
        missing = np.flatnonzero(np.isnan(self.reward_B))
        if missing.size:
            raise DataError(
                f"{missing.size} responses have no verdict, {self.ids[missing[0]]!r} first; score rollouts with a "
                "reward, or with a reference answer to verify against"
            )
        return self.reward_B


@dataclass(frozen=True)
class Tokens:
    """Token scores of some responses in flat lists, with the log-probabilities of one anchor."""

    rows: Array  # [b] which responses
    offsets: Array  # [b + 1] first token of each
    token_ids: Tensor
    teacher_logp: Tensor
    teacher_entropy: Tensor
    teacher_rank: Tensor
    anchor_logp: Tensor

    def span(self, row: int) -> slice:
        """The tokens of a response."""
        return slice(int(self.offsets[row]), int(self.offsets[row + 1]))

    @property
    def row_N(self) -> Array:
        """[N] response of each token, counted here."""
        return np.repeat(np.arange(len(self.rows)), np.diff(self.offsets))

    @property
    def gap_N(self) -> Array:
        """[N] float64 ``log pi_T(y) - log pi_anchor(y)``."""
        gap_N: Array = (self.teacher_logp.double() - self.anchor_logp.double()).numpy()
        return gap_N


@dataclass(frozen=True)
class Scores:
    """A folder that ``nemo-uecr score`` wrote: how everything in it was scored, and the responses."""

    folder: Path
    plan: dict[str, Any]
    responses: Responses

    def tokens(self, anchor: str, checkpoint: int) -> Tokens:
        """The tokens of one checkpoint's responses with the log-probabilities of one anchor."""
        anchors, steps = self.plan["anchors"], self.responses.checkpoints
        if anchor not in anchors:
            raise DataError(
                f"{self.folder} has no scores of anchor {anchor!r} (it has {', '.join(anchors)}); score into a new "
                f"folder with --anchor {anchor}=MODEL"
            )
        if checkpoint not in steps:
            known = ", ".join(map(str, steps))
            raise DataError(f"{self.folder} has no response of checkpoint {checkpoint}; expected one of {known}")
        import pyarrow.compute as compute

        table = _read(part_paths(self.folder), (*TOKENS, ANCHOR + anchor), checkpoint)
        lengths = compute.list_value_length(table["token_ids"]).to_numpy()
        values = [torch.tensor(compute.list_flatten(column).to_numpy()) for column in table.columns]
        return Tokens(np.flatnonzero(self.responses.checkpoint_B == checkpoint), _offsets(lengths), *values)

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
    """Read the responses of a finished folder of scores; tokens are read when asked for."""
    plan, paths = _read_plan(folder), part_paths(folder)
    column = _read(paths, list(TABLE)).to_pydict() if paths else {"id": []}
    if sorted(column["id"]) != plan[ASKED]:  # numbers of some look like those of all
        raise DataError(
            f"{folder} holds {len(column['id'])} of {len(plan[ASKED])} responses: `nemo-uecr score` was interrupted, "
            "or a part is gone; run the same command again to finish it"
        )
    problems = tuple(map("/".join, zip(column["benchmark"], column["problem"], strict=True)))
    responses = Responses(
        ids=tuple(column["id"]),
        checkpoint_B=np.asarray(column["checkpoint"]),
        problems=problems,
        problem_B=numbered(problems),
        sample_B=np.asarray(column["sample"]),
        group_B=numbered(column["group"]),
        reward_B=np.asarray(column["reward"], dtype=np.float64),  # None becomes NaN
        scored_B=np.asarray(column["scored_tokens"]),
        truncated_B=np.asarray(column["truncated"]),
        cut_B=np.asarray(column["cut"]),
        from_text_B=np.asarray(column["ids_from"]) == "text",
    )
    return Scores(folder, plan, responses)


def numbered(names: Sequence[str]) -> Array:
    """[len] int, equal names equal numbers, in the order of first appearance."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return np.asarray([numbers[name] for name in names])


def _offsets(length_b: Array) -> Array:
    return np.concatenate([[0], np.cumsum(length_b)])


def _read_plan(folder: Path) -> dict[str, Any]:
    path = folder / PLAN
    plan = json.loads(path.read_bytes()) if path.is_file() else {}
    if plan.get("format") != FORMAT:
        raise DataError(f"{folder} has no {PLAN} of format {FORMAT!r}; expected a folder that `nemo-uecr score` wrote")
    return dict(plan)


def part_paths(folder: Path) -> list[Path]:
    """The parts of a folder of scores, in order."""
    return sorted(folder.glob("part-??????.parquet"))


def _read(parts: Sequence[Path], columns: Sequence[str], checkpoint: int | None = None) -> Any:
    import pyarrow.parquet as parquet

    chosen = None if checkpoint is None else [("checkpoint", "==", checkpoint)]
    return parquet.read_table(parts, columns=list(columns), filters=chosen, page_checksum_verification=True)


# Writing


def joined_plan(folder: Path, plan: Mapping[str, Any], ids: Set[str]) -> tuple[dict[str, Any], set[str]]:
    """The plan of a call for these responses on top of what the folder holds, and what is scored already."""
    joined = {"format": FORMAT, **plan, ASKED: sorted(ids)}
    paths = part_paths(folder)
    if not paths:
        return joined, set()
    written = _read_plan(folder)
    for key, own in plan.items():
        known = written[key]
        if key in APPEND_ONLY:
            joined[key] = known | own
        if (joined[key] != own | known) if key in APPEND_ONLY else own != known:
            raise RunFolderError(f"{folder} was scored with {key}={known!r}, not {own!r}; choose another --out")
    return joined | {ASKED: sorted({*written[ASKED], *ids})}, set(_read(paths, ["id"])["id"].to_pylist())


def write_plan(folder: Path, plan: Mapping[str, Any]) -> None:
    """Write the plan, before the first scores that it is about."""
    replace_file(folder / PLAN, (json.dumps(plan, indent=1) + "\n").encode())


def write_part(folder: Path, rows: Sequence[Mapping[str, Any]], tokens: Mapping[str, Tensor]) -> None:
    """Write the next part: `TABLE`, `TEXTS` and ``prompt_ids`` of each response, [N] `TOKENS` and the anchors."""
    import pyarrow
    import pyarrow.parquet as parquet

    schema = pyarrow.schema([*TABLE.items(), *TEXTS.items(), ("prompt_ids", pyarrow.list_(pyarrow.int32()))])
    paths = part_paths(folder)
    number = int(paths[-1].stem.removeprefix("part-")) + 1 if paths else 0
    table = pyarrow.Table.from_pylist(rows, schema)
    ends = pyarrow.array(_offsets(table["scored_tokens"].to_numpy()), type=pyarrow.int32())
    for name, value_N in tokens.items():
        table = table.append_column(name, pyarrow.ListArray.from_arrays(ends, pyarrow.array(value_N.numpy())))
    content = io.BytesIO()
    parquet.write_table(table, content, write_page_checksum=True)
    replace_file(folder / f"part-{number:06d}.parquet", content.getvalue())
