"""Student and teacher of one tokenizer whose output layers are padded to other widths."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from nemo_uecr.demo.task import build_tokenizer
from nemo_uecr.errors import DataError, ScoreError
from nemo_uecr.local.scores import score_teacher
from nemo_uecr.local.token_model import check_same_tokens
from tests.local import tiny
from tests.local.tiny import new_model, save_model
from tests.local.updates import by_hand, ragged, worst

TOKENIZER = build_tokenizer()
KNOWN = len(TOKENIZER)
WHOLE = [torch.arange(8)]


def padded(source: Path, folder: Path, *, rows: Tensor) -> Path:
    """A trained model with further rows in its tied output layer."""
    model = AutoModelForCausalLM.from_pretrained(source)
    weight = torch.cat((model.get_input_embeddings().weight.detach(), rows))
    model.resize_token_embeddings(len(weight), mean_resizing=False)
    with torch.no_grad():
        model.get_input_embeddings().weight.copy_(weight)
    return save_model(model, TOKENIZER, folder)


@pytest.mark.parametrize(("ours", "theirs"), [(512, 640), (640, 512)])
def test_the_columns_that_both_have_count(ours: int, theirs: int, tmp_path: Path) -> None:
    """Random weights: the padding has as much probability as anything else."""
    student, teacher = (
        tiny.load(
            save_model(new_model(TOKENIZER, seed=seed, vocab_size=width), TOKENIZER, tmp_path / str(width)), role="made"
        )
        for seed, width in enumerate((ours, theirs))
    )
    check_same_tokens(student, teacher)
    sequences = ragged()
    found = score_teacher(teacher.restrict_to_student_vocab(student.vocabulary), sequences, WHOLE, entropy=True)
    logp_BT, entropy_BT, dropped_BT = by_hand(teacher, sequences, 1.0, columns=512)
    mask_BT = sequences.mask_BT
    assert found.entropy_BT is not None
    assert worst(found.logp_BT, logp_BT, mask_BT) <= 5e-6
    assert worst(found.entropy_BT, entropy_BT, mask_BT) <= 5e-6
    if theirs < ours:
        assert found.dropped_BT is None
        return
    assert found.dropped_BT is not None
    assert float(dropped_BT[mask_BT].min()) > 0.1
    assert worst(found.dropped_BT, dropped_BT, mask_BT) <= 1e-6


def test_a_padded_teacher_trains_a_student_as_one_without_padding(tmp_path: Path) -> None:
    """Sampling and the student's own scores keep their bits; the teacher's are the same numbers."""
    hidden = tiny.load(tiny.TEACHER, role="teacher").module.config.hidden_size
    generator = torch.Generator().manual_seed(0)
    teacher = padded(tiny.TEACHER, tmp_path / "padded", rows=torch.randn(126, hidden, generator=generator) * 0.05)
    options = ("train.steps=1", "telemetry.save_batch_every=1")
    plain = tiny.run(tmp_path / "plain", *options)
    wide = tiny.run(tmp_path / "wide", *options, f"teacher.model_name={teacher}")
    first, second = (tiny.tensors(run) for run in (plain, wide))
    for name in ("token_ids", "reward", "old_logp", "old_logp_rollout"):
        torch.testing.assert_close(first[name], second[name], atol=0, rtol=0, equal_nan=True)
    for name in ("teacher_logp", "teacher_entropy", "advantage", "teacher_rank"):
        torch.testing.assert_close(first[name], second[name], atol=1e-5, rtol=1e-5, equal_nan=True)
    for record in tiny.metrics(wide):
        assert 0 < record["teacher/dropped_mass_mean"] <= record["teacher/dropped_mass_max"] < 1


def test_a_student_may_be_the_wider_one_until_it_samples_its_padding(tmp_path: Path) -> None:
    """Its padding first is all but impossible, then as likely as the digit that it often answers."""
    weight = tiny.load().module.get_input_embeddings().weight.detach()
    quiet = padded(tiny.STUDENT, tmp_path / "quiet", rows=torch.zeros(2, weight.shape[1]))
    folder = tiny.run(tmp_path / "run", f"student.model_name={quiet}", "train.steps=3")
    assert not [name for record in tiny.metrics(folder) for name in record if "dropped" in name]
    digit = TOKENIZER("2", add_special_tokens=False)["input_ids"][-1]
    loud = padded(tiny.STUDENT, tmp_path / "loud", rows=weight[digit].repeat(2, 1))
    message = rf"^response \d has token id {KNOWN}|{KNOWN + 1} at column \d+, but the tokenizer has ids below {KNOWN}: "
    with pytest.raises(ScoreError, match=message):
        tiny.run(tmp_path / "stopped", f"student.model_name={loud}", "train.steps=3")
    assert (tmp_path / "stopped" / "failure" / "responses.parquet").is_file()


def test_a_tokenizer_that_reaches_into_the_padding_is_refused(tmp_path: Path) -> None:
    """The smaller model has no column for the last id, so more than padding differs."""
    small = new_model(TOKENIZER, seed=1, vocab_size=KNOWN - 1)
    student = tiny.load(save_model(small, TOKENIZER, tmp_path / "small"), role="student")
    with pytest.raises(DataError, match=rf"has {KNOWN - 1} output columns and the teacher {KNOWN}, but token id"):
        check_same_tokens(student, tiny.load(tiny.TEACHER, role="teacher"))
