"""Scored responses, as every audit reads them: a run's saved batches, or a folder that `nemo-uecr score` wrote.

Both are tables of responses. A folder of scores has ``scores.json``, which records how the responses were scored and
lists all that were asked for, and a part for each batch of them, ``part-000000.parquet``.

Shape legend: B = responses, P = groups, K = problems, b = responses of one checkpoint, N = sampled tokens in a flat
list.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nemo_uecr.config.load import own_sections, read_written
from nemo_uecr.core.record import group_ids
from nemo_uecr.errors import DataError, RunFolderError
from nemo_uecr.files import read_object, replace_file
from nemo_uecr.responses.table import ANCHOR, Responses, next_part, part_paths, read_responses, write_responses
from nemo_uecr.stats import Array, clusters_of
from nemo_uecr.telemetry.run_folder import read_run

FORMAT = "nemo_uecr.scores/5"
PLAN = "scores.json"
#: Key in the plan: ids of all responses that were asked for.
ASKED_IDS = "asked"
#: Keys of the plan that later calls extend; the first call fixes all others.
APPEND_ONLY = ("students", "sources")
#: The anchor that generated the responses.
STUDENT = "student"


# Reading


@dataclass(frozen=True)
class CheckpointTokens:
    """Token scores of one checkpoint's responses in flat lists, with the log-probabilities of one anchor."""

    rows: Array  # [b] index of each response in `Scored`
    offsets: Array  # [b + 1] first token of each
    token_ids: Tensor
    teacher_logp: Tensor
    anchor_logp: Tensor
    teacher_entropy: Tensor | None  # None in a run whose method does not read it
    teacher_rank: Tensor | None  # 1 for the teacher's first choice; None in a run that did not rank

    def span(self, row: int) -> slice:
        """The tokens of a response."""
        return slice(int(self.offsets[row]), int(self.offsets[row + 1]))

    @property
    def entropy(self) -> Tensor:
        """The teacher's entropies, for an audit that needs them."""
        if self.teacher_entropy is None:
            raise DataError(
                "these responses have no teacher_entropy, since the run's method does not read it; score one of its "
                "saved batches: nemo-uecr score RUN/batches/step-000001.parquet --out SCORES"
            )
        return self.teacher_entropy

    @property
    def row_N(self) -> Array:
        """[N] response of each token, in [0, b)."""
        return np.repeat(np.arange(len(self.rows)), np.diff(self.offsets))

    @property
    def gap_N(self) -> Array:
        """[N] float64 ``log pi_T(y) - log pi_anchor(y)``."""
        return np.asarray(self.teacher_logp.double() - self.anchor_logp.double())


@dataclass(frozen=True)
class Scored:
    """Scored responses of one or more checkpoints, how they were scored, and one entry of each array per response."""

    folder: Path
    plan: dict[str, Any]
    tables: tuple[Responses, ...]  # each of one checkpoint, in the order of the responses
    ids: tuple[str, ...]  # unique
    checkpoint_B: Array  # training step of the policy that generated the response
    problems: tuple[str, ...]  # [BENCHMARK/]PROBLEM
    problem_B: Array  # in [0, K), the cluster of the bootstrap
    sample_B: Array  # number among the responses to one prompt
    group_B: Array  # in [0, P): responses to one prompt by one checkpoint
    reward_B: Array  # 1 where the response counts as correct, 0 where it does not; NaN if not verified
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

    def tokens(self, anchor: str, checkpoint: int) -> CheckpointTokens:
        """The tokens of one checkpoint's responses, with the log-probabilities of one anchor."""
        anchors, steps = self.plan["anchors"], self.checkpoints
        if anchor not in anchors:
            raise DataError(
                f"{self.folder} has no scores of anchor {anchor!r} (it has {', '.join(anchors)}); score into a new "
                f"folder with --anchor {anchor}=MODEL"
            )
        if checkpoint not in steps:
            raise DataError(f"{self.folder} has no response of checkpoint {checkpoint}; expected one of {steps}")
        rows = np.flatnonzero(self.checkpoint_B == checkpoint)
        firsts = np.cumsum([0, *map(len, self.tables)])[:-1]
        own = [
            table for table, first in zip(self.tables, firsts, strict=True) if self.checkpoint_B[first] == checkpoint
        ]

        def flat(name: str) -> Tensor:
            return torch.cat([table.tokens(name) for table in own])

        known = {*own[0].names}.intersection(*(table.names for table in own))

        return CheckpointTokens(
            rows=rows,
            offsets=np.concatenate([[0], np.cumsum(self.scored_B[rows])]),
            token_ids=flat("token_ids"),
            teacher_logp=flat("teacher_logp"),
            anchor_logp=flat("old_logp" if anchor == STUDENT else ANCHOR + anchor),
            teacher_entropy=flat("teacher_entropy") if "teacher_entropy" in known else None,
            teacher_rank=flat("teacher_rank") if "teacher_rank" in known else None,
        )

    def column(self, name: str) -> list[Any]:
        """One column of the responses as Python values, for example ``response``."""
        return [value for table in self.tables for value in table.column(name)]

    def provenance(self) -> dict[str, Any]:
        """What was scored and how, for the numbers of an audit."""
        return {
            "plan": {key: value for key, value in self.plan.items() if key not in ("format", ASKED_IDS)},
            "responses": len(self.ids),
            "groups": int(self.group_B.max()) + 1,
            "problems": int(self.problem_B.max()) + 1,
            "checkpoints": self.checkpoints,
            "scored_tokens": int(self.scored_B.sum()),
            "responses_truncated_in_generation": int(self.truncated_B.sum()),
            "responses_cut_in_scoring": int(self.cut_B.sum()),
            "responses_with_token_ids_from_text": int(self.from_text_B.sum()),
        }


