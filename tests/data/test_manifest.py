"""A manifest that says something else than the files is found, whichever key it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nemo_uecr.data.answer_types import NAMES
from nemo_uecr.data.manifest import describe_file, faults, read_manifest
from nemo_uecr.data.manifest_shape import content_digest
from nemo_uecr.data.prepare import Settings, prepare
from nemo_uecr.errors import DataError
from tests.data.made import BENCHMARK, clean_rows, deepmath_row, write_benchmark, write_jsonl

Manifest = dict[str, Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three kept rows, one held (half of a problem told in few words), two removed for different reasons."""
    rows = [
        *clean_rows(3),
        deepmath_row("Too easy, said the owl?", difficulty=1.0),
        deepmath_row(BENCHMARK[1]),
        deepmath_row(" ".join(BENCHMARK[2].split()[:7])),
    ]
    source = write_jsonl(tmp_path / "source.jsonl", rows)
    screens = (str(write_benchmark(tmp_path)),)
    prepare(Settings(str(source), None, screens, (5.0, 7.0), frozenset(NAMES), None, 42, 1), tmp_path / "out")
    return tmp_path / "out"


def rewrite(folder: Path, change: Callable[[Manifest], object], *, sign: bool) -> None:
    """Change the manifest; signed, its own digest is that of the change."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_bytes())
    change(manifest)
    if sign:
        manifest["sha256"] = content_digest(manifest)
    path.write_text(json.dumps(manifest), encoding="utf-8")


def put(*keys: str, value: object) -> Callable[[Manifest], None]:
    def change(manifest: Manifest) -> None:
        inner = manifest
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = value

    return change


def test_the_made_folder_is_sound(folder: Path) -> None:
    assert faults(folder) == []
    assert read_manifest(folder)["counts"] == {
        "read": 6, "kept": 3, "held": 1, "removed": 2, "reasons": {"difficulty_outside": 1, "screen_exact": 1},
    }  # fmt: skip


@pytest.mark.parametrize(
    "keys",
    [
        ("settings", "seed"), ("settings", "filter_version"), ("source", "revision"), ("settings", "sample"),
        ("screens", "bench", "revision"), ("settings", "screening", "order"), ("source", "name"),
    ],
)  # fmt: skip
def test_what_no_file_tells_is_covered_by_the_digest(folder: Path, keys: tuple[str, ...]) -> None:
    rewrite(folder, put(*keys, value="7"), sign=False)
    assert ["manifest.json: changed" in fault for fault in faults(folder)] == [True]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("counts", "reasons", value={"difficulty_outside": 2}), "counts: reasons are"),
        (put("counts", "reasons", value={"answer_text": 1, "screen_exact": 1}), "counts: reasons are"),
        (put("counts", "kept", value=4), "3 rows, counts.kept says 4"),
        (put("counts", "read", value=7), "6 rows, counts.read says 7"),
        (put("row_sets", "held", "rows", value=2), "1 rows, row_sets.held.rows says 2"),
        (put("row_sets", "source", "sha256", value="00"), "not the source's rows"),
        (put("settings", "difficulty", value=[6.5, 7.0]), "difficulty 6.0, outside 6.5 to 7.0"),
        (put("settings", "answer_types", value=["set"]), "answer of type integer"),
        (put("screens", "bench", "problems", value=2), "screens: the manifest has problems"),
        (put("screens", value={}), "screens: the manifest has problems"),
    ],
)
def test_what_the_files_tell_is_counted_again(folder: Path, change: Callable[[Manifest], object], message: str) -> None:
    rewrite(folder, change, sign=True)
    assert any(message in fault for fault in faults(folder))


def test_a_row_that_the_settings_exclude_is_found(folder: Path) -> None:
    file = folder / "train.jsonl"
    file.write_text(file.read_text(encoding="utf-8").replace("6.0", "9.0", 1), encoding="utf-8")
    rewrite(folder, put("files", "train.jsonl", value=describe_file(file)), sign=True)
    assert faults(folder) == ["train.jsonl: row 1 has difficulty 9.0, outside 5.0 to 7.0"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("counts", value={}), "no 'counts.read'"),
        (put("counts", value=[]), "counts is \\[\\], expected an object"),
        (put("counts", "kept", value="x"), "counts.kept is 'x'"),
        (put("row_sets", value={}), "no 'row_sets.source'"),
        (put("stages", value=[]), "stages is"),
        (put("files", value={"train.jsonl": {}}), "files is"),
        (lambda manifest: manifest.pop("settings"), "no 'settings'"),
    ],
)
def test_another_shape_is_one_line(folder: Path, change: Callable[[Manifest], object], message: str) -> None:
    rewrite(folder, change, sign=True)
    with pytest.raises(DataError, match=message):
        faults(folder)


def test_a_review_file_that_nobody_can_fill_in_is_found(folder: Path) -> None:
    review = folder / "screening" / "review.csv"
    lines = review.read_text(encoding="utf-8").splitlines(keepends=True)
    for content, message in (("", r"columns are []"), (lines[0], "it has 0 lines on 0 rows and 1 are held")):
        review.write_text(content, encoding="utf-8")
        assert message in faults(folder)[0]
    review.unlink()
    assert faults(folder) == ["screening/review.csv: missing"]


def test_an_edited_manifest_is_refused_by_those_who_use_it_and_reported_by_verify(folder: Path) -> None:
    rewrite(folder, put("settings", "seed", value=43), sign=False)
    with pytest.raises(DataError, match="digest that stands in it; the manifest was altered"):
        read_manifest(folder)
    assert faults(folder) == ["manifest.json: changed; its content does not have the digest that stands in it"]


@pytest.mark.parametrize("high", [float("inf"), float("nan")])
def test_a_manifest_that_no_reader_would_take_is_not_written(high: float, tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "source.jsonl", clean_rows(3))
    settings = Settings(str(source), None, (), (0.0, high), frozenset(NAMES), None, 42, 1)
    with pytest.raises(DataError, match=r"a setting of the manifest is not finite .*; expected finite numbers"):
        prepare(settings, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["source.jsonl"]
