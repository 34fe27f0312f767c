"""The list of checks on machines, folders, models and checkpoints made wrong for real, and who asks what."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from nemo_uecr.cli.look import run_facts
from nemo_uecr.config.schema import Config
from nemo_uecr.errors import UecrError
from nemo_uecr.generation.models import load_tokenizer
from nemo_uecr.generation.prompts import ChatSettings
from nemo_uecr.nemo.layout import Job
from nemo_uecr.plan.contents import GIB
from nemo_uecr.start import machine, memory, model_files
from nemo_uecr.start.checks import CONFIG, DOCTOR, JOB, NODE, TRAIN, asked, examine, require
from nemo_uecr.start.seen import Caution, Refusal
from tests.conftest import ROOT
from tests.conversion.folders import megatron_weights, nemo_rl_step
from tests.plan.subjects import local, nemo, save_model, save_tokenizer
from tests.start.looking import MEMORY, MODELS, TOKENIZERS, found

# -- the machine -----------------------------------------------------------------------------------------------------


def test_ports_and_names_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with socket.create_server(("", 0)) as server:
        taken = server.getsockname()[1]
        with pytest.raises(Refusal, match=f"^{taken} is taken on this machine; choose another with --ray-port"):
            machine.ray_port(taken)
        monkeypatch.setenv("RAY_ADDRESS", "node1:9900")
        assert machine.ray_port(taken) == "RAY_ADDRESS=node1:9900 is set: that cluster is used"
    for host, nodes in (("no-such-host.invalid", 1), ("localhost", 2)):
        with pytest.raises(Refusal, match=r"which other nodes can reach"):
            machine.node_name(host, nodes=nodes)
    assert machine.node_name("localhost", nodes=1) == "localhost is 127.0.0.1"
    monkeypatch.setenv("SLURM_LAUNCH_NODE_IPADDR", "192.0.2.7")
    assert machine.node_name("localhost", nodes=2) == "localhost is 192.0.2.7"


def test_packages_that_are_not_what_they_should_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that breaks at its import; and PyPI's toolkit named apex, where NVIDIA's is known by a folder."""

    def write(path: str, text: str) -> None:
        (tmp_path / path).mkdir(parents=True, exist_ok=True)
        (tmp_path / path / "__init__.py").write_text(text)

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), ROOT]))
    write("broken_package", "raise OSError('libnccl.so.2: cannot open')")
    for name, reason in (("broken_package", "libnccl"), ("no_package", "No module named 'no_package'")):
        with pytest.raises(Refusal, match=rf"^cannot be imported by .*{reason}.*; pip install it$"):
            machine.package(name, sys.executable, "pip install it")
    assert machine.apex(sys.executable) == "not installed"
    write("apex", "")
    with pytest.raises(Refusal, match="is an unrelated toolkit that Megatron would import; pip uninstall apex"):
        machine.apex(sys.executable)
    write("apex/multi_tensor_apply", "")
    assert machine.apex(sys.executable) == str(tmp_path / "apex")


def test_a_check_that_cannot_be_made_is_a_line_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "PLAIN", {})
    monkeypatch.setattr(machine, "IMPORT_S", 0.001)
    monkeypatch.setitem(sys.modules, "transformers", None)  # what Python itself takes for not installed
    run = local("student.model_name=a/b", "method.name=grpo", "teacher.model_name=null")
    subject = run_facts(run, 9900)
    seen = {one.check: one for one in examine(subject, asked(subject, DOCTOR))}
    assert seen["apex"].message.startswith("cannot be checked: TimeoutExpired: ")
    assert "transformers" in seen["student tokenizer"].message
    assert seen["plan"].status == "warn"
    assert {"host memory", "disk", "chat template"}.isdisjoint(seen)  # they need the sizes, or the tokenizer


# -- the run's folders and its plan ----------------------------------------------------------------------------------


Here = Callable[[int, int], None]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Here:
    """Sets the GiB of this machine's GPU and of its memory: at first a large machine's."""

    def have(gpu: int, host: int) -> None:
        monkeypatch.setattr(machine, "gpu_memory", lambda: gpu * GIB)
        monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: SimpleNamespace(total=host * GIB))

    have(139, 512)
    return have


def fit(run: Config | Job) -> dict[str, tuple[str, str]]:
    """Of a local run also how long its responses may be."""
    return found(run, *MEMORY)


