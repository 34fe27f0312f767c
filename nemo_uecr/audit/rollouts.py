"""Reads scored responses: the table of responses at once, their tokens part by part.

Shape legend: B = responses, N = tokens of one part in a flat list, P = groups, K = problems.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from nemo_uecr.audit.part_checks import check_finished, check_hash, check_parts, check_tensors, read_plan
from nemo_uecr.audit.schema import (
    ANCHOR,
    COLUMNS,
    TENSORS,
    arrow_schema,
    rank_path,
    row_path,
    token_path,
)
from nemo_uecr.errors import DataError

Array = np.ndarray


@dataclass(frozen=True)
class Responses:
    """One entry a response, in the order of the parts.

    Attributes:
        ids: unique names.
        checkpoint_B: [B] int, training steps that the generating policy had behind it.
        problems: name of each response's problem, the benchmark included.
        problem_B: [B] int in [0, K), the cluster of the bootstrap.
        sample_B: [B] int, number among the responses to one prompt.
        group_B: [B] int in [0, P): responses to one prompt by one checkpoint.
        reward_B: [B] float, verifier reward; NaN where it was never verified.
        sampled_B: [B] int, tokens that were sampled.
        scored_B: [B] int, tokens that were scored; fewer where the response was cut.
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
    sampled_B: Array
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
            DataError: If a response was never verified.
        """
        missing = np.flatnonzero(np.isnan(self.reward_B))
        if missing.size:
            raise DataError(
                f"response {self.ids[missing[0]]!r} and {missing.size - 1} others have no verdict; expected a reward, "
                "or a reference answer to verify against, in the rollouts that were scored"
            )
        return self.reward_B


@dataclass(frozen=True)
class Tokens:
    """Packed token scores of consecutive responses.

    Attributes:
        rows: which responses.
        offsets: [b + 1] first token of each response.
        token_ids: [N].
        teacher_logp: [N] log pi_T(y) at temperature 1, nats.
        teacher_entropy: [N] full-vocabulary entropy of the teacher, nats.
        teacher_top1: [N] bool, whether the token has the teacher's largest logit.
        anchor_logp: [N] log-probability of the anchor at temperature 1, nats.
    """

    rows: slice
    offsets: Tensor
    token_ids: Tensor
    teacher_logp: Tensor
    teacher_entropy: Tensor
    teacher_top1: Tensor
    anchor_logp: Tensor


@dataclass(frozen=True)
class Scores:
    """A folder that ``nemo-uecr score`` wrote.

    Attributes:
        folder: where it is.
        plan: how everything in it was scored.
        responses: the responses.
        parts: number of each part and its rows.
    """

    folder: Path
    plan: dict[str, Any]
    responses: Responses
    parts: tuple[tuple[int, slice], ...]

    def tokens(self, anchor: str) -> Iterator[Tokens]:
        """The tokens of each part with the log-probabilities of one anchor.

        Raises:
            DataError: If the anchor was not scored, or a part is damaged.
        """
        if anchor not in self.plan["anchors"]:
            have = ", ".join(self.plan["anchors"])
            hint = "--student MODEL" if anchor == "student" else f"--anchor {anchor}=MODEL"
            raise DataError(
                f"{self.folder} has no scores of anchor {anchor!r} (it has {have}); score into a new folder with {hint}"
            )
        for number, rows in self.parts:
            path = token_path(self.folder, number)
            check_hash(path, self.plan)
            tensors = part_tensors(self.folder, number, (*TENSORS, ANCHOR + anchor))
            tensors["anchor_logp"] = tensors.pop(ANCHOR + anchor)
            check_tensors(tensors, self.responses.scored_B[rows], path)
            yield Tokens(rows, **tensors)

    def provenance(self) -> dict[str, Any]:
        """What was scored and how, for the numbers of an audit."""
        found = self.responses
        return {
            "plan": self.plan,
            "responses": len(found.ids),
            "groups": int(found.group_B.max()) + 1,
            "problems": int(found.problem_B.max()) + 1,
            "checkpoints": found.checkpoints,
            "scored_tokens": int(found.scored_B.sum()),
            "responses_truncated_in_generation": int(found.truncated_B.sum()),
            "responses_cut_in_scoring": int(found.cut_B.sum()),
            "responses_with_token_ids_from_text": int(found.from_text_B.sum()),
        }

    def ranks(self) -> Iterator[Tensor] | None:
        """[N] rank of each token under the teacher, 1 the largest, part by part; None without that pass."""
        paths = [rank_path(self.folder, number) for number, _ in self.parts]
        if not all(path.is_file() for path in paths):
            return None
        plan = read_plan(self.folder)  # the ranks may be younger than what was read first
        for path in paths:
            check_hash(path, plan)
        return (_tensors(path, ("rank",))["rank"] for path in paths)

    def column(self, name: str) -> list[Any]:
        """One column of the responses as Python values, for example ``response``."""
        return [value for number, _ in self.parts for value in part_table(self.folder, number, [name])[name]]


def read_scores(folder: Path) -> Scores:
    """Read the responses of a finished folder of scores; tokens are read when asked for.

    Raises:
        DataError: If the folder holds no scores, not all of them, or a file in it is damaged.
    """
    scores = _read(folder, finished=True)
    check_finished(folder, scores.plan, len(scores.responses.ids))
    return scores


def read_unfinished(folder: Path) -> Scores:
    """Read what a folder of scores holds so far, for the one who adds to it.

    Raises:
        DataError: If the folder holds no scores, or a file in it is damaged.
    """
    return _read(folder, finished=False)


def _read(folder: Path, *, finished: bool) -> Scores:
    plan = read_plan(folder)
    numbers = check_parts(folder, plan, finished=finished)
    if not numbers:
        raise DataError(f"{folder} holds no complete part; run the same `nemo-uecr score` again to finish it")
    names = [name for name in COLUMNS if name not in ("prompt_ids", "question", "answer", "response")]
    parts = [part_table(folder, number, names) for number in numbers]
    for number, part in zip(numbers, parts, strict=True):
        if not part["id"]:
            raise DataError(
                f"{row_path(folder, number)} has no response; expected at least one. Score into a new folder"
            )
    table = {name: [value for part in parts for value in part[name]] for name in names}
    ends = np.cumsum([0, *(len(part["id"]) for part in parts)])
    spans = tuple((number, slice(int(ends[i]), int(ends[i + 1]))) for i, number in enumerate(numbers))
    return Scores(folder, plan, _responses(table, folder), spans)


def _responses(table: dict[str, list[Any]], folder: Path) -> Responses:
    ids = tuple(table["id"])
    if len(set(ids)) < len(ids):
        seen: set[str] = set()
        twice = next(name for name in ids if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise DataError(f"{folder}: response {twice!r} stands twice; expected each once")
    problems = tuple(f"{name}/{problem}" for name, problem in zip(table["benchmark"], table["problem"], strict=True))
    reward = [np.nan if value is None else value for value in table["reward"]]
    return Responses(
        ids=ids,
        checkpoint_B=np.asarray(table["checkpoint"], dtype=np.int64),
        problems=problems,
        problem_B=numbered(problems),
        sample_B=np.asarray(table["sample"], dtype=np.int64),
        group_B=numbered(table["group"]),
        reward_B=np.asarray(reward, dtype=np.float64),
        sampled_B=np.asarray(table["sampled_tokens"], dtype=np.int64),
        scored_B=np.asarray(table["scored_tokens"], dtype=np.int64),
        truncated_B=np.asarray(table["truncated"], dtype=bool),
        cut_B=np.asarray(table["cut"], dtype=bool),
        from_text_B=np.asarray([source == "text" for source in table["ids_from"]], dtype=bool),
    )


def numbered(names: Sequence[str]) -> Array:
    """[len] int, equal names equal numbers, in the order of first appearance."""
    numbers: dict[str, int] = {}
    return np.asarray([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)


def part_table(folder: Path, number: int, names: list[str]) -> dict[str, list[Any]]:
    """Columns of one part's responses."""
    import pyarrow
    import pyarrow.parquet as parquet

    path, wanted = row_path(folder, number), arrow_schema()
    try:
        table = parquet.read_table(path, columns=names)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read ({' '.join(str(error).split())[:120]}); score again") from error
    for name in names:
        if name not in table.column_names:
            raise DataError(f"{path} has no column {name!r}; expected the file as `nemo-uecr score` wrote it")
        if table.schema.field(name).type != wanted.field(name).type:
            raise DataError(f"{path}: column {name!r} is {table.schema.field(name).type}; expected {COLUMNS[name]}")
    columns: dict[str, list[Any]] = table.to_pydict()
    return columns


def part_tensors(folder: Path, number: int, names: Sequence[str]) -> dict[str, Tensor]:
    """Token tensors of one part."""
    return _tensors(token_path(folder, number), names)


def _tensors(path: Path, names: Sequence[str]) -> dict[str, Tensor]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt") as file:
            missing = sorted(set(names) - set(file.keys()))
            if missing:
                raise DataError(f"{path} has no tensor {missing[0]!r}; expected {', '.join(names)}")
            return {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path}: not a readable safetensors file ({error}); score again") from error
