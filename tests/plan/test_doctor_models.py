"""Model folders, tokenizers, templates, vocabularies and checkpoints, each damaged for real."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from nemo_uecr.cli.look import sizes
from nemo_uecr.config.nemo_schema import AnyConfig
from nemo_uecr.data.models import load_tokenizer
from nemo_uecr.plan import doctor
from nemo_uecr.plan.machine import Finding
from tests.plan.subjects import change_tokenizer, local, made, nemo, save_model, save_tokenizer


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def model(name: object) -> Finding:
    (found,) = made(lambda: doctor.model_finding(nemo(), "student", str(name)))
    return found


def test_a_damaged_model_and_a_missing_shard(tmp_path: Path) -> None:
    folder = save_model(tmp_path, shard="10KB")
    shards = sorted(folder.glob("model-*.safetensors"))
    assert model(folder).status == "ok"
    cut(shards[1])
    assert f"{shards[1].name}: truncated" in model(folder).message
    shards[1].unlink()
    assert f"{shards[1].name}: missing shard" in model(folder).message
    (folder / "config.json").unlink()
    assert "config.json: cannot be read" in model(folder).message


def test_names_that_are_not_here(tmp_path: Path) -> None:
    assert model(tmp_path / "absent").status == "fail"
    found = model("nobody/has-this-model")
    assert (found.status, found.remedy.partition(" (")[0]) == ("warn", "hf download nobody/has-this-model")


def test_a_folder_with_code_of_its_own(tmp_path: Path) -> None:
    """A run inside NeMo-RL would execute it, even where transformers knows the type."""
    path = save_model(tmp_path) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"auto_map": {"AutoConfig": "own.Own"}}))
    found = model(tmp_path)
    assert (found.status, "which NeMo-RL would run" in found.message) == ("fail", True)


def tokenizers(student: Path, teacher: Path) -> dict[str, Finding]:
    run = nemo(f"student.model_name={student}", f"teacher.model_name={teacher}")
    return {one.check: one for one in doctor.tokenizer_findings(run)}


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
        ("data.long_prompts=drop", "ok", "1 prompts are dropped"),
    ):
        found = {one.check: one for one in doctor.tokenizer_findings(nemo(*given, change))}["prompt length"]
        assert (found.status, found.message[: len(said)]) == (status, said)


def test_one_different_id_is_a_fail(tmp_path: Path) -> None:
    student, teacher = save_tokenizer(tmp_path / "s"), save_tokenizer(tmp_path / "t")
    change_tokenizer(teacher, "</think>", "</other>")
    found = tokenizers(student, teacher)["teacher tokenizer"]
    assert found.status == "fail"
    assert "'</think>' for the student and '</other>' for the teacher" in found.message


def test_a_tokenizer_that_is_not_here() -> None:
    for name, remedy in (("nobody/nothing", "hf download it"), ("path/to/student", "give student.model_name a folder")):
        (found,) = made(lambda name=name: doctor.tokenizer_findings(nemo(f"student.model_name={name}")))
        assert (found.status, remedy in found.message) == ("fail", True)


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
    tokenizer = load_tokenizer(str(save_tokenizer(tmp_path)), local_files_only=True)
    tokenizer.chat_template = template
    found = [one for run in (nemo(), local()) for one in made(lambda run=run: doctor.chat_finding(tokenizer, run))]
    assert tuple(one.status for one in found) == statuses
    assert fault in found[0].message


def fit(run: AnyConfig) -> dict[str, list[Finding]]:
    found = made(lambda: doctor.fit_findings(run, sizes, gpu_memory=None, host_memory=2**40))
    return {one.check: [other for other in found if other.check == one.check] for one in found}


def lengths(prompt: int, response: int) -> list[str]:
    return [f"data.max_prompt_tokens={prompt}", f"rollout.max_response_tokens={response}"]


def test_models_that_do_not_fit_the_run(tmp_path: Path) -> None:
    """Other output columns, 257 tokens on 256 positions, and 2 query heads on 3 ranks."""
    student, teacher = save_model(tmp_path / "s"), save_model(tmp_path / "t", vocab_size=320)
    alone = [f"student.model_name={student}", "student.vocabulary=300", f"teacher.model_name={student}"]
    short = "evaluation.max_tokens=100"
    assert [one.status for one in fit(nemo(*alone, *lengths(56, 200), short))["plan"]] == ["ok"]
    told = fit(nemo(*alone, *lengths(57, 200), short, f"teacher.model_name={teacher}"))["plan"]
    assert [one.status for one in told] == ["fail"] * 3  # both models are too short
    ranks = ["rollout.tensor=3", "cluster.gpus_per_node=6"]
    assert "rollout.tensor: got 3" in made(lambda: doctor.fit_findings(
        nemo(*alone, *lengths(56, 200), short, *ranks), sizes, gpu_memory=None, host_memory=2**40
    ))[-1].message  # fmt: skip
    told = fit(local(f"student.model_name={student}", f"teacher.model_name={teacher}"))["plan"]
    assert ["the teacher 320" in one.message for one in told] == [True]


def test_a_local_run_asks_for_the_prompts_that_there_are(tmp_path: Path) -> None:
    """256 positions; the local loop refuses a prompt that does not fit beside a response, not what a key allows."""
    folder = save_model(tmp_path / "s")
    small = Path(shutil.copytree(folder, tmp_path / "t"))
    values = json.loads((small / "config.json").read_text()) | {"max_position_embeddings": 150}
    (small / "config.json").write_text(json.dumps(values))

    def found(prompt: int, response: int, evaluation: int, teacher: Path = folder) -> Finding:
        named = [f"student.model_name={folder}", f"teacher.model_name={teacher}"]
        changes = [*named, *lengths(prompt, response), f"evaluation.max_tokens={evaluation}"]
        (finding,) = fit(local(*changes))["generation length"]
        return finding

    assert found(56, 200, 1).status == "ok"
    assert "56 of the student's 256 positions are left for a prompt" in found(57, 200, 1).message
    assert (found(57, 200, 1).status, found(1, 256, 1).status) == ("warn", "fail")
    assert found(100, 100, 156).status == "ok"
    assert "beside evaluation.max_tokens, 99 of the student's" in found(100, 100, 157).message
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


def megatron(folder: Path) -> Finding:
    (found,) = made(lambda: doctor.megatron_finding(KEY, folder))
    return found


def test_megatron_checkpoints(tmp_path: Path) -> None:
    assert "no folder" in megatron(tmp_path / "absent").message
    iteration = save_distributed(tmp_path / "iter_0000007")
    assert megatron(tmp_path).message.endswith("iter_0000007, 1 shards")
    assert megatron(iteration).status == "ok"
    next(iteration.glob("*.distcp")).unlink()
    assert "missing shard" in megatron(iteration).message


def test_a_run_that_would_be_resumed(tmp_path: Path) -> None:
    inside, alone = nemo(f"run.folder={tmp_path}"), local(f"run.folder={tmp_path}")
    assert list(doctor.resume_findings(inside)) == []
    step = tmp_path / "checkpoints" / "step_20"
    save_distributed(step / "policy" / "weights" / "iter_0000000")
    (found,) = doctor.resume_findings(inside)
    assert (found.status, "training_info.json" in found.message) == ("fail", True)
    (step / "training_info.json").write_text("{}")
    assert [one.status for one in doctor.resume_findings(inside)] == ["ok"]
    (step / "manifest.json").write_text('{"model.safetensors": ""}')
    assert [one.status for one in doctor.resume_findings(alone)] == ["fail"]
    (step / "model.safetensors").touch()
    assert [one.status for one in doctor.resume_findings(alone)] == ["fail"]  # cut short
    save_file({"weight": torch.zeros(2)}, step / "model.safetensors")
    assert [one.status for one in doctor.resume_findings(alone)] == ["warn"]
    shutil.rmtree(step / "policy" / "weights")
    (found,) = doctor.resume_findings(inside)
    assert (found.status, "no folder" in found.message) == ("fail", True)
