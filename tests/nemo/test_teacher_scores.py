"""A saved batch scored by a teacher alone: real NeMo-RL configuration, tokenizer and batches; the GPUs stood in for."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from nemo_uecr.config.load import load_nemo_config
from nemo_uecr.data.batch_file import load_batch, save_batch
from nemo_uecr.nemo import teacher, upstream
from nemo_uecr.nemo.translate import teacher_policy
from nemo_uecr.nemo.two_temperatures import ScoreRequest
from nemo_uecr.nemo.upstream import WorkerError
from tests.config.test_nemo import CONFIGS
from tests.nemo.test_launch import make_tokenizer
from tests.nemo.tiny_world import TinyModel, TinyTeacher, columns_of
from tests.nemo_backend.test_preflight import SIZES

pytestmark = pytest.mark.usefixtures("nemo_rl")
VOCABULARY = 98


def batch_file(folder: Path) -> Path:
    """Three rows: two prompt tokens, then responses of 3, 4 and 2 tokens."""
    mask = torch.zeros(3, 6, dtype=torch.bool)
    for row, length in enumerate((3, 4, 2)):
        mask[row, 2 : 2 + length] = True
    ids = torch.randint(2, VOCABULARY, (3, 6), generator=torch.Generator().manual_seed(0))
    tensors = {
        "task_reward": torch.tensor([1.0, 0.0, 0.0]), "group": torch.zeros(3, dtype=torch.long), "mask": mask,
        "old_logp": torch.zeros(3, 6), "token_ids": ids, "teacher_logp": torch.full((3, 6), -7.0),
        "teacher_entropy": torch.ones(3, 6), "advantage": torch.ones(3, 6), "advantage_opd": torch.ones(3, 6),
    }  # fmt: skip
    save_batch(
        folder / "batch.safetensors", tensors, method="uecr", settings={"alpha": 1.0}, step=20, arithmetic="of the run"
    )
    return folder / "batch.safetensors"


class StuckTeacher(TinyTeacher):
    """An offload of it would fail, as one does that finds memory left behind."""

    def offload(self) -> None:
        raise WorkerError("assert_offloaded: the model still holds 900 MiB")


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Stands in for GPUs; returns what each teacher was built with."""
    found: list[dict[str, Any]] = []

    def make(config: Any, *, student: Any, cluster: Any, tokenizer: Any, stays: bool) -> TinyTeacher:
        found.append(teacher_policy(config, student) | {"gpus": cluster, "stays": stays})
        # Three rows do not divide by two: a masked row must come and go.
        return StuckTeacher(TinyModel(9, vocabulary=VOCABULARY), [], parallel=2)

    monkeypatch.setattr(teacher, "RayTeacher", make)
    monkeypatch.setattr(upstream, "teacher_cluster", lambda gpus: gpus)
    monkeypatch.setattr(upstream, "register_worker", lambda: None)
    monkeypatch.setattr(importlib.import_module("nemo_rl.distributed.virtual_cluster"), "init_ray", lambda: None)
    return found


def configuration(folder: Path, *changes: str) -> Any:
    for role in ("student", "teacher"):
        make_tokenizer(folder / role)
        (folder / role / "config.json").write_text(json.dumps(SIZES))
    given = [f"{role}.model_name={folder / role}" for role in ("student", "teacher")]
    given.append(f"student.vocabulary={VOCABULARY}")
    return load_nemo_config(CONFIGS / "uecr_qwen3_1p7b.yaml", [*given, *changes])


def test_a_batch_gets_the_teachers_scores(tmp_path: Path, built: list[dict[str, Any]]) -> None:
    saved, out = load_batch(batch_file(tmp_path)), tmp_path / "scored"
    config = configuration(tmp_path, "teacher.fp8=true", "teacher.dedicated_gpus=1")
    teacher.score_saved_batch(config, saved, out)
    scored = load_batch(out)
    # The advantages, and what they were computed with, are those of the run's own teacher.
    assert scored.header == {name: text for name, text in saved.header.items() if name != "arithmetic"}
    of_a_teacher = {"teacher_logp", "teacher_entropy", "advantage", "advantage_opd"}
    kept = scored.tensors.keys() - {"teacher_logp", "teacher_entropy"}
    assert kept == saved.tensors.keys() - of_a_teacher
    assert all(torch.equal(scored.tensors[name], saved.tensors[name]) for name in kept)
    tokens = {"input_ids": saved.tensors["token_ids"], "input_lengths": torch.tensor([5, 6, 4])}
    expected = columns_of(TinyModel(9, vocabulary=VOCABULARY), tokens, ScoreRequest((1.0,), True, VOCABULARY, 64))
    torch.testing.assert_close(scored.tensors["teacher_logp"], expected["logp_0"])
    torch.testing.assert_close(scored.tensors["teacher_entropy"], expected["entropy"])
    (made,) = built
    assert made["megatron_cfg"]["fp8_cfg"]["enabled"] is True
    assert made["gpus"] == [8]
    # It stays where it is: an offload that fails would lose the scores.
    assert made["stays"] is True
