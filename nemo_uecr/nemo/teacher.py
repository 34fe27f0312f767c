"""The teacher: a frozen Megatron policy on the student's GPUs only while it scores, or on GPUs of its own.

Shape legend: B = responses, S = tokens of prompt and response (padded).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nemo_uecr.errors import DataError
from nemo_uecr.generation.models import only_here, output_columns
from nemo_uecr.nemo import upstream
from nemo_uecr.nemo.recipe import Settings, TeacherSection, teacher_policy
from nemo_uecr.nemo.score_checks import score
from nemo_uecr.nemo.worker_scoring import ScoreRequest
from nemo_uecr.responses.replay import OF_A_METHOD
from nemo_uecr.responses.table import Responses, write_again
from nemo_uecr.steps.routing import TeacherScores, score_by_turns


def columns_of(model: str) -> int:
    """Output columns of a model, by its own configuration: a local folder or a hub name."""
    return output_columns(model, local_files_only=only_here(model))


#: Columns of a saved batch that depend on its teacher; none of them is kept when another teacher scores the step.
OF_A_TEACHER = {"teacher", "teacher_logp", "teacher_entropy"} | OF_A_METHOD


class RayTeacher:
    """A teacher over Ray workers, without optimizer, gradient buffers or reference model."""

    def __init__(
        self,
        settings: Settings,
        section: TeacherSection,
        *,
        student: Mapping[str, Any],
        cluster: Any,
        tokenizer: Any,
        stays: bool,
        workers: str = "teacher",
    ) -> None:
        """Build the workers from the recipe's policy ``student``; a teacher that does not stay leaves the GPU."""
        self._stays, self._seconds = stays, settings.timeout_s
        name = section.model_name
        self._limit_mebi = section.offload_limit_mebi
        #: Columns of its output, without the padding that Megatron adds.
        self.columns = columns_of(name)
        #: Offloads that are still to be measured: the one after the start, and the one after the first scoring.
        self._to_measure = 2
        self._policy = upstream.native("Policy")(
            cluster=cluster, config=teacher_policy(section, student, self.columns), tokenizer=tokenizer,
            name_prefix=workers, init_optimizer=False, init_reference_model=False, weights_path=None,
            optimizer_path=None, worker_extension_cls_fqn=upstream.WORKER_FQN,
        )  # fmt: skip
        self.offload()

    @property
    def row_multiple(self) -> int:
        """Rows of a scoring pass come in this multiple."""
        return upstream.row_multiple(self._policy)

    def load(self) -> None:
        """Bring the weights to the GPU."""
        if not self._stays:
            upstream.call_all(self._policy, "prepare_for_lp_inference", seconds=self._seconds)

    def offload(self) -> None:
        """Free the GPU's memory; an error where a measured offload keeps too much of it."""
        if self._stays:
            return
        upstream.call_all(self._policy, "offload_after_refit", seconds=self._seconds)
        if self._to_measure:
            upstream.call_all(self._policy, "assert_offloaded", seconds=self._seconds, limit_mebi=self._limit_mebi)
            self._to_measure -= 1

    def score_tokens(self, data: Any, request: ScoreRequest) -> Any:
        """Columns of the request."""
        return upstream.score_on_workers(self._policy, data, request, seconds=self._seconds)

    def shutdown(self) -> bool:
        """End the workers."""
        return bool(self._policy.shutdown())


def score_by_teachers(
    teachers: Mapping[str, Any], names: Sequence[str], data: Any, request: Callable[[int], ScoreRequest]
) -> tuple[TeacherScores, Tensor]:
    """Scores of each row by its own teacher, and the teacher's most likely ids; it is on the GPU for its turn alone.

    The experts that generation chose for the student say nothing of a teacher, which never sees them.
    """
    tops: list[tuple[Tensor, Tensor]] = []

    def score_own(teacher: Any, rows_n: Tensor) -> TeacherScores:
        own = type(data)({name: column[rows_n] for name, column in data.items() if name != upstream.ROUTES})
        teacher.load()
        columns = score(teacher, own, request(teacher.columns), name=names[int(rows_n[0])])
        teacher.offload()
        tops.append((rows_n, columns["top_ids"]))
        return TeacherScores(columns["logp"], columns.get("entropy"), columns.get("dropped"))

    scores = score_by_turns(teachers, names, score_own)
    order_B = torch.cat([rows_n for rows_n, _ in tops]).argsort()
    return scores, torch.cat([top_nK for _, top_nK in tops])[order_B]


def score_saved_batch(settings: Settings, native: Any, gpus_of_nodes: list[int], saved: Responses, out: Path) -> None:
    """Write the batch with the scores of the run's only teacher, alone on its GPUs, in place of those that it had.

    The advantages that the run saved came from its own teacher and are left out. ``native`` is NeMo-RL's configuration.
    """
    (section,) = settings.teachers.values()
    rows = _rows_of(saved, settings.vocabulary)
    native.policy["megatron_cfg"]["train_iters"] = 1  # as the loop's set-up would; a scorer makes no training step
    tokenizer = upstream.start(native)
    upstream.register_worker()
    cluster = upstream.teacher_cluster(gpus_of_nodes)
    # It stays where it is: an offload that fails would lose the scores.
    teacher = RayTeacher(settings, section, student=native.policy, cluster=cluster, tokenizer=tokenizer, stays=True)
    whole = ScoreRequest({"logp": 1.0}, True, settings.vocabulary, settings.chunk_tokens)
    request = whole.to_teacher(teacher.columns)
    columns = score(teacher, upstream.native("BatchedDataDict")(rows), request, name="teacher")
    scores = {"teacher_logp": columns["logp"], "teacher_entropy": columns["entropy"]}
    about = {name: value for name, value in saved.about.items() if name not in ("arithmetic", "teachers")}
    write_again(saved, out, rows={}, tokens=scores, without=OF_A_TEACHER, about=about)
    teacher.shutdown()


def _rows_of(saved: Responses, vocabulary: int) -> dict[str, Tensor]:
    """The columns that scoring reads of a saved batch; a row ends with its last sampled token."""
    if not saved.about.get("prompts"):
        raise DataError(f"{saved.path} is not laid out with its prompts; expected a step of the NeMo-RL back end")
    mask_BS, ids_BS = saved.padded("sampled"), saved.padded("token_ids")
    if (largest := int(ids_BS.max())) >= vocabulary:
        raise DataError(
            f"the batch has token id {largest}; expected ids below the student's {vocabulary} columns: give the recipe "
            "of the run that saved it"
        )
    return {
        "input_ids": ids_BS,
        "input_lengths": (mask_BS * torch.arange(1, mask_BS.shape[1] + 1)).max(dim=1).values,
        "token_mask": mask_BS.float(),
        "sample_mask": torch.ones(ids_BS.shape[0]),
    }
