"""A violated invariant or a number that is not finite stops the run, names the sample and leaves a replayable batch."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from nemo_uecr.cli.main import entry_point
from nemo_uecr.core import ecr
from nemo_uecr.data.batch_file import load_batch
from nemo_uecr.demo.tokenizer import build_tokenizer
from nemo_uecr.errors import InvariantError, ScoreError
from nemo_uecr.evaluation.samples import read_samples
from tests.local import tiny
from tests.local.tiny import Assets


def failure(folder: Path, kept: str = "batch.safetensors") -> dict[str, str]:
    """The record that was left, checked for what every one has."""
    record = json.loads((folder / "failure" / "failure.json").read_text())
    assert set(record) == {"step", "error", "kind", "sample", "command"}
    assert "\n" not in record["error"]
    assert sorted(path.name for path in (folder / "failure").iterdir()) == sorted([kept, "failure.json"])
    return record


def with_nan(model: Path, folder: Path) -> Path:
    """A copy of a model folder with one weight that is no number."""
    broken = Path(shutil.copytree(model, folder))
    tensors = load_file(broken / "model.safetensors")
    tensors["model.norm.weight"][3] = float("nan")
    save_file(tensors, broken / "model.safetensors", metadata={"format": "pt"})
    return broken


def replay(record: dict[str, str]) -> int:
    words = shlex.split(record["command"])
    assert words[:2] == ["nemo-uecr", "replay"]
    return entry_point(words[1:])


@pytest.mark.parametrize("method", ["uecr", "pg_opd", "ecr_no_entropy", "rlsd"])
def test_nan_in_the_teacher(tmp_path: Path, tiny: Assets, capsys: pytest.CaptureFixture[str], method: str) -> None:
    broken = with_nan(tiny.teacher, tmp_path / "broken")
    from tests.local.tiny import run

    with pytest.raises(ScoreError) as error:
        run(tmp_path / "run", f"teacher.model_name={broken}", f"method.name={method}")
    assert str(error.value).startswith("teacher_logp of response 0 (step 1, problem p")
    assert "at token 0 is nan; expected a finite number of nats" in str(error.value)
    record = failure(tmp_path / "run")
    assert (record["step"], record["kind"], record["error"]) == (1, "ScoreError", str(error.value))
    assert record["sample"].startswith("step 1, problem p")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    # replay reads the batch and reports the same fault
    assert replay(record) == 2
    assert re.search(
        r"error: \S*batch.safetensors: teacher_(logp|entropy) of response 0 at token 0 is nan", capsys.readouterr().err
    )
    assert not (tmp_path / "run" / "failure" / "advantages.safetensors").exists()


def test_one_bad_token_is_found_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An entropy that is not finite on one token of row 3, planted where the teacher's scores come back."""
    from nemo_uecr.local import trainer

    real = trainer.score

    def planted(model, sequences, slices, *, temperatures, entropy):  # type: ignore[no-untyped-def]
        found = real(model, sequences, slices, temperatures=temperatures, entropy=entropy)
        if temperatures == (1.0,):
            found.entropy_BT[3, 1] = float("inf")
        return found

    monkeypatch.setattr(trainer, "score", planted)
    with pytest.raises(
        ScoreError, match=r"teacher_entropy of response 3 \(step 1, problem p\d, row 3\) at token 1 is inf"
    ):
        tiny.run(tmp_path / "run")
    assert "row 3" in failure(tmp_path / "run")["sample"]


def test_score_that_the_method_does_not_read_is_checked_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """grpo's advantage reads no score, but its ratio reads this one."""
    from nemo_uecr.local import trainer

    real = trainer.score

    def planted(model, sequences, slices, *, temperatures, entropy):  # type: ignore[no-untyped-def]
        found = real(model, sequences, slices, temperatures=temperatures, entropy=entropy)
        found.logp[0][2, 1] = float("nan")
        return found

    monkeypatch.setattr(trainer, "score", planted)
    with pytest.raises(ScoreError, match=r"old_logp_rollout of response 2 \(step 1, .* row 2\) at token 1 is nan"):
        tiny.run(tmp_path / "run", "method.name=grpo")
    assert "row 2" in failure(tmp_path / "run")["sample"]


