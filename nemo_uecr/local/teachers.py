"""The teachers: sources of scores of the student's tokens, and which of them scores a problem's responses.

A new kind of source is a class with the methods of `ModelTeacher`, and a case in `_load`.

Shape legend: B = responses, T = response tokens, n = responses of one teacher.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nemo_uecr.config.schema import (
    Config,
    DataConfig,
    OneTeacher,
    RoutingConfig,
    SelfTeacherConfig,
    TeacherConfig,
    UrlTeacherConfig,
)
from nemo_uecr.data.problems import check_routing, filled, teacher_name
from nemo_uecr.files import read_object, replace_file
from nemo_uecr.generation.engines import difference_of_ends, load_tokens
from nemo_uecr.generation.models import check_same_tokenizer
from nemo_uecr.generation.prompts import ChatSettings, prompt_ids
from nemo_uecr.hosted_teacher.client import TeacherServer
from nemo_uecr.local.memory import Placement
from nemo_uecr.local.probes import OwnEnds, Probe
from nemo_uecr.local.scores import score_teacher
from nemo_uecr.local.sequences import Prompt, Sequences, TeacherInputs, check_context
from nemo_uecr.local.token_model import TokenModel, check_same_tokens, load_model
from nemo_uecr.paths import resolve_path
from nemo_uecr.steps.routing import PolicyScores, TeacherScores, by_teacher, score_by_turns

log = logging.getLogger(__name__)

#: Reported once, with the first scores: how student and teacher end, and means of the gap in nats.
END_COST = "%s; its gap is %+.2f nats there, which moves the step's mean gap from %+.3f to %+.3f"
#: In the run folder: what each server served and scored when the run began.
PROBES = "teacher-probes.json"


@dataclass(frozen=True)
class ModelTeacher:
    """A frozen model on the run's own device."""

    model: TokenModel
    # Ids of the student's end tokens, where this teacher's own end tokens are scored instead; empty: nowhere.
    replaced_ends: frozenset[int] = field(default=frozenset(), kw_only=True)

    def view(self, prompt: Prompt) -> Prompt:
        """What it reads in place of a prompt of the student."""
        return prompt

    def check(self, views: Sequence[Prompt], response: int) -> None:
        """Refuse, at start, prompts (as it views them) that exceed its context with ``response`` more tokens."""
        check_context(views, self.model, "rollout.max_response_tokens", response)

    def score(
        self, sequences: Sequences, micro_rows: Sequence[Tensor], *, entropy: bool, probes: Sequence[Probe] = ()
    ) -> TeacherScores:
        """Scores of every response token of these rows; NaN in the others."""
        if not self.replaced_ends:
            return score_teacher(self.model, sequences, micro_rows, entropy=entropy, probes=probes)
        ends = OwnEnds(sequences.ends_BT(self.replaced_ends), self.model.tokens.end_ids)
        scores = score_teacher(self.model, sequences, micro_rows, entropy=entropy, probes=[*probes, ends])
        return replace(scores, logp_BT=scores.logp_BT + ends.difference_BT)

    def provenance(self, step: int) -> dict[str, str]:
        """Where its scores of a step come from, for the record."""
        return {"model": self.model.name}


@dataclass(frozen=True)
class SelfTeacher(ModelTeacher):
    """The student before training or as it is now, reading a prompt of its own: same tokens, another view."""

    template: str
    data: DataConfig
    initial: bool
    tools: Sequence[Mapping[str, Any]]  # the environment's

    def view(self, prompt: Prompt) -> Prompt:
        """The template filled with the problem's columns, rendered as the student's prompts are."""
        text, chat = filled(self.template, prompt.problem), ChatSettings.of(self.data.model_dump(), self.tools)
        ids = prompt_ids(self.model.tokenizer, text, chat, prompt.problem.context)
        return replace(prompt, token_ids=tuple(ids))

    def provenance(self, step: int) -> dict[str, str]:
        """Whose weights, and the view."""
        return {"weights": "initial" if self.initial else f"step {step - 1}", "prompt_template": self.template}


