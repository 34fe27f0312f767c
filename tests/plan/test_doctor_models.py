"""Model folders, tokenizers, templates, vocabularies and checkpoints, each damaged for real."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nemo_uecr.cli.look import sizes
from nemo_uecr.plan import models
from nemo_uecr.plan.records import Finding
from tests.plan.subjects import change_tokenizer, local, nemo, save_model, save_tokenizer


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (lambda folder: cut(folder / "model.safetensors"), "truncated"),
        (lambda folder: (folder / "model.safetensors").unlink(), "lacks model.safetensors"),
        (lambda folder: (folder / "config.json").unlink(), "no config.json"),
    ],
)
def test_a_damaged_model(damage: Callable[[Path], Any], fault: str, tmp_path: Path) -> None:
    folder = save_model(tmp_path)
    damage(folder)
    found = models.model_finding("student", str(folder))
    assert found.status == "fail"
    assert fault in found.message


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = save_model(tmp_path, shard="10KB")
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) > 1
    assert models.model_finding("teacher", str(folder)).status == "ok"
    shards[1].unlink()
    assert shards[1].name in models.model_finding("teacher", str(folder)).message


def test_names_that_are_not_here(tmp_path: Path) -> None:
    assert models.model_finding("teacher", str(tmp_path / "absent")).status == "fail"
    found = models.model_finding("teacher", "nobody/has-this-model")
    assert (found.status, found.remedy.partition(" (")[0]) == ("warn", "hf download nobody/has-this-model")


def tokenizers(student: Path, teacher: Path) -> dict[str, Finding]:
    run = nemo(f"student.model_name={student}", f"teacher.model_name={teacher}")
    return {one.check: one for one in models.tokenizer_findings(run)}


def test_equal_tokenizers(tmp_path: Path) -> None:
    found = tokenizers(save_tokenizer(tmp_path / "s"), save_tokenizer(tmp_path / "t"))
    assert {one.status for one in found.values()} == {"ok"}
    assert "non-thinking mode" in found["chat template"].message
    assert "</think>" in found["chat template"].message


def test_prompts_are_counted_as_the_run_counts_them(tmp_path: Path) -> None:
    student, rows = save_tokenizer(tmp_path / "s"), tmp_path / "p.jsonl"
    questions = ["1+1" * 40, *["1+1"] * 129]
    rows.write_text(
        "".join(json.dumps({"question": text, "final_answer": "2", "difficulty": 6}) + "\n" for text in questions)
    )
    given = [f"data.train={rows}", f"student.model_name={student}", "data.max_prompt_tokens=100"]
    given += ["data.prompt_template={question}", f"teacher.model_name={student}"]
    for change, status, said in (
        ("data.long_prompts=refuse", "fail", "1 of 130 prompts have more than data.max_prompt_tokens=100"),
        ("data.long_prompts=drop", "ok", "1 of the training prompts are dropped"),
    ):
        found = {one.check: one for one in models.tokenizer_findings(nemo(*given, change))}["prompt length"]
        assert (found.status, found.message[: len(said)]) == (status, said)


def test_one_different_id_is_a_fail(tmp_path: Path) -> None:
    student, teacher = save_tokenizer(tmp_path / "s"), save_tokenizer(tmp_path / "t")
    change_tokenizer(teacher, "</think>", "</other>")
    found = tokenizers(student, teacher)["teacher tokenizer"]
    assert found.status == "fail"
    assert "'</think>' for the student and '</other>' for the teacher" in found.message


def test_a_tokenizer_of_the_hub_that_is_not_here_is_to_be_fetched() -> None:
    (found,) = models.tokenizer_findings(nemo("student.model_name=nobody/nothing"))
    assert (found.status, found.remedy[:26]) == ("fail", "hf download nobody/nothing")
    (found,) = models.tokenizer_findings(nemo("student.model_name=path/to/student"))
    assert (found.status, found.remedy) == ("fail", "give student.model_name a folder or a hub name")


@pytest.mark.parametrize(
    ("template", "statuses", "fault"),
    [
        (None, ("fail", "warn"), "has none"),
        ("{{ messages[0]['content'] }}", ("warn", "warn"), "enable_thinking changes nothing"),
        ("{{ raise_exception('no') }}", ("fail", "fail"), "refuses"),
    ],
)
def test_templates(template: str | None, statuses: tuple[str, str], fault: str, tmp_path: Path) -> None:
    """Inside NeMo-RL and in the local back end, which also takes plain prompts."""
    tokenizer = models.load_tokenizer(str(save_tokenizer(tmp_path)))
    tokenizer.chat_template = template
    found = [models.chat_finding(tokenizer, run) for run in (nemo(), local())]
    assert tuple(one.status for one in found) == statuses
    assert fault in found[0].message


def test_vocabularies(tmp_path: Path) -> None:
    student = save_model(tmp_path / "s", vocab_size=300)
    teacher = save_model(tmp_path / "t", vocab_size=320)
    named = [f"student.model_name={student}", f"teacher.model_name={teacher}"]
    found = {one.check: one.status for one in models.vocabulary_findings(nemo(*named, "student.vocabulary=300"), sizes)}
    assert found == {"student vocabulary": "ok", "teacher vocabulary": "fail"}
    assert [one.status for one in models.vocabulary_findings(local(*named), sizes)] == ["ok", "fail"]
    unknown = nemo("student.model_name=nobody/knows", f"teacher.model_name={teacher}", "student.vocabulary=320")
    assert [one.status for one in models.vocabulary_findings(unknown, sizes)] == ["warn", "ok"]


def lengths(prompt: int, response: int) -> list[str]:
    return [f"data.max_prompt_tokens={prompt}", f"rollout.max_response_tokens={response}"]


def test_limits_of_generation(tmp_path: Path) -> None:
    """256 positions; 257 tokens are too many. 2 query heads; 3 ranks cannot share them."""
    student = f"student.model_name={save_model(tmp_path)}"

    def statuses(*changes: str) -> list[str]:
        return [one.status for one in models.limits_findings(nemo(student, *changes), sizes)]

    assert statuses(*lengths(56, 200)) == ["ok"]
    ranks = ["rollout.tensor=3", "cluster.gpus_per_node=6", "evaluation.max_tokens=100"]
    assert statuses(*lengths(57, 200), *ranks) == ["fail", "fail"]


def test_a_local_run_asks_for_the_prompts_that_there_are(tmp_path: Path) -> None:
    """256 positions; the local loop refuses a prompt that does not fit beside a response, not what a key allows."""
    folder = save_model(tmp_path / "s")
    small = Path(shutil.copytree(folder, tmp_path / "t"))
    values = json.loads((small / "config.json").read_text()) | {"max_position_embeddings": 150}
    (small / "config.json").write_text(json.dumps(values))

    def found(prompt: int, response: int, evaluation: int, teacher: Path = folder) -> Finding:
        named = [f"student.model_name={folder}", f"teacher.model_name={teacher}"]
        changes = [*named, *lengths(prompt, response), f"evaluation.max_tokens={evaluation}"]
        (finding,) = models.limits_findings(local(*changes), sizes)
        return finding

    assert found(56, 200, 1).status == "ok"
    assert "= 200, 56 of the student's 256 positions are left for a prompt" in found(57, 200, 1).message
    assert (found(57, 200, 1).status, found(1, 256, 1).status) == ("warn", "fail")
    assert found(100, 100, 156).status == "ok"
    assert "beside evaluation.max_tokens = 157, 99 of the student's" in found(100, 100, 157).message
    assert "50 of the teacher's 150 positions are left" in found(100, 100, 1, teacher=small).message


def save_distributed(folder: Path) -> Path:
    """A checkpoint in torch's distributed format with the files that Megatron adds."""
    import torch.distributed.checkpoint as dcp

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that nothing is distributed here
        dcp.save({"decoder.final_layernorm.weight": torch.ones(4)}, checkpoint_id=folder, no_dist=True)
    torch.save({"iteration": 1}, folder / "common.pt")
    (folder / "metadata.json").write_text(json.dumps({"sharded_backend": "torch_dist"}))
    return folder


