"""The teachers: sources of scores of the student's tokens, and which of them scores a problem's responses.

A new kind of source is a subclass of `Teacher`, and a line in `load_teachers`.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from nemo_uecr.config.schema import Config, DataConfig, RoutingConfig, TeacherConfig, UrlTeacherConfig
from nemo_uecr.core.agreement import Places
from nemo_uecr.data.problems import check_routing, filled, teacher_name
from nemo_uecr.files import read_object, replace_file
from nemo_uecr.generation.engines import difference_of_ends, load_tokens
from nemo_uecr.generation.models import check_same_tokenizer, prompt_ids, turns_before
from nemo_uecr.local.memory import Placement
from nemo_uecr.local.provenance import Locate
from nemo_uecr.local.scores import Scores, Teacher, score
from nemo_uecr.local.sequences import Prompt, Reading, Sequences, check_context
from nemo_uecr.local.token_model import TokenModel, check_same_tokens, load_model
from nemo_uecr.local.url_teacher import UrlTeacher

log = logging.getLogger(__name__)

#: Said once, when the first responses are scored: how student and teacher end, and means of the gap in nats.
END_COST = "%s; its gap is %+.2f nats there, which moves the step's mean gap from %+.3f to %+.3f"
#: In the run folder: what each server said and scored when the run began.
PROBES = "teacher-probes.json"


@dataclass(frozen=True)
class ModelTeacher(Teacher):
    """A frozen model on the run's own device."""

    model: TokenModel
    member: str
    # The student's end tokens, in whose place its own are scored; none: the sampled token is.
    replaced_ends: frozenset[int] = field(default=frozenset(), kw_only=True)

    @property
    def members(self) -> Mapping[str, TokenModel]:
        """Its own weights."""
        return {self.member: self.model}

    def check(self, views: Sequence[Prompt], response: int) -> None:
        """Refuse sequences longer than its context."""
        check_context(views, self.model, "rollout.max_response_tokens", response)

    def score(self, read: Sequences, micro_rows: Sequence[Tensor], *, entropy: bool, places: Places | None) -> Scores:
        """Its own forward."""
        own_BT = read.ends_BT(self.replaced_ends) if self.replaced_ends else None
        one = (1.0,)
        return score(self.model, read, micro_rows, temperatures=one, entropy=entropy, places=places, own_ends_BT=own_BT)

    def terms(self, step: int) -> dict[str, str]:
        """Its name."""
        return {"model": self.model.name}


@dataclass(frozen=True)
class SelfTeacher(ModelTeacher):
    """The student, as it was before training or as it is, behind a prompt of its own: same tokens, another view."""

    template: str
    data: DataConfig
    initial: bool

    def view(self, prompt: Prompt) -> Prompt:
        """The template filled with the problem's columns, rendered as the student's prompts are."""
        text, data = filled(self.template, prompt.problem), self.data
        before = turns_before(data.system_prompt, prompt.problem.context)
        ids = prompt_ids(self.model.tokenizer, text, thinking=data.enable_thinking, before=before)
        return replace(prompt, token_ids=tuple(ids))

    def terms(self, step: int) -> dict[str, str]:
        """Whose weights, and the view."""
        return {"weights": "initial" if self.initial else f"step {step - 1}", "prompt_template": self.template}