@dataclass(frozen=True)
class UrlTeacher:
    """A teacher on a server: it has no weights here, shows no logits, and reads the student's own prompts."""

    server: TeacherServer

    def view(self, prompt: Prompt) -> Prompt:
        """The prompt itself."""
        return prompt

    def check(self, views: Sequence[Prompt], response: int) -> None:
        """Refuse a server that is silent, reads too little, or has other columns or another model than the run's."""
        self.server.check(longest=max(len(prompt.token_ids) for prompt in views) + response)

    def score(
        self, sequences: Sequences, micro_rows: Sequence[Tensor], *, entropy: bool, probes: Sequence[Probe] = ()
    ) -> TeacherScores:
        """Scores over HTTP, row by row; there are no logits for ``probes``."""
        rows = torch.cat(list(micro_rows)).tolist()
        texts = {row: (sequences.prompts[row].token_ids, sequences.responses[row].token_ids) for row in rows}
        logp_BT, entropy_BT = sequences.no_scores(), sequences.no_scores()
        for row, scores_2t in self.server.score(texts).items():
            kept_T = sequences.mask_BT[row]
            logp_BT[row, kept_T], entropy_BT[row, kept_T] = scores_2t[:, kept_T[: scores_2t.shape[1]]]
        return TeacherScores(logp_BT, entropy_BT if entropy else None)

    def provenance(self, step: int) -> dict[str, str]:
        """URL and reported model; its weights are verified only by the probes."""
        return self.server.provenance()


Teacher = ModelTeacher | UrlTeacher


@dataclass(frozen=True)
class Teachers:
    """The run's teachers by name, none where the method reads none."""

    by_name: Mapping[str, Teacher] = field(default_factory=dict)  # an unnamed one is called `teacher`
    routing: RoutingConfig | None = None  # which column of a problem names its teacher
    student_ends: frozenset[int] = frozenset()  # ids of the tokens that end the student's responses
    left_out: frozenset[str] = frozenset()  # names of those whose gap at the student's end token is 0
    unreported_ends: dict[str, str] = field(default_factory=dict)  # by teacher; reported with its first scores

    @property
    def models(self) -> list[TokenModel]:
        return [teacher.model for teacher in self.by_name.values() if isinstance(teacher, ModelTeacher)]

    def inputs(self, sequences: Sequences) -> TeacherInputs:
        """Each row's teacher, and what it reads in place of the row's prompt, with the same response after it."""
        names = [teacher_name(prompt.problem, self.routing, self.by_name) for prompt in sequences.prompts]
        views = [self.by_name[name].view(prompt) for name, prompt in zip(names, sequences.prompts, strict=True)]
        return TeacherInputs(names, Sequences(views, sequences.responses), self.student_ends)

    def keep_probes(self, folder: Path) -> None:
        """Write what the servers served and scored when the run began into its folder, for a resumed run to compare."""
        first = {name: each.server.first for name, each in self.by_name.items() if isinstance(each, UrlTeacher)}
        if first:
            replace_file(folder / PROBES, json.dumps(first).encode())

    def check(self, prompts: Sequence[Prompt], response: int) -> None:
        """Refuse, at start, a problem without a teacher, and what its teacher cannot read."""
        check_routing([prompt.problem for prompt in prompts], self.routing, self.by_name)
        inputs = self.inputs(Sequences(prompts, ()))
        for teacher, rows_n in by_teacher(self.by_name, inputs.names):
            teacher.check([inputs.sequences.prompts[row] for row in rows_n.tolist()], response)

    def score(
        self,
        inputs: TeacherInputs,
        micro_rows: Sequence[Tensor],
        placement: Placement,
        student: PolicyScores,
        *,
        entropy: bool,
        probes: Sequence[Probe],
    ) -> TeacherScores:
        """Scores of every row by its own teacher; the teachers take turns on the device, each loads once.

        Where an end token is left out of the gap, its score is the ``student``'s.
        """

        def score(teacher: Teacher, rows_n: Tensor) -> TeacherScores:
            if isinstance(teacher, ModelTeacher):
                placement.move_to_device(teacher.model.member)
            own = [mine for rows in micro_rows if len(mine := rows[torch.isin(rows, rows_n)])]
            return teacher.score(inputs.sequences, own, entropy=entropy, probes=probes).select(rows_n)

        scores = score_by_turns(self.by_name, inputs.names, score)
        left_out_B1 = torch.tensor([[name in self.left_out] for name in inputs.names])
        logp_BT = scores.logp_BT.where(~(inputs.ends_BT & left_out_B1), student.logp_BT)
        for name in self.unreported_ends.keys() & set(inputs.names):
            own_BT = inputs.sequences.mask_BT & torch.tensor([[each == name] for each in inputs.names])
            parts = (own_BT & inputs.ends_BT, own_BT & ~inputs.ends_BT, own_BT)
            if parts[0].any():
                end, rest, all_ = (float((logp_BT - student.logp_BT)[part_BT].mean()) for part_BT in parts)
                log.warning(END_COST, self.unreported_ends.pop(name), end, rest, all_)
        return replace(scores, logp_BT=logp_BT)

    def provenance(self, step: int) -> dict[str, dict[str, str]]:
        """Where each teacher's scores of a step come from."""
        return {name: teacher.provenance(step) for name, teacher in self.by_name.items()}