def test_the_plan_is_held_against_this_machine(tmp_path: Path, here: Here) -> None:
    """Rollout takes 88.0 GiB of each GPU at the shipped share, training 52.3; the 4B run puts 340.0 GiB into a host."""
    folder = f"uecr.folder={tmp_path}"
    seen = fit(nemo(folder))
    assert (seen["plan"][0], "rollout takes the most, 88.0 GiB" in seen["plan"][1]) == ("ok", True)
    assert seen["host memory"][0] == "ok"
    assert "4 checkpoints of 52.45 GiB need 209.8" in seen["disk"][1]
    assert {status for status, _ in fit(local()).values()} == {"ok"}
    unknown = fit(nemo("policy.model_name=nobody/knows"))["plan"]
    assert (unknown[0], unknown[1].partition(" -> ")[2]) == ("warn", "the run needs no plan; watch its first step")
    cut = fit(nemo("cluster.gpus_per_node=5"))
    assert (list(cut), cut["layout"][0], "5 data-parallel ranks" in cut["layout"][1]) == (["layout"], "fail", True)
    here(40, 64)
    seen = fit(nemo(folder, "checkpointing.keep_top_k=1000000"))
    assert (seen["plan"][0], "train needs 52.3 GiB" in seen["plan"][1]) == ("fail", True)
    assert seen["host memory"][1].startswith("64.0 GiB, the run needs 340.0")
    assert {seen["host memory"][0], seen["disk"][0]} == {"fail"}
    here(0, 512)
    assert "update needs" in fit(local("device=cuda"))["plan"][1]


def test_a_file_system_of_this_node_alone_is_a_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """/dev/shm is memory of this machine on every Linux."""
    monkeypatch.setenv("HF_HOME", "/dev/shm")
    assert found(nemo("uecr.folder=/dev/shm/run"), "shared {}") == {}
    seen = found(nemo("cluster.num_nodes=2", "uecr.folder=/dev/shm/run"), "shared {}")
    assert seen["shared uecr.folder"][0] == seen["shared HF_HOME"][0] == "fail"


def test_problem_files(tmp_path: Path) -> None:
    path, keys = tmp_path / "train.jsonl", [f"uecr.data.difficulty_{end}=null" for end in ("key", "low", "high")]
    run = nemo(f"uecr.data.train={path}", "uecr.evaluation.benchmarks={}", *keys)
    rows = 126 * '{"question": "q", "final_answer": "1"}\n'
    for content, status, fault in (("", "fail", "train.jsonl"), (rows, "ok", "'question' and 'final_answer'")):
        path.write_text(content)
        seen = found(run, "problems")["problems"]
        assert (seen[0], fault in seen[1]) == (status, True), seen


def test_what_single_keys_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)  # what Python itself takes for not installed
    assert found(local("rollout.engine=vllm"), "extras")["extras"][0] == "fail"
    assert found(local("student.lora_rank=8"), "extras")["extras"] == ("ok", "transformers, lora -> ")
    file = tmp_path / "mine.py"
    (tmp_path / "p.jsonl").write_text('{"question": "1+1", "answer": "2"}\n')
    run = local(f"reward={{call: '{file}:brevity'}}", f"data.train={tmp_path / 'p.jsonl'}")
    assert "no such file" in found(run, "rewards")["rewards"][1]
    file.write_text("def brevity(completions):\n    return [0.0 for _ in completions]\n")
    assert found(run, "rewards") == {"rewards": ("ok", "brevity -> ")}
    file.write_text("def brevity(completions, level):\n    return [0.0 for _ in completions]\n")
    told = ("fail", "reward brevity asks for level; the problems have answer, question -> ")
    assert found(run, "rewards")["rewards"] == told


# -- models ----------------------------------------------------------------------------------------------------------


def test_damaged_model_folders_and_names_that_are_not_here(tmp_path: Path) -> None:
    def model(name: object) -> tuple[str, str]:
        return found(nemo(f"policy.model_name={name}"), *MODELS)["student model"]

    folder = save_model(tmp_path / "m", shard="10KB")
    shards = sorted(folder.glob("model-*.safetensors"))
    assert model(folder)[0] == "ok"
    stated = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(stated | {"attention_bias": True}))
    assert "weights (model.layers.0.self_attn.k_proj.bias, ...); expected all" in model(folder)[1]
    (folder / "config.json").write_text(json.dumps(stated))
    shards[1].write_bytes(shards[1].read_bytes()[:-100])
    assert f"{shards[1].name}: truncated" in model(folder)[1]
    shards[1].unlink()
    assert f"{shards[1].name}: missing shard" in model(folder)[1]
    (folder / "config.json").unlink()
    assert "has no config.json" in model(folder)[1]
    assert model(tmp_path / "absent")[0] == "fail"
    seen = model("nobody/has-this-model")
    assert (seen[0], "hf download nobody/has-this-model" in seen[1]) == ("warn", True)
    # A run inside NeMo-RL would execute a folder's code, even where transformers knows the type.
    path = save_model(tmp_path / "code") / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"auto_map": {"AutoConfig": "own.Own"}}))
    seen = model(tmp_path / "code")
    assert (seen[0], "which NeMo-RL would run" in seen[1]) == ("fail", True)


