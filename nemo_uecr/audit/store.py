"""A folder of scores: written by `nemo-uecr score`, read by every audit.

``scores.json`` records how the responses were scored and lists every requested response. Each part,
``part-000000.parquet``, has one row per response, with the scores of its tokens as lists. A part is written whole or
not at all, and the checksums of its pages are verified on reading.

Shape legend: B = responses, P = groups, K = problems, b = responses of one checkpoint, N = tokens in a flat list.
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

from nemo_uecr.core.record import group_ids
from nemo_uecr.errors import DataError, RunFolderError
from nemo_uecr.files import read_object, replace_file
from nemo_uecr.stats import Array

CPU = torch.device("cpu")

FORMAT = "nemo_uecr.scores/4"
PLAN = "scores.json"
#: Key in the plan: ids of all responses that were asked for.
ASKED_IDS = "asked"
#: Keys of the plan that later calls extend; the first call fixes all others.
APPEND_ONLY = ("students", "sources")
#: Columns with one value per response that every audit reads.
TABLE = {
    "id": "string", "checkpoint": "int64", "benchmark": "string", "problem": "string", "sample": "int64",
    "group": "string", "reward": "float64", "sampled_tokens": "int64", "scored_tokens": "int64", "truncated": "bool",
    "cut": "bool", "ids_from": "string", "nonfinite_tokens": "int64",
}  # fmt: skip
TEXTS = {"question": "string", "answer": "string", "response": "string"}
#: Columns with one value per token: float32 nats at temperature 1, and the token's rank among the teacher's logits (1:
#: the largest). Each anchor adds a column of its log-probabilities.
TOKENS = ("token_ids", "teacher_logp", "teacher_entropy", "teacher_rank")
ANCHOR = "anchor_"
#: The anchor that generated the responses.
STUDENT = "student"


# Reading


@dataclass(frozen=True)
class Responses:
    """One entry per response, in the order of the parts."""

    ids: tuple[str, ...]  # unique
    checkpoint_B: Array  # training step of the policy that generated the response
    problems: tuple[str, ...]  # BENCHMARK/PROBLEM
    problem_B: Array  # in [0, K), the cluster of the bootstrap
    sample_B: Array  # number among the responses to one prompt
    group_B: Array  # in [0, P): responses to one prompt by one checkpoint
    reward_B: Array  # the verifier's; NaN if not verified
    scored_B: Array  # scored tokens; fewer than sampled if the response was cut
    truncated_B: Array  # generation ended at its token limit
    cut_B: Array  # scoring ended at its length limit
    from_text_B: Array  # token ids were recomputed from the text

    @property
    def checkpoints(self) -> list[int]:
        return [int(step) for step in np.unique(self.checkpoint_B)]

    def verified_rewards(self) -> Array:
        """[B] rewards; an error if a response was not verified."""
        missing = np.flatnonzero(np.isnan(self.reward_B))
        if missing.size:
            raise DataError(
                f"{missing.size} responses have no reward, {self.ids[missing[0]]!r} first; score rollouts that have a "
                "reward or a reference answer"
            )
        return self.reward_B


@dataclass(frozen=True)
class CheckpointTokens:
    """Token scores of one checkpoint's responses in flat lists, with the log-probabilities of one anchor."""

    rows: Array  # [b] index of each response in `Responses`
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
        """[N] response of each token, in [0, b)."""
        return np.repeat(np.arange(len(self.rows)), np.diff(self.offsets))

    @property
    def gap_N(self) -> Array:
        """[N] float64 ``log pi_T(y) - log pi_anchor(y)``."""
        return np.asarray(self.teacher_logp.double() - self.anchor_logp.double())


