"""Student and teacher folders: what cannot be used is one line that says why."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from nemo_uecr.demo.tokenizer import build_tokenizer
from nemo_uecr.errors import DataError
from nemo_uecr.local.models import TokenModel, check_same_tokens, load_model
from tests.local import tiny
from tests.local.tiny import Assets, new_model, save_model

CPU = torch.device("cpu")


def load(folder: Path | str, role: str = "teacher") -> TokenModel:
    return load_model(str(folder), role=role, dtype="float32", device=CPU, trained=False)


@pytest.fixture
def teacher(tiny: Assets, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(tiny.teacher, tmp_path / "teacher"))


def edit(path: Path, change: Callable[[dict[str, object]], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def refused(folder: Path, message: str) -> None:
    with pytest.raises(DataError, match=message) as error:
        load(folder)
    assert "\n" not in str(error.value)
    assert "teacher.model_name" in str(error.value)


def test_weights_missing_from_the_file_are_not_made_up(teacher: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(teacher / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, teacher / "model.safetensors", metadata={"format": "pt"})
    refused(teacher, r"lacks 1 weights \(model\.layers\.1\.mlp\.up_proj\.weight")


@pytest.mark.parametrize("content", [b"", b"garbage", None])
def test_damaged_or_missing_weights(teacher: Path, content: bytes | None) -> None:
    path = teacher / "model.safetensors"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    refused(teacher, "cannot be loaded: (SafetensorError|OSError)")


def test_truncated_weights(teacher: Path) -> None:
    path = teacher / "model.safetensors"
    path.write_bytes(path.read_bytes()[:5000])
    refused(teacher, "cannot be loaded: SafetensorError")


def test_pickled_weights_are_not_opened(teacher: Path) -> None:
    (teacher / "model.safetensors").unlink()
    torch.save({}, teacher / "pytorch_model.bin")
    refused(teacher, "cannot be loaded")


def test_weights_of_another_shape(teacher: Path) -> None:
    edit(teacher / "config.json", lambda config: config.update(hidden_size=64))
    refused(teacher, "the weights have other shapes than its config.json says")


@pytest.mark.parametrize("content", ["{", "{}", '{"model_type": "nonsense"}', '{"model_type": "vit"}'])
def test_configuration_of_no_causal_language_model(teacher: Path, content: str) -> None:
    (teacher / "config.json").write_text(content)
    refused(teacher, r"cannot be loaded: (OSError|ValueError|.*config\.json: malformed JSON)")


NO_OBJECTS = ("[]", "null", '"x"', "[1]")


@pytest.mark.parametrize("content", NO_OBJECTS)
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"])
def test_files_that_hold_no_object(teacher: Path, name: str, content: str) -> None:
    (teacher / name).write_text(content)
    refused(teacher, f"cannot be loaded: {teacher / name}: ")


FIELDS = {
    "heads are a text": {"num_attention_heads": "x"},
    "no heads": {"num_attention_heads": 0},
    "no width": {"hidden_size": None},
    "no layers": {"num_hidden_layers": 0},
    "layers below none": {"num_hidden_layers": -1},
    "rope is a number": {"rope_parameters": 5},
    "dtype is nothing": {"dtype": "nope"},
    "no vocabulary": {"vocab_size": 0},
    "activation is nothing": {"hidden_act": "nope"},
    "quantised": {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}},
}  # fmt: skip


@pytest.mark.parametrize("fields", FIELDS.values(), ids=FIELDS.keys())
def test_impossible_fields_of_the_configuration(teacher: Path, fields: dict[str, object]) -> None:
    edit(teacher / "config.json", lambda config: config.update(fields))
    refused(teacher, "cannot be loaded: ")


def test_a_configuration_with_infinity_is_read_as_the_doctor_reads_it(teacher: Path) -> None:
    """Some families write `Infinity` into their config.json, as Mamba's time_step_limit; transformers takes it."""
    edit(teacher / "config.json", lambda config: config.update(time_step_limit=[0.0, float("inf")]))
    assert load(teacher).vocabulary > 0