def test_an_adapter_s_base_and_a_student_that_cannot_be_trained(tmp_path: Path) -> None:
    student, base, adapter = save_model(tmp_path / "s"), save_model(tmp_path / "b"), tmp_path / "a"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base), "r": 4}))
    save_file({"a": torch.zeros(1)}, adapter / "adapter_model.safetensors")

    def seen(student: Path) -> dict[str, tuple[str, str]]:
        run = local(f"student.model_name={student}", f"teacher.model_name={adapter}")
        return found(run, *MODELS, "trainable student")

    def state(folder: Path, **values: object) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    assert {status for status, _ in seen(student).values()} == {"ok"}
    assert "is an adapter; merge it into its base" in seen(adapter)["trainable student"][1]
    state(base, attention_bias=True)
    assert "weights (model.layers.0.self_attn.k_proj.bias, ...); expected all" in seen(student)["teacher model"][1]
    state(student, quantization_config={"quant_method": "fp8"})
    assert "has quantised weights (fp8)" in seen(student)["trainable student"][1]


def test_tokenizers_and_prompts(tmp_path: Path) -> None:
    student, teacher = save_model(tmp_path / "s"), save_model(tmp_path / "t", vocabulary=320)
    rows = tmp_path / "p.jsonl"
    questions = ["1+1" * 40, *["1+1"] * 129]
    rows.write_text("".join(f'{{"question": "{q}", "final_answer": "2", "difficulty": 6}}\n' for q in questions))

    def seen(*changes: str) -> dict[str, tuple[str, str]]:
        given = [f"uecr.data.train={rows}", f"policy.model_name={student}", f"uecr.teacher.model_name={teacher}"]
        given += ["uecr.data.prompt_template='{question}'", *changes]
        return found(nemo(*given), *TOKENIZERS)

    assert {status for status, _ in seen().values()} == {"ok"}
    assert "non-thinking mode" in seen()["chat template"][1]
    assert "</think>" in seen()["chat template"][1]
    assert seen()["teacher tokenizer"][1].endswith("20 columns of padding apart -> ")
    short = "uecr.data.max_prompt_tokens=100"
    assert seen(short, "uecr.data.long_prompts=drop")["prompt length"][1].startswith("dropped as too long: 1")
    told = seen(short, "uecr.data.long_prompts=refuse")["prompt length"]
    assert (told[0], "1 of 130 prompts have more than data.max_prompt_tokens=100" in told[1]) == ("fail", True)
    saved = teacher / "tokenizer.json"
    saved.write_text(saved.read_text().replace("</think>", "</other>"))
    told = seen()["teacher tokenizer"]
    assert (told[0], "'</think>' for the student and '</other>' for the teacher" in told[1]) == ("fail", True)
    lost = seen("policy.model_name=nobody/nothing")
    assert (list(lost), lost["student tokenizer"][0]) == (["problems", "student tokenizer"], "fail")


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
        seen = found(local(*given), *TOKENIZERS)["prompt length"]
        assert (seen[0], message in seen[1]) == (status, True)


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
    seen = []
    for look in (
        partial(model_files.chat_template_in_nemo_rl, verified=True),
        model_files.chat_template,
    ):
        try:
            said = look(tokenizer, ChatSettings("{question}", None, thinking=False))
            seen.append(("warn", said.message) if isinstance(said, Caution) else ("ok", said))
        except UecrError as error:
            seen.append(("fail", str(error)))
    assert [status for status, _ in seen] == statuses
    assert fault in seen[0][1]


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
    hopeless = fit(local(*named, "train.microbatch_responses=1", "rollout.max_response_tokens=256"))  # with any prompt
    assert ("257 positions" in hopeless["plan"][1], "generation length" in hopeless) == (True, False)


