"""An evaluation that is killed and continued: no sample lost, none twice, the same result."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("math_verify")

from nemo_uecr.data.benchmarks import LoadedBenchmark, load_benchmark
from nemo_uecr.errors import DependencyError, RunFolderError
from nemo_uecr.evaluation.engines import ChatSettings, Decoding, Generation, Request, Tokens, load_tokens
from nemo_uecr.evaluation.runner import evaluate, sample_seed
from nemo_uecr.evaluation.samples import SAMPLES
from nemo_uecr.evaluation.settings import Settings
from nemo_uecr.stopping import JOB_PROGRESS
from tests.evaluation.tiny import save_tokenizer

SETTINGS = Settings(
    samples=4, decoding=Decoding(0.6, 0.95, 20, 64), seed=42, chat=ChatSettings("{question}", None, False),
    engine="transformers", dtype="float32", batch=3,
)  # fmt: skip


class Scripted:
    """Answers right when the seed is a multiple of `every`; breaks down after so many responses."""

    def __init__(self, tokens: Tokens, every: int, stop_after: int) -> None:
        self.seeds: list[int] = []
        self._tokens, self._every, self._stop_after = tokens, every, stop_after

    def generate(self, requests: Sequence[Request], decoding: Decoding) -> list[Generation]:
        if len(self.seeds) + len(requests) > self._stop_after:
            raise KeyboardInterrupt
        self.seeds += [request.seed for request in requests]
        texts = [r"\boxed{5}" if request.seed % self._every == 0 else "no idea" for request in requests]
        return [Generation((*self._tokens.tokenizer(text)["input_ids"], 257), False) for text in texts]


@pytest.fixture
def model(tmp_path: Path) -> str:
    folder = tmp_path / "model"
    save_tokenizer(folder)
    (folder / "config.json").write_text('{"eos_token_id": 257}', encoding="utf-8")
    return str(folder)


@pytest.fixture
def benchmarks(tmp_path: Path) -> dict[str, LoadedBenchmark]:
    for name, size in (("x", 3), ("y", 2)):
        rows = [{"id": f"{name}{n}", "question": f"What is {n} + {5 - n}?", "answer": "5"} for n in range(size)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    return {name: load_benchmark(str(tmp_path / f"{name}.jsonl")) for name in ("x", "y")}


def run(
    model: str,
    benchmarks: dict[str, LoadedBenchmark],
    folder: Path,
    stop_after: int = 10**9,
    settings: Settings = SETTINGS,
) -> tuple[dict[str, object], Scripted]:
    engine = Scripted(load_tokens(model), 2, stop_after)
    return evaluate("m", model, benchmarks, settings, folder, lambda *_: engine), engine


def test_killed_and_continued_equals_uninterrupted(
    model: str, benchmarks: dict[str, LoadedBenchmark], tmp_path: Path
) -> None:
    whole, engine = run(model, benchmarks, tmp_path / "whole")
    assert len(engine.seeds) == 20 == len(set(engine.seeds))  # 5 problems of 4 samples, each with its own seed
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run(model, benchmarks, tmp_path / "parts", stop_after=7)
        with (tmp_path / "parts" / SAMPLES).open("ab") as file:
            file.write(b'{"benchmark": "x", "prob')  # what a kill in the middle of a write leaves
    assert len((tmp_path / "parts" / SAMPLES).read_bytes().splitlines()) == 6 + 6 + 1
    result, rest = run(model, benchmarks, tmp_path / "parts")
    assert len(rest.seeds) == 20 - 12
    assert result == whole
    contents = [sorted((tmp_path / name / SAMPLES).read_text().splitlines()) for name in ("whole", "parts")]
    assert contents[0] == contents[1]


def test_a_finished_evaluation_is_not_repeated(
    model: str, benchmarks: dict[str, LoadedBenchmark], tmp_path: Path
) -> None:
    first, _ = run(model, benchmarks, tmp_path / "out")
    again, engine = run(model, benchmarks, tmp_path / "out", stop_after=0)
    assert (again, engine.seeds) == (first, [])


@pytest.mark.parametrize(("stop_after", "advanced"), [(2, False), (7, True)])
def test_a_job_hears_whether_samples_were_saved(
    stop_after: int,
    advanced: bool,
    model: str,
    benchmarks: dict[str, LoadedBenchmark],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(JOB_PROGRESS, str(tmp_path / "progress"))
    with pytest.raises(KeyboardInterrupt):
        run(model, benchmarks, tmp_path / "out", stop_after=stop_after)  # in batches of three
    assert (tmp_path / "progress").exists() == advanced == bool((tmp_path / "out" / SAMPLES).exists())


def test_numbers_by_hand(model: str, benchmarks: dict[str, LoadedBenchmark], tmp_path: Path) -> None:
    result, _ = run(model, benchmarks, tmp_path / "out")
    right = {
        name: [[sample_seed(42, (name, p.id, n)) % 2 == 0 for n in range(4)] for p in benchmark.problems]
        for name, benchmark in benchmarks.items()
    }
    means = {name: sum(map(sum, rows)) / (4 * len(rows)) for name, rows in right.items()}
    sets = result["sets"]
    assert isinstance(sets, dict)
    for name, rows in right.items():
        assert sets[name]["avg"] == pytest.approx(means[name])
        assert sets[name]["pass"]["4"] == pytest.approx(sum(map(any, rows)) / len(rows))
        assert sets[name]["verdicts"]["correct"] == sum(map(sum, rows))
    # x has three problems and y two; the average gives each benchmark one half.
    assert result["average"]["avg"] == pytest.approx((means["x"] + means["y"]) / 2)  # type: ignore[index]


def test_another_decoding_in_the_same_folder_is_refused(
    model: str, benchmarks: dict[str, LoadedBenchmark], tmp_path: Path
) -> None:
    run(model, benchmarks, tmp_path / "out")
    with pytest.raises(RunFolderError, match="seed=42, this one has 43"):
        run(model, benchmarks, tmp_path / "out", settings=replace(SETTINGS, seed=43))
    run(model, benchmarks, tmp_path / "out", settings=replace(SETTINGS, batch=1))  # how it is cut up does not count


def test_other_problems_under_the_same_name_are_refused(
    model: str, benchmarks: dict[str, LoadedBenchmark], tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(model, benchmarks, tmp_path / "out", stop_after=7)
    file = tmp_path / "x.jsonl"
    file.write_text(file.read_text().replace("What is 0", "What was 0", 1))
    with pytest.raises(RunFolderError, match=r"benchmarks\.x\.row_set="):
        run(model, benchmarks | {"x": load_benchmark(str(file))}, tmp_path / "out")


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed")
def test_an_engine_that_is_not_installed_leaves_no_settings_behind(
    model: str, benchmarks: dict[str, LoadedBenchmark], tmp_path: Path
) -> None:
    with pytest.raises(DependencyError, match="engine vllm needs vLLM"):
        evaluate("m", model, benchmarks, replace(SETTINGS, engine="vllm"), tmp_path / "out")
    run(model, benchmarks, tmp_path / "out")  # the other engine, as the line says, into the same folder
