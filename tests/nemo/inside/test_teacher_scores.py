"""A saved batch scored by a teacher alone: real NeMo-RL configuration, tokenizer and batches; the GPUs stood in for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from nemo_uecr.config.load import load_nemo_config
from nemo_uecr.core.methods import RunState
from nemo_uecr.core.methods.uecr import Puu
from nemo_uecr.data.batch_file import load_batch, save_batch
from nemo_uecr.nemo import teacher, upstream
from nemo_uecr.nemo.translate import teacher_policy
from nemo_uecr.nemo.worker_scoring import ScoreRequest
from tests.config.shipped import CONFIGS
from tests.nemo.inside.launched import make_tokenizer
from tests.nemo.inside.tiny_world import TinyModel, TinyTeacher, columns_of
from tests.nemo.worlds import SIZES

VOCABULARY, LENGTHS = 98, [5, 6, 4]


class StuckTeacher(TinyTeacher):
    """An offload of it would fail, as one does that finds memory left behind, and the scores would be lost."""

    def offload(self) -> None:
        raise AssertionError


@pytest.mark.usefixtures("nemo_rl")
def test_a_batch_gets_the_teachers_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rows: two prompt tokens, then responses of 3, 4 and 2 tokens."""
    column = torch.arange(6)
    tensors = {
        "task_reward": torch.tensor([1.0, 0.0, 0.0]), "group": torch.zeros(3, dtype=torch.long),
        "mask": (column >= 2) & (column < torch.tensor(LENGTHS)[:, None]),
        "token_ids": torch.randint(2, VOCABULARY, (3, 6), generator=torch.Generator().manual_seed(0)),
        **{name: torch.ones(3, 6) for name in ("old_logp", "teacher_logp", "teacher_entropy")},
        **{name: torch.ones(3, 6) for name in ("advantage", "advantage_opd")},
    }  # fmt: skip
    batch, out, given = tmp_path / "batch.safetensors", tmp_path / "scored", [f"student.vocabulary={VOCABULARY}"]
    save_batch(batch, tensors, method=Puu(alpha=1.0), run=RunState(), step=20, arithmetic="of the run")
    for role in ("student", "teacher"):
        make_tokenizer(tmp_path / role)
        (tmp_path / role / "config.json").write_text(json.dumps(SIZES))
        given.append(f"{role}.model_name={tmp_path / role}")
    built: list[dict[str, Any]] = []

    def make(config: Any, *, student: Any, cluster: Any, tokenizer: Any, stays: bool) -> TinyTeacher:
        built.append(teacher_policy(config, student, VOCABULARY) | {"gpus": cluster, "stays": stays})
        # Three rows do not divide by two: a masked row must come and go.
        return StuckTeacher(TinyModel(9, vocabulary=VOCABULARY), [], parallel=2)

    native = upstream.native
    monkeypatch.setattr(teacher, "RayTeacher", make)
    monkeypatch.setattr(upstream, "teacher_cluster", lambda gpus: gpus)
    monkeypatch.setattr(upstream, "register_worker", lambda: None)
    monkeypatch.setattr(upstream, "native", lambda name: (lambda: None) if name == "init_ray" else native(name))
    changes = ["teacher.fp8=true", "teacher.dedicated_gpus=1"]
    saved = load_batch(batch)
    teacher.score_saved_batch(load_nemo_config(CONFIGS / "uecr_qwen3_1p7b.yaml", [*given, *changes]), saved, out)
    scored = load_batch(out)
    # The advantages, and what they were computed with, are those of the run's own teacher.
    assert scored.header == {name: text for name, text in saved.header.items() if name != "arithmetic"}
    of_a_teacher = {"teacher_logp", "teacher_entropy"}
    kept = scored.tensors.keys() - of_a_teacher
    assert kept == saved.tensors.keys() - of_a_teacher - {"advantage", "advantage_opd"}
    assert all(torch.equal(scored.tensors[name], saved.tensors[name]) for name in kept)
    tokens = {"input_ids": saved.tensors["token_ids"], "input_lengths": torch.tensor(LENGTHS)}
    expected = columns_of(
        TinyModel(9, vocabulary=VOCABULARY), tokens, ScoreRequest({"logp": 1.0}, True, VOCABULARY, 64)
    )
    torch.testing.assert_close(scored.tensors["teacher_logp"], expected["logp"])
    torch.testing.assert_close(scored.tensors["teacher_entropy"], expected["entropy"])
    assert [(made["gpus"], made["stays"], made["megatron_cfg"]["fp8_cfg"]["enabled"]) for made in built] == [
        ([8], True, True)
    ]