# -- checkpoints -----------------------------------------------------------------------------------------------------


def test_megatron_checkpoints_and_runs_that_would_be_resumed(tmp_path: Path) -> None:
    inside, alone = nemo(f"uecr.folder={tmp_path}"), local(f"run.folder={tmp_path}")
    assert found(inside, "resume") == {}
    weights = megatron_weights(tmp_path / "iter_0000007")
    for folder, fault in ((weights, "iter_0000007, 1 shards"), (tmp_path / "absent", "no such folder")):
        seen = found(nemo(f"++checkpointing.pretrained_checkpoint.path={folder}"), "{}.megatron_checkpoint")
        assert fault in seen["student.megatron_checkpoint"][1]
    step = nemo_rl_step(tmp_path / "checkpoints", weights, tmp_path)
    assert found(inside, "resume")["resume"][0] == "ok"
    assert found(alone, "resume")["resume"][0] == "warn"
    next(step.rglob("*.distcp")).unlink()
    assert "missing shard" in found(inside, "resume")["resume"][1]


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "config.json").write_text('{"model_type":'),
        lambda folder: (folder / "config.json").write_text("{}"),
        lambda folder: (folder / "config.json").unlink(),
        lambda folder: (folder / "config.json").write_text("version https://git-lfs.github.com/spec/v1\noid"),
        lambda folder: (folder / "model.safetensors").write_bytes(b"cut"),
        lambda folder: folder.rename(folder.with_name("elsewhere")),
        lambda folder: (folder / "chat_template.jinja").write_text("{{ raise_exception('no') }}"),
    ],
    ids=["cut", "no model", "no configuration", "pointer", "weights", "absent", "template"],
)
def test_one_fault_of_a_folder_is_told_once(damage: Callable[[Path], object], tmp_path: Path) -> None:
    """By the first of all checks that would meet it."""
    student, teacher = save_model(tmp_path / "s"), save_model(tmp_path / "t")
    (tmp_path / "p.jsonl").write_text('{"question": "1+1", "answer": "2"}\n')
    limits = ("data.max_prompt_tokens=56", "rollout.max_response_tokens=64", "evaluation.max_tokens=64")
    run = local(f"student.model_name={student}", f"teacher.model_name={teacher}", f"data.train={tmp_path / 'p.jsonl'}",
                "data.system_prompt=null", *limits)  # fmt: skip
    checks = (*MODELS, *TOKENIZERS, *MEMORY, "trainable student", "token ids")
    assert "fail" not in {status for status, _ in found(run, *checks).values()}
    damage(student)
    faults = [text for status, text in found(run, *checks).values() if status != "ok"]
    assert len(faults) == 1, faults


# -- who asks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("made", [local, nemo])
def test_what_stops_a_run_is_also_what_the_doctor_says(made: Callable[[], Config | Job]) -> None:
    """Whatever `config check`, a job's first node or `train` raise from; a job's resources the doctor cannot know."""
    run = run_facts(made(), 9900)
    names = {asker: {check.name for check in asked(run, asker)} for asker in (DOCTOR, CONFIG, JOB, NODE, TRAIN)}
    assert names[CONFIG] | names[NODE] | names[TRAIN] <= names[DOCTOR]
    assert {"problems"} < names[NODE] <= names[CONFIG] & names[TRAIN]
    assert {"nodes", "mounts"} <= names[JOB]


def test_the_first_refusal_is_raised_and_cautions_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = tmp_path / "p.jsonl"
    rows.write_text('{"question": "1 +1", "answer": "2"}\n')
    other = tmp_path / "b.jsonl"
    other.write_text(
        '{"prompt": [{"role": "system", "content": "Add."}, {"role": "user", "content": " 1 + 1"}], "answer": 2}'
    )
    run = local(f"data.train={rows}", f"evaluation.benchmarks={{held: {other}}}", f"run.folder={tmp_path / 'run'}")
    seen = require(run_facts(run, 0), TRAIN)
    assert seen["problems"] == "data.train 1, held 1; fields 'question' and 'answer'"
    told = "held: 1 of 1 questions are also in data.train; it is not held out"
    assert caplog.messages == [told]
    assert isinstance(seen["held held out"], Caution)
    rows.write_text('{"question": "1+1"}\n')
    with pytest.raises(UecrError, match="answer"):
        require(run_facts(run, 0), CONFIG)
    assert not (tmp_path / "run").exists()