def test_violated_invariant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The residual is no longer centred, as if the projection had been forgotten."""

    before = tiny.run(tmp_path / "good", "train.steps=1", "telemetry.save_batch_every=1")
    monkeypatch.setattr(ecr, "projected", ecr.unprojected)
    with pytest.raises(InvariantError, match=r"identity 'budget' .* at response \d \(step 1, problem p\d, row \d\)"):
        tiny.run(tmp_path / "run", "train.steps=1")
    record = failure(tmp_path / "run")
    assert record["kind"] == "InvariantError"
    assert record["sample"] is not None
    # the batch is the one of the step, complete, and replay accepts it
    left = load_batch(tmp_path / "run" / "failure" / "batch.safetensors")
    good = load_batch(before / "batches" / "step-000001.safetensors")
    assert left.tensors.keys() == good.tensors.keys() - {"advantage"}  # those that were refused are not kept
    assert all(torch.equal(left.tensors[n].nan_to_num(7), good.tensors[n].nan_to_num(7)) for n in left.tensors)
    monkeypatch.undo()
    assert replay(record) == 0
    assert (tmp_path / "run" / "failure" / "advantages.safetensors").is_file()


@pytest.mark.parametrize("method", ["uecr", "grpo"])
def test_student_that_cannot_be_sampled_leaves_its_batch(
    tmp_path: Path, tiny: Assets, capsys: pytest.CaptureFixture[str], method: str
) -> None:
    """Nothing can be drawn from logits that are not finite: the batch ends there, and replay finds the place."""
    broken = with_nan(tiny.student, tmp_path / "broken")
    from tests.local.tiny import run

    with pytest.raises(ScoreError, match=r"^the student .* gives logits .* \(step 1, problem p\d, row 0\) at token 0;"):
        run(tmp_path / "run", f"student.model_name={broken}", f"method.name={method}")
    record = failure(tmp_path / "run")
    assert record["sample"].endswith("row 0")
    left = load_batch(tmp_path / "run" / "failure" / "batch.safetensors").tensors
    assert left["mask"].sum(dim=1).tolist() == [1] * 8  # the end token that stands for the one that was not drawn
    assert bool(left["old_logp"].isnan().all())
    if method == "uecr":  # grpo's advantage reads no score
        assert replay(record) == 2
        assert "old_logp of response 0 at token 0 is nan" in capsys.readouterr().err


def test_ratio_that_is_not_one_at_the_first_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scoring at another temperature than training: the fault that the check is for."""
    from nemo_uecr.local import trainer

    real = trainer.score

    def wrong_temperature(model, sequences, slices, *, temperatures, entropy):  # type: ignore[no-untyped-def]
        return real(model, sequences, slices, temperatures=tuple(t + 0.01 for t in temperatures), entropy=entropy)

    monkeypatch.setattr(trainer, "score", wrong_temperature)
    with pytest.raises(InvariantError, match=r"ratio of the first update is off 1 by .*tolerances\.first_ratio=1e-05"):
        tiny.run(tmp_path / "run")
    record = failure(tmp_path / "run")
    named = re.search(r"at response (\d) \((step 1, problem p\d, row \1)\) at token (\d)", record["error"])
    assert named is not None
    assert record["sample"] == named[2]


