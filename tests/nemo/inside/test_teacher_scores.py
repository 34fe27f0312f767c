"""A saved batch scored by a teacher alone: real NeMo-RL configuration, tokenizer and batches; the GPUs stood in for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from nemo_uecr.config.recipes import load_recipe
from nemo_uecr.core.methods.uecr import Puu
from nemo_uecr.nemo import plug_in, teacher, upstream
from nemo_uecr.nemo.recipe import teacher_policy
from nemo_uecr.nemo.worker_scoring import ScoreRequest
from nemo_uecr.responses.table import read_responses
from tests.nemo.inside.launched import make_tokenizer
from tests.nemo.inside.loop import RECIPE
from tests.nemo.inside.tiny_world import TinyModel, TinyTeacher, columns_of
from tests.nemo.worlds import SIZES
from tests.responses.tables import tensors_of, write_step

VOCABULARY, LENGTHS = 98, [5, 6, 4]
METHOD = "++uecr.method={name: uecr, alpha: 1.0, rho: 0.5, tau_delta: 1.0, tau_entropy: 1.0}"


class StuckTeacher(TinyTeacher):
    """An offload of it would fail, as one does that finds memory left behind, and the scores would be lost."""

    def offload(self) -> None:
        raise AssertionError


@pytest.mark.usefixtures("nemo_rl")
def test_a_batch_gets_the_teachers_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rows: two prompt tokens, then responses of 3, 4 and 2 tokens."""
    column = torch.arange(6)
    tensors = {
        "reward": torch.tensor([1.0, 0.0, 0.0]), "group": torch.zeros(3, dtype=torch.long),
        "sampled": (column >= 2) & (column < torch.tensor(LENGTHS)[:, None]),
        "token_ids": torch.randint(2, VOCABULARY, (3, 6), generator=torch.Generator().manual_seed(0)),
        **{name: torch.ones(3, 6) for name in ("old_logp", "teacher_logp", "teacher_entropy")},
        **{name: torch.ones(3, 6) for name in ("advantage", "advantage_opd")},
    }  # fmt: skip
    tensors["prompt_ids"] = tensors["token_ids"][:, :2]
    batch, out = tmp_path / "step.parquet", tmp_path / "scored.parquet"
    given = ["policy.train_global_batch_size=1024", METHOD, "checkpointing.checkpoint_dir=results"]
    write_step(batch, tensors, Puu(alpha=1.0), step=20, arithmetic="of the run")
    for role in ("student", "teacher"):
        make_tokenizer(tmp_path / role)
        (tmp_path / role / "config.json").write_text(json.dumps(SIZES))
    given += [f"policy.model_name={tmp_path / 'student'}", f"++uecr.teacher.model_name={tmp_path / 'teacher'}"]
    built: list[dict[str, Any]] = []

    def make(settings: Any, section: Any, *, student: Any, cluster: Any, tokenizer: Any, stays: bool) -> TinyTeacher:
        built.append(teacher_policy(section, student, VOCABULARY) | {"gpus": cluster, "stays": stays})
        # Three rows do not divide by two: a masked row must come and go.
        return StuckTeacher(TinyModel(9, vocabulary=VOCABULARY), [], parallel=2)

    native = upstream.native
    monkeypatch.setattr(teacher, "RayTeacher", make)
    monkeypatch.setattr(upstream, "teacher_cluster", lambda gpus: gpus)
    monkeypatch.setattr(upstream, "register_worker", lambda: None)
    monkeypatch.setattr(upstream, "native", lambda name: (lambda: None) if name == "init_ray" else native(name))
    monkeypatch.setenv("NRL_MEGATRON_CHECKPOINT_DIR", str(tmp_path / "conversions"))
    changes = ["++uecr.teacher.megatron_cfg.fp8_cfg.enabled=true"]
    saved = read_responses(batch)
    scorer = plug_in.score_saved_batch(load_recipe(RECIPE, [*given, *changes]).values, saved, out)
    assert scorer == str(tmp_path / "teacher")
    scored, before = tensors_of(out), tensors_of(batch)
    # The advantages, and what they were computed with, are those of the run's own teacher.
    assert read_responses(out).about == {name: text for name, text in saved.about.items() if name != "arithmetic"}
    of_a_teacher = {"teacher_logp", "teacher_entropy"}
    kept = scored.keys() - of_a_teacher
    assert kept == before.keys() - of_a_teacher - {"advantage", "advantage_opd"}
    assert all(torch.equal(scored[name], before[name]) for name in kept)
    tokens = {"input_ids": before["token_ids"], "input_lengths": torch.tensor(LENGTHS)}
    expected = columns_of(
        TinyModel(9, vocabulary=VOCABULARY), tokens, ScoreRequest({"logp": 1.0}, True, VOCABULARY, 64)
    )
    for name in ("logp", "entropy"):
        expected_BS = expected[name].masked_fill(~before["sampled"], 0)
        torch.testing.assert_close(scored[f"teacher_{name}"], expected_BS)
    assert [(made["gpus"], made["stays"], made["megatron_cfg"]["fp8_cfg"]["enabled"]) for made in built] == [
        ([8], True, True)
    ]