@dataclass(frozen=True)
class Teachers:
    """The run's teachers by name."""

    by_name: Mapping[str, Teacher]  # an unnamed one is called `teacher`
    routing: RoutingConfig | None  # which column of a problem names its teacher
    student_ends: frozenset[int]  # ids of the tokens that end the student's responses
    left_out: frozenset[str]  # names of those whose gap at the student's end token is 0
    unreported_ends: dict[str, str]  # by teacher; reported with its first scores

    def places(self, mask_BT: Tensor, student: TokenModel, *, seed: int) -> Places | None:
        """Where the student is compared with them; None where every teacher is behind a URL."""
        models = [model for teacher in self.by_name.values() for model in teacher.members.values()]
        columns = min(model.vocabulary for model in (student, *models))
        return Places.of(mask_BT, columns=columns, seed=seed) if models else None

    def reading(self, sequences: Sequences, places: Places | None) -> Reading:
        """What the teachers read in place of these prompts, each behind its own problem's."""
        names = [teacher_name(prompt.problem, self.routing, self.by_name) for prompt in sequences.prompts]
        views = [self.by_name[name].view(prompt) for name, prompt in zip(names, sequences.prompts, strict=True)]
        return Reading(names, Sequences(views, sequences.responses), places, self.student_ends)

    def keep_probes(self, folder: Path) -> None:
        """Write what a run's servers were when it began into its folder, where a resumed run finds it."""
        first = {name: teacher.first for name, teacher in self.by_name.items() if isinstance(teacher, UrlTeacher)}
        if first:
            replace_file(folder / PROBES, json.dumps(first).encode())

    def check(self, prompts: Sequence[Prompt], response: int) -> None:
        """Refuse, at start, a problem without a teacher, and what its teacher cannot read."""
        check_routing([prompt.problem for prompt in prompts], self.routing, self.by_name)
        reading = self.reading(Sequences(prompts, ()), None)
        for teacher, mine_B in self._turns(reading.names):
            views = [view for view, mine in zip(reading.sequences.prompts, mine_B.tolist(), strict=True) if mine]
            teacher.check(views, response)

    def score(
        self, reading: Reading, micro_rows: Sequence[Tensor], placement: Placement, student: Scores, *, entropy: bool
    ) -> Scores:
        """Scores of every row by its own teacher; the teachers take turns on the device, each loads once.

        Those of the ``student``, at temperature 1 its last, are where an end token is left out of the gap.
        """
        whole: dict[str, Tensor] = {}
        top_NK = None if reading.places is None else reading.places.no_ids()
        for teacher, mine_B in self._turns(reading.names):
            if teacher.members:
                placement.need(*teacher.members)
            rows = [own for rows in micro_rows if len(own := rows[mine_B[rows]])]
            found = teacher.score(reading.sequences, rows, entropy=entropy, places=reading.places)
            for name, own_BT in (("logp", found.logp[0]), ("H", found.entropy_BT), ("dropped", found.dropped_BT)):
                if own_BT is not None:
                    whole.setdefault(name, torch.full(own_BT.shape, torch.nan))[mine_B] = own_BT[mine_B]
            if top_NK is not None and found.top_NK is not None:  # -1 at the others' tokens
                top_NK = top_NK.maximum(found.top_NK)
        out_B = torch.tensor([name in self.left_out for name in reading.names])
        whole["logp"] = whole["logp"].where(~(reading.ends_BT & out_B.unsqueeze(1)), student.logp[-1])
        for name in self.unreported_ends.keys() & set(reading.names):
            own_BT = reading.sequences.mask_BT & torch.tensor([each == name for each in reading.names]).unsqueeze(1)
            gap_BT = whole["logp"] - student.logp[-1]
            parts = (own_BT & reading.ends_BT, own_BT & ~reading.ends_BT, own_BT)
            if parts[0].any():
                end, rest, all_ = (float(gap_BT[part_BT].mean()) for part_BT in parts)
                log.warning(END_COST, self.unreported_ends.pop(name), end, rest, all_)
        return Scores((whole["logp"],), whole.get("H"), dropped_BT=whole.get("dropped"), top_NK=top_NK)

    def terms(self, step: int) -> dict[str, dict[str, str]]:
        """What stands behind each teacher's scores of a step."""
        return {name: teacher.terms(step) for name, teacher in self.by_name.items()}

    def _turns(self, names: Sequence[str]) -> Iterator[tuple[Teacher, Tensor]]:
        """Each source that has rows, with [B] which are its own; names of one source share its turn."""
        for teacher in {id(each): each for each in self.by_name.values()}.values():
            mine_B = torch.tensor([self.by_name[name] is teacher for name in names])
            if bool(mine_B.any()):
                yield teacher, mine_B


def load_teachers(
    config: Config,
    student: TokenModel,
    initial: Callable[[], TokenModel],
    *,
    locate: Locate,
    device: Callable[[str], torch.device],
) -> Teachers | None:
    """The teachers that the method reads; None where it reads none.

    ``initial`` gives the student as it was before training, ``device`` says where a member of `Placement` waits.
    """
    loaded: dict[object, Teacher] = {}
    by_name: dict[str, Teacher] = {}
    ends, unreported_ends = student.tokens.end_ids, dict[str, str]()

    def compare_ends(key: str, theirs: frozenset[int], asked: str | None) -> None:
        if (said := difference_of_ends(student.tokenizer, ends, theirs)) and asked is None:
            unreported_ends[key.removeprefix("teachers.")] = said = f"{key}: {said}"
            log.warning("%s; %s.end_token says what that token counts", said, key)

    for key, section in config.active_teachers.items():
        source: object = section
        if isinstance(section, TeacherConfig):
            name, dtype = locate(str(section.model_name)), str(section.dtype)
            source = section.model_copy(update={"model_name": os.path.realpath(name)})
            if source not in loaded:
                model = load_model(
                    name, role=key, dtype=dtype, device=device(key), master_weights=False, quantize=section.quantize
                )
                model.module.requires_grad_(False)
                check_same_tokens(student, model)
                compare_ends(key, model.tokens.end_ids, section.end_token)
                replaced = ends if section.end_token == "own" else frozenset[int]()
                loaded[source] = ModelTeacher(model.beside(student.vocabulary), key, replaced_ends=replaced)
        elif source in loaded:
            pass
        elif isinstance(section, UrlTeacherConfig):
            tokens = load_tokens(locate(section.tokenizer))
            theirs = tokens.tokenizer
            check_same_tokenizer(student.tokenizer, theirs, (student.vocabulary, student.vocabulary))
            compare_ends(key, tokens.end_ids, section.end_token)
            kept = Path(config.run.folder) / PROBES  # of a run that is continued
            first = read_object(kept)[key.removeprefix("teachers.")] if kept.exists() else {}
            tolerance = config.tolerances.teacher_probe
            loaded[source] = UrlTeacher(section, student.vocabulary, len(theirs), tolerance, first)
        else:
            model = initial() if section.self == "initial" else student
            member = "student" if model.module is student.module else "reference"
            loaded[source] = SelfTeacher(model, member, section.prompt_template, config.data, section.self == "initial")
        by_name[key.removeprefix("teachers.")] = loaded[source]
    asked = {key: getattr(section, "end_token", None) for key, section in config.active_teachers.items()}
    left_out = frozenset(key.removeprefix("teachers.") for key, choice in asked.items() if choice == "left_out")
    return Teachers(by_name, config.routing, ends, left_out, unreported_ends) if by_name else None