KEY = "student.megatron_checkpoint"


def test_megatron_checkpoints(tmp_path: Path) -> None:
    assert "no folder" in models.megatron_finding(KEY, str(tmp_path / "absent")).message
    assert "no iter_ folder" in models.megatron_finding(KEY, str(tmp_path)).message
    iteration = save_distributed(tmp_path / "iter_0000007")
    assert models.megatron_finding(KEY, str(tmp_path)).message.endswith("iter_0000007, 1 shards")
    assert models.megatron_finding(KEY, str(iteration)).status == "ok"
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("8")
    assert "no iter_0000008" in models.megatron_finding(KEY, str(tmp_path)).message
    shard = next(iteration.glob("*.distcp"))
    shard.write_bytes(b"")
    assert "truncated shard of 0 bytes" in models.megatron_finding(KEY, str(iteration)).message
    shard.unlink()
    assert "missing shard" in models.megatron_finding(KEY, str(iteration)).message


def test_a_nemo_rl_run_that_would_be_resumed(tmp_path: Path) -> None:
    assert models.resume_findings(str(tmp_path), nemo=True) == []
    step = tmp_path / "checkpoints" / "step_20"
    save_distributed(step / "policy" / "weights" / "iter_0000000")
    (found,) = models.resume_findings(str(tmp_path), nemo=True)
    assert "no training_info.json" in found.message
    (step / "training_info.json").write_text("{}")
    (found,) = models.resume_findings(str(tmp_path), nemo=True)
    assert found.status == "ok"


def test_a_folder_with_code_of_its_own(tmp_path: Path) -> None:
    """A run inside NeMo-RL would execute it, even where transformers knows the type."""
    path = save_model(tmp_path) / "config.json"
    assert models.code_findings(nemo(), {"teacher": str(tmp_path)}) == []
    path.write_text(json.dumps(json.loads(path.read_text()) | {"auto_map": {"AutoConfig": "own.Own"}}))
    (found,) = models.code_findings(nemo(), {"teacher": str(tmp_path)})
    assert (found.check, found.status, "which NeMo-RL would run" in found.message) == ("teacher code", "fail", True)
