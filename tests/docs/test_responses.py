"""What docs/responses.md shows of a table is run on a run, and answers its questions."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

import pytest

from nemo_uecr.responses.table import column_of, read_responses
from tests.docs.pages import ROOT, blocks_of
from tests.generation.games import write_games
from tests.local import tiny

pandas = pytest.importorskip("pandas")
pytest.importorskip("datasets")
BLOCKS = [block for block in blocks_of(ROOT / "docs" / "responses.md") if block.language == "python"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two saved steps, where the page has its own."""
    place = tmp_path_factory.mktemp("page")
    tiny.run(place / "runs" / "demo", *tiny.every())
    return place


def printed(folder: Path, number: int, monkeypatch: pytest.MonkeyPatch, *, kind: str = "evaluations") -> str:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(folder / "cache"))
    lines = io.StringIO()
    with contextlib.redirect_stdout(lines):
        exec(compile(BLOCKS[number].text.replace("evaluations", kind), BLOCKS[number].where, "exec"), {})
    return lines.getvalue().strip()


def test_the_problems_that_were_never_solved(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = [read_responses(path) for path in sorted(folder.glob("runs/demo/batches/*.parquet"))]
    pairs = [pair for table in tables for pair in zip(table.column("problem"), table.column("correct"), strict=True)]
    solved = {problem for problem, correct in pairs if correct}
    assert printed(folder, 0, monkeypatch) == str(sorted({problem for problem, _ in pairs} - solved))


def test_the_token_with_the_largest_gap(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for path in sorted(folder.glob("runs/demo/batches/*.parquet")):
        table = read_responses(path)
        gap_N = table.tokens("teacher_logp").double() - table.tokens("old_logp").double()
        found += zip(gap_N.tolist(), [word for words in table.words(range(len(table))) for word in words], strict=True)
    assert printed(folder, 1, monkeypatch) == str(max(found))


@pytest.mark.parametrize("kind", ["evaluations", "batches"])
def test_a_dialogue_can_be_read(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The turns one by one, and what was observed between them; both kinds of tables say which turn a token is of."""
    section = {"call": f"{write_games(tmp_path)}:Again", "max_turns": 2, "turn_tokens": 6, "processes": 1}
    settings = (f"environment={json.dumps(section)}", "rollout.max_response_tokens=60", "evaluation.max_tokens=60")
    run = tiny.run(tmp_path / "runs" / "second_try", *tiny.every(), *settings, "train.steps=1")
    path = max(run.glob(f"{kind}/*.parquet"))
    table = read_responses(path)
    words, sampled, turns, responses = map(table.column, ("tokens", "sampled", "turn", "response"))
    said = printed(tmp_path, 2, monkeypatch, kind=kind)
    last = [w for w, own in zip(words[-1], sampled[-1], strict=True) if own]
    assert said.startswith(f"student: {last[0]}")
    assert any("\n" in text for text in responses)
    for text, own, kept, turn in zip(responses, words, sampled, turns, strict=True):
        numbers = [number for number in turn if number is not None]
        assert [number is not None for number in turn] == kept
        assert numbers == sorted(numbers)
        each = ["".join(w for w, n in zip(own, turn, strict=True) if n == k) for k in range(max(numbers) + 1)]
        assert text == "\n".join(turn_.replace("<|im_end|>", "") for turn_ in each)
    several = max(range(len(turns)), key=lambda row: len(set(turns[row])))
    assert set(turns[several]) == {0, 1, None}
    assert "observed: " in said or set(turns[-1]) == {0}


@pytest.mark.parametrize("kind", ["batches", "evaluations"])
def test_the_page_has_every_column_with_its_type(folder: Path, kind: str) -> None:
    import pyarrow.parquet as parquet

    page = (ROOT / "docs" / "responses.md").read_text(encoding="utf-8")
    for field in parquet.read_schema(folder / "runs" / "demo" / kind / "step-000002.parquet"):
        named = column_of(field.name)
        assert f"| `{field.name}` | {named.type} |" in page or field.name.startswith("reward/")
        values = pandas.read_parquet(folder / "runs" / "demo" / kind / "step-000002.parquet", columns=[field.name])
        assert len(values) > 0
