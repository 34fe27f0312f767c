"""A model folder that brings Python code: it never runs, whoever answers what on standard input."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from nemo_uecr.cli.main import entry_point
from nemo_uecr.data.embedding import load_encoder
from nemo_uecr.doctor.model_code import code_findings
from nemo_uecr.errors import DataError
from nemo_uecr.nemo_adapter.preflight import check_models
from tests.doctor.subjects import local, nemo
from tests.local import tiny
from tests.nemo_adapter.test_preflight import world
from tests.reliability.commands import complaint, refused

LINE = "got model_type 'mine' with code of its own"
CODE = (
    "from pathlib import Path\nPath({ran!r}).touch()\nfrom transformers import {base}\nclass Own({base}):\n    pass\n"
)
BASES = {"config": "Qwen3Config", "model": "Qwen3ForCausalLM", "tokenizer": "PreTrainedTokenizerFast"}


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that the code makes; standard input agrees to everything, as a pipe may."""
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


def test_the_folder_would_run_code_if_transformers_were_left_to_ask(model: Path, ran: Path) -> None:
    """Otherwise the other tests here would show nothing."""
    from transformers import AutoConfig

    AutoConfig.from_pretrained(model)
    assert ran.is_file()


@pytest.mark.parametrize("role", ["student", "teacher"])
def test_training(model: Path, ran: Path, tmp_path: Path, role: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = tiny.train_words(tiny.assets(), tmp_path / "run", f"{role}.model_name={model}")
    assert LINE in refused(capsys, *words)
    assert not ran.exists()


def test_evaluating_and_scoring(model: Path, ran: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyarrow", reason="scores are written with pyarrow (extra 'data')")
    own = tiny.assets()
    sets = ("--benchmarks", own.problems, "--samples", 1, "--max-tokens", 4, "--engine", "transformers")
    assert LINE in refused(capsys, "evaluate", model, *sets, "--out", tmp_path / "e")
    rows = tmp_path / "rows.jsonl"
    row = {"problem": "p", "checkpoint": 0, "prompt": "1+1", "response": "2", "answer": "2", "question": "1+1"}
    rows.write_text(json.dumps(row | {"truncated": False}) + "\n")
    words = ("score", rows, "--teacher", model, "--student", own.student, "--out", tmp_path / "s")
    assert LINE in refused(capsys, *words)
    assert not ran.exists()


@pytest.mark.parametrize("damaged", ["config.json", "tokenizer_config.json"])
def test_the_doctor(model: Path, ran: Path, capsys: pytest.CaptureFixture[str], damaged: str) -> None:
    """Also where only one of the two files names code."""
    other = ({"config.json", "tokenizer_config.json"} - {damaged}).pop()
    shutil.copyfile(tiny.assets().student / other, model / other)
    words = ["doctor", str(tiny.assets().config), f"student.model_name={model}"]
    found = code_findings(local(student=str(model)))
    code = entry_point(words)
    said = capsys.readouterr().out
    assert not ran.exists()
    if damaged == "config.json":
        assert [finding.status for finding in found] == ["fail"]
        assert code != 0
        assert LINE in said


def test_sentence_models(model: Path, ran: Path) -> None:
    with pytest.raises(DataError, match=LINE):
        load_encoder(str(model))
    assert not ran.exists()


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_nemo_rl_would_run_it_even_where_transformers_knows_the_type(tmp_path: Path, file: str, ran: Path) -> None:
    from nemo_uecr.config.nemo_load import load_nemo_config
    from tests.config.test_nemo import CONFIGS

    keys = world(tmp_path)
    for role in ("student", "teacher"):
        for path in tiny.assets().student.glob("token*.json"):
            shutil.copy(path, tmp_path / role)
    config = load_nemo_config(CONFIGS / "uecr_qwen3_1p7b.yaml", keys)
    check: Callable[[], None] = lambda: check_models(config)  # noqa: E731 - asked twice
    assert complaint(check) is None
    kinds = {"config.json": {"AutoConfig": "own.Own"}, "tokenizer_config.json": {"AutoTokenizer": ["own.Own", None]}}
    change(tmp_path / "teacher" / file, auto_map=kinds[file])
    assert "teacher.model_name: the" in (message := complaint(check) or "")
    assert "which NeMo-RL would run" in message
    found = code_findings(nemo(teacher=str(tmp_path / "teacher")))
    assert [finding.check for finding in found] == ["teacher code"]
    assert not ran.exists()