@dataclass(frozen=True)
class ScoreFolder:
    """A folder written by ``nemo-uecr score``: how the responses were scored, and the responses."""

    folder: Path
    plan: dict[str, Any]
    responses: Responses

    def tokens(self, anchor: str, checkpoint: int) -> CheckpointTokens:
        """The tokens of one checkpoint's responses, with the log-probabilities of one anchor."""
        anchors, steps = self.plan["anchors"], self.responses.checkpoints
        if anchor not in anchors:
            raise DataError(
                f"{self.folder} has no scores of anchor {anchor!r} (it has {', '.join(anchors)}); score into a new "
                f"folder with --anchor {anchor}=MODEL"
            )
        if checkpoint not in steps:
            raise DataError(f"{self.folder} has no response of checkpoint {checkpoint}; expected one of {steps}")
        import pyarrow.compute as compute

        table = _read(part_paths(self.folder), (*TOKENS, ANCHOR + anchor), checkpoint)
        lengths = compute.list_value_length(table["token_ids"]).to_numpy()
        values = [torch.tensor(compute.list_flatten(column).to_numpy()) for column in table.columns]
        return CheckpointTokens(np.flatnonzero(self.responses.checkpoint_B == checkpoint), _offsets(lengths), *values)

    def column(self, name: str) -> list[Any]:
        """One column of the responses as Python values, for example ``response``."""
        return list(_read(part_paths(self.folder), [name])[name].to_pylist())

    def provenance(self) -> dict[str, Any]:
        """What was scored and how, for the numbers of an audit."""
        responses = self.responses
        return {
            "plan": {key: value for key, value in self.plan.items() if key not in ("format", ASKED_IDS)},
            "responses": len(responses.ids),
            "groups": int(responses.group_B.max()) + 1,
            "problems": int(responses.problem_B.max()) + 1,
            "checkpoints": responses.checkpoints,
            "scored_tokens": int(responses.scored_B.sum()),
            "responses_truncated_in_generation": int(responses.truncated_B.sum()),
            "responses_cut_in_scoring": int(responses.cut_B.sum()),
            "responses_with_token_ids_from_text": int(responses.from_text_B.sum()),
        }


def read_scores(folder: Path) -> ScoreFolder:
    """Read a finished folder of scores; its tokens are read on demand."""
    plan, paths = _read_plan(folder), part_paths(folder)
    column = _read(paths, list(TABLE)).to_pydict() if paths else {"id": []}
    if sorted(column["id"]) != plan[ASKED_IDS]:  # the numbers of some would look like those of all
        raise DataError(
            f"{folder} has {len(column['id'])} of {len(plan[ASKED_IDS])} responses: `nemo-uecr score` was interrupted, "
            "or a part is gone; run the same command again to finish it"
        )
    problems = tuple(map("/".join, zip(column["benchmark"], column["problem"], strict=True)))
    responses = Responses(
        ids=tuple(column["id"]),
        checkpoint_B=np.asarray(column["checkpoint"]),
        problems=problems,
        problem_B=group_ids(problems, CPU).numpy(),
        sample_B=np.asarray(column["sample"]),
        group_B=group_ids(column["group"], CPU).numpy(),
        reward_B=np.asarray(column["reward"], dtype=np.float64),  # None becomes NaN
        scored_B=np.asarray(column["scored_tokens"]),
        truncated_B=np.asarray(column["truncated"]),
        cut_B=np.asarray(column["cut"]),
        from_text_B=np.asarray(column["ids_from"]) == "text",
    )
    return ScoreFolder(folder, plan, responses)


def _offsets(length_b: Array) -> Array:
    return np.concatenate([[0], np.cumsum(length_b)])


def _read_plan(folder: Path) -> dict[str, Any]:
    path = folder / PLAN
    if not path.is_file():
        raise DataError(f"{folder} has no {PLAN} of format {FORMAT!r}; expected a folder that `nemo-uecr score` wrote")
    return read_object(path, form=FORMAT)


def part_paths(folder: Path) -> list[Path]:
    """The parts of a folder of scores, in order."""
    return sorted(folder.glob("part-??????.parquet"))


def _read(parts: Sequence[Path], columns: Sequence[str], checkpoint: int | None = None) -> Any:
    import pyarrow.parquet as parquet

    chosen = None if checkpoint is None else [("checkpoint", "==", checkpoint)]
    return parquet.read_table(parts, columns=list(columns), filters=chosen, page_checksum_verification=True)


# Writing


def joined_plan(folder: Path, plan: Mapping[str, Any], ids: Set[str]) -> tuple[dict[str, Any], set[str]]:
    """The folder's plan extended by a call for these responses, and the names of the scored ones."""
    joined = {"format": FORMAT, **plan, ASKED_IDS: sorted(ids)}
    paths = part_paths(folder)
    if not paths:
        return joined, set()
    written = _read_plan(folder)
    for key, own in plan.items():
        known = written[key]
        joined[key] = {**known, **own} if key in APPEND_ONLY else own
        if {**joined[key], **known} != joined[key] if key in APPEND_ONLY else own != known:
            raise RunFolderError(f"{folder} was scored with {key}={known!r}, not {own!r}; choose another --out")
    return joined | {ASKED_IDS: sorted({*written[ASKED_IDS], *ids})}, set(_read(paths, ["id"])["id"].to_pylist())


def write_plan(folder: Path, plan: Mapping[str, Any]) -> None:
    """Write the plan; it precedes the first scores."""
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
