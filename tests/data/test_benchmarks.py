"""Benchmarks and data sets by their names on the hub, from a cache laid out as the hub's client leaves it."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub as hub
import huggingface_hub.constants  # the package loads it only where it is asked for
import pytest

from nemo_uecr.data.benchmarks import load_benchmark
from nemo_uecr.data.prepare import ANSWER_TYPES, PrepareSettings, prepare
from nemo_uecr.data.sources import BENCHMARKS, _snapshot, find_source
from nemo_uecr.errors import DataError
from tests.data.made import COMMIT, cache_data_set, clean_rows

SHARD = "data/train-00000-of-00001.parquet"
DATA_SETS: dict[str, list[dict[str, object]]] = {
    "zwhe99/DeepMath-103K": clean_rows(7),
    "MathArena/aime_2025": [{"problem_idx": n, "problem": f"New {n}?", "answer": n} for n in range(1, 31)],
    "HuggingFaceH4/aime_2024": [{"id": n, "problem": f"Old {n}?", "answer": f"{n:03d}"} for n in range(60, 90)],
    "MathArena/hmmt_feb_2025": [
        {"problem_idx": n, "problem": f"Winter {n}?", "answer": rf"\frac{{{n}}}{{7}}"} for n in range(1, 31)
    ],
    "MathArena/hmmt_nov_2025": [
        {"problem_idx": n, "problem": f"Autumn {n}?", "answer": rf"{n}\sqrt{{3}}"} for n in range(1, 31)
    ],
    "math-ai/amc23": [{"id": n, "question": f"Morning {n}?", "answer": f"{n}.0"} for n in range(40)],
}


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, rows in DATA_SETS.items():
        cache_data_set(tmp_path / "cache", name, {SHARD: rows})
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)
    _snapshot.cache_clear()


def test_every_benchmark_is_read() -> None:
    found = {name: load_benchmark(name) for name in BENCHMARKS}
    firsts = {"aime24": "060", "aime25": "1", "amc23": "0.0", "hmmt_feb25": r"\frac{1}{7}", "hmmt_nov25": r"1\sqrt{3}"}
    assert {name: loaded.problems[0].answer for name, loaded in found.items()} == firsts
    assert {loaded.revision for loaded in found.values()} == {COMMIT}
    named = load_benchmark("mine=amc23")
    assert (named.name, named.problems) == ("mine", found["amc23"].problems)


def test_a_benchmark_with_other_problems_than_its_own_is_refused(tmp_path: Path) -> None:
    cache_data_set(tmp_path / "cache", "math-ai/amc23", {SHARD: DATA_SETS["math-ai/amc23"][:39]})
    with pytest.raises(DataError, match="39"):
        load_benchmark("amc23")


def test_deepmath_is_prepared_and_screened_by_their_names(tmp_path: Path) -> None:
    every, name = frozenset(ANSWER_TYPES), "zwhe99/DeepMath-103K"
    settings = PrepareSettings(name, None, tuple(BENCHMARKS), (5.0, 7.0), every, None, 42)
    manifest = prepare(settings, tmp_path / "out")
    assert manifest["source"]["revision"] == COMMIT
    assert {record["revision"] for record in manifest["screens"].values()} == {COMMIT}
    assert manifest["screens"].keys() == BENCHMARKS.keys()
    assert manifest["counts"]["kept"] == 7


def test_what_the_hub_does_not_provide_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="HF_HUB_OFFLINE"):
        find_source("nobody/nothing", "test")
    (tmp_path / "a.jsonl").touch()
    assert find_source(str(tmp_path / "a.jsonl"), "test").revision is None
    with pytest.raises(DataError, match="no file"):  # a local name never reaches the hub
        find_source("missing/file.jsonl", "test")