@pytest.mark.parametrize("template", ["{{ 1 + 'a' }}", "{{ 1/0 }}", "{{ messages[7].content }}", "{% if %}"])
def test_chat_template_that_fails(teacher: Path, template: str, tiny: Assets) -> None:
    from nemo_uecr.data.problems import Problem
    from nemo_uecr.local.prompts import encode_prompts
    from tests.local.tiny import configured

    model = load(teacher)
    model.tokenizer.chat_template = template
    with pytest.raises(DataError, match=r"the model's chat template refuses the prompt: [A-Za-z]+: ") as error:
        encode_prompts([Problem("a", "1+1?", "2")], model.tokenizer, configured(teacher).config.data)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("role", ["student", "teacher"])
def test_sequences_beyond_the_models_context_are_refused_before_the_run(
    tmp_path: Path, tiny: Assets, role: str
) -> None:
    from tests.local.tiny import run

    folder = Path(shutil.copytree(tiny.folder / role, tmp_path / role))
    changes = (f"{role}.model_name={folder}", "train.steps=1")
    edit(folder / "config.json", lambda config: config.update(max_position_embeddings=12))
    message = rf"a prompt of (\d+) tokens, and with rollout.max_response_tokens=6 .* the {role} .* reads at most 12 "
    with pytest.raises(DataError, match=message) as error:
        run(tmp_path / "run", *changes)
    prompt = int(str(error.value).split("a prompt of ")[1].split()[0])
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    edit(folder / "config.json", lambda config: config.update(max_position_embeddings=prompt + 6))
    run(tmp_path / "fits", *changes)
    edit(folder / "config.json", lambda config: config.update(max_position_embeddings=prompt + 5))
    with pytest.raises(
        DataError, match=rf"a sequence of up to {prompt + 6}; the {role} .* reads at most {prompt + 5} "
    ):
        run(tmp_path / "close", *changes)


def test_benchmarks_beyond_the_models_context_are_refused(tmp_path: Path, tiny: Assets) -> None:
    from tests.local.tiny import run

    with pytest.raises(DataError, match=r"with evaluation\.max_tokens=510 a sequence .* reads at most 512 "):
        run(tmp_path / "run", f"evaluation.benchmarks={{a: {tiny.problems}}}", "evaluation.max_tokens=510")


def test_a_stretched_rope_counts(teacher: Path) -> None:
    assert load(teacher).context == 512
    rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 512}
    edit(teacher / "config.json", lambda config: config.update(rope_parameters=rope))
    assert load(teacher).context == 2048


def test_folder_without_tokenizer(teacher: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (teacher / name).unlink()
    refused(teacher, "(tokenizer without tokens|cannot be loaded)")


def test_model_without_an_end_token(teacher: Path) -> None:
    for name, key in (
        ("config.json", "eos_token_id"),
        ("generation_config.json", "eos_token_id"),
        ("tokenizer_config.json", "eos_token"),
    ):
        edit(teacher / name, lambda content, key=key: content.pop(key, None))
    refused(teacher, "names no end token")


@pytest.mark.parametrize("name", ["missing/folder/here", "./missing", "/missing", "~/missing"])
def test_missing_folder(name: str) -> None:
    with pytest.raises(DataError, match=r"is no model folder \(no config\.json\); expected a folder or a hub name"):
        load(name)


def test_home_folder_is_expanded(teacher: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(teacher.parent))
    assert load("~/teacher").vocabulary == len(build_tokenizer())


def test_hub_name_without_network_is_one_line(tmp_path: Path) -> None:
    """In a process of its own, because the hub's library reads the switch when it is imported."""
    program = (
        "import torch; from nemo_uecr.local.models import load_model; from nemo_uecr.errors import DataError\n"
        "cpu = torch.device('cpu')\n"
        "try: load_model('nobody/nothing', role='teacher', dtype='float32', device=cpu, trained=False)\n"
        "except DataError as error: print(error)"
    )
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, cwd=root, check=True
    )
    assert len(done.stdout.splitlines()) == 1
    assert done.stdout.startswith("teacher.model_name 'nobody/nothing' cannot be loaded: OSError")


