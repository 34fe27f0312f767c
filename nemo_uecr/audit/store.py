"""A folder of scores: the one format that `nemo-uecr score` writes and every audit reads.

``scores.json`` says how everything was scored, and which responses the folder has once the latest call is finished. A
part is two files: ``part-000000.safetensors`` has the packed tokens, ``part-000000.parquet`` one row a response and the
sha256 of those tokens. The rows are written last, so a part without them does not count.

Shape legend: B = responses, P = groups, K = problems, b = responses of one part, N = their tokens in a flat list.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from nemo_uecr.errors import DataError, RunFolderError
from nemo_uecr.files import file_sha256, replace_file

Array = np.ndarray

FORMAT = "nemo_uecr.scores/2"
PLAN = "scores.json"
#: Key of the plan with the names of all responses that were asked for, by any call.
ASKED = "asked"
#: Keys that grow with every checkpoint scored; the first call fixes all others.
GROWING = ("students", "sources")
#: Columns of a part's parquet file and their types ("?" may be null).
COLUMNS = {
    "id": "string",
    "checkpoint": "int64",
    "benchmark": "string",
    "problem": "string",
    "sample": "int64",
    "group": "string",
    "question": "string?",
    "answer": "string?",
    "response": "string",
    "reward": "double?",
    "prompt_ids": "list<int32>",
    "sampled_tokens": "int64",
    "scored_tokens": "int64",
    "truncated": "bool",
    "cut": "bool",
    "ids_from": "string",
    "nonfinite_tokens": "int64",
}
#: Columns of the table of responses; the others are read when asked for.
TABLE = tuple(name for name in COLUMNS if name not in ("prompt_ids", "question", "answer", "response"))
#: Token tensors of every part. Each anchor adds ``anchor.NAME``.
TENSORS = ("offsets", "token_ids", "teacher_logp", "teacher_entropy", "teacher_top1")
ANCHOR = "anchor."
#: The anchor that generated the responses.
STUDENT = "student"
#: Key of the parquet metadata with the sha256 of the part's tokens.
TOKENS_SHA256 = b"tokens_sha256"


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

    @classmethod
    def of(cls, table: Mapping[str, list[Any]]) -> Responses:
        """The columns of all parts together as responses."""
        problems = tuple(f"{set_}/{name}" for set_, name in zip(table["benchmark"], table["problem"], strict=True))
        return cls(
            ids=tuple(table["id"]),
            checkpoint_B=np.asarray(table["checkpoint"], dtype=np.int64),
            problems=problems,
            problem_B=_numbered(problems),
            sample_B=np.asarray(table["sample"], dtype=np.int64),
            group_B=_numbered(table["group"]),
            reward_B=np.asarray([np.nan if value is None else value for value in table["reward"]], dtype=np.float64),
            scored_B=np.asarray(table["scored_tokens"], dtype=np.int64),
            truncated_B=np.asarray(table["truncated"], dtype=bool),
            cut_B=np.asarray(table["cut"], dtype=bool),
            from_text_B=np.asarray([source == "text" for source in table["ids_from"]], dtype=bool),
        )

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


def _numbered(names: Sequence[str]) -> Array:
    """[len] int, equal names equal numbers, in the order of first appearance."""
    numbers: dict[str, int] = {}
    return np.asarray([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)


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
        parts: rows file of each part and its responses.
    """

    folder: Path
    plan: dict[str, Any]
    responses: Responses
    parts: tuple[tuple[Path, slice], ...]

    def tokens(self, anchor: str) -> Iterator[Tokens]:
        """The tokens of each part with the log-probabilities of one anchor.

        Raises:
            DataError: The anchor was not scored, or a part's tokens are not those of its rows.
        """
        if anchor not in self.plan["anchors"]:
            hint = "--student MODEL" if anchor == STUDENT else f"--anchor {anchor}=MODEL"
            raise DataError(
                f"{self.folder} has no scores of anchor {anchor!r} (it has {', '.join(self.plan['anchors'])}); score "
                f"into a new folder with {hint}"
            )
        for path, rows in self.parts:
            tensors = part_tensors(path, (*TENSORS, ANCHOR + anchor))
            yield Tokens(rows, anchor_logp=tensors.pop(ANCHOR + anchor), **tensors)

    def ranks(self) -> Iterator[Tensor] | None:
        """[N] rank of each token under the teacher, 1 the largest, part by part; None unless all were ranked."""
        from safetensors.torch import load_file

        paths = [rank_path(path) for path, _ in self.parts]
        return (load_file(path)["rank"] for path in paths) if all(path.is_file() for path in paths) else None

    def column(self, name: str) -> list[Any]:
        """One column of the responses as Python values, for example ``response``."""
        return [value for path, _ in self.parts for value in part_table(path, [name])[name]]

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
    plan = _read_plan(folder)
    paths = part_paths(folder)
    tables = [part_table(path, list(TABLE)) for path in paths]
    ends = np.cumsum([0, *(len(table["id"]) for table in tables)]).tolist()
    if ends[-1] != len(plan[ASKED]):
        raise DataError(
            f"{folder} holds {ends[-1]} of {len(plan[ASKED])} responses: `nemo-uecr score` was interrupted, or a part "
            "is gone; run the same command again to finish it"
        )
    responses = Responses.of({name: [value for table in tables for value in table[name]] for name in TABLE})
    spans = [slice(start, end) for start, end in itertools.pairwise(ends)]
    return Scores(folder, plan, responses, tuple(zip(paths, spans, strict=True)))


def _read_plan(folder: Path) -> dict[str, Any]:
    path = folder / PLAN
    if not path.is_file():
        raise DataError(f"{folder} has no {PLAN}; expected a folder that `nemo-uecr score` wrote")
    plan: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if plan.get("format") != FORMAT:
        raise DataError(f"{path} has format {plan.get('format')!r}, expected {FORMAT!r}; score into a new folder")
    return plan


