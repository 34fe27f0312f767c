"""A teacher's scores of a saved batch, without a run around them.

Shape legend: B = responses, S = tokens of prompt and response (padded).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from nemo_uecr.config.nemo_schema import NemoConfig
from nemo_uecr.data.batch_file import SavedBatch, save_batch
from nemo_uecr.errors import ConfigError, DataError
from nemo_uecr.megatron_worker.request import ScoreRequest
from nemo_uecr.nemo_adapter import upstream
from nemo_uecr.nemo_adapter.preflight import check_teacher_alone, check_visible_teacher
from nemo_uecr.nemo_adapter.scorer import on_device, score
from nemo_uecr.nemo_adapter.teacher_plan import teacher_plan
from nemo_uecr.nemo_adapter.teachers import RayTeacher, teacher_cluster
from nemo_uecr.nemo_adapter.translate import master_config
from nemo_uecr.nemo_adapter.translate_policy import scoring_policy_config


def score_saved_batch(config: NemoConfig, saved: SavedBatch, out: Path) -> None:
    """Write the batch with the scores of the configuration's teacher in the place of those it had.

    Args:
        config: of the NeMo-RL back end; its cluster is the teacher's alone.
        saved: a batch with ``token_ids``.
        out: file to write.

    Raises:
        UpstreamError: another NeMo-RL is installed.
        ConfigError: the method reads no teacher, or the teacher cannot be cut or fed as the configuration says.
        DataError: the batch has no token ids, or the teacher is not there or has other tokens than the student.
    """
    plan = teacher_plan(config)
    if plan is None:
        raise ConfigError(f"method.name: {config.method.name} reads no teacher; expected one that does, such as uecr")
    rows = _rows_of(saved, config.student.vocabulary)
    longest = int(rows["input_lengths"].max())
    check_visible_teacher(config, longest=longest)
    upstream.check()
    check_teacher_alone(config, longest=longest)
    native = upstream.master_config_class()(**master_config(config, prompt_file="unused"))
    tokenizer = upstream.start(native)
    upstream.register_worker()
    nodes, per_node = config.cluster.nodes, config.cluster.gpus_per_node
    teacher = RayTeacher(
        replace(plan, dedicated=False),
        student_config=scoring_policy_config(native),
        cluster=teacher_cluster([per_node] * nodes),
        tokenizer=tokenizer,
    )
    request = ScoreRequest((1.0,), True, config.student.vocabulary, config.scoring.chunk_tokens)
    with on_device(teacher):
        scores = score(teacher, upstream.batch_class()(rows), request, name="teacher")
    teacher.shutdown()
    tensors = saved.tensors | {"teacher_logp": scores.logp[0]}
    if scores.entropy_BS is not None:
        tensors["teacher_entropy"] = scores.entropy_BS
    step, settings = int(saved.header["step"]), dict[str, object](saved.settings)
    save_batch(out, tensors, method=str(saved.method), settings=settings, step=step)


def _rows_of(saved: SavedBatch, vocabulary: int) -> dict[str, Tensor]:
    """The columns that scoring reads of a saved batch; a row ends with its last sampled token."""
    if "token_ids" not in saved.tensors:
        raise DataError("the batch has no token_ids; expected one that a run of the NeMo-RL back end saved")
    ids_BS, mask_BS = saved.tensors["token_ids"], saved.tensors["mask"].bool()
    if ids_BS.shape != mask_BS.shape:
        raise DataError(
            f"token_ids has shape {list(ids_BS.shape)} and mask {list(mask_BS.shape)}; expected the same, prompt "
            "included, as a run of the NeMo-RL back end saves them"
        )
    largest = int(ids_BS.max())
    if largest >= vocabulary:
        raise DataError(
            f"the batch has token id {largest}; expected ids below student.vocabulary={vocabulary}: give the "
            "configuration of the run that saved it"
        )
    return {
        "input_ids": ids_BS,
        "input_lengths": _lengths(mask_BS),
        "token_mask": mask_BS.float(),
        "sample_mask": torch.ones(ids_BS.shape[0]),
    }


def _lengths(mask_BS: Tensor) -> Tensor:
    position_S = torch.arange(1, mask_BS.shape[1] + 1)
    return (mask_BS * position_S).max(dim=1).values.clamp(min=1)
