"""What the trainer hands over: the temperature of each score, the second surrogate, the schedule's step, the seed."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_uecr.data.problems import Problem
from nemo_uecr.local.sequences import Response, Sequences, encode_prompts
from nemo_uecr.responses.replay import recompute
from nemo_uecr.responses.table import read_responses
from tests.audit.made import faults
from tests.core import sparse
from tests.local import tiny
from tests.local.updates import by_hand, worst
from tests.responses.tables import rows_of

#: One optimizer step for each batch, so that every ratio of a step is 1.
ONE_UPDATE = ("train.minibatch_responses=8", "telemetry.save_batch_every=1")


def test_each_model_is_scored_at_its_temperature(tmp_path: Path) -> None:
    """T_r = 0.8 for the ratio and the reference, 1 for the gap and the entropy: four float64 forwards of the models."""
    overrides = (*ONE_UPDATE, "train.steps=1", "loss.reference_kl=0.1")
    folder = tiny.run(tmp_path / "run", *overrides)
    found = tiny.tensors(folder)
    student, teacher = (
        tiny.load(path, role=role) for path, role in ((tiny.STUDENT, "student"), (tiny.TEACHER, "teacher"))
    )
    rows = rows_of(read_responses(folder / "batches" / "step-000001.parquet"))
    problems = [Problem(row["problem"], row["question"], row["answer"]) for row in rows]
    prompts = encode_prompts(problems, student.tokenizer, tiny.configured(folder, *overrides).config.data)
    mask_BT = found["sampled"]
    ids = [tuple(row[kept].tolist()) for row, kept in zip(found["token_ids"], mask_BT, strict=True)]
    sequences = Sequences(prompts, [Response(each, False, "") for each in ids])
    for name, model, temperature in (
        ("old_logp", student, 1.0),
        ("old_logp_rollout", student, 0.8),
        ("teacher_logp", teacher, 1.0),
        ("ref_logp", student, 0.8),  # the initial student
    ):
        here, *_ = by_hand(model, sequences, temperature)
        there, *_ = by_hand(model, sequences, 1.8 - temperature)
        assert worst(found[name], here, mask_BT) <= 1e-5, name
        assert worst(found[name], there, mask_BT) > 0.05, name  # the other temperature would have been seen
    _, entropy, _ = by_hand(teacher, sequences, 1.0)
    assert worst(found["teacher_entropy"], entropy, mask_BT) <= 1e-5


def test_second_surrogate_counts_with_its_coefficient(tmp_path: Path) -> None:
    """At ratio 1 the loss is ``-(sum A + c sum A_opd) / tokens``; the two are saved with the batch."""
    folder = tiny.run(
        tmp_path / "run", *ONE_UPDATE, "train.steps=1", "method.name=grpo_plus_opd", "method.opd_coef=3.0"
    )
    found = tiny.tensors(folder)
    mask_BT = found["sampled"]
    task, opd = (float(found[name][mask_BT].double().mean()) for name in ("advantage", "advantage_opd"))
    assert abs(opd) > 0.01  # otherwise its coefficient could not be seen
    assert tiny.metrics(folder)[0]["policy/pg_loss"] == pytest.approx(-(task + 3.0 * opd), abs=1e-6)


def test_a_method_masks_the_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At ratio 1 the loss is the mean of ``-A`` over the kept tokens alone; metrics and the saved step agree."""
    sparse.register(monkeypatch)
    changes = (*ONE_UPDATE, "train.steps=1", "method.name=sparse", "loss.reference_kl=0", "run.seed=1")
    folder = tiny.run(tmp_path / "run", *changes)
    found, record = tiny.tensors(folder), tiny.metrics(folder)[0]
    kept_BT, mask_BT = found["loss_mask"], found["sampled"]
    assert 0 < int(kept_BT.sum()) < int(mask_BT.sum())
    assert not (kept_BT & ~mask_BT).any()
    assert not found["advantage"][~kept_BT].any()
    mean = float(found["advantage"][kept_BT].double().mean())
    assert abs(mean) > 0.01
    assert record["policy/pg_loss"] == pytest.approx(-mean, abs=1e-6)
    assert record["advantage/mean"] == pytest.approx(mean, abs=1e-6)
    assert record["count/valid_tokens"] == int(kept_BT.sum())
    assert record["advantage/trained_share"] == pytest.approx(int(kept_BT.sum()) / int(mask_BT.sum()))
    again = recompute(folder / "batches" / "step-000001.parquet")
    assert (again.bitwise, again.difference) == (True, 0.0)
    assert faults(folder) == []


def test_schedule_counts_completed_steps(tmp_path: Path) -> None:
    """ATOD with one turn: ``A = kappa 0.75 delta + rho A^GRPO``, where kappa = 1 - 0.9 s / 80, rho = 1 + s / 80.

    Within a group A^GRPO is the same for all tokens of a response, so its tokens differ by kappa 0.75 delta alone.
    """
    folder = tiny.run(tmp_path / "run", *ONE_UPDATE, "train.steps=3", "method.name=atod")
    for step, kappa in ((1, 1.0), (3, 1 - 0.9 * 2 / 80)):
        found = tiny.tensors(folder, step)
        delta_BT = (found["teacher_logp"] - found["old_logp"]).double()
        moved_B = (delta_BT[:, 0] - delta_BT[:, 1]).nan_to_num(0.0)
        told_B = found["sampled"][:, 1] & (moved_B.abs() > 0.1)
        slope_B = ((found["advantage"][:, 0] - found["advantage"][:, 1]) / moved_B)[told_B]
        assert slope_B.tolist() == pytest.approx([kappa * 0.75] * int(told_B.sum()), abs=1e-4)
        assert bool(told_B.any())
