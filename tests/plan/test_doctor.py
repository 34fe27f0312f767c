"""The doctor on machines, folders, models and checkpoints made wrong for real."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nemo_uecr.cli.look import sizes
from nemo_uecr.config.nemo_schema import AnyConfig
from nemo_uecr.generation.models import load_tokenizer
from nemo_uecr.plan import doctor
from nemo_uecr.plan.contents import GIB
from nemo_uecr.plan.doctor import Finding
from tests.conftest import ROOT
from tests.conversion.folders import megatron_weights, nemo_rl_step
from tests.plan.subjects import local, nemo, save_model, save_tokenizer


def made(make: Callable[..., Finding | Iterable[Finding]], *given: Any, **named: Any) -> dict[str, tuple[str, str]]:
    """Status and words of each finding of a check; a refusal is a finding."""
    found = doctor.run_checks([("check", partial(make, *given, **named))])
    return {one.check: (one.status, f"{one.message} -> {one.remedy}") for one in found}


def one(make: Callable[..., Finding | Iterable[Finding]], *given: Any, **named: Any) -> tuple[str, str]:
    (found,) = made(make, *given, **named).values()
    return found


# -- the machine -----------------------------------------------------------------------------------------------------


def test_ports_and_names_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with socket.create_server(("", 0)) as server:
        taken = server.getsockname()[1]
        assert doctor.port_finding(taken).status == "fail"
        monkeypatch.setenv("RAY_ADDRESS", "node1:9900")
        assert doctor.port_finding(taken).status == "ok"
    assert doctor.name_finding("no-such-host.invalid", nodes=1).status == "fail"
    assert doctor.name_finding("localhost", nodes=1).status == "ok"
    assert doctor.name_finding("localhost", nodes=2).status == "fail"
    monkeypatch.setenv("SLURM_LAUNCH_NODE_IPADDR", "192.0.2.7")
    assert doctor.name_finding("localhost", nodes=2).status == "ok"


def test_packages_that_are_not_what_they_should_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that breaks at its import; and PyPI's toolkit named apex, where NVIDIA's is known by a folder."""

    def write(path: str, text: str) -> None:
        (tmp_path / path).mkdir(parents=True, exist_ok=True)
        (tmp_path / path / "__init__.py").write_text(text)

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), ROOT]))
    write("broken_package", "raise OSError('libnccl.so.2: cannot open')")
    for name, reason in (("broken_package", "libnccl"), ("no_package", "No module named 'no_package'")):
        found = doctor.import_finding(name, sys.executable, "pip install it")
        assert (found.status, found.remedy, reason in found.message) == ("fail", "pip install it", True)
    statuses = [doctor.apex_finding(sys.executable).status]
    for folder in ("apex", "apex/multi_tensor_apply"):
        write(folder, "")
        statuses.append(doctor.apex_finding(sys.executable).status)
    assert statuses == ["ok", "fail", "ok"]


def test_a_check_that_cannot_be_made_is_a_line_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PLAIN", {})
    monkeypatch.setattr(doctor, "IMPORT_S", 0.001)
    monkeypatch.setitem(sys.modules, "transformers", None)  # what Python itself takes for not installed
    run = local("student.model_name=a/b", "method.name=grpo", "teacher.model_name=null")
    found = {one.check: one for one in doctor.examine(run, ray_port=9900, sizes=sizes)}
    assert found["apex"].message.startswith("cannot be checked: TimeoutExpired: ")
    assert "transformers" in found["student tokenizer"].message
    assert found["plan"].status == "warn"


# -- the run's folders and its plan ----------------------------------------------------------------------------------


def fit(run: AnyConfig, *, gpu: int = 139, host: int = 512) -> dict[str, tuple[str, str]]:
    return made(doctor.fit_findings, run, sizes, gpu_memory=gpu * GIB, host_memory=host * GIB)


def test_the_plan_is_held_against_this_machine(tmp_path: Path) -> None:
    """Rollout takes 88.0 GiB of each GPU at the shipped share, training 52.3; the 4B run puts 340.0 GiB into a host."""
    folder = f"run.folder={tmp_path}"
    found = fit(nemo(folder))
    assert (found["plan"][0], "rollout takes the most, 88.0 GiB" in found["plan"][1]) == ("ok", True)
    assert found["host memory"][0] == "ok"
    assert "4 checkpoints of 52.45 GiB need 209.8" in found["disk"][1]
    found = fit(nemo(folder, "checkpoint.keep_last=1000000"), gpu=40, host=64)
    assert (found["plan"][0], "train needs 52.3 GiB" in found["plan"][1]) == ("fail", True)
    assert found["host memory"][1].startswith("64.0 GiB, the run needs 340.0")
    assert {found["host memory"][0], found["disk"][0]} == {"fail"}
    assert {status for status, _ in fit(local()).values()} == {"ok"}
    assert "update needs" in fit(local("device=cuda"), gpu=0)["plan"][1]
    assert fit(nemo("student.model_name=nobody/knows"))["plan"][0] == "warn"
    cut = fit(nemo("cluster.gpus_per_node=5"))["check"]
    assert (cut[0], "5 data-parallel ranks" in cut[1]) == ("fail", True)


