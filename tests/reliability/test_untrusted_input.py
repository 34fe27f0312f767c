"""What comes from somebody else is read as data: nothing in a model, a checkpoint or a YAML file is executed."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch

from nemo_uecr.conversion.reading import KNOWN, read_metadata, read_weights
from nemo_uecr.data.embedding import load_encoder
from nemo_uecr.errors import CheckpointError, DataError
from nemo_uecr.generation.models import load_tokenizer
from tests.local import tiny
from tests.reliability.commands import refused

LINE = "needs code of its own"
CODE = (
    "from pathlib import Path\nPath({ran!r}).touch()\nfrom transformers import {base}\nclass Own({base}):\n    pass\n"
)
BASES = {"config": "Qwen3Config", "model": "Qwen3ForCausalLM", "tokenizer": "PreTrainedTokenizerFast"}


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that the code would make; standard input agrees to everything, as a pipe may."""
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 50))
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    return tmp_path / "ran"


@pytest.fixture
def model(tmp_path: Path, ran: Path) -> Path:
    """A whole student of a type that transformers does not know, with the code that does."""
    place = Path(shutil.copytree(tiny.assets().student, tmp_path / "own"))
    for name, base in BASES.items():
        (place / f"own_{name}.py").write_text(CODE.format(ran=str(ran), base=base))
    models = dict.fromkeys(("AutoModel", "AutoModelForCausalLM"), "own_model.Own")
    change(place / "config.json", model_type="mine", auto_map={"AutoConfig": "own_config.Own", **models})
    tokenizer = {"AutoTokenizer": ["own_tokenizer.Own", "own_tokenizer.Own"]}
    change(place / "tokenizer_config.json", tokenizer_class="Own", auto_map=tokenizer)
    return place


def change(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_code_of_a_model_folder_never_runs(
    model: Path, ran: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tiny.assets()
    for role in ("student", "teacher"):
        assert LINE in refused(capsys, *tiny.train_words(own, tmp_path / "run", f"{role}.model_name={model}"))
    sets = ("--benchmarks", own.problems, "--samples", 1, "--max-tokens", 4, "--engine", "transformers")
    assert LINE in refused(capsys, "evaluate", model, *sets, "--out", tmp_path / "e")
    for load in (load_encoder, lambda name: load_tokenizer(name, local_files_only=True)):
        with pytest.raises(DataError, match=LINE):
            load(str(model))
    assert not ran.exists()


def test_chat_templates_run_in_a_sandbox(tmp_path: Path) -> None:
    from jinja2.exceptions import SecurityError

    place = Path(shutil.copytree(tiny.assets().student, tmp_path / "student"))
    for path in place.glob("chat_template*"):
        path.unlink()
    change(place / "tokenizer_config.json", chat_template="{{ ''.__class__.__mro__[1].__subclasses__() }}")
    tokenizer = load_tokenizer(str(place), local_files_only=True)
    with pytest.raises(SecurityError):
        tokenizer.apply_chat_template([{"role": "user", "content": "1"}], tokenize=False)


class Runs:
    """Unpickled, it calls the operating system."""

    def __init__(self, ran: Path) -> None:
        self.ran = ran

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.ran}",)


def test_a_checkpoints_table_of_contents_runs_nothing(tmp_path: Path) -> None:
    """torch itself unpickles `.metadata` without a limit."""
    from torch.distributed.checkpoint import save

    weights, ran = tmp_path / "iter_0000001", tmp_path / "ran"
    save({"decoder.final_layernorm.weight": torch.zeros(4)}, checkpoint_id=weights, no_dist=True)
    (weights / "metadata.json").write_text(json.dumps({"sharded_backend": "torch_dist", "sharded_backend_version": 1}))
    torch.save({"iteration": 1}, weights / "common.pt")
    read_weights(weights)
    for protocol in (0, 2, 4):
        (weights / ".metadata").write_bytes(pickle.dumps([Runs(ran)], protocol=protocol))
        with pytest.raises(CheckpointError, match=r"(posix|os)\.system"):
            read_weights(weights)
    assert not ran.exists()


@pytest.mark.parametrize("name", ["builtins eval", "torch load", "os system"])
def test_names_beside_the_allowed_ones_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / ".metadata"
    path.write_bytes(f"c{name.replace(' ', chr(10))}\n.".encode())
    with pytest.raises(CheckpointError):
        read_metadata(path)
    assert {module.split(".")[0] for module in KNOWN} == {"builtins", "collections", "megatron", "pathlib", "torch"}


def test_yaml_builds_no_python_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    attack = f"!!python/object/apply:os.system ['touch {tmp_path / 'ran'}']"
    path = tmp_path / "own.yaml"
    path.write_text(f"defaults: {tiny.BASE}\nrun:\n  folder: {attack}\n")
    for words in (("config", "check", path), ("train", path)):
        refused(capsys, *words)
    refused(capsys, "config", "check", tiny.BASE, f"train.steps={attack}")
    assert not (tmp_path / "ran").exists()