def load_teachers(
    config: Config,
    student: TokenModel,
    initial: Callable[[], TokenModel],
    device: Callable[[str], torch.device],
    tools: Sequence[Mapping[str, Any]],
) -> Teachers:
    """The teachers that the method reads.

    ``initial`` gives the student as it was before training, ``device`` where a member of `Placement` waits; ``tools``
    are the environment's.
    """
    loaded: dict[object, Teacher] = {}
    by_name: dict[str, Teacher] = {}
    left_out, unreported_ends, ends = set(), dict[str, str](), student.tokens.end_ids
    for key, section in config.active_teachers.items():
        name, source = key.removeprefix("teachers."), section
        if isinstance(section, TeacherConfig):  # one folder is one teacher, under whichever path
            place = os.path.realpath(resolve_path(str(section.model_name)))
            source = section.model_copy(update={"model_name": place})
        asked = None if isinstance(section, SelfTeacherConfig) else section.end_token
        if source not in loaded:
            loaded[source], theirs = _load(config, student, initial, device, tools, key, section)
            difference = difference_of_ends(student.tokenizer, ends, theirs)
            if difference and asked is None:
                unreported_ends[name] = f"{key}: {difference}"
                log.warning("%s: %s; %s.end_token sets how that token is scored", key, difference, key)
        by_name[name] = loaded[source]
        if asked == "left_out":
            left_out.add(name)
    return Teachers(by_name, config.routing, ends, frozenset(left_out), unreported_ends)


def _load(
    config: Config,
    student: TokenModel,
    initial: Callable[[], TokenModel],
    device: Callable[[str], torch.device],
    tools: Sequence[Mapping[str, Any]],
    key: str,
    section: OneTeacher,
) -> tuple[Teacher, frozenset[int]]:
    """A teacher, and the ids of the tokens that end its responses."""
    ends, columns = student.tokens.end_ids, student.vocabulary
    if isinstance(section, TeacherConfig):
        name, dtype = resolve_path(str(section.model_name)), str(section.dtype)
        model = load_model(
            name, role=key, dtype=dtype, device=device(key), master_weights=False, quantize=section.quantize
        )
        model.module.requires_grad_(False)
        check_same_tokens(student, model)
        replaced = ends if section.end_token == "own" else frozenset[int]()
        teacher = ModelTeacher(model.restrict_to_student_vocab(columns), replaced_ends=replaced)
        return teacher, model.tokens.end_ids
    if isinstance(section, UrlTeacherConfig):
        tokens = load_tokens(resolve_path(section.tokenizer))
        check_same_tokenizer(student.tokenizer, tokens.tokenizer, (columns, columns))
        kept = Path(config.run.folder) / PROBES  # of a run that is continued
        first = read_object(kept)[key.removeprefix("teachers.")] if kept.exists() else {}
        server = TeacherServer(section, columns, len(tokens.tokenizer), config.tolerances.teacher_probe, first)
        return UrlTeacher(server), tokens.end_ids
    before = section.self == "initial"
    return SelfTeacher(initial() if before else student, section.prompt_template, config.data, before, tools), ends