def test_a_file_system_of_this_node_alone_is_a_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """/dev/shm is memory of this machine on every Linux."""
    monkeypatch.setenv("HF_HOME", "/dev/shm")
    assert list(doctor.shared_findings(nemo("run.folder=/dev/shm/run"))) == []
    found = made(doctor.shared_findings, nemo("cluster.nodes=2", "run.folder=/dev/shm/run"))
    assert found["shared run.folder"][0] == found["shared HF_HOME"][0] == "fail"


def test_problem_files(tmp_path: Path) -> None:
    path, keys = tmp_path / "train.jsonl", [f"data.difficulty_{end}=null" for end in ("key", "low", "high")]
    run = nemo(f"data.train={path}", "evaluation.benchmarks={}", *keys)
    rows = 126 * '{"question": "q", "final_answer": "1"}\n'
    for content, status, fault in (("", "fail", "train.jsonl"), (rows, "ok", "'question' and 'final_answer'")):
        path.write_text(content)
        found = one(doctor.problems_finding, run)
        assert (found[0], fault in found[1]) == (status, True), found


def test_what_single_keys_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)  # what Python itself takes for not installed
    assert one(doctor.extras_finding, local("rollout.engine=vllm"))[0] == "fail"
    assert one(doctor.extras_finding, local("student.lora_rank=8")) == ("ok", "transformers, lora -> ")
    file = tmp_path / "mine.py"
    run = local(f"reward={{call: '{file}:brevity'}}")
    assert "no such file" in one(doctor.rewards_finding, run)[1]
    file.write_text("def brevity(completions):\n    return [0.0 for _ in completions]\n")
    assert one(doctor.rewards_finding, run) == ("ok", "brevity -> ")


# -- models ----------------------------------------------------------------------------------------------------------


def test_damaged_model_folders_and_names_that_are_not_here(tmp_path: Path) -> None:
    def model(name: object) -> tuple[str, str]:
        return one(doctor.model_finding, nemo(), "student", str(name))

    folder = save_model(tmp_path / "m", shard="10KB")
    shards = sorted(folder.glob("model-*.safetensors"))
    assert model(folder)[0] == "ok"
    shards[1].write_bytes(shards[1].read_bytes()[:-100])
    assert f"{shards[1].name}: truncated" in model(folder)[1]
    shards[1].unlink()
    assert f"{shards[1].name}: missing shard" in model(folder)[1]
    (folder / "config.json").unlink()
    assert "has no config.json" in model(folder)[1]
    assert model(tmp_path / "absent")[0] == "fail"
    found = model("nobody/has-this-model")
    assert (found[0], "hf download nobody/has-this-model" in found[1]) == ("warn", True)
    # A run inside NeMo-RL would execute a folder's code, even where transformers knows the type.
    path = save_model(tmp_path / "code") / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"auto_map": {"AutoConfig": "own.Own"}}))
    found = model(tmp_path / "code")
    assert (found[0], "which NeMo-RL would run" in found[1]) == ("fail", True)


def test_tokenizers_and_prompts(tmp_path: Path) -> None:
    student, teacher = save_model(tmp_path / "s"), save_model(tmp_path / "t", vocabulary=320)
    rows = tmp_path / "p.jsonl"
    questions = ["1+1" * 40, *["1+1"] * 129]
    rows.write_text("".join(f'{{"question": "{q}", "final_answer": "2", "difficulty": 6}}\n' for q in questions))

    def found(*changes: str) -> dict[str, tuple[str, str]]:
        given = [f"data.train={rows}", f"student.model_name={student}", f"teacher.model_name={teacher}"]
        given += ["data.prompt_template={question}", *changes]
        return made(doctor.tokenizer_findings, nemo(*given))

    assert {status for status, _ in found().values()} == {"ok"}
    assert "non-thinking mode" in found()["chat template"][1]
    assert "</think>" in found()["chat template"][1]
    assert found()["teacher tokenizer"][1].endswith("20 columns of padding apart -> ")
    short = "data.max_prompt_tokens=100"
    assert found(short, "data.long_prompts=drop")["prompt length"][1].startswith("dropped as too long: 1")
    told = found(short, "data.long_prompts=refuse")["prompt length"]
    assert (told[0], "1 of 130 prompts have more than data.max_prompt_tokens=100" in told[1]) == ("fail", True)
    saved = teacher / "tokenizer.json"
    saved.write_text(saved.read_text().replace("</think>", "</other>"))
    told = found()["teacher tokenizer"]
    assert (told[0], "'</think>' for the student and '</other>' for the teacher" in told[1]) == ("fail", True)
    assert found("student.model_name=nobody/nothing")["check"][0] == "fail"


