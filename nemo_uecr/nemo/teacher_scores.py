"""A teacher's scores of a saved batch, without a run around them.

Shape legend: B = responses, S = tokens of prompt and response (padded).
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from nemo_uecr.config.nemo_schema import NemoConfig
from nemo_uecr.data.batch_file import SavedBatch, save_batch
from nemo_uecr.errors import ConfigError, DataError
from nemo_uecr.nemo import upstream
from nemo_uecr.nemo.preflight import check_conversion, check_teacher_alone
from nemo_uecr.nemo.request import ScoreRequest
from nemo_uecr.nemo.scorer import score
from nemo_uecr.nemo.teachers import RayTeacher, teacher_cluster
from nemo_uecr.nemo.translate import master_config

#: What a batch has from the teacher that scored it: another one's scores leave nothing of it.
OF_A_TEACHER = ("teacher_logp", "teacher_entropy", "advantage", "advantage_opd")


def score_saved_batch(config: NemoConfig, saved: SavedBatch, out: Path) -> None:
    """Write the batch with the scores of the configuration's teacher in the place of those it had.

    The advantages that the run saved came from its own teacher and are left out.

    Args:
        config: of the NeMo-RL back end; its cluster is the teacher's alone.
        saved: a batch with ``token_ids``.
        out: file to write.

    Raises:
        UpstreamError: another NeMo-RL is installed.
        ConfigError: the method reads no teacher, or the teacher cannot be cut or fed as the configuration says.
        DataError: the batch is none of this back end's, or the teacher is not there or has other tokens.
    """
    if not config.method.entry.needs_teacher:
        raise ConfigError(f"method.name: {config.method.name} reads no teacher; expected one that does, such as uecr")
    rows = rows_of(saved, config.student.vocabulary)
    upstream.check()
    check_teacher_alone(config, longest=int(rows["input_lengths"].max()))
    check_conversion("teacher", config.teacher)
    native = upstream.master_config_class()(**master_config(config))
    tokenizer = upstream.start(native)
    upstream.register_worker()
    nodes, per_node = config.cluster.nodes, config.cluster.gpus_per_node
    native.policy["megatron_cfg"]["train_iters"] = 1  # as the loop's set-up adds it; a scorer makes no step
    cluster = teacher_cluster([per_node] * nodes)
    # It stays on its GPUs: an offload that fails would lose the scores.
    teacher = RayTeacher(config, student=native.policy, cluster=cluster, tokenizer=tokenizer, stays=True)
    request = ScoreRequest((1.0,), True, config.student.vocabulary, config.scoring.chunk_tokens)
    scores = score(teacher, upstream.batch_class()(rows), request, name="teacher")
    tensors = {name: tensor for name, tensor in saved.tensors.items() if name not in OF_A_TEACHER}
    tensors["teacher_logp"] = scores.logp[0]
    if scores.entropy_BS is not None:
        tensors["teacher_entropy"] = scores.entropy_BS
    method, settings, step = str(saved.method), dict[str, object](saved.settings), int(saved.header["step"])
    save_batch(out, tensors, method=method, settings=settings, step=step)
    teacher.shutdown()


def rows_of(saved: SavedBatch, vocabulary: int) -> dict[str, Tensor]:
    """The columns that scoring reads of a saved batch; a row ends with its last sampled token.

    Args:
        saved: the batch.
        vocabulary: V, the columns of the student that wrote it.

    Raises:
        DataError: the batch has no prompts, or token ids outside the vocabulary.
    """
    mask_BS = saved.tensors["mask"].bool()
    if "token_ids" not in saved.tensors or bool(mask_BS[:, 0].any()):
        raise DataError("the batch has no tokens of prompts; expected one that a run of the NeMo-RL back end saved")
    ids_BS = saved.tensors["token_ids"].long()
    largest = int(ids_BS.max())
    if largest >= vocabulary:
        raise DataError(
            f"the batch has token id {largest}; expected ids below student.vocabulary={vocabulary}: give the "
            "configuration of the run that saved it"
        )
    position_S = torch.arange(1, mask_BS.shape[1] + 1)
    return {
        "input_ids": ids_BS,
        "input_lengths": (mask_BS * position_S).max(dim=1).values,
        "token_mask": mask_BS.float(),
        "sample_mask": torch.ones(ids_BS.shape[0]),
    }