def test_first_ratio_names_the_worst_response(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row 1 is off by a little, row 2 by more; both are in the first of the two mini-batches."""
    from nemo_uecr.local import trainer

    real = trainer.score

    def planted(model, sequences, slices, *, temperatures, entropy):  # type: ignore[no-untyped-def]
        found = real(model, sequences, slices, temperatures=temperatures, entropy=entropy)
        if len(temperatures) == 2:
            found.logp[0][1, 0] += 0.01
            found.logp[0][2, 1] += 0.02
        return found

    monkeypatch.setattr(trainer, "score", planted)
    with pytest.raises(InvariantError, match=r"off 1 by 0\.0198 at response 2 \(step 1, .*, row 2\) at token 1;"):
        tiny.run(tmp_path / "run")  # 1 - e^-0.02 = 0.0198
    assert failure(tmp_path / "run")["sample"].endswith(", row 2")


def test_ratio_without_a_logarithm_names_its_response(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row 6 is in the second mini-batch: exp(log pi - 200) is 0 in float32, and its loss and gradient are finite."""
    from nemo_uecr.local import trainer

    real = trainer.score

    def planted(model, sequences, slices, *, temperatures, entropy):  # type: ignore[no-untyped-def]
        found = real(model, sequences, slices, temperatures=temperatures, entropy=entropy)
        if len(temperatures) == 2:
            found.logp[0][6, 1] += 200
        return found

    monkeypatch.setattr(trainer, "score", planted)
    with pytest.raises(InvariantError, match=r"the PPO ratio is 0\.0 at response 6 \(step 1, .*, row 6\) at token 1;"):
        tiny.run(tmp_path / "run")
    assert failure(tmp_path / "run")["sample"].endswith(", row 6")


def test_metric_that_is_not_finite_stops_with_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    from nemo_uecr.telemetry import metrics

    monkeypatch.setattr(metrics, "length_metrics", lambda *_: {"response/length_mean": float("nan")})
    with pytest.raises(InvariantError, match=r"metric response/length_mean is nan at step 1"):
        tiny.run(tmp_path / "run")
    assert failure(tmp_path / "run")["sample"] is None  # a mean belongs to no response
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_weights_that_are_not_finite_are_not_saved(tmp_path: Path) -> None:
    """AdamW shrinks a weight by learning rate times decay: 1e60 is beyond float32 although every gradient is finite."""
    overrides = ("train.steps=1", "train.minibatch_responses=8", "train.learning_rate=1e30", "train.weight_decay=1e30")
    with pytest.raises(InvariantError, match=r"weights of model\..* are not finite after optimizer step 1;"):
        tiny.run(tmp_path / "run", *overrides)
    record = failure(tmp_path / "run")
    assert (record["step"], record["kind"], record["sample"]) == (1, "InvariantError", None)
    assert not list((tmp_path / "run" / "checkpoints").glob("*"))
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    assert replay(record) == 0  # the batch was whole


def test_student_that_cannot_be_evaluated_leaves_what_it_drew(tmp_path: Path, tiny: Assets) -> None:
    """The second problem holds a token without a usable embedding: the first one is drawn, and kept."""
    from tests.local.tiny import run

    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    first.write_text('{"id": "q0", "question": "1", "answer": "1"}\n')
    second.write_text('{"id": "q1", "question": "2", "answer": "2"}\n{"id": "q2", "question": "3?", "answer": "3"}\n')
    broken = Path(shutil.copytree(tiny.student, tmp_path / "broken"))
    tensors = load_file(broken / "model.safetensors")
    (mark,) = build_tokenizer()("?", add_special_tokens=False)["input_ids"]
    tensors["model.embed_tokens.weight"][mark] = float("nan")
    save_file(tensors, broken / "model.safetensors", metadata={"format": "pt"})
    untied = broken / "config.json"  # the output layer keeps its own, whole row
    untied.write_text(untied.read_text().replace('"tie_word_embeddings": true', '"tie_word_embeddings": false'))
    tensors["lm_head.weight"] = load_file(tiny.student / "model.safetensors")["model.embed_tokens.weight"]
    save_file(tensors, broken / "model.safetensors", metadata={"format": "pt"})
    where = "step 0, benchmark b, problem q2, row 2"
    with pytest.raises(ScoreError, match=rf"^the student .* \({where}\) at token 0;") as error:
        run(
            tmp_path / "run",
            f"student.model_name={broken}",
            f"evaluation.benchmarks={{a: {first}, b: {second}}}",
            "evaluation.at_start=true",
        )
    record = failure(tmp_path / "run", kept="samples.jsonl")
    assert record == {"step": 0, "error": str(error.value), "kind": "ScoreError", "sample": where, "command": None}
    left = read_samples(tmp_path / "run" / "failure" / "samples.jsonl")
    assert [sample.key for sample in left] == [
        ("a", "q0", 0), ("a", "q0", 1), ("b", "q1", 0), ("b", "q1", 1), ("b", "q2", 0), ("b", "q2", 1),
    ]  # fmt: skip
    ends = build_tokenizer().eos_token_id
    assert [sample.token_ids == [ends] for sample in left] == [False] * 4 + [True] * 2
    assert all(build_tokenizer().decode(each.token_ids, skip_special_tokens=True) == each.response for each in left)
    assert not (tmp_path / "run" / "evaluation.jsonl").exists()


def test_huge_learning_rate_ends_in_one_line(tmp_path: Path) -> None:
    """Whatever breaks first (loss, sampling or scoring), it is a named error and not a traceback."""
    with pytest.raises((InvariantError, ScoreError)) as error:
        tiny.run(tmp_path / "run", "train.learning_rate=1e30", "train.steps=5")
    assert "\n" not in str(error.value)
    assert "finite" in str(error.value)


def test_run_continues_after_the_cause_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tiny.outcome(tiny.run(tmp_path / "whole", "train.steps=3", "checkpoint.every=1"))
    from nemo_uecr.local import trainer

    real = trainer.check_identities
    calls = []

    def fails_at_third(*arguments):  # type: ignore[no-untyped-def]
        calls.append(1)
        if len(calls) == 3:
            raise InvariantError("planted")
        return real(*arguments)

    monkeypatch.setattr(trainer, "check_identities", fails_at_third)
    with pytest.raises(InvariantError, match="planted"):
        tiny.run(tmp_path / "run", "train.steps=3", "checkpoint.every=1")
    assert len(tiny.metrics(tmp_path / "run")) == 2
    monkeypatch.undo()
    tiny.run(tmp_path / "run", "train.steps=3", "checkpoint.every=1", resume=True)
    found = tiny.outcome(tmp_path / "run")
    assert not (tmp_path / "run" / "failure").exists()
    left = [name for name in found if name.startswith("failure-1/")]
    assert left
    assert tiny.same(found, whole, ignoring=left) == []