def test_a_benchmark_with_a_long_prompt_fails(tmp_path: Path) -> None:
    """The run drops long training problems, but never cuts a benchmark."""
    student, rows, benchmark = save_tokenizer(tmp_path / "s"), tmp_path / "p.jsonl", tmp_path / "b.jsonl"
    short, long = (
        f'{{"id": "{name}", "question": "{q}", "answer": "2"}}\n' for name, q in (("b1", "1+1"), ("b2", "1+1" * 40))
    )
    given = [f"data.train={rows}", f"student.model_name={student}", "method.name=grpo", "data.max_prompt_tokens=100"]
    given += ["data.long_prompts=drop", f"evaluation.benchmarks={{held: {benchmark}}}", "evaluation.max_tokens=100"]
    rows.write_text(short + long)
    for content, status, message in ((short, "ok", "dropped as too long: 1"), (long, "fail", "benchmark held: 1 of 1")):
        benchmark.write_text(content)
        found = made(doctor.tokenizer_findings, local(*given))["prompt length"]
        assert (found[0], message in found[1]) == (status, True)


@pytest.mark.parametrize(
    ("template", "statuses", "fault"),
    [
        (None, ["fail", "warn"], "has none"),
        ("{{ messages[0]['content'] }}", ["warn", "warn"], "enable_thinking changes nothing"),
        ("{{ raise_exception('no') }}", ["fail", "fail"], "refuses"),
        ("{{ messages[0]['content'][0]['text'] }}", ["fail", "fail"], "drops the user turn"),
    ],
)
def test_templates(template: str | None, statuses: list[str], fault: str, tmp_path: Path) -> None:
    """Inside NeMo-RL and in the local back end, which also takes plain prompts."""
    tokenizer = load_tokenizer(str(save_tokenizer(tmp_path)), local_files_only=True)
    tokenizer.chat_template = template
    found = [one(doctor.chat_finding, tokenizer, run) for run in (nemo(), local())]
    assert [status for status, _ in found] == statuses
    assert fault in found[0][1]


def test_models_that_do_not_fit_a_local_run(tmp_path: Path) -> None:
    """Other output columns, and 257 tokens on 256 positions, which it refuses only where a prompt has them."""
    student, teacher = save_model(tmp_path / "s"), save_model(tmp_path / "t", vocabulary=9000)
    named = [f"student.model_name={student}", f"teacher.model_name={student}", "evaluation.max_tokens=100"]
    fits = ["data.max_prompt_tokens=56", "rollout.max_response_tokens=200"]
    local_run = fit(local(*named, *fits))
    assert {local_run["plan"][0], local_run["generation length"][0]} == {"ok"}
    local_run = fit(local(*named, *fits, "data.max_prompt_tokens=57"))
    assert (local_run["plan"][0], local_run["generation length"][0]) == ("ok", "warn")
    assert fit(local(*named, *fits, f"teacher.model_name={teacher}"))["plan"][0] == "fail"
    hopeless = ["train.microbatch_responses=1", "rollout.max_response_tokens=256"]
    assert fit(local(*named, *hopeless))["generation length"][0] == "fail"  # with any prompt


# -- checkpoints -----------------------------------------------------------------------------------------------------


def test_megatron_checkpoints_and_runs_that_would_be_resumed(tmp_path: Path) -> None:
    inside, alone = nemo(f"run.folder={tmp_path}"), local(f"run.folder={tmp_path}")
    assert made(doctor.resume_findings, inside) == {}
    weights = megatron_weights(tmp_path / "iter_0000007")
    for folder, fault in ((weights, "iter_0000007, 1 shards"), (tmp_path / "absent", "no such folder")):
        assert fault in one(doctor.megatron_finding, "student.megatron_checkpoint", folder)[1]
    step = nemo_rl_step(tmp_path / "checkpoints", weights, tmp_path)
    assert one(doctor.resume_findings, inside)[0] == "ok"
    assert one(doctor.resume_findings, alone)[0] == "warn"
    next(step.rglob("*.distcp")).unlink()
    assert "missing shard" in one(doctor.resume_findings, inside)[1]
