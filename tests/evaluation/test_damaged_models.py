"""Model folders from somebody else whose files are JSON and still no model: `evaluate` says in one line what is wrong.

The libraries answer such files with errors of every kind, down to a bare `Exception`.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("math_verify")

from nemo_uecr.data.chat import chat_ids
from nemo_uecr.errors import DataError
from nemo_uecr.evaluation.engines.tokens import load_tokens
from tests.local import tiny
from tests.reliability.commands import refused


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny.assets().student, tmp_path / "model"))


def evaluated(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The line of `evaluate`, which leaves no sample."""
    out = tmp_path / "out"
    words = ("--benchmarks", tiny.assets().problems, "--samples", 1, "--max-tokens", 2, "--engine", "transformers")
    line = refused(capsys, "evaluate", model, *words, "--out", out)
    assert not list(tmp_path.glob("out/**/samples.jsonl"))
    return line


def change(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("config.json", {"rms_norm_eps": 1}, "Field 'rms_norm_eps' expected float, got int"),
        ("config.json", {"num_hidden_layers": 32}, "num_hidden_layers"),
        ("config.json", {"model_type": ["qwen3"]}, "TypeError"),
        ("tokenizer_config.json", {"tokenizer_class": 7}, "cannot be read: AttributeError"),
        ("tokenizer_config.json", {"model_max_length": ".."}, "cannot be read: TypeError"),
        ("tokenizer.json", {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}}, "out of vocabulary"),
        ("generation_config.json", {"pad_token_id": [[1]]}, "generation_config.json cannot be read: TypeError"),
        ("generation_config.json", {"eos_token_id": "end"}, "eos_token_id holds 'end'; expected token ids"),
        ("generation_config.json", {"eos_token_id": [2, None, -1]}, "eos_token_id holds -1; expected token ids"),
        ("generation_config.json", {"eos_token_id": [True]}, "eos_token_id holds True; expected token ids"),
    ],
)
def test_values_that_no_model_has(
    name: str, values: dict[str, object], said: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(model / name, **values)
    assert said in evaluated(model, tmp_path, capsys)


@pytest.mark.parametrize("content", ["{", "[]", "7", "[" * 100_000])
@pytest.mark.parametrize("name", ["generation_config.json", "tokenizer_config.json", "tokenizer.json"])
def test_files_that_hold_no_object(
    name: str, content: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """transformers takes a damaged generation_config.json for none, and responses would end by other tokens."""
    (model / name).write_text(content)
    assert f"{model / name}: " in evaluated(model, tmp_path, capsys)


@pytest.mark.parametrize(
    ("template", "kind"),
    [
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{% for", "TemplateSyntaxError"),
        ("{{ messages[9].content }}", "UndefinedError"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ 'a' + 1 }}", "TypeError"),
        ("{{ range(10 ** 9) }}", "OverflowError"),
        ("{{ 'a' * 10 ** 15 }}", "MemoryError"),
        ("{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}", "RecursionError"),
        ("{{ raise_exception('two\nlines') }}", "TemplateError: two lines"),
    ],
)
def test_a_chat_template_that_fails(
    template: str, kind: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (model / "chat_template.jinja").write_text(template)
    assert f"the model's chat template refuses the prompt: {kind}" in evaluated(model, tmp_path, capsys)


def test_what_is_whole_is_read(model: Path) -> None:
    tokens = load_tokens(str(model))
    assert tokens.end_ids == {tokens.tokenizer.eos_token_id}
    assert "1+1" in tokens.tokenizer.decode(chat_ids(tokens.tokenizer, "1+1", system=None, thinking=False))
    change(model / "generation_config.json", eos_token_id=[0, 3, None])
    assert load_tokens(str(model)).end_ids == {0, 3, tokens.tokenizer.eos_token_id}


def test_the_same_of_a_sentence_model(model: Path) -> None:
    from nemo_uecr.data.embedding import load_encoder

    change(model / "tokenizer_config.json", tokenizer_class=7)
    with pytest.raises(DataError, match=r"sentence model .* cannot be loaded: AttributeError"):
        load_encoder(str(model))
