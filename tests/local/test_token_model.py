"""Student and teacher folders: what cannot be used is one line that says why."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from transformers import MambaConfig, MambaForCausalLM

from nemo_uecr.errors import DataError
from nemo_uecr.local.token_model import check_same_tokens
from tests.local import tiny


@pytest.fixture
def teacher(tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(tiny.TEACHER, tmp_path / "teacher"))


def edit(path: Path, change: Callable[[dict[str, object]], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_a_folder_that_no_engine_loads_names_its_key(teacher: Path) -> None:
    """Weights that are missing are not made up."""
    tensors = load_file(teacher / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, teacher / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        DataError, match=r"teacher\.model_name: .* lacks 1 weights \(model\.layers\.1\.mlp\.up_proj\.weight"
    ):
        tiny.load(teacher, role="teacher")


def test_a_student_whose_checkpoints_could_not_be_continued_is_refused(tmp_path: Path) -> None:
    student = shutil.copytree(tiny.STUDENT, tmp_path / "student")
    edit(student / "config.json", lambda config: config.update(quantization_config={"quant_method": "fp8"}))
    with pytest.raises(DataError, match=r"has quantised weights \(fp8\); training needs plain ones"):
        tiny.run(tmp_path / "run", f"student.model_name={student}", "method.name=grpo")


def test_sequences_beyond_the_models_context_are_refused_before_the_run(teacher: Path, tmp_path: Path) -> None:
    changes = (f"teacher.model_name={teacher}", "train.steps=1")
    rope = {"rope_theta": 1e4, "rope_type": "dynamic", "factor": 4.0}
    edit(teacher / "config.json", lambda config: config.update(max_position_embeddings=12, rope_parameters=rope))
    message = (
        r"a prompt of (\d+) tokens, and with rollout.max_response_tokens=6 .* the teacher .* reads at most 12 "
        r"\(max_position_embeddings in its config\.json: beyond it, dynamic scores each row by the longest one"
    )
    with pytest.raises(DataError, match=message) as error:
        tiny.run(tmp_path / "run", *changes)
    prompt = int(str(error.value).split("a prompt of ")[1].split()[0])
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    edit(teacher / "config.json", lambda config: config.update(max_position_embeddings=prompt + 6))
    tiny.run(tmp_path / "fits", *changes)


def test_a_token_that_the_model_lacks_is_refused_before_the_run(tmp_path: Path) -> None:
    """ModelTokens were added to the tokenizer alone, and one comes in every prompt."""
    tokenizer = tiny.tokenizer()
    model = tiny.new_model(tokenizer, seed=0, vocab_size=len(tokenizer) - 2)
    folder = tiny.save_model(model, tokenizer, tmp_path / "short")
    with pytest.raises(DataError, match=r"token id 290, '</think>', but the student .* has ids below 290"):
        tiny.run(tmp_path / "run", f"student.model_name={folder}", "method.name=grpo")
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_a_student_without_a_key_value_cache_is_refused_before_the_run(tmp_path: Path) -> None:
    tokenizer = tiny.tokenizer()
    sizes = {"vocab_size": len(tokenizer), "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    folder = tiny.save_model(MambaForCausalLM(MambaConfig(**sizes, **ends)), tokenizer, tmp_path / "mamba")
    with pytest.raises(DataError, match="'mamba' have no key-value cache"):
        tiny.run(tmp_path / "run", f"student.model_name={folder}", "method.name=grpo")
    assert not (tmp_path / "run").exists()


def test_other_tokenizer_is_refused_by_id(teacher: Path, tmp_path: Path) -> None:
    """One id whose text differs is enough, and no run begins."""
    check_same_tokens(tiny.load(), tiny.load(teacher, role="teacher"))

    def rename(content: dict[str, object]) -> None:
        vocabulary = content["model"]["vocab"]  # type: ignore[index]
        text = next(text for text, index in vocabulary.items() if index == 40)
        del vocabulary[text]
        vocabulary["§§"] = 40
        content["model"]["merges"] = []  # type: ignore[index]

    edit(teacher / "tokenizer.json", rename)
    said = r"token id 40 is '.*' for the student and '§§' for the teacher"
    with pytest.raises(DataError, match=said):
        check_same_tokens(tiny.load(), tiny.load(teacher, role="teacher"))
    with pytest.raises(DataError, match=said):
        tiny.run(tmp_path / "run", f"teacher.model_name={teacher}")
    assert not (tmp_path / "run").exists()


def test_grpo_never_touches_the_teacher(tmp_path: Path) -> None:
    folder = tiny.run(
        tmp_path / "run", "method.name=grpo", "teacher.model_name=/impossible/teacher", "telemetry.save_batch_every=1"
    )
    for record in tiny.metrics(folder):
        assert not [name for name in record if "teacher" in name or name.startswith("ecr/") or "unified" in name]
    assert not [name for name in tiny.tensors(folder) if "teacher" in name]
    with pytest.raises(DataError, match="/impossible/teacher"):
        tiny.run(tmp_path / "uecr", "teacher.model_name=/impossible/teacher")


def test_the_reference_does_not_move(tmp_path: Path) -> None:
    """The reference stays the initial student: the KL leaves 0."""
    folder = tiny.run(tmp_path / "run", "train.steps=3", "train.minibatch_responses=8", "loss.reference_kl=0.1")
    found = [record["policy/ref_kl"] for record in tiny.metrics(folder)]
    assert found[0] == 0.0  # one update a batch: the first is taken at the reference itself
    assert min(found[1:]) > 1e-4