def part_paths(folder: Path) -> list[Path]:
    """Rows files of the complete parts, in order."""
    return sorted(folder.glob("part-??????.parquet"))


def rank_path(rows: Path) -> Path:
    """The teacher's exact rank of each token of a part, where the second pass was asked for."""
    return rows.with_suffix(".rank.safetensors")


def part_table(rows: Path, names: list[str]) -> dict[str, list[Any]]:
    """Columns of one part's responses."""
    import pyarrow.parquet as parquet

    columns: dict[str, list[Any]] = parquet.read_table(rows, columns=names).to_pydict()
    return columns


def part_tensors(rows: Path, names: Sequence[str]) -> dict[str, Tensor]:
    """Token tensors of one part.

    Raises:
        DataError: The tokens are not those of the part's rows, as after a copy that stopped halfway.
    """
    import pyarrow.parquet as parquet
    from safetensors import safe_open

    path = rows.with_suffix(".safetensors")
    if file_sha256(path) != parquet.read_schema(rows).metadata[TOKENS_SHA256].decode():
        raise DataError(f"{path} does not belong to {rows.name}: its sha256 differs. Copy the folder again, or score")
    with safe_open(str(path), framework="pt") as file:
        return {name: file.get_tensor(name) for name in names}


# Writing


def joined_plan(folder: Path, plan: Mapping[str, Any], ids: Set[str]) -> tuple[dict[str, Any], set[str]]:
    """The plan of a call on top of what the folder holds, and the responses that are scored already.

    Args:
        folder: the folder of scores, new or begun.
        plan: ``teacher``, ``anchors``, ``students``, ``sources`` and the settings of the scoring.
        ids: names of the call's responses.

    Raises:
        RunFolderError: The folder was scored differently, or an interrupted call left responses that this one lacks:
            half of the responses must not pass for all.
    """
    tables = [part_table(path, ["id", "checkpoint"]) for path in part_paths(folder)]
    done = {name for table in tables for name in table["id"]}
    wanted: dict[str, Any] = json.loads(json.dumps({"format": FORMAT, **plan, ASKED: sorted(ids)}))
    if not done:
        return wanted, done
    written = _read_plan(folder)
    wanted[ASKED] = sorted({*written[ASKED], *ids})
    lost = set(written[ASKED]) - done - ids
    if lost:
        raise RunFolderError(
            f"{folder} lacks {len(lost)} of the {len(written[ASKED])} responses of an interrupted `nemo-uecr score`, "
            f"and so does this call ({min(lost)!r}, for one); finish with the same command or a longer one, or choose "
            "another --out"
        )
    for key in sorted((wanted.keys() | written.keys()) - {ASKED, *GROWING}):
        if wanted.get(key) != written.get(key):
            raise RunFolderError(
                f"{folder} holds scores with {key}={written.get(key)!r}, this call has {wanted.get(key)!r}; choose "
                "another --out"
            )
    scored_steps = {str(step) for table in tables for step in table["checkpoint"]}
    written["students"] = {step: model for step, model in written["students"].items() if step in scored_steps}
    for key in GROWING:
        for name in written[key].keys() & wanted[key].keys():
            if written[key][name] != wanted[key][name]:
                raise RunFolderError(
                    f"{folder} was begun with {name} = {written[key][name]}, now {wanted[key][name]}; choose another "
                    "--out"
                )
        wanted[key] = written[key] | wanted[key]
    return wanted, done


def write_plan(folder: Path, plan: Mapping[str, Any]) -> None:
    """Write the plan, before the first scores that it is about."""
    replace_file(folder / PLAN, (json.dumps(plan, indent=1) + "\n").encode())


def write_part(folder: Path, rows: Sequence[Mapping[str, Any]], tensors: Mapping[str, Tensor]) -> None:
    """Write the next part: its tokens, then the rows that make it count. A kill between them leaves no part.

    Args:
        folder: the folder of scores.
        rows: [b] `COLUMNS` of each response.
        tensors: `TENSORS` and the anchors.
    """
    import pyarrow
    import pyarrow.parquet as parquet
    from safetensors.torch import save

    number = max((int(path.stem.removeprefix("part-")) for path in part_paths(folder)), default=-1) + 1
    path = folder / f"part-{number:06d}.parquet"
    tokens = save({name: tensor.contiguous() for name, tensor in tensors.items()}, metadata={"format": FORMAT})
    table = pyarrow.Table.from_pylist([dict(row) for row in rows], schema=_arrow_schema())
    content = io.BytesIO()
    sha256 = hashlib.sha256(tokens).hexdigest().encode()
    parquet.write_table(table.replace_schema_metadata({TOKENS_SHA256: sha256}), content)
    replace_file(path.with_suffix(".safetensors"), tokens)
    replace_file(path, content.getvalue())


def write_ranks(rows: Path, rank_N: Tensor) -> None:
    """Write the ranks of a part's tokens."""
    from safetensors.torch import save

    replace_file(rank_path(rows), save({"rank": rank_N.int().contiguous()}, metadata={"format": FORMAT}))


def _arrow_schema() -> Any:
    import pyarrow

    types = {
        "string": pyarrow.string(),
        "int64": pyarrow.int64(),
        "double": pyarrow.float64(),
        "bool": pyarrow.bool_(),
        "list<int32>": pyarrow.list_(pyarrow.int32()),
    }
    return pyarrow.schema(
        pyarrow.field(name, types[kind.removesuffix("?")], nullable=kind.endswith("?"))
        for name, kind in COLUMNS.items()
    )