def read_scored(folder: Path) -> Scored:
    """The scored responses of a run's saved batches or of a finished folder of scores; tokens are read on demand."""
    if (folder / PLAN).is_file():
        return _read_scores(folder)
    if not (folder / "config.yaml").is_file():
        raise DataError(
            f"{folder} has no {PLAN} and no config.yaml; expected a run folder, or one that `nemo-uecr score` wrote"
        )
    return _read_run(folder)


def _read_run(folder: Path) -> Scored:
    """What the run scored itself: the policy that generated each saved batch, and its teachers."""
    run = read_run(folder)
    tables = tuple(map(read_responses, run.batches_to_read.values()))
    if not tables:
        raise DataError(
            f"{folder} has no saved batch; expected a run with telemetry.save_batch_every > 0, or a folder that "
            "`nemo-uecr score` wrote"
        )
    if unscored := [table.path for table in tables if "teacher_logp" not in table.names]:
        raise DataError(
            f"{unscored[0]} has no scores of a teacher, which method {run.method} does not read; get them with "
            f"nemo-uecr score {unscored[0]} --teacher MODEL --out SCORES"
        )
    teacher = own_sections(read_written(folder / "config.yaml")).get("teacher") or {}
    plan = {
        "run": str(folder),
        "teacher": {"name": teacher.get("model_name")},
        "teachers": {str(table.about["step"]): table.about["teachers"] for table in tables},
        "anchors": {STUDENT: "the policy that generated the response"},
        "temperature": 1.0,
    }
    return _scored(folder, plan, tables)


def _read_scores(folder: Path) -> Scored:
    plan = _read_plan(folder)
    tables = tuple(map(read_responses, part_paths(folder)))
    found = sorted(name for table in tables for name in table.column("id"))
    if found != plan[ASKED_IDS]:  # the numbers of some would look like those of all
        raise DataError(
            f"{folder} has {len(found)} of {len(plan[ASKED_IDS])} responses: `nemo-uecr score` was interrupted, or a "
            "part is gone; run the same command again to finish it"
        )
    return _scored(folder, plan, tables)


def _scored(folder: Path, plan: dict[str, Any], tables: tuple[Responses, ...]) -> Scored:
    def column(name: str) -> list[Any]:
        return [value for table in tables for value in table.column(name)]

    names = zip(column("benchmark"), column("problem"), strict=True)
    problems = tuple(problem if benchmark is None else f"{benchmark}/{problem}" for benchmark, problem in names)
    checkpoints, cpu = column("checkpoint"), torch.device("cpu")
    return Scored(
        folder=folder,
        plan=plan,
        tables=tables,
        ids=tuple(column("id")),
        checkpoint_B=np.asarray(checkpoints),
        problems=problems,
        problem_B=asked_alike(problems, column("prompt_ids"), column("asked")),
        sample_B=np.asarray(column("sample")),
        group_B=group_ids(list(zip(checkpoints, column("group"), strict=True)), cpu).numpy(),
        reward_B=np.asarray(column("correct"), dtype=np.float64),  # None becomes NaN
        scored_B=np.concatenate([table.count_B for table in tables]),
        truncated_B=np.asarray(column("truncated")),
        cut_B=np.asarray(column("cut")) == True,  # noqa: E712 - None in a run, which cuts nothing
        from_text_B=np.asarray(column("ids_from")) == "text",
    )


def asked_alike(problems: Sequence[str], prompts: Sequence[Sequence[int]], asked: Sequence[str | None]) -> Array:
    """[B] the cluster of each response: a problem is one, and so are problems that are ``asked`` alike.

    Where that is not known, those whose first prompts are equal.
    """
    first: dict[str, Hashable] = {}
    rows = zip(problems, prompts, asked, strict=True)
    return clusters_of([first.setdefault(problem, own or tuple(prompt)) for problem, prompt, own in rows])


def _read_plan(folder: Path) -> dict[str, Any]:
    path = folder / PLAN
    if not path.is_file():
        raise DataError(f"{folder} has no {PLAN} of format {FORMAT!r}; expected a folder that `nemo-uecr score` wrote")
    return read_object(path, form=FORMAT)


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
    done = {name for path in paths for name in read_responses(path).column("id")}
    return joined | {ASKED_IDS: sorted({*written[ASKED_IDS], *ids})}, done


def write_plan(folder: Path, plan: Mapping[str, Any]) -> None:
    """Write the plan; it precedes the first scores."""
    replace_file(folder / PLAN, (json.dumps(plan, indent=1) + "\n").encode())


def write_part(folder: Path, rows: Mapping[str, Sequence[Any]], tokens: Mapping[str, Tensor]) -> None:
    """Write the next part, a table of responses of one checkpoint."""
    write_responses(next_part(folder), rows, tokens, about={})