def test_other_tokenizer_is_refused_by_id(tiny: Assets, teacher: Path, tmp_path: Path) -> None:
    """One id whose text differs is enough, and no run begins."""
    check_same_tokens(load(tiny.student, "student"), load(teacher))

    def rename(content: dict[str, object]) -> None:
        vocabulary = content["model"]["vocab"]  # type: ignore[index]
        text = next(text for text, index in vocabulary.items() if index == 40)
        del vocabulary[text]
        vocabulary["§§"] = 40
        content["model"]["merges"] = []  # type: ignore[index]

    edit(teacher / "tokenizer.json", rename)
    said = r"token id 40 is '.*' for the student .* and '§§' for the teacher"
    with pytest.raises(DataError, match=said):
        check_same_tokens(load(tiny.student, "student"), load(teacher))
    from tests.local.tiny import run

    with pytest.raises(DataError, match=said):
        run(tmp_path / "run", f"teacher.model_name={teacher}")
    assert not (tmp_path / "run").exists()


def test_additional_token_is_refused(tiny: Assets, tmp_path: Path) -> None:
    tokenizer = build_tokenizer()
    tokenizer.add_tokens(["<new>"])
    folder = save_model(new_model(tokenizer, seed=1), tokenizer, tmp_path / "more")
    with pytest.raises(DataError, match=r"token id \d+ is None for the student .* and '<new>' for the teacher"):
        check_same_tokens(load(tiny.student, "student"), load(folder))


def test_other_vocabulary_size_is_refused(tiny: Assets, tmp_path: Path) -> None:
    tokenizer = build_tokenizer()
    folder = save_model(new_model(tokenizer, seed=1, vocab_size=len(tokenizer) + 4), tokenizer, tmp_path / "padded")
    expected = rf"has {len(tokenizer)} output columns and the teacher .* {len(tokenizer) + 4}"
    with pytest.raises(DataError, match=expected):
        check_same_tokens(load(tiny.student, "student"), load(folder))


def test_grpo_never_touches_the_teacher(tmp_path: Path) -> None:
    folder = tiny.run(
        tmp_path / "run", "method.name=grpo", "teacher.model_name=/impossible/teacher", "telemetry.save_batch_every=1"
    )
    for record in tiny.metrics(folder):
        assert not [name for name in record if "teacher" in name or name.startswith("ecr/") or "unified" in name]
    from nemo_uecr.data.batch_file import load_batch

    saved = load_batch(folder / "batches" / "step-000001.safetensors").tensors
    assert not [name for name in saved if "teacher" in name]
    with pytest.raises(DataError, match="/impossible/teacher"):
        tiny.run(tmp_path / "uecr", "teacher.model_name=/impossible/teacher")


def test_frozen_models_do_not_move(tmp_path: Path, tiny: Assets) -> None:
    """The teacher's file is as it was, and the reference stays the initial student: the KL leaves 0."""
    from nemo_uecr.files import file_sha256
    from tests.local.tiny import metrics, run

    before = file_sha256(tiny.teacher / "model.safetensors"), file_sha256(tiny.student / "model.safetensors")
    folder = run(tmp_path / "run", "train.steps=3", "train.minibatch_responses=8", "loss.reference_kl=0.1")
    found = [record["policy/ref_kl"] for record in metrics(folder)]
    assert found[0] == 0.0  # one update a batch: the first is taken at the reference itself
    assert min(found[1:]) > 1e-4
    assert (file_sha256(tiny.teacher / "model.safetensors"), file_sha256(tiny.student / "model.safetensors")) == before
